# SPDX-License-Identifier: Apache-2.0
"""Collective completion times of a job, and histograms for them.

CCT: first post of a collective to its last completion over all its ranks. Several rank processes may report
the same collective of the same group; their parts are merged (earliest start, latest end).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

__all__ = ["BUCKETS_S", "CollectiveLog", "CollectiveRecord", "Histogram", "percentile"]

BUCKETS_S: Final = (*(base * 10.0**power for power in range(-5, 2) for base in (1.0, 2.5, 5.0)), 100.0)
"""Upper bounds in seconds: 10 us to 100 s, three per decade."""


@dataclass
class Histogram:
    """Counts per bucket of `BUCKETS_S` (plus +Inf), and the sum, in seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    total_s: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.total_s += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """Buckets as Prometheus wants them: (upper bound as text, count of all durations up to it)."""
        bounds = [*(f"{bound:g}" for bound in BUCKETS_S), "+Inf"]
        running, out = 0, []
        for bound, count in zip(bounds, self.counts, strict=True):
            running += count
            out.append((bound, float(running)))
        return out


@dataclass
class CollectiveRecord:
    """One collective of one group (communicator); times in ns of the job's clock."""

    sequence: int
    group: int
    iteration: int
    start_ns: int
    end_ns: int
    busbw_gbps: float | None
    """Bus bandwidth in GB/s (decimal, nccl-tests' busbw); None where there is none, as for a rank alone."""

    @property
    def cct_s(self) -> float:
        """Completion time in seconds."""
        return (self.end_ns - self.start_ns) / 1e9


def percentile(values: Sequence[float], q: float) -> float | None:
    """The q-quantile (0..1) by linear interpolation between ranks; None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


class CollectiveLog:
    """The latest collectives of a job (bounded) and the histogram of all of them."""

    def __init__(self, limit: int = 20_000) -> None:
        self.records: deque[CollectiveRecord] = deque(maxlen=limit)
        self.durations = Histogram()
        self.total = 0
        self._last: dict[int, CollectiveRecord] = {}

    def add(self, group: int, iteration: int, start_ns: int, end_ns: int, busbw_gbps: float | None) -> None:
        """Take one report. It extends the group's newest record when it is another part of the same
        collective.
        """
        last = self._last.get(group)
        if last is not None and last.iteration == iteration and start_ns <= last.end_ns and end_ns >= last.start_ns:
            own = max(1, end_ns - start_ns)
            last.start_ns, last.end_ns = min(last.start_ns, start_ns), max(last.end_ns, end_ns)
            if busbw_gbps is not None:
                last.busbw_gbps = busbw_gbps * own / max(1, last.end_ns - last.start_ns)
            return
        if last is not None:
            self.durations.observe(last.cct_s)
        record = CollectiveRecord(self.total, group, iteration, start_ns, end_ns, busbw_gbps)
        self.total += 1
        self.records.append(record)
        self._last[group] = record

    def settle(self) -> None:
        """No more parts will come: count every group's newest collective too."""
        for record in self._last.values():
            self.durations.observe(record.cct_s)
        self._last.clear()

    def latest_busbw_gbps(self) -> float | None:
        """Mean bus bandwidth (GB/s) over the groups' newest collectives; None before the first."""
        newest: dict[int, float] = {}
        for record in reversed(self.records):
            if record.group in newest:
                break
            if record.busbw_gbps is not None:
                newest[record.group] = record.busbw_gbps
        return sum(newest.values()) / len(newest) if newest else None

    def summary(self) -> dict[str, float | int | None]:
        """Percentiles over groups and iterations of what is kept, in seconds and GB/s."""
        times = [record.cct_s for record in self.records]
        rates = [record.busbw_gbps for record in self.records if record.busbw_gbps is not None]
        span = (
            (max(r.end_ns for r in self.records) - min(r.start_ns for r in self.records)) / 1e9
            if self.records
            else None
        )
        return {
            "collectives": self.total,
            "p50_s": percentile(times, 0.5),
            "p99_s": percentile(times, 0.99),
            "max_s": max(times, default=None),
            "busbw_gbps_mean": sum(rates) / len(rates) if rates else None,
            "span_s": span,
        }
