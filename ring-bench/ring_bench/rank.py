# SPDX-License-Identifier: Apache-2.0
"""A rank: a state machine driven by completions and by the time that its computation takes.

A rank takes part in all rings of its group; a `RingPart` (`ring_bench.ring_end`) is its part in one of them. The rank
itself decides when an operation begins: when its computation has issued it (`ring_bench.workload`) and the one before
is complete here in all rings, as a second call on the same stream would (release rule "count" ignores that, as it
ignores the data). An operation is complete here when all its data are here, and if there are none (the root of a
broadcast) when its sends are acknowledged. The rank verifies, after the next operation's first posts are out.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from ring_bench.clocks import Alignment
from ring_bench.dtypes import DATATYPES, Array, count_wrong, pattern_offset, poison
from ring_bench.plan import Plan
from ring_bench.schedule import Schedule
from ring_bench.verbs.api import Completion, MemoryRegion, Provider
from ring_bench.wanted import Wanted
from ring_bench.work_id import ring_of
from ring_bench.workload import Do, Jitter

__all__ = ["Observer", "Rank", "Record", "RingPart"]


class Observer(Protocol):
    """Hears of steps as they happen; must not block."""

    def step(self, rank: int, ring: int, operation: int, step: int, kind: str, t_ns: int) -> None:
        """Take a step event: ``kind`` "post" or "done"; ``rank`` is the step's sender in both."""
        ...


class RingPart(Protocol):
    """What a rank does in one ring; it knows its rank."""

    sends_of: list[int]
    """Number of sends in an operation of each shape."""
    receives_of: list[int]
    """Number of receives in an operation of each shape."""

    @property
    def missing(self) -> int | None:
        """The first step that has not arrived; None: all have."""
        ...

    def begin(self, operation: int) -> None:
        """Take and send what waits for the beginning of an operation."""
        ...

    def handle(self, completion: Completion) -> None:
        """Take a successful completion. Raises ProtocolError."""
        ...

    def waiting_for(self) -> str:
        """Say what stands out; empty: nothing."""
        ...


def _none() -> array[int]:
    return array("q")


@dataclass(slots=True)
class Record:
    """What a rank measured, times in ns. -1: did not happen."""

    post_ns: list[array[int]]
    """First post of the step by this rank; index = ring, then step."""
    done_ns: list[array[int]]
    """Completion of the step that this rank received from its previous one; index = ring, then step."""
    wrong: array[int]
    """Wrong elements per operation; -1: not verified."""
    issue_ns: array[int] = field(default_factory=_none)
    """When the computation issued the operation."""
    complete_ns: array[int] = field(default_factory=_none)
    """When the operation was complete here."""
    mark_ns: array[int] = field(default_factory=_none)
    """When the iteration of a trace ended here, after a first entry: when the run began."""
    computed_ns: array[int] = field(default_factory=_none)
    """How long each `Do.COMPUTE` took, jitter included."""

    _TIMES: ClassVar[tuple[str, ...]] = ("issue_ns", "complete_ns", "mark_ns")

    def aligned(self, alignment: Alignment) -> Record:
        """Give the record with its times on rank 0's clock."""

        def shift(times: array[int]) -> array[int]:
            local = np.array(times, dtype=np.int64)
            return array("q", np.where(local < 0, local, alignment.apply(local)).tobytes())

        return replace(
            self,
            post_ns=[shift(row) for row in self.post_ns],
            done_ns=[shift(row) for row in self.done_ns],
            **{name: shift(getattr(self, name)) for name in self._TIMES},
        )

    def packed(self) -> dict[str, Any]:
        """Give the bytes of the arrays, for other processes."""
        return {
            field.name: [row.tobytes() for row in value] if isinstance(value, list) else value.tobytes()
            for field in fields(self)
            for value in [getattr(self, field.name)]
        }

    @classmethod
    def unpacked(cls, packed: Mapping[str, Any]) -> Record:
        """Rebuild a record from `packed`."""

        def rebuild(value: Any) -> Any:
            return [array("q", row) for row in value] if isinstance(value, list) else array("q", value)

        return cls(**{name: rebuild(value) for name, value in packed.items()})


