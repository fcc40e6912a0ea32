# SPDX-License-Identifier: Apache-2.0
"""The degree of step overlap from step events."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ring_bench.overlap import OverlapTracker, StepChange, overlap_history, summarise

flights = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 60), st.integers(0, 30)), min_size=1, max_size=40)
"""(step, posted at, time in flight)"""


def changes_of(spans: list[tuple[int, int, int]]) -> list[StepChange]:
    """Turn flights into events."""
    posts = [StepChange(begin, step, True) for step, begin, _ in spans]
    return posts + [StepChange(begin + length, step, False) for step, begin, length in spans]


def overlap_at(spans: list[tuple[int, int, int]], t_ns: int) -> int:
    """Compute the overlap at a time from its definition."""
    steps = [step for step, begin, length in spans if begin <= t_ns < begin + length]
    return max(steps) - min(steps) + 1 if steps else 0


def value_at(history: list[tuple[int, int]], t_ns: int) -> int:
    """Read a history at a time."""
    return next((overlap for begin, overlap in reversed(history) if begin <= t_ns), 0)


@given(flights, st.randoms())
def test_history_equals_the_definition_whatever_the_order_of_events(
    spans: list[tuple[int, int, int]], random: object
) -> None:
    changes = changes_of(spans)
    random.shuffle(changes)  # type: ignore[attr-defined]
    history = overlap_history(changes)
    for t_ns in range(100):
        assert value_at(history, t_ns) == overlap_at(spans, t_ns)
    assert history[-1][1] == 0


@given(flights, st.lists(st.integers(0, 100), max_size=8))
def test_a_tracker_fed_in_pieces_tells_the_same_story(spans: list[tuple[int, int, int]], stops: list[int]) -> None:
    changes = sorted(changes_of(spans))
    tracker = OverlapTracker()
    history: list[tuple[int, int]] = []
    position = 0
    for stop in [*sorted(stops), 200]:
        batch = [change for change in changes[position:] if change.t_ns <= stop]
        position += len(batch)
        tracker.feed(reversed(batch))
        history += tracker.advance(stop)
        assert tracker.overlap == overlap_at(spans, stop)
    for t_ns in range(100):
        assert value_at(history, t_ns) == overlap_at(spans, t_ns)


def test_a_step_posted_the_moment_the_one_before_arrives_does_not_overlap_it() -> None:
    history = overlap_history(changes_of([(0, 0, 10), (1, 10, 10)]))
    assert summarise(history) == (1, 1.0)


def test_a_completion_heard_of_before_its_post_cancels_out() -> None:
    tracker = OverlapTracker()
    tracker.feed([StepChange(5, 7, False)])
    assert tracker.advance(10) == []
    tracker.feed([StepChange(4, 7, True)])
    assert tracker.advance(20) == []
    assert tracker.overlap == 0


def test_late_events_do_not_rewrite_the_past() -> None:
    tracker = OverlapTracker()
    tracker.advance(100)
    tracker.feed([StepChange(50, 1, True), StepChange(60, 4, True)])
    assert tracker.advance(110) == [(100, 4)]


def test_the_mean_is_weighted_by_time() -> None:
    assert summarise([(0, 1), (10, 3), (40, 0)]) == (3, 2.5)
    assert summarise([]) == (0, 0.0)
