# SPDX-License-Identifier: Apache-2.0
"""Collective completion times and bus bandwidth of a job, by ring-bench's definitions, and histograms.

CCT: first post of a collective to its last completion over all its ranks. Several rank processes may report
the same collective of the same group; their parts are merged (earliest start, latest end).

A figure has the definition that it has in ring-bench's table (`ring_bench.results.SizeResult`): timed iterations
only, nearest-rank percentiles, and a bus bandwidth made of the mean time of an iteration, from the first post to the
last completion over all of them (nccl-tests). Iterations may overlap in time, so that this is more than the rate of
a collective by itself. While a run lasts they cover what is reported so far; once ring-bench's result is there,
they are the result's.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from ring_bench.results import percentiles

__all__ = ["BUCKETS_S", "CollectiveLog", "CollectiveRecord", "Histogram"]

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
    """Bus bandwidth of this collective by itself in GB/s (decimal): over its own completion time. None where there is
    none, as for a rank alone.
    """

    @property
    def cct_s(self) -> float:
        """Completion time in seconds."""
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def bus_bytes(self) -> float | None:
        """What it moved, as bus bandwidth counts it: size x 2(N-1)/N."""
        return None if self.busbw_gbps is None else self.busbw_gbps * (self.end_ns - self.start_ns)


class _ResultRow(BaseModel):
    cct_ns: list[list[int]]


class _ResultTotals(BaseModel):
    avg_busbw_gbps: float | None


class _Result(BaseModel):
    """What is taken from ring-bench's result file (`ring_bench.results.RunResult`), whatever its version adds."""

    results: list[_ResultRow]
    totals: _ResultTotals


class CollectiveLog:
    """The latest collectives of a run (bounded), and the histogram of all timed ones.

    `warmup` leading iterations are not timed: they are kept as records and count in no figure.
    """

    def __init__(self, limit: int = 20_000, *, warmup: int = 0) -> None:
        self.records: deque[CollectiveRecord] = deque(maxlen=limit)
        self.durations = Histogram()
        self._warmup = warmup
        self._sequence = 0
        self._timed = 0
        self._last: dict[int, CollectiveRecord] = {}
        self._result: _Result | None = None
        self._summary: dict[str, Any] | None = None

    def timed(self, iteration: int) -> bool:
        """Whether an iteration counts in the figures."""
        return iteration >= self._warmup

    def add(self, group: int, iteration: int, start_ns: int, end_ns: int, busbw_gbps: float | None) -> None:
        """Take one report. It extends the group's newest record when it is another part of the same
        collective.
        """
        self._summary = None
        last = self._last.get(group)
        if last is not None and last.iteration == iteration and start_ns <= last.end_ns and end_ns >= last.start_ns:
            own = max(1, end_ns - start_ns)
            last.start_ns, last.end_ns = min(last.start_ns, start_ns), max(last.end_ns, end_ns)
            if busbw_gbps is not None:
                last.busbw_gbps = busbw_gbps * own / max(1, last.end_ns - last.start_ns)
            return
        if last is not None:
            self._observe(last)
        record = CollectiveRecord(self._sequence, group, iteration, start_ns, end_ns, busbw_gbps)
        self._sequence += 1
        self._timed += self.timed(iteration)
        self.records.append(record)
        self._last[group] = record

    def settle(self) -> None:
        """No more parts will come: count every group's newest collective too."""
        for record in self._last.values():
            self._observe(record)
        self._last.clear()

    def conclude(self, result: dict[str, Any]) -> None:
        """The run is over and this is ring-bench's result: its figures hold from now on.

        What is no result of ring-bench changes nothing.
        """
        self.settle()
        try:
            self._result = _Result.model_validate(result)
        except ValidationError:
            return
        self._summary = None

    def summary(self) -> dict[str, Any]:
        """The figures, in seconds and GB/s; None where there is none yet.

        `final`: they are those of ring-bench's result. `busbw_gbps` is ring-bench's "Avg bus bandwidth" (of one size:
        its busbw); `busbw_gbps_newest` that of the groups' newest collectives, each by itself, mean over the groups.
        """
        if self._summary is None:
            self._summary = self._summarise()
        return dict(self._summary)

    def _summarise(self) -> dict[str, Any]:
        timed = [record for record in self.records if self.timed(record.iteration)]
        if self._result is None:
            count = self._timed
            times_ns = [record.end_ns - record.start_ns for record in timed]
            busbw = _mean_busbw(timed)
        else:
            times_ns = [time_ns for row in self._result.results for group in row.cct_ns for time_ns in group]
            count = len(times_ns)
            busbw = self._result.totals.avg_busbw_gbps
        ranks = percentiles([time_ns / 1e9 for time_ns in times_ns])
        first, last = min((r.start_ns for r in timed), default=0), max((r.end_ns for r in timed), default=0)
        return {
            "final": self._result is not None,
            "collectives": count,
            "p50_s": ranks.p50 if ranks else None,
            "p95_s": ranks.p95 if ranks else None,
            "p99_s": ranks.p99 if ranks else None,
            "max_s": ranks.max if ranks else None,
            "busbw_gbps": busbw,
            "busbw_gbps_newest": self._newest_busbw(),
            "span_s": (last - first) / 1e9 if timed else None,
        }

    def _observe(self, record: CollectiveRecord) -> None:
        if self.timed(record.iteration):
            self.durations.observe(record.cct_s)

    def _newest_busbw(self) -> float | None:
        newest: dict[int, float] = {}
        for record in reversed(self.records):
            if record.group in newest:
                break
            if record.busbw_gbps is not None:
                newest[record.group] = record.busbw_gbps
        return _mean(newest.values())


@dataclass
class _Size:
    """The iterations of one group that move the same number of bytes, one after the other."""

    bus_bytes: float
    start_ns: int
    end_ns: int
    iterations: int = 0

    def takes(self, bus_bytes: float) -> bool:
        return math.isclose(self.bus_bytes, bus_bytes, rel_tol=1e-6)


def _mean_busbw(records: Iterable[CollectiveRecord]) -> float | None:
    """Bus bandwidth in GB/s as ring-bench's table has it; of several sizes the mean, as in its last line."""
    groups: dict[int, list[_Size]] = {}
    for record in records:
        moved = record.bus_bytes
        if moved is None:
            continue
        sizes = groups.setdefault(record.group, [])
        if not sizes or not sizes[-1].takes(moved):
            sizes.append(_Size(moved, record.start_ns, record.end_ns))
        size = sizes[-1]
        size.start_ns, size.end_ns = min(size.start_ns, record.start_ns), max(size.end_ns, record.end_ns)
        size.iterations += 1
    rates = []
    for number in range(max(map(len, groups.values()), default=0)):
        row = [sizes[number] for sizes in groups.values() if number < len(sizes)]
        time_ns = _mean((size.end_ns - size.start_ns) / size.iterations for size in row)
        if time_ns:
            rates.append(row[0].bus_bytes / time_ns)
    return _mean(rates)


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None
