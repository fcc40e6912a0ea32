# SPDX-License-Identifier: Apache-2.0
"""The degree of step overlap, as the hosts see it.

At time t, for a job: (largest - smallest step in flight) + 1 over all its rings and ranks; 0 when
nothing is in flight. A step instance (ring edge, step) is in flight from its first post until its
receiver's completion, a half-open interval [post, done). (Symphony paper, section 2: "degree of step
overlap".)

`in_flight_range` is the definition as a step function over time, vectorised; `StepTrack` collects a job's
instances as they are reported, keeps memory bounded and answers questions about windows of time. Steps here
are the unwrapped 64-bit numbers that `unwrap` makes of a serial counter.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ring_bench.tag import serial_diff

__all__ = ["FOLD_AT", "NONE", "OPEN", "StepFunction", "StepTrack", "downsample", "in_flight_range", "unwrap"]

I64 = npt.NDArray[np.int64]

OPEN: Final = np.iinfo(np.int64).max
"""End time (ns) of an instance whose completion has not been reported."""
NONE: Final = np.iinfo(np.int64).min
"""Step value that stands for "nothing in flight"."""

FOLD_AT: Final = 65_536
"""Instances kept in full; beyond this the older half becomes history that no longer changes."""
HISTORY_LIMIT: Final = 16_384
"""Points of the folded overlap history; beyond this neighbours merge, keeping the larger."""


def unwrap(step: int, near: int, bits: int = 32) -> int:
    """The integer congruent to `step` (mod 2^bits) that is nearest to `near` (RFC 1982 arithmetic).

    Exactly half the circle counts as behind, as everywhere in this testbed.
    """
    return near + serial_diff(step, near, bits)


class StepFunction(NamedTuple):
    """Right-continuous: from `t[i]` (ns, strictly increasing) on, steps `lo[i]`..`hi[i]` are in flight
    (NONE: no step).
    """

    t: I64
    lo: I64
    hi: I64

    @property
    def overlap(self) -> I64:
        """Degree of step overlap from `t[i]` on; 0 where nothing is in flight."""
        return np.where(self.hi == NONE, 0, self.hi - self.lo + 1)


def in_flight_range(start: I64, end: I64, step: I64) -> StepFunction:
    """The smallest and the largest step in flight over time, of instances [start, end) in ns.

    The cost is proportional to instances x overlap: every step only touches the stretch of time in which it
    lives.
    """
    times = np.unique(np.concatenate([start, end[end != OPEN]]))
    lo = np.full(times.size, NONE, np.int64)
    hi = np.full(times.size, NONE, np.int64)
    if not times.size:
        return StepFunction(times, lo, hi)
    first = np.searchsorted(times, start)
    last = np.where(end == OPEN, times.size, np.searchsorted(times, end))
    order = np.argsort(step, kind="stable")
    first, last, step = first[order], last[order], step[order]
    bounds = np.flatnonzero(np.diff(step)) + 1
    for members in np.split(np.arange(step.size), bounds):
        begin, finish = int(first[members].min()), int(last[members].max())
        edges = np.zeros(finish - begin + 1, np.int64)
        np.add.at(edges, first[members] - begin, 1)
        np.add.at(edges, last[members] - begin, -1)
        busy = np.cumsum(edges[:-1]) > 0
        hi_part, lo_part = hi[begin:finish], lo[begin:finish]
        hi_part[busy] = step[members[0]]  # steps come in ascending order: the last one to write is the largest
        lo_part[busy & (lo_part == NONE)] = step[members[0]]
    return StepFunction(times, lo, hi)


def downsample(t: I64, value: npt.NDArray[np.generic], limit: int) -> tuple[I64, npt.NDArray[np.generic]]:
    """At most `limit` points of a step function: equal stretches of time, each with its largest value."""
    if t.size <= limit:
        return t, value
    edges = np.linspace(float(t[0]), float(t[-1]), limit, endpoint=False)
    first = np.unique(np.searchsorted(t, edges))
    return t[first], np.maximum.reduceat(value, first)


class StepTrack:
    """The step instances of one run, from events that may come late or in any order between reporters."""

    def __init__(self, fold_at: int = FOLD_AT) -> None:
        self._fold_at = fold_at
        self._size = 0
        self._start = np.empty(1024, np.int64)
        self._end = np.empty(1024, np.int64)
        self._step = np.empty(1024, np.int64)
        self._site = np.empty(1024, np.int64)
        self._cache: StepFunction | None = None
        self._past_t = np.empty(0, np.int64)
        self._past_overlap = np.empty(0, np.int64)
        self.folded_until: int | None = None
        """Up to this time (ns) the history is final: earlier events no longer change it."""

    @property
    def size(self) -> int:
        """Instances kept in full."""
        return self._size

    def add(self, start: int, step: int, site: int) -> int:
        """A step was posted at `start` (ns) behind switch number `site`; returns the handle for `finish`."""
        if self._size == self._start.size:
            for name in ("_start", "_end", "_step", "_site"):
                setattr(self, name, np.concatenate([getattr(self, name), np.empty(self._size, np.int64)]))
        index = self._size
        self._start[index], self._end[index], self._step[index], self._site[index] = start, OPEN, step, site
        self._size += 1
        self._cache = None
        return index

    def finish(self, handle: int, end: int) -> None:
        """The instance's receiver has completed it at `end` (ns)."""
        self._end[handle] = max(end, int(self._start[handle]))
        self._cache = None

    def fold_if_full(self) -> I64 | None:
        """Turn the older half into history when there is too much of it.

        Returns an array mapping old handles to new ones (-1: folded away), or None when nothing moved.
        """
        if self._size < self._fold_at:
            return None
        closed = self._end[: self._size][self._end[: self._size] != OPEN]
        if closed.size < self._size // 2:
            # Mostly instances that never complete (their reports were lost): give up the oldest half of them.
            cut = int(np.median(self._start[: self._size]))
            stale = (self._end[: self._size] == OPEN) & (self._start[: self._size] < cut)
            self._end[: self._size][stale] = cut
        else:
            cut = int(np.median(closed))
        function = self._function()
        keep_points = np.searchsorted(function.t, cut, side="right")
        past_t = np.concatenate([self._past_t, function.t[:keep_points]])
        past_overlap = np.concatenate([self._past_overlap, function.overlap[:keep_points]])
        changes = np.flatnonzero(np.diff(past_overlap, prepend=-1))
        self._past_t, self._past_overlap = downsample(past_t[changes], past_overlap[changes], HISTORY_LIMIT)  # type: ignore[assignment]
        keep = self._end[: self._size] > cut
        mapping = np.where(keep, np.cumsum(keep) - 1, -1)
        count = int(keep.sum())
        for name in ("_start", "_end", "_step", "_site"):
            array = getattr(self, name)
            array[:count] = array[: self._size][keep]
        self._size = count
        self.folded_until = cut
        self._cache = None
        return mapping

    def _function(self) -> StepFunction:
        if self._cache is None:
            n = self._size
            function = in_flight_range(self._start[:n], self._end[:n], self._step[:n])
            if self.folded_until is not None:
                live = np.searchsorted(function.t, self.folded_until, side="right")
                function = StepFunction(*(part[live:] for part in function))
            self._cache = function
        return self._cache

    def overlap(self, since: int | None = None) -> tuple[I64, I64]:
        """Degree of step overlap as a step function: times (ns) at which it changes, and its value from then
        on.

        With `since`, only what changes after that time.
        """
        function = self._function()
        t = np.concatenate([self._past_t, function.t])
        value = np.concatenate([self._past_overlap, function.overlap])
        if since is not None:
            late = np.searchsorted(t, since, side="right")
            t, value = t[late:], value[late:]
        changes = np.flatnonzero(np.diff(value, prepend=-1))
        return t[changes], value[changes]

    def window(self, begin: int, end: int, site: int) -> tuple[int | None, int | None]:
        """What a switch should have seen of the ranks behind it in the window (begin, end], in ns.

        Returns the largest step in flight at any time of the window and the smallest in flight at its end
        (None: nothing was). Those are what `step_max` (brought back once it stands still) and `step_min` stand for.
        """
        n = self._size
        here = (self._site[:n] == site) & (self._start[:n] <= end)
        largest = self._step[:n][here & (self._end[:n] > begin)]
        smallest = self._step[:n][here & (self._end[:n] > end)]
        return (
            int(largest.max()) if largest.size else None,
            int(smallest.min()) if smallest.size else None,
        )

    def summary(self) -> tuple[int | None, float | None]:
        """The largest overlap and its time-weighted mean from the first post to the newest change, as ring-bench's
        result has them; None while nothing has been reported.
        """
        t, value = self.overlap()
        if not value.size:
            return None, None
        span = np.diff(t).astype(np.float64)
        mean = float(np.average(value[:-1], weights=span)) if span.size else float(value[0])
        return int(value.max()), mean
