# SPDX-License-Identifier: Apache-2.0
"""The degree of step overlap, against its definition taken literally."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host_agent.overlap import NONE, OPEN, StepTrack, downsample, in_flight_range, unwrap
from ring_bench.overlap import StepChange, overlap_history, summarise

instances = st.lists(
    st.tuples(st.integers(0, 60), st.one_of(st.none(), st.integers(0, 30)), st.integers(0, 12), st.integers(0, 2)),
    max_size=40,
)
"""(start, duration or still open, step, site)"""


def in_flight(rows: list[tuple[int, int | None, int, int]], t: int) -> list[int]:
    """Steps in flight at t, by the definition: posted at or before t, and not completed by then."""
    return [step for start, length, step, _ in rows if start <= t and (length is None or t < start + length)]


def overlap_at(rows: list[tuple[int, int | None, int, int]], t: int) -> int:
    """The degree of step overlap, by the definition."""
    steps = in_flight(rows, t)
    return max(steps) - min(steps) + 1 if steps else 0


def value_at(t: list[int], values: list[int], moment: int) -> int:
    """A right-continuous step function that is 0 before its first point."""
    index = int(np.searchsorted(t, moment, side="right")) - 1
    return values[index] if index >= 0 else 0


def build(rows: list[tuple[int, int | None, int, int]], fold_at: int = 1 << 20) -> StepTrack:
    """A track that has been told of all these instances."""
    track = StepTrack(fold_at=fold_at)
    for start, length, step, site in rows:
        handle = track.add(start, step, site)
        if length is not None:
            track.finish(handle, start + length)
    return track


@settings(deadline=None)
@given(instances)
def test_range_over_time_equals_the_definition_at_every_moment(
    rows: list[tuple[int, int | None, int, int]],
) -> None:
    """Smallest and largest step in flight, at each integer time and between."""
    start = np.array([r[0] for r in rows], np.int64)
    end = np.array([OPEN if r[1] is None else r[0] + r[1] for r in rows], np.int64)
    step = np.array([r[2] for r in rows], np.int64)
    function = in_flight_range(start, end, step)
    assert (np.diff(function.t) > 0).all()
    for moment in range(-1, 95):
        steps = in_flight(rows, moment)
        index = int(np.searchsorted(function.t, moment, side="right")) - 1
        low, high = (function.lo[index], function.hi[index]) if index >= 0 else (NONE, NONE)
        assert (low, high) == ((min(steps), max(steps)) if steps else (NONE, NONE))


@settings(deadline=None)
@given(instances)
def test_track_reports_the_overlap_at_every_moment(rows: list[tuple[int, int | None, int, int]]) -> None:
    """StepTrack.overlap is the definition as a step function, with only its changes listed."""
    t, values = build(rows).overlap()
    assert (np.diff(values) != 0).all()
    for moment in range(-1, 95):
        assert value_at(t.tolist(), values.tolist(), moment) == overlap_at(rows, moment)


@settings(deadline=None)
@given(instances, st.integers(0, 90), st.integers(1, 40), st.integers(0, 2))
def test_window_is_the_largest_in_it_and_the_smallest_at_its_end(
    rows: list[tuple[int, int | None, int, int]], end: int, length: int, site: int
) -> None:
    """What a switch sees in (begin, end] of the ranks behind it, looked at twice per unit of time."""
    mine = [(2 * r[0], r[1] and 2 * r[1], r[2], site) for r in rows if r[3] == site and r[1] != 0]
    seen = [s for moment in range(2 * (end - length) + 1, 2 * end + 1) for s in in_flight(mine, moment)]
    last = in_flight(mine, 2 * end)
    high, low = build(mine).window(2 * (end - length), 2 * end, site)
    assert low == (min(last) if last else None)
    assert high == (max(seen) if seen else None)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 300), st.integers(0, 3))
def test_folding_keeps_the_curve(count: int, jitter: int) -> None:
    """With little room for detail the older part becomes history; the curve and the summary stay the same."""
    rows = [(10 * i, 15 + (i * 7919) % (1 + 10 * jitter), i // 3, 0) for i in range(count)]
    whole, folded = build(rows), StepTrack(fold_at=32)
    handles: dict[int, int] = {}
    for index, (start, length, step, site) in enumerate(rows):
        handles[index] = folded.add(start, step, site)
        folded.finish(handles[index], start + length)
        mapping = folded.fold_if_full()
        if mapping is not None:
            handles = {k: int(mapping[h]) for k, h in handles.items() if h < mapping.size and mapping[h] >= 0}
    late = folded.folded_until or 0
    t, values = whole.overlap()
    ft, fvalues = folded.overlap()
    assert folded.size < 64
    for moment in range(0, late, 7):
        assert value_at(ft.tolist(), fvalues.tolist(), moment) <= value_at(t.tolist(), values.tolist(), moment)
    for moment in range(late, rows[-1][0] + 60, 3):
        assert value_at(ft.tolist(), fvalues.tolist(), moment) == value_at(t.tolist(), values.tolist(), moment)


def test_summary_weighs_by_time_idle_time_included() -> None:
    """10 ns at overlap 1, 10 ns at 3, 80 ns idle, 20 ns at 1: mean over 120 ns is 0.5."""
    track = build([(0, 20, 5, 0), (10, 10, 7, 0), (100, 20, 8, 0)])
    assert track.summary() == (3, 0.5)


@pytest.mark.parametrize("seed", range(5))
def test_summary_is_ring_benchs(seed: int) -> None:
    """The same events give the largest and the mean overlap that ring-bench's result has."""
    draw = random.Random(seed)
    rows = [(draw.randrange(5000), draw.randrange(1, 300), draw.randrange(40), 0) for _ in range(100)]
    changes = [StepChange(start, step, True) for start, _, step, _ in rows]
    changes += [StepChange(start + length, step, False) for start, length, step, _ in rows]
    largest, mean = build(rows).summary()
    assert (largest, pytest.approx(mean)) == summarise(overlap_history(changes))


def test_nothing_reported_is_unknown_and_nothing_in_flight_is_zero() -> None:
    """An empty track knows nothing; one whose instances took no time is idle."""
    assert StepTrack().summary() == (None, None)
    assert build([(5, 0, 1, 0)]).overlap()[1].max(initial=0) == 0


@given(st.lists(st.integers(0, 50), min_size=1, max_size=300), st.integers(1, 40))
def test_downsampling_keeps_the_largest_value_and_the_bound(values: list[int], limit: int) -> None:
    """Thinning a curve out never loses its peak and never exceeds the bound."""
    t = np.arange(len(values), dtype=np.int64) * 3
    thin_t, thin = downsample(t, np.array(values, np.int64), limit)
    assert thin_t.size <= limit or len(values) <= limit
    assert thin.max() == max(values)
    assert thin_t[0] == 0


@given(st.integers(-(2**40), 2**40), st.integers(-500, 500))
def test_unwrap_finds_the_nearest_number_of_a_serial_step(near: int, offset: int) -> None:
    """10-bit steps within half a circle of a known one get their full number back."""
    assert unwrap((near + offset) % 1024, near, bits=10) == near + offset


def test_unwrap_counts_half_the_circle_as_behind() -> None:
    """RFC 1982 leaves it open; here it is behind, as in the switch."""
    assert unwrap(512, 0, bits=10) == -512
