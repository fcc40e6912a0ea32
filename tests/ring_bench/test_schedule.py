# SPDX-License-Identifier: Apache-2.0
"""The schedules of all collectives give exact results under every order of arrivals that their needs allow."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ring_bench.schedule import Collective, Schedule, Span, Split, Take, part

quick = settings(deadline=None, max_examples=60)

Elements = list[Counter[int]]
"""Per element, how often each rank's contribution is in it."""


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    dims = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3).filter(lambda d: math.prod(d) <= 24)))
    collective = draw(st.sampled_from(Collective))
    most = len(dims) if collective is Collective.ALL_REDUCE else 1
    axes = tuple(draw(st.permutations(range(len(dims))))[: draw(st.integers(1, most))])
    root = draw(st.integers(0, math.prod(dims[axis] for axis in axes) - 1))
    return Schedule(draw(st.integers(0, 60)), dims, draw(st.integers(1, 4)), collective, axes, root)


class Executor:
    """Ranks in memory: runs a schedule, taking any step that may happen, in random order."""

    def __init__(self, schedule: Schedule, order: random.Random) -> None:
        self.schedule, self.order = schedule, order
        ranks = range(math.prod(schedule.dims))
        self.rings = range(schedule.rings)
        self.own: list[Elements] = [[Counter({rank: 1}) for _ in range(schedule.count)] for rank in ranks]
        self.result: list[Elements] = [[Counter() for _ in range(schedule.count)] for _ in ranks]
        for rank in ranks:
            copied = schedule.copied(rank)
            self.result[rank][copied.offset : copied.end] = self.own[rank][copied.offset : copied.end]
        self.steps = {(rank, ring): schedule.steps_of(ring, rank) for rank in ranks for ring in self.rings}
        self.unsent = {(*key, k) for key, steps in self.steps.items() for k, step in enumerate(steps) if step.send}
        self.untaken = {(*key, k) for key, steps in self.steps.items() for k, step in enumerate(steps) if step.receive}
        self.scratch: dict[tuple[int, int, int], Elements] = {}
        """Data under way, by receiver, ring, step."""

    def run(self) -> None:
        while self.unsent or self.untaken:
            possible = [("send", *key) for key in self.unsent if self._met(*key, "send")]
            possible += [("take", *key) for key in self.scratch if self._met(*key, "receive")]
            assert possible, f"nothing can happen: {len(self.unsent)} to send, {len(self.untaken)} to take"
            kind, rank, ring, k = self.order.choice(sorted(possible))
            getattr(self, kind)(rank, ring, k)

    def _met(self, rank: int, ring: int, k: int, side: str) -> bool:
        needs = getattr(self.steps[rank, ring][k], side).needs
        return not any((rank, ring, need) in self.untaken for need in needs)

    def send(self, rank: int, ring: int, k: int) -> None:
        step = self.steps[rank, ring][k]
        send = step.send
        assert send is not None
        to = self.schedule.next_rank(rank, step.axis)
        receive = self.steps[to, ring][k].receive
        assert receive is not None
        assert receive.span == send.span
        assert send.scratch == (receive.take is not Take.KEEP)
        data = (self.own if send.own else self.result)[rank][send.span.offset : send.span.end]
        if not send.scratch:
            self.result[to][send.span.offset : send.span.end] = data
        self.scratch[to, ring, k] = data
        self.unsent.remove((rank, ring, k))

    def take(self, rank: int, ring: int, k: int) -> None:
        receive = self.steps[rank, ring][k].receive
        assert receive is not None
        data = self.scratch.pop((rank, ring, k))
        place = slice(receive.span.offset, receive.span.end)
        if receive.take is Take.COPY:
            self.result[rank][place] = data
        elif receive.take is not Take.KEEP:
            base = (self.own if receive.take is Take.REDUCE_OWN else self.result)[rank][place]
            self.result[rank][place] = [mine + other for mine, other in zip(base, data, strict=True)]
        self.untaken.remove((rank, ring, k))

    def wanted(self, rank: int) -> Elements:
        schedule = self.schedule
        peers = schedule.peers(rank)
        if schedule.collective.reduces:
            return [Counter(peers) for _ in range(schedule.count)]
        if schedule.collective is Collective.BROADCAST:
            return self.own[peers[schedule.root]]
        cut = [part(schedule.count, len(peers), i) for i in range(len(peers))]
        return [Counter({peer: 1}) for peer, span in zip(peers, cut, strict=True) for _ in range(span.length)]


@quick
@given(schedules(), st.integers(0, 1 << 32))
def test_every_collective_gives_every_contribution_exactly_where_it_belongs(schedule: Schedule, seed: int) -> None:
    executor = Executor(schedule, random.Random(seed))
    executor.run()
    for rank, result in enumerate(executor.result):
        span = schedule.result(rank)
        assert result[span.offset : span.end] == executor.wanted(rank)[span.offset : span.end]


@quick
@given(schedules())
def test_all_ranks_have_as_many_steps_and_no_chunk_is_larger_than_said(schedule: Schedule) -> None:
    for rank in range(math.prod(schedule.dims)):
        for ring in range(schedule.rings):
            steps = schedule.steps_of(ring, rank)
            assert len(steps) == schedule.steps
            assert all(step.send is None or step.send.span.length <= schedule.largest_chunk() for step in steps)


