# SPDX-License-Identifier: Apache-2.0
"""The ring schedule moves every contribution to every rank, exactly once."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ring_bench.schedule import Phase, RingSchedule, Split, part

schedules = st.builds(RingSchedule, st.integers(0, 500), st.integers(1, 16), st.integers(1, 5))


@given(schedules)
def test_chunks_of_all_rings_tile_the_buffer_without_gap_or_overlap(schedule: RingSchedule) -> None:
    position = 0
    for ring in range(schedule.rings):
        for index in range(schedule.ranks):
            span = schedule.chunk(ring, index)
            assert span.offset == position
            assert 0 <= span.length <= schedule.largest_chunk()
            position += span.length
    assert position == schedule.count


@given(schedules)
def test_running_the_steps_leaves_every_contribution_everywhere_once(schedule: RingSchedule) -> None:
    """Carry sets of contributing ranks instead of numbers: in the end each chunk holds each rank once."""
    ranks = schedule.ranks
    for ring in range(schedule.rings):
        holds = {(rank, chunk): Counter({rank: 1}) for rank in range(ranks) for chunk in range(ranks)}
        for step in range(schedule.steps):
            sent = {rank: holds[rank, schedule.send(ring, rank, step).chunk].copy() for rank in range(ranks)}
            for rank in range(ranks):
                transfer = schedule.recv(ring, rank, step)
                data = sent[schedule.prev_rank(rank)]
                if transfer.phase is Phase.REDUCE_SCATTER:
                    holds[rank, transfer.chunk] += data
                else:
                    holds[rank, transfer.chunk] = data
        everyone = Counter(range(ranks))
        assert all(holding == everyone for holding in holds.values())


@given(schedules, st.data())
def test_what_a_rank_sends_is_what_the_step_before_brought(schedule: RingSchedule, data: st.DataObject) -> None:
    if schedule.steps < 2:
        return
    ring = data.draw(st.integers(0, schedule.rings - 1))
    rank = data.draw(st.integers(0, schedule.ranks - 1))
    step = data.draw(st.integers(1, schedule.steps - 1))
    assert schedule.send(ring, rank, step).span == schedule.recv(ring, rank, step - 1).span


@given(schedules, st.data())
def test_what_one_rank_sends_its_next_rank_receives(schedule: RingSchedule, data: st.DataObject) -> None:
    if schedule.steps == 0:
        return
    rank = data.draw(st.integers(0, schedule.ranks - 1))
    step = data.draw(st.integers(0, schedule.steps - 1))
    assert schedule.send(0, rank, step) == schedule.recv(0, schedule.next_rank(rank), step)


def test_one_rank_has_no_steps_and_two_ranks_have_two() -> None:
    assert RingSchedule(10, 1).steps == 0
    assert RingSchedule(10, 2).steps == 2


def test_four_gigabytes_and_more_are_plain_arithmetic() -> None:
    schedule = RingSchedule((1 << 40) + 1, 3)
    assert sum(schedule.chunk(0, i).length for i in range(3)) == (1 << 40) + 1


def test_more_ranks_than_elements_gives_empty_chunks() -> None:
    assert [part(2, 4, i).length for i in range(4)] == [0, 1, 0, 1]


@pytest.mark.parametrize(("count", "ranks", "rings"), [(-1, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_impossible_shapes_are_refused(count: int, ranks: int, rings: int) -> None:
    with pytest.raises(ValueError, match=r"AllReduce|ring"):
        RingSchedule(count, ranks, rings)


def test_a_step_outside_the_iteration_is_refused() -> None:
    with pytest.raises(ValueError, match="step 2"):
        RingSchedule(4, 2).send(0, 0, 2)


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
