# SPDX-License-Identifier: Apache-2.0
"""A rank: a state machine driven by completions, and by nothing else.

A rank takes part in all rings of its group; `RingEnd` is its part in one of them. The rank itself decides
when an iteration begins: when the one before is complete here in all rings, as a second call on the same
stream would (release rule "count" ignores that, as it ignores the data). And it verifies, after the next
iteration's first posts are out.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ring_bench.clocks import Alignment
from ring_bench.dtypes import DATATYPES, Array, count_wrong, pattern_offset, poison
from ring_bench.plan import Plan
from ring_bench.ring_end import RingEnd, ring_of
from ring_bench.verbs.api import Completion, MemoryRegion, Provider

__all__ = ["Observer", "Rank", "Record"]


class Observer(Protocol):
    """Hears of steps and iterations as they happen; must not block."""

    def step(self, rank: int, ring: int, iteration: int, step: int, kind: str, t_ns: int) -> None:
        """Take a step event: ``kind`` "post" or "done"; ``rank`` is the step's sender in both."""
        ...


@dataclass(slots=True)
class Record:
    """What a rank measured; index = ring, then step. -1: did not happen."""

    post_ns: list[array[int]]
    """First post of the step by this rank."""
    done_ns: list[array[int]]
    """Completion of the step that this rank received (its sender is the previous rank)."""
    wrong: array[int]
    """Wrong elements per iteration; -1: not verified."""

    def aligned(self, alignment: Alignment) -> Record:
        """Give the record with its times on rank 0's clock."""

        def shift(times: array[int]) -> array[int]:
            return array("q", alignment.apply(np.array(times, dtype=np.int64)).tobytes())

        return Record([shift(row) for row in self.post_ns], [shift(row) for row in self.done_ns], self.wrong)

    @classmethod
    def from_bytes(cls, post_ns: list[bytes], done_ns: list[bytes], wrong: bytes) -> Record:
        """Rebuild a record from the bytes of its arrays."""
        return cls([array("q", b) for b in post_ns], [array("q", b) for b in done_ns], array("q", wrong))


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
        wanted: The reduced pattern of the group, or None without verification.
        observer: Hears of steps, or None.
    """

    plan: Plan
    number: int
    position: int
    host: str
    provider: Provider
    region: MemoryRegion
    wanted: Array | None
    observer: Observer | None
    current: int = -1
    """The iteration that has begun last."""
    ends: list[RingEnd] = field(default_factory=list)
    record: Record = field(init=False)
    _receives_left: list[int] = field(init=False)
    _sends_left: list[int] = field(init=False)
    _unacknowledged: int = field(init=False)
    _complete: int = 0
    """Leading iterations whose data are all here."""
    _settled: int = 0
    """Leading iterations that are complete and verified."""

    def __post_init__(self) -> None:
        plan = self.plan
        rings = plan.config.rings if plan.steps else 0
        iterations = len(plan.iterations)
        self.record = Record(
            post_ns=[array("q", [-1]) * plan.steps_total for _ in range(rings)],
            done_ns=[array("q", [-1]) * plan.steps_total for _ in range(rings)],
            wrong=array("q", [-1]) * iterations,
        )
        self._receives_left = [rings * plan.steps] * iterations
        self._sends_left = [rings * plan.steps] * iterations
        self._unacknowledged = rings * plan.steps_total

    @property
    def finished(self) -> bool:
        """Whether all data are here, verified, and all own sends are acknowledged."""
        return self._settled == len(self._receives_left) and self._unacknowledged == 0

    @property
    def complete(self) -> int:
        """Leading iterations whose data are all here and, where that is on, verified."""
        return self._settled

    @property
    def missing(self) -> int | None:
        """The first step that has not arrived, of all rings; None: all have."""
        return min((end.missing for end in self.ends if end.missing is not None), default=None)

    def start(self) -> None:
        """Begin the first iteration. A rank alone copies all of them at once."""
        if self.plan.steps == 0:
            self._copy_all()
        else:
            self._advance()

    def handle(self, completion: Completion) -> None:
        """Take a successful completion.

        Raises:
            ProtocolError: It does not fit the state of its ring edge.
        """
        self.ends[ring_of(completion.wr_id)].handle(completion)

    def may_begin(self) -> None:
        """Begin the next iteration if it can begin; called when something it waits for has happened."""
        if self.plan.config.release != "count":
            self._advance()

    def force_begin(self) -> None:
        """Begin the next iteration whatever the data (release rule "count")."""
        self._begin(self.current + 1)

    def received(self, iteration: int) -> None:
        """Note that one more step of an iteration is received and reduced."""
        self._receives_left[iteration] -= 1
        if self._receives_left[iteration] == 0:
            while self._complete < len(self._receives_left) and self._receives_left[self._complete] == 0:
                self._complete += 1
            self.may_begin()
            self._verify(iteration)
            self._settled = self._complete

    def sent(self, iteration: int) -> None:
        """Note that one more own send of an iteration is acknowledged."""
        self._sends_left[iteration] -= 1
        self._unacknowledged -= 1
        if self._sends_left[iteration] == 0:
            self.may_begin()

    def data(self, byte_offset: int, elements: int) -> Array:
        """Give a typed view of the region."""
        config = self.plan.config
        return self.region.buffer[byte_offset : byte_offset + elements * config.item_size].view(
            DATATYPES[config.datatype]
        )

    def waiting_for(self) -> str:
        """Say in one sentence what this rank waits for; for messages about runs that hang."""
        if self._complete < len(self._receives_left):
            waits = [text for end in self.ends if (text := end.waiting_for())]
        else:
            waits = [f"acknowledgement of its last sends ({self._unacknowledged} left)"]
        return f"rank {self.number} ({self.host}) waits for " + "; ".join(waits)

    def _advance(self) -> None:
        following = self.current + 1
        if following == len(self.plan.iterations) or self._complete < following:
            return
        if following >= 2 and self._sends_left[following - 2]:
            return  # data in the receive buffer about to be poisoned are still being sent
        self._begin(following)

    def _begin(self, iteration: int) -> None:
        self.current = iteration
        if self.wanted is not None:
            poison(self._result(iteration))
        for end in self.ends:
            end.begin(iteration)

    def _verify(self, iteration: int) -> None:
        if self.wanted is None:
            return
        begin = pattern_offset(iteration)
        result = self._result(iteration)
        self.record.wrong[iteration] = count_wrong(result, self.wanted[begin : begin + result.size])

    def _result(self, iteration: int) -> Array:
        count = self.plan.counts[self.plan.iterations[iteration].size]
        return self.data(self.plan.receive_offset(iteration), count)

    def _copy_all(self) -> None:
        for iteration in range(len(self.plan.iterations)):
            self.current = iteration
            result = self._result(iteration)
            if self.wanted is not None:
                poison(result)
            result[:] = self.data(self.plan.pattern_offset(iteration), result.size)
            self._verify(iteration)
            self._complete = self._settled = iteration + 1
