# SPDX-License-Identifier: Apache-2.0
"""From the ranks' records to the figures of a training. Deterministic: equal records give equal figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ring_bench.plan import Plan
from ring_bench.rank import Record
from ring_bench.results import CallResult, TrainingResult, percentiles
from ring_bench.summary import collective_times, overlap_of
from ring_bench.units import algbw_gbps, busbw_factor
from ring_bench.workload import Do, Trace

__all__ = ["training_of"]

_Times = npt.NDArray[np.int64]


def training_of(
    plan: Plan, trace: Trace, records: Mapping[int, Record], complete: int, uncertainty_ns: int = 0
) -> TrainingResult | None:
    """Give the figures of the timed training steps that every covered rank has ended; None: there are none.

    Args:
        plan: The run.
        trace: Its training.
        records: Of the ranks to cover; normally all.
        complete: Leading operations that every covered rank completed.
        uncertainty_ns: How far times of two ranks may be off against each other.
    """
    if not records:
        return None
    warmup = plan.config.warmup_iters
    marks = np.stack([np.frombuffer(record.mark_ns, dtype=np.int64) for record in records.values()])
    ended = int((marks >= 0).all(axis=0).sum()) - 1
    if trace.calls:
        ended = min(ended, complete // len(trace.calls))
    if ended <= warmup:
        return None
    marks = marks[:, warmup : ended + 1]
    computed = np.stack([_computed(plan, record)[warmup:ended] for record in records.values()])
    exposed = np.diff(marks) - computed
    begin, ends = int(marks[:, 0].min()), marks[:, 1:].max(axis=0)
    operations = range(warmup * len(trace.calls), ended * len(trace.calls))
    calls = [
        _call(plan, records, number, range(number + operations.start, operations.stop, len(trace.calls)))
        for number in range(len(trace.calls))
    ]
    wrong = [call.wrong for call in calls if call.wrong is not None]
    whole = len(records) == plan.config.world
    return TrainingResult(
        trace=trace.name,
        source=plan.config.trace_source,
        dimensions=dict(_dimension_lengths(plan, trace)),
        steps=ended - warmup,
        jct_us=(int(ends[-1]) - begin) / 1000,
        step_ns=np.diff(np.concatenate([[begin], ends])).tolist(),
        compute_us=float(computed.mean()) / 1000,
        exposed_us=float(exposed.mean()) / 1000,
        exposed_percentiles_us=percentiles((exposed.ravel() / 1000).tolist()),
        wrong=sum(wrong) if plan.config.check and calls else None,
        step_overlap=overlap_of(plan, records, operations, uncertainty_ns) if whole and calls and plan.axes else None,
        uncertainty_us=uncertainty_ns / 1000,
        calls=calls,
    )


def _dimension_lengths(plan: Plan, trace: Trace) -> list[tuple[str, int]]:
    grid, last = plan.config.grid, len(trace.dimensions) - 1
    lengths = [*grid[:last], int(np.prod(grid[last:]))]
    return list(zip(trace.dimensions, lengths, strict=True))


def _computed(plan: Plan, record: Record) -> _Times:
    """Give the time that a rank computed in each iteration, warm-up included, ns."""
    times, current, durations = [], 0, iter(record.computed_ns)
    for do, _ in plan.actions:
        if do is Do.COMPUTE:
            current += next(durations)
        elif do is Do.MARK:
            times.append(current)
            current = 0
    return np.array(times, dtype=np.int64)


def _call(plan: Plan, records: Mapping[int, Record], number: int, operations: Sequence[int]) -> CallResult:
    trace = plan.config.trace
    assert trace is not None
    call, shape = trace.calls[number], plan.operations[operations[0]].shape
    schedule = plan.schedules[shape]
    cct = [
        end - begin
        for peers in _peer_groups(plan, shape)
        if schedule.steps and (covered := {rank: records[rank] for rank in peers if rank in records})
        for begin, end in (collective_times(plan, covered, operation) for operation in operations)
    ]
    median = percentiles([float(time) for time in cct])
    algbw = algbw_gbps(plan.size_bytes(shape), median.p50) if median else None
    wrong = sum(record.wrong[operation] for record in records.values() for operation in operations)
    return CallResult(
        name=call.name,
        collective=call.collective,
        along=[trace.dimensions[number] for number in call.along],
        ranks=schedule.ranks,
        size_bytes=plan.size_bytes(shape),
        cct_us=percentiles([time / 1000 for time in cct]),
        busbw_gbps=None if algbw is None else algbw * busbw_factor(call.collective, schedule.ranks),
        wrong=wrong if plan.config.check else None,
    )


def _peer_groups(plan: Plan, shape: int) -> list[list[int]]:
    """Give the world ranks that take part in a collective of a shape together, each set once."""
    schedule = plan.schedules[shape]
    found: dict[tuple[int, ...], None] = {}
    for group in plan.config.groups:
        for position in range(len(group)):
            found[tuple(group[peer] for peer in schedule.peers(position))] = None
    return [list(peers) for peers in found]