@quick
@given(schedules().filter(lambda schedule: schedule.steps > 0))
def test_needs_lie_before_the_step_so_that_taking_steps_in_order_never_hangs(schedule: Schedule) -> None:
    for rank in range(math.prod(schedule.dims)):
        for k, step in enumerate(schedule.steps_of(0, rank)):
            assert all(need < k for side in (step.send, step.receive) if side for need in side.needs)


@quick
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 3))
def test_along_two_axes_a_rank_sends_as_much_as_in_one_ring_over_all(columns: int, rows: int, rings: int) -> None:
    count = columns * rows * rings * 4
    grid = Schedule(count, (columns, rows), rings, axes=(0, 1))
    line = Schedule(count, (columns * rows,), rings)
    for rank in range(columns * rows):
        assert _sent(grid, rank) == _sent(line, rank) == 2 * count * (columns * rows - 1) // (columns * rows)


def _sent(schedule: Schedule, rank: int) -> int:
    steps = [step for ring in range(schedule.rings) for step in schedule.steps_of(ring, rank)]
    return sum(step.send.span.length for step in steps if step.send is not None)


def test_a_grid_of_8_x_4_goes_through_rows_of_8_then_columns_of_4_and_back() -> None:
    schedule = Schedule(64, (8, 4), axes=(0, 1))
    assert [step.axis for step in schedule.steps_of(0, 0)] == [0] * 7 + [1] * 6 + [0] * 7
    assert schedule.next_rank(7, 0) == 0
    assert schedule.next_rank(8, 0) == 9
    assert schedule.next_rank(8, 1) == 16
    assert schedule.next_rank(24, 1) == 0
    assert schedule.prev_rank(0, 1) == 24


def test_a_ring_of_four_sends_the_chunks_that_the_books_say() -> None:
    """Patarasuk & Yuan's ring, as nccl-tests' users know it: rank 1 starts with chunk 1 and gathers from chunk 2."""
    steps = Schedule(4, (4,)).steps_of(0, 1)
    assert [step.send.span.offset for step in steps if step.send] == [1, 0, 3, 2, 1, 0]
    assert [step.send.own for step in steps if step.send] == [True] + [False] * 5
    assert [step.receive.take for step in steps if step.receive] == [Take.REDUCE_OWN] * 3 + [Take.KEEP] * 3


def test_a_broadcast_is_a_pipeline_from_the_root_to_the_rank_before_it() -> None:
    schedule = Schedule(4, (4,), collective=Collective.BROADCAST, root=2)
    sends = {rank: [k for k, s in enumerate(schedule.steps_of(0, rank)) if s.send] for rank in range(4)}
    assert sends == {2: [0, 1, 2, 3], 3: [1, 2, 3, 4], 0: [2, 3, 4, 5], 1: []}


def test_one_rank_has_no_steps_and_two_ranks_have_two() -> None:
    assert Schedule(10, (1,)).steps == 0
    assert Schedule(10, (1,)).copied(0) == Span(0, 10)
    assert Schedule(10, (2,)).steps == 2


def test_four_gigabytes_and_more_are_plain_arithmetic() -> None:
    assert sum(part((1 << 40) + 1, 3, i).length for i in range(3)) == (1 << 40) + 1


def test_more_ranks_than_elements_gives_empty_chunks() -> None:
    assert [part(2, 4, i).length for i in range(4)] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    "shape",
    [
        {"count": -1, "dims": (1,)},
        {"count": 1, "dims": ()},
        {"count": 1, "dims": (0,)},
        {"count": 1, "dims": (1,), "rings": 0},
        {"count": 1, "dims": (2, 2), "axes": (0, 0)},
        {"count": 1, "dims": (2, 2), "axes": (2,)},
        {"count": 1, "dims": (2, 2), "axes": (0, 1), "collective": Collective.ALL_GATHER},
        {"count": 1, "dims": (2,), "collective": Collective.BROADCAST, "root": 2},
    ],
)
def test_impossible_shapes_are_refused(shape: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"all_reduce|all_gather|ring|root"):
        Schedule(**shape)  # type: ignore[arg-type]


def test_a_ring_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="ring 1"):
        Schedule(4, (2,)).steps_of(1, 0)


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("MOD 2", [[0, 2], [1, 3]]),
        ("%2", [[0, 2], [1, 3]]),
        ("div 2", [[0, 1], [2, 3]]),
        ("/4", [[0, 1, 2, 3]]),
        ("MOD 1", [[0, 1, 2, 3]]),
    ],
)
def test_a_split_reads_as_in_nccl_tests(text: str, groups: list[list[int]]) -> None:
    assert Split.parse(text).groups(4) == groups


@pytest.mark.parametrize("text", ["", "MOD", "MOD 0", "AND 3", "8"])
def test_a_split_that_does_not_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="MOD n"):
        Split.parse(text)


def test_groups_of_unequal_size_are_refused() -> None:
    with pytest.raises(ValueError, match="unequal"):
        Split.parse("MOD 3").groups(4)
