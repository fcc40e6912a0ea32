# SPDX-License-Identifier: Apache-2.0
"""From the ranks' records to the rows of the result. Deterministic: equal records give equal rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ring_bench.config import Config
from ring_bench.overlap import StepChange, largest_lasting, overlap_history, summarise
from ring_bench.plan import Plan
from ring_bench.rank import Record
from ring_bench.results import Overlap, Percentiles, SizeResult, Totals, percentiles
from ring_bench.units import algbw_gbps, busbw_factor

__all__ = ["collective_times", "row_of", "rows_of", "totals_of"]

_Times = npt.NDArray[np.int64]


class _Records:
    """The records of some ranks as arrays [ring, step]."""

    def __init__(self, config: Config, records: Mapping[int, Record]) -> None:
        self.wrong = {rank: record.wrong for rank, record in records.items()}
        self.post = {rank: _stack(record.post_ns) for rank, record in records.items()}
        self.done = {rank: _stack(record.done_ns) for rank, record in records.items()}
        self.groups = [[rank for rank in group if rank in records] for group in config.groups]
        self.previous = {
            group[position]: group[position - 1] for group in config.groups for position in range(len(group))
        }
        self.whole = len(records) == config.world


def _stack(rows: list[Any]) -> _Times:
    if not rows:
        return np.empty((0, 0), dtype=np.int64)
    return np.stack([np.frombuffer(row, dtype=np.int64) for row in rows])


def rows_of(plan: Plan, records: Mapping[int, Record], complete: int, uncertainty_ns: int = 0) -> list[SizeResult]:
    """Give the rows of all sizes of all cycles that have a complete timed iteration.

    Args:
        plan: The run.
        records: Of the ranks to cover; normally all.
        complete: Leading iterations that every covered rank completed.
        uncertainty_ns: How far times of two ranks may be off against each other.
    """
    rows = []
    for cycle in range(plan.config.run_cycles):
        for size in range(len(plan.counts)):
            row = row_of(plan, records, cycle, size, complete, uncertainty_ns)
            if row is not None:
                rows.append(row)
    return rows


def row_of(
    plan: Plan, records: Mapping[int, Record], cycle: int, size: int, complete: int, uncertainty_ns: int = 0
) -> SizeResult | None:
    """Give the row of one size of one cycle; None when no timed iteration of it is complete."""
    config = plan.config
    per_size = config.warmup_iters + config.iters
    first = (cycle * len(plan.counts) + size) * per_size + config.warmup_iters
    iterations = range(first, min(first + config.iters, complete))
    if not iterations:
        return None
    data = _Records(config, records)
    count = plan.counts[size] * config.payload_scale
    size_bytes = count * config.item_size
    verified = range(first - config.warmup_iters, iterations.stop)
    wrong = sum(values[i] for values in data.wrong.values() for i in verified) if config.check else None
    timed = plan.steps > 0
    cct = [_group_times(plan, data, group, iterations) for group in data.groups if group] if timed else []
    time_ns = _mean_iteration_ns(plan, data, iterations) if timed else None
    algbw = None if time_ns is None else algbw_gbps(size_bytes, time_ns)
    steps = _step_durations(plan, data, iterations) if timed else []
    return SizeResult(
        cycle=cycle,
        size_bytes=size_bytes,
        count=count,
        type=config.datatype,
        redop=config.op,
        time_us=None if time_ns is None else time_ns / 1000,
        algbw_gbps=algbw,
        busbw_gbps=None if algbw is None else algbw * busbw_factor(plan.ranks),
        wrong=wrong,
        iterations=len(iterations),
        cct_us=_percentiles_us([end - begin for times in cct for begin, end in times]),
        step_us=_percentiles_us(steps),
        steps_indeterminate=sum(duration < uncertainty_ns for duration in steps) if uncertainty_ns else 0,
        step_overlap=_overlap(plan, data, iterations, uncertainty_ns) if timed and data.whole else None,
        uncertainty_us=uncertainty_ns / 1000,
        cct_ns=[[end - begin for begin, end in times] for times in cct],
    )


def totals_of(rows: list[SizeResult]) -> Totals:
    """Sum up the rows: wrong elements, mean bus bandwidth over the sizes, largest overlap."""
    wrong = [row.wrong for row in rows if row.wrong is not None]
    busbw = [row.busbw_gbps for row in rows if row.busbw_gbps is not None]
    overlap = [row.step_overlap.max for row in rows if row.step_overlap and row.step_overlap.max is not None]
    return Totals(
        wrong=sum(wrong) if wrong else None,
        avg_busbw_gbps=sum(busbw) / len(busbw) if busbw else None,
        step_overlap_max=max(overlap) if overlap else None,
    )


def collective_times(plan: Plan, records: Mapping[int, Record], iteration: int) -> tuple[int, int]:
    """Give (first post, last completion) in ns of an iteration over the given ranks of one group."""
    begin, end = iteration * plan.steps, (iteration + 1) * plan.steps
    posts = min(min(row[begin:end]) for record in records.values() for row in record.post_ns)
    dones = max(max(row[begin:end]) for record in records.values() for row in record.done_ns)
    return posts, dones


def _group_times(plan: Plan, data: _Records, group: list[int], iterations: range) -> list[tuple[int, int]]:
    span = slice(iterations.start * plan.steps, iterations.stop * plan.steps)
    shape = (len(group), -1, len(iterations), plan.steps)
    posts = np.stack([data.post[rank][:, span] for rank in group]).reshape(shape).min(axis=(0, 1, 3))
    dones = np.stack([data.done[rank][:, span] for rank in group]).reshape(shape).max(axis=(0, 1, 3))
    return list(zip(posts.tolist(), dones.tolist(), strict=True))


def _mean_iteration_ns(plan: Plan, data: _Records, iterations: range) -> float | None:
    spans = []
    for group in data.groups:
        if group:
            times = _group_times(plan, data, group, iterations)
            begin, end = min(begin for begin, _ in times), max(end for _, end in times)
            spans.append((end - begin) / len(iterations))
    return sum(spans) / len(spans) if spans else None


def _percentiles_us(samples_ns: list[int]) -> Percentiles | None:
    return percentiles([sample / 1000 for sample in samples_ns])


def _step_durations(plan: Plan, data: _Records, iterations: range) -> list[int]:
    span = slice(iterations.start * plan.steps, iterations.stop * plan.steps)
    pairs = [(rank, data.previous[rank]) for rank in data.done if data.previous[rank] in data.post]
    return [
        duration
        for rank, sender in pairs
        for duration in (data.done[rank][:, span] - data.post[sender][:, span]).ravel().tolist()
    ]


def _overlap(plan: Plan, data: _Records, iterations: range, uncertainty_ns: int) -> Overlap:
    first, last = iterations.start * plan.steps, iterations.stop * plan.steps
    changes = [
        StepChange(t_ns, step, in_flight)
        for in_flight, times in ((True, data.post), (False, data.done))
        for rows in times.values()
        for row in rows
        for step, t_ns in enumerate(row[first:last].tolist(), start=first)
    ]
    history = overlap_history(changes)
    largest, mean = summarise(history)
    return Overlap(max=largest_lasting(history, uncertainty_ns), seen=largest, mean=mean)
