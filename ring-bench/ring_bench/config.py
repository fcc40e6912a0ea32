# SPDX-License-Identifier: Apache-2.0
"""The options of a run, checked against each other, and what follows from them alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal, get_args

from ring_bench.dtypes import DATATYPES, REDUCTIONS, datatype_name, exact_ranks
from ring_bench.errors import UsageError
from ring_bench.schedule import Collective, Schedule, Split
from ring_bench.tag import TagLayout
from ring_bench.workload import Jitter, Trace

__all__ = ["MAX_RINGS", "Config", "Release", "Tagging"]

Tagging = Literal["per-step", "retag", "static"]
Release = Literal["in-order", "independent", "count"]

MAX_RINGS = 1 << 12
_MAX_STEPS = 1 << 32  # a step travels as 32-bit immediate
_MIN_MTU = 256
"""Of InfiniBand (IB spec, 9.5), bytes."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """What all ranks of a run must agree on. Sizes are bytes on the wire's scale.

    Raises:
        UsageError: An option out of range, or options that exclude each other.
    """

    world: int
    collective: str = Collective.ALL_REDUCE
    """Name of a `Collective`; a `trace` calls others."""
    root: int = 0
    """Of a broadcast: rank within the group."""
    dims: tuple[int, ...] | None = None
    """Grid of a group, fastest dimension first; None: one ring over the group."""
    trace: Trace | None = None
    """A training whose steps are the iterations, instead of a sweep of sizes."""
    trace_source: str = ""
    """Where its figures come from."""
    compute_ns: int = 0
    """Time that a rank computes between two iterations of a sweep; a trace has its own times."""
    compute_jitter: str = "none"
    """See `ring_bench.workload.Jitter`."""
    jitter_seed: int = 0
    split: str | None = None
    rings: int = 1
    minbytes: int = 32 << 20
    maxbytes: int = 32 << 20
    stepbytes: int | None = None
    stepfactor: int | None = None
    iters: int = 20
    warmup_iters: int = 1
    run_cycles: int = 1
    check: int = 1
    datatype: str = "float"
    op: str = "sum"
    tagging: Tagging = "per-step"
    release: Release = "in-order"
    slots: int = 4
    job_tag: int = 0
    step_bits: int = 10
    segment: int = 1 << 30
    mtu: int | None = None
    """Cap on the path MTU; None: what all devices can do."""
    traffic_class: int = 106
    """GRH traffic class (DSCP << 2 | ECN); 106 is DSCP 26, ECT(0)."""
    payload_scale: int = 1
    seed: int = 1

    def __post_init__(self) -> None:
        for name, low in (
            ("world", 1),
            ("rings", 1),
            ("minbytes", 1),
            ("iters", 1),
            ("warmup_iters", 0),
            ("run_cycles", 1),
            ("slots", 1),
            ("segment", 1),
            ("payload_scale", 1),
            ("compute_ns", 0),
        ):
            if getattr(self, name) < low:
                raise UsageError(f"{name} must be at least {low}, not {getattr(self, name)}")
        self._check_choices()
        self._check_sizes()
        self._check_shape()
        self._check_tags()
        if self.rings > MAX_RINGS:
            raise UsageError(f"at most {MAX_RINGS} rings")
        if self.mtu is not None and self.mtu < _MIN_MTU:
            raise UsageError(f"the smallest path MTU is {_MIN_MTU} bytes, not {self.mtu}")
        if not 0 <= self.traffic_class <= 255:
            raise UsageError(f"the traffic class has 8 bits: 0 to 255, not {self.traffic_class}")
        if not 0 <= self.seed < 1 << 63:
            raise UsageError(f"the seed must be 0 to 2^63-1, not {self.seed}")
        if self.check not in (0, 1):
            raise UsageError("-c is 0 (no verification) or 1 (every iteration)")
        if self.release == "count" and self.check:
            raise UsageError(
                "release rule 'count' sends a chunk when *some* chunk arrived, so the sums are not right: "
                "add -c 0, or use 'in-order' or 'independent'"
            )
        if self.release == "count" and (
            self.collective != Collective.ALL_REDUCE or len(self.grid) > 1 or self.trace is not None or self.compute_ns
        ):
            raise UsageError("release rule 'count' is for an AllReduce in one ring without computation")
        if self.steps_total >= _MAX_STEPS:
            raise UsageError(f"{self.steps_total} steps do not fit the 32-bit immediate: fewer iterations")

    def _check_choices(self) -> None:
        for name, choices in (
            ("tagging", get_args(Tagging)),
            ("release", get_args(Release)),
            ("collective", tuple(Collective)),
        ):
            if getattr(self, name) not in choices:
                raise UsageError(f"{name} is one of {', '.join(choices)}, not {getattr(self, name)!r}")
        if self.op not in REDUCTIONS:
            raise UsageError(f"unknown operation {self.op!r}; known: {', '.join(REDUCTIONS)}")
        try:
            object.__setattr__(self, "datatype", datatype_name(self.datatype))
            Split.parse(self.split or "MOD 1").groups(self.world)
        except ValueError as error:
            raise UsageError(str(error)) from None

    def _check_sizes(self) -> None:
        if self.maxbytes < self.minbytes:
            raise UsageError(f"-e {self.maxbytes} is smaller than -b {self.minbytes}")
        if self.stepbytes is not None and self.stepfactor is not None:
            raise UsageError("give -i (additive) or -f (multiplicative), not both")
        if self.stepbytes is not None and self.stepbytes < 1:
            raise UsageError(f"-i must be at least 1 byte, not {self.stepbytes}")
        if self.stepfactor is not None and self.stepfactor < 2:
            raise UsageError(f"-f must be at least 2, not {self.stepfactor}")
        span = self.maxbytes - self.minbytes
        if self.stepfactor is None and span // (self.stepbytes or 1 << 20) > 10_000:
            raise UsageError("the sweep has more than 10000 sizes: use -f or a larger -i")

    def _check_shape(self) -> None:
        ranks = len(self.groups[0])
        if math.prod(self.grid) != ranks or min(self.grid) < 1:
            raise UsageError(
                f"--dims {'x'.join(map(str, self.grid))} is a grid of {math.prod(self.grid)} ranks, "
                f"{'a group' if len(self.groups) > 1 else 'the world'} has {ranks}"
            )
        if self.trace is not None and len(self.trace.dimensions) > len(self.grid):
            names = " and ".join(self.trace.dimensions)
            raise UsageError(
                f"trace {self.trace.name!r} has dimensions {names}: say how many ranks each has, such as --dims 4x8"
            )
        try:
            Jitter.parse(self.compute_jitter)
            for schedule in self.schedules:
                if self.check and schedule.collective.reduces and schedule.ranks > exact_ranks(self.datatype):
                    raise UsageError(
                        f"sums of {self.datatype} are exact for up to {exact_ranks(self.datatype)} ranks: add -c 0"
                    )
        except ValueError as error:
            raise UsageError(str(error)) from None

    def _check_tags(self) -> None:
        try:
            self.layout.encode(self.job_tag, 0)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if self.tagging == "static" and self.slots != self.layout.modulus:
            raise UsageError(
                f"static tagging has one QP per tag: --slots {self.slots} must be 2^step_bits = "
                f"{self.layout.modulus} (with --tagging static, give only --slots 4, 8, 16 ... )"
            )
        if self.slots > self.layout.modulus // 2 and self.tagging != "static":
            raise UsageError(
                f"{self.slots} slots need tags that tell {self.slots} steps apart: at most "
                f"{self.layout.modulus // 2} with {self.step_bits} step bits"
            )

    @cached_property
    def layout(self) -> TagLayout:
        """The tag layout."""
        return TagLayout(self.step_bits)

    @cached_property
    def groups(self) -> list[list[int]]:
        """World ranks of each group, in ring order."""
        return Split.parse(self.split or "MOD 1").groups(self.world)

    @property
    def grid(self) -> tuple[int, ...]:
        """Lengths of a group's dimensions, fastest first."""
        return self.dims or (len(self.groups[0]),)

    @cached_property
    def schedules(self) -> list[Schedule]:
        """The different collectives of the run: one for each size of the sweep, or for each shape of a trace's calls.

        Raises:
            ValueError: A collective that cannot go along its dimensions, or has no such root.
        """
        if self.trace is None:
            return [self._schedule(count, Collective(self.collective), range(len(self.grid))) for count in self.counts]
        return list(dict.fromkeys(self._call_schedules))

    @cached_property
    def calls(self) -> list[int]:
        """The collectives of a training step, as indices into `schedules`; empty without a trace."""
        return [self.schedules.index(schedule) for schedule in self._call_schedules] if self.trace is not None else []

    @cached_property
    def _call_schedules(self) -> list[Schedule]:
        trace = self.trace
        assert trace is not None
        last = len(trace.dimensions) - 1
        found = []
        for call in trace.calls:
            count = self._elements(call.size)
            if count == 0:
                raise ValueError(
                    f"trace {trace.name!r}: {call.name} has {call.size} bytes, no {self.datatype} to move"
                    + (f" with --payload-scale {self.payload_scale}" if self.payload_scale > 1 else "")
                )
            axes = [axis for axis in range(len(self.grid)) if min(axis, last) in call.along]
            found.append(self._schedule(count, call.collective, axes))
        return found

    def _schedule(self, count: int, collective: Collective, axes: Iterable[int]) -> Schedule:
        return Schedule(count, self.grid, self.rings, collective, tuple(axes), self.root)

    def _elements(self, size: int) -> int:
        return size // self.item_size // self.payload_scale

    @property
    def steps_total(self) -> int:
        """Steps of every ring in the whole run."""
        shapes = self.calls if self.trace is not None else range(len(self.schedules))
        per_iteration = sum(self.schedules[shape].steps for shape in shapes)
        return self.run_cycles * (self.warmup_iters + self.iters) * per_iteration

    @property
    def item_size(self) -> int:
        """Bytes of an element."""
        return int(DATATYPES[self.datatype].itemsize)

    @cached_property
    def counts(self) -> list[int]:
        """Elements really moved, per size of the sweep: bytes / item size / payload scale, rounded down."""
        sizes = [self.minbytes]
        while True:
            last = sizes[-1]
            following = last * self.stepfactor if self.stepfactor else last + (self.stepbytes or 1 << 20)
            if following > self.maxbytes:
                break
            sizes.append(following)
        counts = [self._elements(size) for size in sizes]
        if self.payload_scale > 1 and counts[-1] == 0:
            raise UsageError(f"--payload-scale {self.payload_scale} leaves no element of {self.maxbytes} bytes to move")
        return counts

    @property
    def qp_mode(self) -> Literal["per-step", "persistent"]:
        """Whether a QP starts afresh with each step or keeps its congestion state."""
        return "per-step" if self.tagging == "per-step" else "persistent"

    def agreement(self) -> dict[str, Any]:
        """Give the options as plain data, for the handshake between ranks."""
        return asdict(self)
