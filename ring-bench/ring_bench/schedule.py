# SPDX-License-Identifier: Apache-2.0
"""Who sends which elements to whom in which step of a ring collective, and how a world splits into groups.

A group of ranks is a grid: ``dims`` are its lengths, the first one runs fastest (position p of an 8 x 4 grid is at
column ``p % 8`` of row ``p // 8``). Along each dimension (axis) the ranks form rings: the rows of an 8 x 4 grid are
rings of 8, its columns rings of 4. A group of N ranks in one ring is the grid ``(N,)``.

Steps of the collectives along an axis of N ranks, rank x of its ring; chunk indices are modulo N:

- ``reduce_scatter``, N-1 steps: step s sends chunk x-s-1, receives x-s-2 and reduces it; x ends with chunk x.
- ``all_gather``, N-1 steps: step s sends chunk x-s, receives x-s-1.
- ``all_reduce``, 2(N-1) steps (Patarasuk & Yuan 2009; as NCCL runs it): a reduce-scatter that leaves rank x with chunk
  x+1 (step s sends chunk x-s), then an all-gather from there (step s sends x+1-s). Over several axes: reduce-scatter
  along the first, reduce-scatter of the own chunk along the second, all-gather along the second, all-gather along the
  first ("rows then columns"; the hierarchical order of ASTRA-Sim). A rank sends as many bytes as in one ring over all.
- ``broadcast``, 2(N-1) steps: the root's buffer goes down the ring in N chunks; at distance d from the root a rank
  sends chunk s-d in step s.

Steps are counted over all phases of the collective. Several rings (channels) share the buffer: ring q works on its own
slice. All lengths and offsets are in elements. Part i of n elements in N parts is ``[i*n//N, (i+1)*n//N)``: nothing is
lost when N does not divide n, and a part may be empty.

This module is plain arithmetic, without I/O; ring-bench's ranks and the twin's scripted ranks follow it alike. Every
error is a ``ValueError``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

__all__ = ["Collective", "Incoming", "Outgoing", "Schedule", "Span", "Split", "Step", "Take", "part"]


class Collective(StrEnum):
    """What is computed, under the names of nccl-tests' programs."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    BROADCAST = "broadcast"

    @property
    def reduces(self) -> bool:
        """Whether values of several ranks are combined."""
        return self in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER)


class Take(StrEnum):
    """What a rank does with elements that have arrived."""

    REDUCE_OWN = "reduce_own"
    """They lie in a scratch buffer; result = own input (op) them."""
    REDUCE = "reduce"
    """They lie in a scratch buffer; result = result (op) them."""
    COPY = "copy"
    """They lie in a scratch buffer; result = them. (The sender may be ahead by whole collectives.)"""
    KEEP = "keep"
    """They were written to their place in the result."""


class Span(NamedTuple):
    """A range of elements."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        """The element after the last."""
        return self.offset + self.length


class Outgoing(NamedTuple):
    """What a rank sends to its next rank in one step."""

    span: Span
    own: bool
    """From the rank's input. Otherwise from its result."""
    scratch: bool
    """Into the receiver's scratch buffer. Otherwise to the same place in its result."""
    needs: range
    """Steps of this collective whose data are sent on: they must have been taken here."""


class Incoming(NamedTuple):
    """What a rank receives from its previous rank in one step."""

    span: Span
    take: Take
    needs: range
    """Steps of this collective that must have been taken here before this one is."""


class Step(NamedTuple):
    """One step of one rank in one ring."""

    axis: int
    """Dimension along which it goes."""
    send: Outgoing | None
    receive: Incoming | None


