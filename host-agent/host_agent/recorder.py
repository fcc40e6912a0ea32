# SPDX-License-Identifier: Apache-2.0
"""Takes in what the ranks of a job report, within bounds, and keeps the figures made of it.

Reports come from one or several processes, each in its own order; a completion may arrive before its post
does. What is beyond a bound is counted as dropped, never silently lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from host_agent.clocks import ClockKind, JobClock
from host_agent.collectives import CollectiveLog, Histogram
from host_agent.models import EventBatch, EventRow
from host_agent.overlap import FOLD_AT, StepTrack, unwrap

__all__ = ["Recorder", "RingProgress"]

OPEN_LIMIT: Final = 200_000
"""Instances in flight, and completions without a post, that are remembered."""

Key = tuple[int, int, int, int]
"""(group, ring, rank of the sender, step)"""


class RingProgress(NamedTuple):
    """Where a ring of a group is: its lowest and highest step in flight, and the highest completed (None:
    none yet).
    """

    group: int
    ring: int
    lowest: int | None
    highest: int | None
    completed: int | None


class _Posted(NamedTuple):
    handle: int
    start_ns: int
    iteration: int


class Recorder:
    """Everything a job's ranks have reported in its current run.

    `warmup`: leading iterations that are not timed, and so count in no figure but the overlap.
    """

    def __init__(self, sites_of_ranks: Sequence[int], fold_at: int = FOLD_AT, *, warmup: int = 0) -> None:
        self._sites = sites_of_ranks
        self._fold_at = fold_at
        self._warmup = warmup
        self.run: str | None = None
        self.received = 0
        self.refused = 0
        """Events beyond a bound of this recorder, or that contradict earlier ones."""
        self._reported_dropped: dict[str, int] = {}
        self.result: dict[str, Any] | None = None
        self.step_durations = Histogram()
        self._reset("monotonic")

    def _reset(self, clock: ClockKind) -> None:
        self.clock = JobClock(clock)
        self.track = StepTrack(self._fold_at)
        self.collectives = CollectiveLog(warmup=self._warmup)
        self.first_ns: int | None = None
        self.frontier_ns: int | None = None
        self._newest_step = 0
        self._open: dict[Key, _Posted] = {}
        self._early: dict[Key, int] = {}
        self._completed: dict[tuple[int, int], int] = {}

    @property
    def dropped(self) -> int:
        """Events lost on the way: by the reporters (their word) and by this recorder."""
        return sum(self._reported_dropped.values()) + self.refused

    def ingest(self, batch: EventBatch) -> None:
        """Take one report. A new run id begins a new run: its figures start afresh, counters go on."""
        if batch.run != self.run:
            self.collectives.settle()
            durations = self.collectives.durations
            self._reset(batch.clock)
            self.collectives.durations = durations
            self.run = batch.run
        reporter = f"{batch.run}\0{batch.host}"
        if reporter in self._reported_dropped or len(self._reported_dropped) < 4096:
            self._reported_dropped[reporter] = max(batch.dropped, self._reported_dropped.get(reporter, 0))
        for row in sorted(batch.events, key=lambda event: event[6]):
            self._event(row)
        for group, iteration, start_ns, end_ns, busbw_gbps in batch.collectives:
            self.collectives.add(group, iteration, start_ns, end_ns, busbw_gbps)
            if self.dropped:
                self._close_lost(group, iteration, end_ns)
        if batch.result is not None:
            self.conclude(batch.result)
        mapping = self.track.fold_if_full()
        if mapping is not None:
            moved = {key: posted._replace(handle=int(mapping[posted.handle])) for key, posted in self._open.items()}
            self._open = {key: posted for key, posted in moved.items() if posted.handle >= 0}

    def _event(self, row: EventRow) -> None:
        rank, group, ring, iteration, serial, kind, t_ns = row
        self.received += 1
        step = unwrap(serial, self._newest_step)
        key = (group, ring, rank, step)
        self.first_ns = t_ns if self.first_ns is None else min(self.first_ns, t_ns)
        self.frontier_ns = t_ns if self.frontier_ns is None else max(self.frontier_ns, t_ns)
        if kind == "post":
            if key in self._open or len(self._open) >= OPEN_LIMIT:
                self.refused += 1
                return
            self._newest_step = max(self._newest_step, step)
            site = self._sites[rank] if 0 <= rank < len(self._sites) else -1
            posted = _Posted(self.track.add(t_ns, step, site), t_ns, iteration)
            end_ns = self._early.pop(key, None)
            if end_ns is None:
                self._open[key] = posted
            else:
                self._done(key, posted, end_ns)
        else:
            begun = self._open.pop(key, None)
            if begun is not None:
                self._done(key, begun, t_ns)
            elif len(self._early) < OPEN_LIMIT:
                self._early[key] = t_ns
            else:
                self.refused += 1

    def _done(self, key: Key, posted: _Posted, end_ns: int) -> None:
        self.track.finish(posted.handle, end_ns)
        if self.collectives.timed(posted.iteration):
            self.step_durations.observe(max(0, end_ns - posted.start_ns) / 1e9)
        lane = key[:2]
        self._completed[lane] = max(key[3], self._completed.get(lane, key[3]))

    def _close_lost(self, group: int, iteration: int, end_ns: int) -> None:
        """A finished collective has no steps in flight: end those whose completion was dropped on the way."""
        lost = [k for k, p in self._open.items() if k[0] == group and p.iteration <= iteration]
        for key in lost:
            self.track.finish(self._open.pop(key).handle, end_ns)

    def conclude(self, result: dict[str, Any]) -> None:
        """Take ring-bench's result of the current run."""
        self.result = result
        self.collectives.conclude(result)

    def finish(self) -> None:
        """The run is over: nothing is in flight any more, and the last collectives are complete."""
        if self.frontier_ns is not None:
            for posted in self._open.values():
                self.track.finish(posted.handle, self.frontier_ns)
        self._open.clear()
        self._early.clear()
        self.collectives.settle()

    def progress(self) -> list[RingProgress]:
        """Per ring of each group, sorted; from what is in flight now."""
        lanes: dict[tuple[int, int], tuple[int, int]] = {}
        for group, ring, _, step in self._open:
            low, high = lanes.get((group, ring), (step, step))
            lanes[group, ring] = (min(low, step), max(high, step))
        out = []
        for lane in sorted(lanes.keys() | self._completed.keys()):
            in_flight = lanes.get(lane)
            lowest, highest = in_flight if in_flight else (None, None)
            out.append(RingProgress(*lane, lowest, highest, self._completed.get(lane)))
        return out

    def current_overlap(self) -> int:
        """Degree of step overlap now, as far as reported."""
        steps = [key[3] for key in self._open]
        return max(steps) - min(steps) + 1 if steps else 0

    def stragglers(self, limit: int = 8) -> tuple[int | None, list[int]]:
        """The lowest step in flight and the ranks (senders) still in it."""
        lowest = min((key[3] for key in self._open), default=None)
        return lowest, sorted({key[2] for key in self._open if key[3] == lowest})[:limit]