@dataclass(slots=True)
class Rank:
    """One rank of the world.

    Args:
        plan: The run, the same at all ranks.
        number: World rank.
        position: Rank within its group.
        host: Name of its host.
        provider: For the clock.
        region: Its registered memory, `Plan.layout` bytes; the pattern is in place.
        wanted: What each shape of operation must give here, or None without verification.
        observer: Hears of steps, or None.
    """

    plan: Plan
    number: int
    position: int
    host: str
    provider: Provider
    region: MemoryRegion
    wanted: Sequence[Wanted] | None
    observer: Observer | None
    current: int = -1
    """The operation that has begun last."""
    ends: list[RingPart] = field(default_factory=list)
    deadline_ns: int | None = None
    """When the computation in progress ends, on the provider's clock; None: it does not compute."""
    record: Record = field(init=False)
    _receives_left: list[int] = field(init=False)
    _sends_left: list[int] = field(init=False)
    _unacknowledged: int = field(init=False)
    _durations: Iterator[int] = field(init=False)
    """What each `Do.COMPUTE` will take."""
    _cursor: int = 0
    """Index of the next action."""
    _walking: bool = False
    _issued: int = 0
    """Leading operations that the computation has issued."""
    _complete: int = 0
    """Leading operations that are complete."""
    _settled: int = 0
    """Leading operations that are complete and verified."""

    def __post_init__(self) -> None:
        plan, config = self.plan, self.plan.config
        rings = config.rings if plan.axes else 0
        operations = len(plan.operations)
        planned = [value for do, value in plan.actions if do is Do.COMPUTE]
        computed = Jitter.parse(config.compute_jitter).times(planned, seed=config.jitter_seed, rank=self.number)
        self._durations = iter(computed)
        self.record = Record(
            post_ns=[array("q", [-1]) * plan.steps_total for _ in range(rings)],
            done_ns=[array("q", [-1]) * plan.steps_total for _ in range(rings)],
            issue_ns=array("q", [-1]) * operations,
            complete_ns=array("q", [-1]) * operations,
            mark_ns=array("q", [-1]) * (1 + sum(do is Do.MARK for do, _ in plan.actions)),
            computed_ns=array("q", computed),
            wrong=array("q", [-1]) * operations,
        )

    @property
    def finished(self) -> bool:
        """Whether all is computed, all data are here and verified, and all own sends are acknowledged."""
        return (
            self._cursor == len(self.plan.actions)
            and self.deadline_ns is None
            and self._settled == len(self.plan.operations)
            and self._unacknowledged == 0
        )

    @property
    def complete(self) -> int:
        """Leading operations that are complete and, where that is on, verified."""
        return self._settled

    @property
    def missing(self) -> int | None:
        """The first step that has not arrived, of all rings; None: all have."""
        return min((end.missing for end in self.ends if end.missing is not None), default=None)

    def start(self) -> None:
        """Begin with the first action."""
        shapes = range(len(self.plan.schedules))
        sends = [sum(end.sends_of[shape] for end in self.ends) for shape in shapes]
        receives = [sum(end.receives_of[shape] for end in self.ends) for shape in shapes]
        self._sends_left = [sends[operation.shape] for operation in self.plan.operations]
        self._receives_left = [receives[operation.shape] for operation in self.plan.operations]
        self._unacknowledged = sum(self._sends_left)
        self.record.mark_ns[0] = self.provider.clock_ns()
        self._walk()

    def tick(self, now_ns: int) -> None:
        """Note that time has passed: go on if the computation in progress has ended."""
        if self.deadline_ns is not None and self.deadline_ns <= now_ns:
            self.deadline_ns = None
            self._walk()

    def handle(self, completion: Completion) -> None:
        """Take a successful completion.

        Raises:
            ProtocolError: It does not fit the state of its ring edge.
        """
        self.ends[ring_of(completion.wr_id)].handle(completion)

    def force_begin(self) -> None:
        """Begin the next operation whatever the data (release rule "count")."""
        self._begin(self.current + 1)

    def received(self, operation: int) -> None:
        """Note that one more step of an operation is received and taken."""
        self._receives_left[operation] -= 1
        if self._receives_left[operation] == 0:
            self._completed(operation)

    def sent(self, operation: int) -> None:
        """Note that one more own send of an operation is acknowledged."""
        self._sends_left[operation] -= 1
        self._unacknowledged -= 1
        if self._sends_left[operation] == 0:
            if self._receives_nothing(operation):
                self._completed(operation)
            else:
                self._advance()

    def data(self, byte_offset: int, elements: int) -> Array:
        """Give a typed view of the region."""
        config = self.plan.config
        return self.region.buffer[byte_offset : byte_offset + elements * config.item_size].view(
            DATATYPES[config.datatype]
        )

    def waiting_for(self) -> str:
        """Say in one sentence what this rank waits for; for messages about runs that hang."""
        if self._complete < len(self.plan.operations):
            waits = [text for end in self.ends if (text := end.waiting_for())]
        else:
            waits = [f"acknowledgement of its last sends ({self._unacknowledged} left)"]
        return f"rank {self.number} ({self.host}) waits for " + "; ".join(waits)

    def _walk(self) -> None:
        """Go through the actions up to one that computes or waits."""
        if self._walking:
            return  # an operation that was issued is complete at once: the caller of all this goes on
        self._walking = True
        actions, record = self.plan.actions, self.record
        while self.deadline_ns is None and self._cursor < len(actions):
            do, value = actions[self._cursor]
            if do is Do.WAIT and self._complete <= value:
                break
            self._cursor += 1
            if do is Do.COMPUTE:
                duration = next(self._durations)
                self.deadline_ns = self.provider.clock_ns() + duration if duration else None
            elif do is Do.ISSUE:
                record.issue_ns[value] = self.provider.clock_ns()
                self._issued = value + 1
                self._advance()
            elif do is Do.MARK:
                record.mark_ns[value + 1] = self.provider.clock_ns()
        self._walking = False

    def _advance(self) -> None:
        """Begin the next operation if it can begin; called when something it waits for has happened."""
        if self.plan.config.release == "count" and self.plan.axes:
            if self.current < 0:
                self._begin(0)
            return
        while self.current + 1 < self._issued and self._complete > self.current:
            following = self.current + 1
            if following >= 2 and self._sends_left[following - 2]:
                return  # data in the receive buffer about to be poisoned are still being sent
            self._begin(following)

    def _begin(self, operation: int) -> None:
        self._settle(operation - 1)  # the receive buffer is used again
        self.current = operation
        result = self._result(operation)
        if self.wanted is not None:
            poison(result)
        copied = self._schedule(operation).copied(self.position)
        if copied.length:
            begin = self.plan.pattern_offset(operation) + copied.offset * self.plan.item_size
            result[copied.offset : copied.end] = self.data(begin, copied.length)
        for end in self.ends:
            end.begin(operation)
        if self._receives_nothing(operation) and not self._sends_left[operation]:
            self._completed(operation)

    def _completed(self, operation: int) -> None:
        self.record.complete_ns[operation] = self.provider.clock_ns()
        while self._complete <= self.current and self.record.complete_ns[self._complete] >= 0:
            self._complete += 1
        self._walk()
        self._advance()
        self._settle(self._complete)

    def _settle(self, until: int) -> None:
        """Verify the complete operations before ``until`` that are not yet."""
        while self._settled < min(until, self._complete):
            self._settled += 1
            self._verify(self._settled - 1)

    def _receives_nothing(self, operation: int) -> bool:
        shape = self.plan.operations[operation].shape
        return not any(end.receives_of[shape] for end in self.ends)

    def _schedule(self, operation: int) -> Schedule:
        return self.plan.schedules[self.plan.operations[operation].shape]

    def _verify(self, operation: int) -> None:
        if self.wanted is None:
            return
        span = self._schedule(operation).result(self.position)
        wanted = self.wanted[self.plan.operations[operation].shape].at(pattern_offset(operation))
        self.record.wrong[operation] = count_wrong(self._result(operation)[span.offset : span.end], wanted)

    def _result(self, operation: int) -> Array:
        return self.data(self.plan.receive_offset(operation), self._schedule(operation).count)
