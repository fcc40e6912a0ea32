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
from ring_bench.results import Overlap, Percentiles, SizeResult, Totals, TrainingResult, percentiles
from ring_bench.schedule import Collective, Schedule
from ring_bench.units import algbw_gbps, busbw_factor

__all__ = ["collective_times", "nccl_count", "overlap_of", "row_of", "rows_of", "totals_of"]

_Times = npt.NDArray[np.int64]


class _Records:
    """The records of some ranks as arrays [ring, step]."""

    def __init__(self, config: Config, records: Mapping[int, Record]) -> None:
        self.wrong = {rank: record.wrong for rank, record in records.items()}
        self.post = {rank: _stack(record.post_ns) for rank, record in records.items()}
        self.done = {rank: _stack(record.done_ns) for rank, record in records.items()}
        self.groups = [[rank for rank in group if rank in records] for group in config.groups]
        grid = Schedule(0, config.grid)
        self.previous = [
            {
                rank: group[grid.prev_rank(position, axis)]
                for group in config.groups
                for position, rank in enumerate(group)
            }
            for axis in range(len(config.grid))
        ]
        """By axis: the rank that a rank receives from."""
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
        for size in range(len(plan.schedules)):
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
    first = (cycle * len(plan.schedules) + size) * per_size + config.warmup_iters
    iterations = range(first, min(first + config.iters, complete))
    if not iterations:
        return None
    data = _Records(config, records)
    schedule = plan.schedules[size]
    size_bytes = plan.size_bytes(size)
    verified = range(first - config.warmup_iters, iterations.stop)
    wrong = sum(values[i] for values in data.wrong.values() for i in verified) if config.check else None
    timed = schedule.steps > 0
    cct = [_group_times(plan, data, group, iterations) for group in data.groups if group] if timed else []
    time_ns = _mean_iteration_ns(plan, data, iterations) if timed else None
    algbw = None if time_ns is None else algbw_gbps(size_bytes, time_ns)
    steps = _step_durations(plan, data, iterations) if timed else []
    return SizeResult(
        cycle=cycle,
        size_bytes=size_bytes,
        count=nccl_count(schedule) * config.payload_scale,
        type=config.datatype,
        redop=config.op if schedule.collective.reduces else "none",
        root=schedule.root if schedule.collective is Collective.BROADCAST else -1,
        time_us=None if time_ns is None else time_ns / 1000,
        algbw_gbps=algbw,
        busbw_gbps=None if algbw is None else algbw * busbw_factor(schedule.collective, schedule.ranks),
        wrong=wrong,
        iterations=len(iterations),
        cct_us=_percentiles_us([end - begin for times in cct for begin, end in times]),
        step_us=_percentiles_us(steps),
        steps_indeterminate=sum(duration < uncertainty_ns for duration in steps) if uncertainty_ns else 0,
        step_overlap=overlap_of(plan, records, iterations, uncertainty_ns) if timed and data.whole else None,
        uncertainty_us=uncertainty_ns / 1000,
        cct_ns=[[end - begin for begin, end in times] for times in cct],
    )


def totals_of(rows: list[SizeResult], training: TrainingResult | None = None) -> Totals:
    """Sum up: wrong elements, mean bus bandwidth over the sizes, largest overlap."""
    counts = [row.wrong for row in rows] + ([training.wrong] if training is not None else [])
    wrong = [count for count in counts if count is not None]
    busbw = [row.busbw_gbps for row in rows if row.busbw_gbps is not None]
    overlaps = [row.step_overlap for row in rows] + ([training.step_overlap] if training is not None else [])
    largest = [overlap.max for overlap in overlaps if overlap is not None and overlap.max is not None]
    return Totals(
        wrong=sum(wrong) if wrong else None,
        avg_busbw_gbps=sum(busbw) / len(busbw) if busbw else None,
        step_overlap_max=max(largest) if largest else None,
    )


def nccl_count(schedule: Schedule) -> int:
    """Give nccl-tests' count: elements of the buffer, of one rank's part for all-gather and reduce-scatter."""
    parts = schedule.collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
    return schedule.count // schedule.ranks if parts else schedule.count


def collective_times(plan: Plan, records: Mapping[int, Record], operation: int) -> tuple[int, int]:
    """Give (first post, last completion) in ns of an operation over the given ranks of one group."""
    _, begin, steps, *_ = plan.operations[operation]
    span = slice(begin, begin + steps)
    posts = min(t for record in records.values() for row in record.post_ns for t in row[span] if t >= 0)
    dones = max(t for record in records.values() for row in record.done_ns for t in row[span])
    return posts, dones


def _steps(plan: Plan, operations: range) -> slice:
    first, last = plan.operations[operations.start], plan.operations[operations.stop - 1]
    return slice(first.first_step, last.first_step + last.steps)


def _group_times(plan: Plan, data: _Records, group: list[int], operations: range) -> list[tuple[int, int]]:
    span = _steps(plan, operations)
    shape = (len(group), -1, len(operations), plan.operations[operations.start].steps)
    posts = np.stack([data.post[rank][:, span] for rank in group]).reshape(shape)
    dones = np.stack([data.done[rank][:, span] for rank in group]).reshape(shape).max(axis=(0, 1, 3))
    first = np.where(posts < 0, np.iinfo(np.int64).max, posts).min(axis=(0, 1, 3))
    return list(zip(first.tolist(), dones.tolist(), strict=True))


def _mean_iteration_ns(plan: Plan, data: _Records, operations: range) -> float | None:
    spans = []
    for group in data.groups:
        if group:
            times = _group_times(plan, data, group, operations)
            begin, end = min(begin for begin, _ in times), max(end for _, end in times)
            spans.append((end - begin) / len(operations))
    return sum(spans) / len(spans) if spans else None


def _percentiles_us(samples_ns: list[int]) -> Percentiles | None:
    return percentiles([sample / 1000 for sample in samples_ns])


def _step_durations(plan: Plan, data: _Records, operations: range) -> list[int]:
    """Give how long each step took at each receiver whose sender is covered: by rank, ring, step."""
    span = _steps(plan, operations)
    axes = np.array([axis for number in operations for axis in plan.axes_of(plan.operations[number].shape)])
    durations: list[int] = []
    for rank, rows in data.done.items():
        dones = rows[:, span]
        posts = np.full_like(dones, -1)
        for axis in plan.axes:
            sender = data.previous[axis][rank]
            if sender in data.post:
                posts[:, axes == axis] = data.post[sender][:, span][:, axes == axis]
        durations += (dones - posts)[(dones >= 0) & (posts >= 0)].tolist()
    return durations


def overlap_of(plan: Plan, records: Mapping[int, Record], operations: range, uncertainty_ns: int) -> Overlap:
    """Give the step overlap over some operations, from the records of all ranks."""
    span = _steps(plan, operations)
    changes = [
        StepChange(t_ns, step, in_flight)
        for record in records.values()
        for in_flight, rows in ((True, record.post_ns), (False, record.done_ns))
        for row in rows
        for step, t_ns in enumerate(row[span], start=span.start)
        if t_ns >= 0
    ]
    history = overlap_history(changes)
    largest, mean = summarise(history)
    return Overlap(max=largest_lasting(history, uncertainty_ns), seen=largest, mean=mean)
