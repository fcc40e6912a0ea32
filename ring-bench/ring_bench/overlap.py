# SPDX-License-Identifier: Apache-2.0
"""The degree of step overlap, from the ranks' step events.

At time t, for a job: (largest - smallest step in flight) + 1 over all its rings and ranks, 0 when idle. A
step is in flight from its sender's first post until its receiver's completion (design, section 3). A value
counts once all events with the same time stamp have been applied: a rank that posts step s+1 at the very
moment step s arrives has not had both in flight.

Steps here are absolute: they run on across iterations and never wrap.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

__all__ = ["OverlapTracker", "StepChange", "largest_lasting", "overlap_history", "summarise"]


class StepChange(NamedTuple):
    """A step of one ring edge goes into flight or comes out of it."""

    t_ns: int
    step: int
    in_flight: bool
    """True: first post by the sender. False: completion at the receiver."""


class _InFlight:
    """A multiset of steps that knows its smallest and largest member, amortised O(1).

    Counts are signed: a completion that is heard of before its post cancels out when the post comes.
    """

    __slots__ = ("_counts", "_high", "_low", "_present")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._present = 0  # steps with a positive count
        self._low = 0
        self._high = -1

    @property
    def overlap(self) -> int:
        return self._high - self._low + 1

    def change(self, step: int, *, enters: bool) -> None:
        counts = self._counts
        before = counts.get(step, 0)
        after = before + (1 if enters else -1)
        if after:
            counts[step] = after
        else:
            del counts[step]
        if before == 0 and after == 1:
            self._present += 1
            if self._present == 1:
                self._low = self._high = step
            elif step < self._low:
                self._low = step
            elif step > self._high:
                self._high = step
        elif before == 1 and after == 0:
            self._present -= 1
            if self._present == 0:
                self._low, self._high = 0, -1
                return
            while counts.get(self._low, 0) < 1:
                self._low += 1
            while counts.get(self._high, 0) < 1:
                self._high -= 1


class OverlapTracker:
    """The overlap of a running job, from events that arrive in batches and roughly in order.

    Feed events as they come; `advance` to a time up to which all events are believed to be in. Events that
    come later than that are applied at the next advance, at its time: the past is not rewritten.
    """

    def __init__(self) -> None:
        self._steps = _InFlight()
        self._waiting: list[StepChange] = []
        self._now_ns: int | None = None

    @property
    def overlap(self) -> int:
        """The overlap at the time of the last advance."""
        return self._steps.overlap

    def feed(self, changes: Iterable[StepChange]) -> None:
        """Take events in any order."""
        for change in changes:
            heapq.heappush(self._waiting, change)

    def advance(self, until_ns: int) -> list[tuple[int, int]]:
        """Apply all events up to and including ``until_ns``.

        Returns:
            The changes on the way, as (time in ns, overlap from then on); equal neighbours are merged.
        """
        history: list[tuple[int, int]] = []
        waiting, steps = self._waiting, self._steps
        last = steps.overlap
        while waiting and waiting[0].t_ns <= until_ns:
            instant = waiting[0].t_ns
            while waiting and waiting[0].t_ns == instant:
                change = heapq.heappop(waiting)
                steps.change(change.step, enters=change.in_flight)
            if steps.overlap != last:
                last = steps.overlap
                shown = instant if self._now_ns is None else max(instant, self._now_ns)
                if history and history[-1][0] == shown:
                    history.pop()
                history.append((shown, last))
        self._now_ns = until_ns if self._now_ns is None else max(until_ns, self._now_ns)
        return history


def overlap_history(changes: Iterable[StepChange]) -> list[tuple[int, int]]:
    """Give the overlap over time of a complete record, as (time in ns, overlap from then on).

    The order of the records does not matter. The last entry is normally (time of the last completion, 0).
    """
    steps = _InFlight()
    history: list[tuple[int, int]] = []
    ordered = sorted(changes)
    end = len(ordered)
    for position, change in enumerate(ordered, start=1):
        steps.change(change.step, enters=change.in_flight)
        if position < end and ordered[position].t_ns == change.t_ns:
            continue
        overlap = steps.overlap
        if not history or history[-1][1] != overlap:
            history.append((change.t_ns, overlap))
    return history


def summarise(history: Sequence[tuple[int, int]]) -> tuple[int, float]:
    """Give (largest overlap, time-weighted mean overlap) from the first to the last entry of a history."""
    if not history:
        return 0, 0.0
    area = 0
    for (begin, overlap), (end, _) in pairwise(history):
        area += overlap * (end - begin)
    span = history[-1][0] - history[0][0]
    return max(overlap for _, overlap in history), (area / span if span else 0.0)


def largest_lasting(history: Sequence[tuple[int, int]], uncertainty_ns: int) -> int | None:
    """Give the largest overlap that lasted longer than the clocks' uncertainty; None: none did.

    Overlap seen for a shorter time may be an error of the clocks: it is indeterminate, neither there nor not.

    Args:
        history: See `overlap_history`.
        uncertainty_ns: How far times of two hosts may be off against each other; 0: one clock, all is certain.
    """
    largest = max((overlap for _, overlap in history), default=0)
    if uncertainty_ns == 0:
        return largest
    for level in range(largest, 0, -1):
        since: int | None = None
        for t_ns, overlap in history:
            if overlap >= level:
                since = t_ns if since is None else since
            elif since is not None:
                if t_ns - since > uncertainty_ns:
                    return level
                since = None
    return None