def part(count: int, parts: int, index: int) -> Span:
    """Cut ``count`` elements into ``parts`` nearly equal ranges and give number ``index``, maybe empty."""
    begin = index * count // parts
    return Span(begin, (index + 1) * count // parts - begin)


def _part_of(span: Span, parts: int, index: int) -> Span:
    cut = part(span.length, parts, index)
    return Span(span.offset + cut.offset, cut.length)


_NOTHING = range(0)


@dataclass(frozen=True)
class Schedule:
    """The steps of one collective of ``count`` elements.

    Attributes:
        count: Elements of the whole buffer: all-gather's result and reduce-scatter's input (nccl-tests' size).
        dims: Lengths of the group's dimensions.
        rings: Channels that share the buffer.
        collective: What is computed.
        axes: Dimensions it goes along, in order; several only for an AllReduce. Each rank takes part with those whose
            coordinates differ from its own along these axes only.
        root: Coordinate of the broadcast's root.

    Raises:
        ValueError: Something out of range.
    """

    count: int
    dims: tuple[int, ...]
    rings: int = 1
    collective: Collective = Collective.ALL_REDUCE
    axes: tuple[int, ...] = (0,)
    root: int = 0

    def __post_init__(self) -> None:
        name = self.collective
        if self.count < 0:
            raise ValueError(f"{name} has 0 or more elements, not {self.count}")
        if not self.dims or min(self.dims) < 1:
            raise ValueError(f"a ring has at least one rank: dimensions {self.dims}")
        if self.rings < 1:
            raise ValueError(f"{name} needs at least one ring, not {self.rings}")
        if not self.axes or len(set(self.axes)) < len(self.axes) or not set(self.axes) <= set(range(len(self.dims))):
            raise ValueError(f"{name} goes along different axes of {len(self.dims)}, not {self.axes}")
        if len(self.axes) > 1 and name is not Collective.ALL_REDUCE:
            raise ValueError(f"{name} goes along one axis, not {len(self.axes)}")
        if not 0 <= self.root < self.ranks:
            raise ValueError(f"root {self.root} is not one of {self.ranks} ranks")

    @property
    def ranks(self) -> int:
        """Ranks that take part together."""
        return math.prod(self.dims[axis] for axis in self.axes)

    @property
    def steps(self) -> int:
        """Steps of the collective, the same for all ranks and rings."""
        once = self.collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
        return (1 if once else 2) * sum(self.dims[axis] - 1 for axis in self.axes)

    def coordinate(self, position: int, axis: int) -> int:
        """Give the place of a group's rank in its ring along an axis."""
        return position // math.prod(self.dims[:axis]) % self.dims[axis]

    def next_rank(self, position: int, axis: int = 0) -> int:
        """Give the position that the rank at ``position`` sends to along an axis."""
        return self._neighbour(position, axis, 1)

    def prev_rank(self, position: int, axis: int = 0) -> int:
        """Give the position that the rank at ``position`` receives from along an axis."""
        return self._neighbour(position, axis, -1)

    def peers(self, position: int) -> list[int]:
        """Give the positions that take part in the collective together with ``position``, itself included.

        In the order of their coordinates; those of a one-axis collective in ring order.
        """
        found = [position - sum(self.coordinate(position, a) * math.prod(self.dims[:a]) for a in self.axes)]
        for axis in self.axes:
            stride = math.prod(self.dims[:axis])
            found = [base + stride * i for i in range(self.dims[axis]) for base in found]
        return found

    def steps_of(self, ring: int, position: int) -> list[Step]:
        """Give the steps of the rank at ``position`` of the group in one ring, in order.

        Raises:
            ValueError: No such ring or position.
        """
        if not (0 <= ring < self.rings and 0 <= position < math.prod(self.dims)):
            raise ValueError(f"no ring {ring} or position {position} in {self.rings} rings, dimensions {self.dims}")
        match self.collective:
            case Collective.ALL_REDUCE:
                return self._all_reduce(ring, position)
            case Collective.BROADCAST:
                return self._broadcast(ring, position)
            case _:
                return self._one_way(ring, position)

    def copied(self, position: int) -> Span:
        """Give the elements that a rank copies from its input to its result at the start; may be empty."""
        if self.ranks == 1:
            return Span(0, self.count)
        axis = self.axes[0]
        if self.collective is Collective.ALL_GATHER:
            return part(self.count, self.dims[axis], self.coordinate(position, axis))
        if self.collective is Collective.BROADCAST and self.coordinate(position, axis) == self.root:
            return Span(0, self.count)
        return Span(0, 0)

    def result(self, position: int) -> Span:
        """Give the elements of the result buffer that are the collective's result at a rank."""
        if self.collective is Collective.REDUCE_SCATTER:
            axis = self.axes[0]
            return part(self.count, self.dims[axis], self.coordinate(position, axis))
        return Span(0, self.count)

    def largest_chunk(self) -> int:
        """Give a bound of the elements that any step moves; the size of a scratch buffer."""
        first = next((self.dims[axis] for axis in self.axes if self.dims[axis] > 1), 1)
        return -(-self.count // (self.rings * first))

    def _neighbour(self, position: int, axis: int, by: int) -> int:
        stride, length = math.prod(self.dims[:axis]), self.dims[axis]
        place = self.coordinate(position, axis)
        return position + ((place + by) % length - place) * stride

    def _all_reduce(self, ring: int, position: int) -> list[Step]:
        axes = [axis for axis in self.axes if self.dims[axis] > 1]
        regions = [part(self.count, self.rings, ring)]
        for axis in axes:  # what reduce-scatter along the axis leaves complete here
            ranks = self.dims[axis]
            regions.append(_part_of(regions[-1], ranks, (self.coordinate(position, axis) + 1) % ranks))
        steps: list[Step] = []
        for axis, region in zip(axes, regions, strict=False):
            first = len(steps)
            take = Take.REDUCE if first else Take.REDUCE_OWN
            reduced = range(max(0, first - 1), first)
            for k, (sent, received) in enumerate(self._around(region, axis, position, 0), start=first):
                send = Outgoing(sent, k == 0, True, range(max(0, k - 1), k))
                steps.append(Step(axis, send, Incoming(received, take, reduced)))
        complete = max(0, len(steps) - 1)  # the step that completes what all-gather starts from
        for axis, region in zip(reversed(axes), reversed(regions[:-1]), strict=True):
            first = len(steps)
            for k, (sent, received) in enumerate(self._around(region, axis, position, 1), start=first):
                send = Outgoing(sent, False, False, range(complete if k == first else k - 1, k))
                steps.append(Step(axis, send, Incoming(received, Take.KEEP, _NOTHING)))
        return steps

    def _around(self, region: Span, axis: int, position: int, ahead: int) -> Iterator[tuple[Span, Span]]:
        """Go once around a ring, the first chunk sent being the own index + ahead: (sent, received) per step."""
        ranks, place = self.dims[axis], self.coordinate(position, axis)
        for step in range(ranks - 1):
            sent = (place + ahead - step) % ranks
            yield _part_of(region, ranks, sent), _part_of(region, ranks, (sent - 1) % ranks)

    def _one_way(self, ring: int, position: int) -> list[Step]:
        """All-gather or reduce-scatter: the buffer is cut by ranks first, so that each has one range of it."""
        axis = self.axes[0]
        ranks, place = self.dims[axis], self.coordinate(position, axis)
        gather = self.collective is Collective.ALL_GATHER
        take = Take.COPY if gather else Take.REDUCE_OWN

        def piece(index: int) -> Span:
            return _part_of(part(self.count, ranks, index % ranks), self.rings, ring)

        return [
            Step(
                axis,
                Outgoing(piece(sent), k == 0, True, range(max(0, k - 1), k)),
                Incoming(piece(sent - 1), take, _NOTHING),
            )
            for k, sent in enumerate(place - k - (0 if gather else 1) for k in range(ranks - 1))
        ]

    def _broadcast(self, ring: int, position: int) -> list[Step]:
        axis = self.axes[0]
        ranks = self.dims[axis]
        region = part(self.count, self.rings, ring)
        distance = (self.coordinate(position, axis) - self.root) % ranks
        steps = []
        for k in range(self.steps):
            sent, received = k - distance, k - distance + 1
            send, receive = None, None
            if 0 <= sent < ranks and distance < ranks - 1:
                needs = range(k - 1, k) if distance else _NOTHING
                send = Outgoing(_part_of(region, ranks, sent), distance == 0, True, needs)
            if 0 <= received < ranks and distance > 0:
                receive = Incoming(_part_of(region, ranks, received), Take.COPY, _NOTHING)
            steps.append(Step(axis, send, receive))
        return steps


_SPLIT_TEXT = re.compile(r"\s*(MOD|%|DIV|/)\s*([0-9]+)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Split:
    """How a world splits into groups that each run their own collective, as nccl-tests' NCCL_TESTS_SPLIT.

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
