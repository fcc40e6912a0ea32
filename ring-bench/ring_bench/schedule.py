# SPDX-License-Identifier: Apache-2.0
"""Who sends which elements to whom in which step of a ring AllReduce, and how a world splits into groups.

Ring AllReduce over N ranks (Patarasuk & Yuan 2009; as NCCL runs it) has ``2 * (N - 1)`` steps. The buffer
is cut into N chunks. In reduce-scatter step s rank r sends chunk ``r - s`` to rank ``r + 1`` and reduces
chunk ``r - s - 1`` that comes from rank ``r - 1``; afterwards rank r holds the complete chunk ``r + 1``. In
all-gather step s it sends chunk ``r + 1 - s`` and receives ``r - s`` (all modulo N). So in either phase the
data sent in a step is what the step before brought.

Several rings (channels) share the buffer: ring q works on its own slice, chunked in the same way. All
lengths and offsets are in elements. Chunk i of n elements is ``[i*n//N, (i+1)*n//N)``: nothing is lost when
N does not divide n, and a chunk may be empty.

This module is plain arithmetic, without I/O. Every error is a ``ValueError``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

__all__ = ["Phase", "RingSchedule", "Span", "Split", "Transfer", "part", "steps_per_iteration"]


class Phase(StrEnum):
    """The two halves of an AllReduce."""

    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"


class Span(NamedTuple):
    """A range of elements."""

    offset: int
    length: int


class Transfer(NamedTuple):
    """What moves over one ring edge in one step."""

    phase: Phase
    chunk: int
    """Index of the chunk in its ring, 0 to ranks - 1."""
    span: Span
    """The chunk's elements, counted from the start of the whole buffer."""


def part(count: int, parts: int, index: int) -> Span:
    """Cut ``count`` elements into ``parts`` nearly equal ranges and give number ``index``, maybe empty."""
    begin = index * count // parts
    return Span(begin, (index + 1) * count // parts - begin)


def steps_per_iteration(ranks: int) -> int:
    """Give the steps of one AllReduce over a ring of ``ranks`` ranks: 2(N-1), none for a rank alone."""
    return 2 * (ranks - 1)


@dataclass(frozen=True)
class RingSchedule:
    """The transfers of one AllReduce of ``count`` elements over ``ranks`` ranks in ``rings`` rings.

    Raises:
        ValueError: Negative count, fewer than one rank or ring.
    """

    count: int
    ranks: int
    rings: int = 1

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"an AllReduce has 0 or more elements, not {self.count}")
        if self.ranks < 1:
            raise ValueError(f"a ring has at least one rank, not {self.ranks}")
        if self.rings < 1:
            raise ValueError(f"an AllReduce needs at least one ring, not {self.rings}")

    @property
    def steps(self) -> int:
        """Steps of one iteration, in every ring."""
        return steps_per_iteration(self.ranks)

    def next_rank(self, rank: int) -> int:
        """Give the rank that ``rank`` sends to."""
        return (rank + 1) % self.ranks

    def prev_rank(self, rank: int) -> int:
        """Give the rank that ``rank`` receives from."""
        return (rank - 1) % self.ranks

    def chunk(self, ring: int, index: int) -> Span:
        """Give the elements of a ring's chunk, counted from the start of the whole buffer."""
        ring_span = part(self.count, self.rings, ring)
        chunk = part(ring_span.length, self.ranks, index)
        return Span(ring_span.offset + chunk.offset, chunk.length)

    def largest_chunk(self) -> int:
        """Give the most elements any chunk has; the size of a receive scratch buffer."""
        slice_max = -(-self.count // self.rings)
        return -(-slice_max // self.ranks)

    def send(self, ring: int, rank: int, step: int) -> Transfer:
        """Say what ``rank`` sends to its next rank in ``step`` (0 to `steps` - 1) of an iteration.

        Raises:
            ValueError: No such ring, rank or step.
        """
        self._check(ring, rank, step)
        scatter_steps = self.ranks - 1
        if step < scatter_steps:
            phase, index = Phase.REDUCE_SCATTER, (rank - step) % self.ranks
        else:
            phase, index = Phase.ALL_GATHER, (rank + 1 - (step - scatter_steps)) % self.ranks
        return Transfer(phase, index, self.chunk(ring, index))

    def recv(self, ring: int, rank: int, step: int) -> Transfer:
        """Say what ``rank`` receives from its previous rank in ``step`` of an iteration.

        Raises:
            ValueError: No such ring, rank or step.
        """
        self._check(ring, rank, step)
        return self.send(ring, self.prev_rank(rank), step)

    def _check(self, ring: int, rank: int, step: int) -> None:
        if not (0 <= ring < self.rings and 0 <= rank < self.ranks and 0 <= step < self.steps):
            raise ValueError(
                f"no ring {ring}, rank {rank}, step {step} in an AllReduce of "
                f"{self.rings} rings, {self.ranks} ranks, {self.steps} steps"
            )


_SPLIT_TEXT = re.compile(r"\s*(MOD|%|DIV|/)\s*([0-9]+)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Split:
    """How a world splits into groups that each run their own AllReduce, as nccl-tests' NCCL_TESTS_SPLIT.

    ``Split("MOD", 8)``: rank r is in group ``r % 8``. ``Split("DIV", 8)``: in group ``r // 8``.
    ``Split("MOD", 1)`` keeps the world together.
    """

    kind: str
    n: int

    @classmethod
    def parse(cls, text: str) -> Split:
        """Read ``"MOD 8"``, ``"%8"``, ``"DIV 4"`` or ``"/4"``.

        Raises:
            ValueError: Anything else, or a number below 1.
        """
        match = _SPLIT_TEXT.fullmatch(text)
        if match is None or int(match[2]) < 1:
            raise ValueError(f"a split reads 'MOD n' or 'DIV n' with n >= 1, not {text!r}")
        return cls("MOD" if match[1].upper() in ("MOD", "%") else "DIV", int(match[2]))

    def group_of(self, rank: int) -> int:
        """Give the group of a world rank."""
        return rank % self.n if self.kind == "MOD" else rank // self.n

    def groups(self, world: int) -> list[list[int]]:
        """Give each group's world ranks in ring order; position in the list is the rank within the group.

        Raises:
            ValueError: Groups of different sizes (every group runs the same schedule), or an empty world.
        """
        if world < 1:
            raise ValueError(f"a world has at least one rank, not {world}")
        members: dict[int, list[int]] = {}
        for rank in range(world):
            members.setdefault(self.group_of(rank), []).append(rank)
        groups = [members[group] for group in sorted(members)]
        if len({len(group) for group in groups}) > 1:
            raise ValueError(f"'{self}' splits {world} ranks into groups of unequal sizes; choose a divisor")
        return groups

    def __str__(self) -> str:
        return f"{self.kind} {self.n}"
