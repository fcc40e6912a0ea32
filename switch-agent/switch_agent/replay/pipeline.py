# SPDX-License-Identifier: Apache-2.0
"""Packets through the data plane, and all that is counted on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from switch_agent.dataplane.constants import N_FLOW, STEP_BITS
from switch_agent.dataplane.params import SymphonyParams
from switch_agent.dataplane.pipeline import new_lookups, new_registers
from switch_agent.replay.capture import BATCH
from switch_agent.replay.errors import OptionError
from switch_agent.replay.jobs import JobMap, JobRule
from switch_agent.replay.loop import SAMPLE_FIELDS, count, flush, follow, new_flows, new_tally, new_totals
from switch_agent.replay.merge import Piece
from switch_agent.replay.messages import MessageLog
from switch_agent.replay.outcomes import ROCE
from switch_agent.replay.timeline import Timeline

__all__ = ["JobProgress", "Pipeline", "Progress", "ReplayOptions"]

_NS_PER_S = 1e9
_JOBS_SHOWN = 3
_NS_PER_MS = 1e6
_MIN_WINDOW_MS, _MAX_WINDOW_MS = 0.001, 3_600_000.0
_MAX_GROUP = 1 << 16
_MAX_SEED = (1 << 63) - 1


@dataclass(frozen=True)
class ReplayOptions:
    """What to do with a capture.

    Attributes:
        params: Symphony's parameters for all jobs.
        variant: the name of the set they started from, for the report.
        step_bits: bits of the step in the tag, 2 to 14. The switch program reads 10: fewer are compared as the
            serial numbers they are, of more the low 10 count.
        rules: job rules; data packets that match none belong to the job of their tag.
        seed: of the coin, 0 .. 2^63 - 1. A packet's coin depends on it and on its place in the file only.
        window_ms: length of the timeline's windows, 0.001 ms to 1 h.
        infer_steps: find steps without tags too.
        messages_per_step: for that: how many messages a step has; None: found out.
        qp_groups: for that: how many QPs of one sender and receiver take turns; None: found out.

    Raises:
        OptionError: a value is out of range, or scope "port" was asked for.
    """

    params: SymphonyParams = field(default_factory=SymphonyParams)
    variant: str = "paper"
    step_bits: int = STEP_BITS
    rules: Sequence[JobRule] = ()
    seed: int = 1
    window_ms: float = 10.0
    infer_steps: bool = False
    messages_per_step: int | None = None
    qp_groups: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= _MAX_SEED:
            raise OptionError(f"--seed {self.seed}: give a number from 0 to {_MAX_SEED}")
        if not (math.isfinite(self.window_ms) and _MIN_WINDOW_MS <= self.window_ms <= _MAX_WINDOW_MS):
            raise OptionError(f"--window-ms {self.window_ms}: give {_MIN_WINDOW_MS} to {_MAX_WINDOW_MS:.0f}")
        for name, value in (("messages-per-step", self.messages_per_step), ("qp-groups", self.qp_groups)):
            if value is not None and not self.infer_steps:
                raise OptionError(f"--{name} is for --infer-steps: give that too")
            if value is not None and not 1 <= value <= _MAX_GROUP:
                raise OptionError(f"--{name} {value}: give a number from 1 to {_MAX_GROUP}")
        if self.params.scope != "job":
            raise OptionError("scope 'port' cannot be replayed: a capture does not tell the egress port")

    @property
    def window_ns(self) -> int:
        """Length of the timeline's windows in ns."""
        return round(self.window_ms * _NS_PER_MS)


@dataclass(frozen=True)
class JobProgress:
    """One job so far."""

    name: str
    packets: int
    step_min: int
    overlap: int
    would_mark: int

    def __str__(self) -> str:
        figures = f"{self.packets} packets, step {self.step_min}, overlap {self.overlap}, {self.would_mark} marks"
        return f"{self.name}: {figures}"


@dataclass(frozen=True)
class Progress:
    """A live capture so far; ``seconds`` since its first packet by the stamps of the capture."""

    seconds: float
    records: int
    roce: int
    jobs: Sequence[JobProgress]

    def __str__(self) -> str:
        shown = sorted(self.jobs, key=lambda job: -job.packets)[:_JOBS_SHOWN]
        return "; ".join((f"{self.seconds:.3f} s: {self.records} records, RoCE {self.roce}", *map(str, shown)))


class Pipeline:
    """The data plane and all counters while packets go through.

    Args:
        options: what to do.
        n_captures: how many captures are merged.
    """

    def __init__(self, options: ReplayOptions, n_captures: int = 1) -> None:
        self.options = options
        self.jobs = JobMap(options.rules, options.step_bits)
        n_jobs = len(self.jobs.names)
        self.regs, self._lut = new_registers(1, n_jobs, N_FLOW), new_lookups(1)
        self.tally, self.totals, self._flows = new_tally(), new_totals(n_jobs), new_flows(N_FLOW)
        self.timeline = Timeline()
        self.log = MessageLog() if options.infer_steps else None
        self._params = np.array(options.params.to_entry().values(), np.int64)
        self._samples = np.empty((max(n_captures * BATCH, n_jobs), len(SAMPLE_FIELDS)), np.int64)
        self._records = 0

    def feed(self, piece: Piece) -> None:
        """Take packets through the data plane."""
        count(piece.packets, piece.n, self.tally)
        n_samples = follow(
            piece.records,
            piece.packets,
            piece.n,
            self._records,
            self.jobs.table,
            self.jobs.n_named,
            self.jobs.step_bits,
            self._params,
            self.options.seed,
            self.options.window_ns,
            self.regs,
            self._lut,
            self._flows,
            self.tally,
            self.totals,
            self._samples,
        )
        self._records += piece.n
        if self.log:
            self.log.feed(piece)
        if n_samples:
            self.timeline.add(self._samples[:n_samples])

    def finish(self) -> None:
        """Close the windows that are open."""
        self.timeline.add(self._samples[: flush(self.regs, self.totals, self.jobs.step_bits, self._samples)])

    def progress(self) -> Progress:
        """Return how far it is."""
        rows = self._samples[: flush(self.regs, self.totals, self.jobs.step_bits, self._samples)].tolist()
        found = [dict(zip(SAMPLE_FIELDS, row, strict=True)) for row in rows]
        first, latest, *_ = self.tally.clock.tolist()
        return Progress(
            seconds=(latest - first) / _NS_PER_S,
            records=self._records,
            roce=int(self.tally.outcomes[ROCE]),
            jobs=[
                JobProgress(
                    name=self.jobs.names[row["job"]],
                    packets=int(self.totals.packets[row["job"]]),
                    step_min=row["step_min"],
                    overlap=row["overlap"],
                    would_mark=int(self.totals.marks[row["job"]]),
                )
                for row in found
            ],
        )
