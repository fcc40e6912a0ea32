# SPDX-License-Identifier: Apache-2.0
"""What the ranks report: pairing posts with completions, bounds, losses, collectives."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pydantic import ValidationError

from host_agent.collectives import CollectiveLog, Histogram
from host_agent.models import EventBatch
from host_agent.recorder import Recorder


def batch(events: list[tuple[Any, ...]], **more: Any) -> EventBatch:
    """A report with events (rank, step, kind, t_ns) of group 0, ring 0, iteration 0."""
    rows = [(rank, 0, 0, 0, step, kind, t) for rank, step, kind, t in events]
    return EventBatch.model_validate({"run": "r", "clock": "twin", "host": "h", "events": rows, **more})


def curve(recorder: Recorder) -> list[tuple[int, int]]:
    """The overlap as a list of (t, value)."""
    t, values = recorder.track.overlap()
    return list(zip(t.tolist(), values.tolist(), strict=True))


EVENTS = [
    (0, 0, "post", 0),
    (1, 0, "post", 2),
    (0, 0, "done", 10),
    (0, 1, "post", 10),
    (0, 1, "done", 20),
    (0, 2, "post", 21),
    (1, 0, "done", 30),
    (0, 2, "done", 40),
]
CURVE = [(0, 1), (10, 2), (20, 1), (21, 3), (30, 1), (40, 0)]


def test_overlap_of_a_small_run() -> None:
    """Rank 1 stays in step 0 while rank 0 goes on to step 2."""
    recorder = Recorder([0, 0])
    recorder.ingest(batch(EVENTS))
    assert curve(recorder) == CURVE
    assert recorder.received == 8
    assert recorder.dropped == 0


@pytest.mark.parametrize("seed", range(5))
def test_order_of_arrival_does_not_matter(seed: int) -> None:
    """Every event in a report of its own, in any order: completions may come before their posts."""
    shuffled = EVENTS[:]
    random.Random(seed).shuffle(shuffled)
    recorder = Recorder([0, 0])
    for event in shuffled:
        recorder.ingest(batch([event]))
    assert curve(recorder) == CURVE


def test_steps_are_32_bit_serial_numbers() -> None:
    """The step after 2^32 - 1 is 0: an overlap of two, not of four billion."""
    recorder = Recorder([0, 0])
    last = 2**32 - 1
    recorder.ingest(batch([(0, last, "post", 0), (1, 0, "post", 5), (0, last, "done", 9), (1, 0, "done", 9)]))
    assert curve(recorder) == [(0, 1), (5, 2), (9, 0)]


def test_lost_completions_end_with_their_collective() -> None:
    """When reporters had to drop events, a finished collective leaves nothing of its group in flight."""
    recorder = Recorder([0, 0])
    recorder.ingest(batch([(0, 0, "post", 0)], dropped=1))
    recorder.ingest(batch([], dropped=1, collectives=[(0, 0, 0, 50, 1.0)]))
    assert curve(recorder) == [(0, 1), (50, 0)]
    assert recorder.dropped == 1


def test_a_repeated_event_is_refused_and_counted() -> None:
    """A second post of an instance in flight changes nothing."""
    recorder = Recorder([0])
    recorder.ingest(batch([(0, 0, "post", 0), (0, 0, "post", 5), (0, 0, "done", 9)]))
    assert curve(recorder) == [(0, 1), (9, 0)]
    assert recorder.dropped == 1


def test_finish_ends_what_never_completed() -> None:
    """A dead run does not leave steps in flight for ever."""
    recorder = Recorder([0])
    recorder.ingest(batch([(0, 0, "post", 0), (0, 1, "post", 7)]))
    recorder.finish()
    assert curve(recorder)[-1] == (7, 0)
    assert recorder.current_overlap() == 0


def test_a_new_run_starts_afresh() -> None:
    """Another run id of the same job: its steps begin at 0 again, the old curve is gone, counters go on."""
    recorder = Recorder([0])
    recorder.ingest(batch([(0, 50, "post", 0)]))
    recorder.ingest(batch([(0, 0, "post", 100), (0, 0, "done", 110)], run="second"))
    assert curve(recorder) == [(100, 1), (110, 0)]
    assert recorder.received == 3


def test_progress_names_lowest_and_highest_step_and_who_is_behind() -> None:
    """Rank 1 is behind in step 3; rank 0 has step 4 done and 5 in flight."""
    recorder = Recorder([0, 0])
    recorder.ingest(batch([(1, 3, "post", 0), (0, 4, "post", 1), (0, 4, "done", 2), (0, 5, "post", 3)]))
    assert [tuple(ring) for ring in recorder.progress()] == [(0, 0, 3, 5, 4)]
    assert recorder.stragglers() == (3, [1])


def test_long_runs_keep_bounded_detail() -> None:
    """10 000 steps and room for 1000: the detail stays near its bound, nothing is refused, later events pair up."""
    recorder = Recorder([0], fold_at=1000)
    for begin in range(0, 10_000, 500):
        events = []
        for step in range(begin, begin + 500):
            events += [(0, step, "post", 10 * step), (0, step, "done", 10 * step + 15)]
        recorder.ingest(batch(events))
    assert recorder.dropped == 0
    assert recorder.track.size < 1500
    assert recorder.track.summary()[0] == 2
    assert sum(recorder.step_durations.counts) == 10_000


@pytest.mark.parametrize(
    "change",
    [
        {"events": [(0, 0, 0, 0, 0, "poste", 1)]},
        {"events": [(0, 0, 0, 0, 0, "post")]},
        {"clock": "sundial"},
        {"surprise": 1},
        {"dropped": -1},
    ],
)
def test_malformed_reports_are_refused(change: dict[str, Any]) -> None:
    """Wrong kinds, missing columns, unknown fields."""
    good = {"run": "r", "clock": "twin", "host": "h", "events": []}
    with pytest.raises(ValidationError):
        EventBatch.model_validate(good | change)


def test_parts_of_one_collective_merge() -> None:
    """Two processes report the same collective: first post to last completion, bandwidth scaled to that."""
    log = CollectiveLog()
    log.add(group=0, iteration=0, start_ns=100, end_ns=200, busbw_gbps=8.0)
    log.add(group=0, iteration=0, start_ns=50, end_ns=150, busbw_gbps=8.0)
    log.add(group=1, iteration=0, start_ns=100, end_ns=180, busbw_gbps=4.0)
    assert [(r.group, r.start_ns, r.end_ns) for r in log.records] == [(0, 50, 200), (1, 100, 180)]
    assert log.records[0].busbw_gbps == pytest.approx(8.0 * 100 / 150)


def test_the_same_iteration_of_a_later_size_is_another_collective() -> None:
    """A sweep counts iterations from 0 for each size: times that do not touch are no parts of one
    collective.
    """
    log = CollectiveLog()
    log.add(0, 0, 0, 100, 1.0)
    log.add(0, 0, 500, 600, 1.0)
    log.settle()
    assert log.summary()["collectives"] == 2
    assert sum(log.durations.counts) == 2


def test_histogram_counts_every_collective_once() -> None:
    """Newest collectives count when the next one begins or the run ends, never twice."""
    log = CollectiveLog()
    for iteration in range(5):
        log.add(0, iteration, iteration * 1000, iteration * 1000 + 500, 1.0)
    log.settle()
    log.settle()
    assert sum(log.durations.counts) == 5


def test_typical_durations_do_not_land_in_the_outer_buckets() -> None:
    """From a 20 us step to a 4 s collective: neither first bucket nor +Inf."""
    for seconds in (20e-6, 1e-3, 30e-3, 4.0):
        histogram = Histogram()
        histogram.observe(seconds)
        assert histogram.counts[0] == histogram.counts[-1] == 0
