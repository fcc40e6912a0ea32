# SPDX-License-Identifier: Apache-2.0
"""A job's curves, bounded: what the history endpoints, the event stream and the live page all show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from host_agent.jobs import Job
from host_agent.overlap import downsample
from host_agent.sampling import GAP_TICKS

__all__ = [
    "MAX_POINTS",
    "cct_view",
    "host_overlap",
    "overlap_view",
    "progress_view",
    "switch_overlap",
    "switch_series",
]

MAX_POINTS: Final = 2000
"""Most points of one curve in one answer."""


def host_overlap(job: Job, since: int | None = None, limit: int = MAX_POINTS) -> list[list[int]]:
    """[[t_ns, overlap], ...]: the hosts' step function; thinned out to the largest value per stretch of
    time.
    """
    t, value = job.recorder.track.overlap(since)
    t, thin = downsample(t, value, limit)
    return [list(point) for point in zip(t.tolist(), thin.tolist(), strict=True)]


def switch_overlap(
    job: Job, since: int | None = None, limit: int = MAX_POINTS, *, breaks: bool = False
) -> list[list[int | None]]:
    """[[t_ns, overlap], ...]: the switches' figure at each sampling tick, on the job's clock.

    With `breaks`, a point with None stands in each gap, so that no line is drawn over it.
    """
    place = job.recorder.clock.place
    figures = [(place(figure.t_ns, figure.time_unix_s), figure) for figure in job.switch_log.figures]
    if since is not None:
        figures = [placed for placed in figures if placed[0] > since]
    out: list[list[int | None]] = []
    for position, gap in _thinned([figure.tick for _, figure in figures], limit):
        t_ns, figure = figures[position]
        if gap and breaks:
            out.append([out[-1][0], None])  # where the line ends: a stepped one is drawn as far as this
        out.append([t_ns, figure.overlap])
    return out


def switch_series(
    job: Job, switch: str, limit: int = MAX_POINTS, *, breaks: bool = False
) -> list[dict[str, int | None]]:
    """A switch's samples over time: alpha and the counters (null where the agent could not read one).

    With `breaks`, a sample without figures stands in each gap.
    """
    place = job.recorder.clock.place
    samples = [s for s in job.switch_log.samples[switch] if s.switch_time_ns is not None]
    out: list[dict[str, int | None]] = []
    for position, gap in _thinned([sample.seq for sample in samples], limit):
        sample = samples[position]
        point: dict[str, int | None] = {
            "t_ns": place(sample.switch_time_ns or 0, sample.time_unix_s),
            "alpha": sample.alpha,
            "marked_symphony": sample.marked_symphony,
            "marked_queue": sample.marked_queue,
            "packets": sample.packets,
            "outpacing": sample.outpacing,
        }
        if gap and breaks:
            out.append(dict.fromkeys(point) | {"t_ns": out[-1]["t_ns"]})
        out.append(point)
    return out


def _thinned(ticks: Sequence[int], limit: int) -> Iterator[tuple[int, bool]]:
    """Positions of at most `limit` samples, and whether there is a gap between one and the one before it.

    A gap is more than GAP_TICKS times the usual distance of two samples: an agent may not keep up with every tick.
    """
    if not ticks:
        return
    distance = np.diff(np.asarray(ticks, np.int64), prepend=ticks[0])
    usual = max(1, int(np.median(distance[1:]))) if len(ticks) > 1 else 1
    gaps = np.cumsum(distance > GAP_TICKS * usual)
    stride = -(-len(ticks) // limit)
    for position in range(0, len(ticks), stride):
        yield position, bool(gaps[position] > gaps[max(0, position - stride)])


def overlap_view(job: Job, since: int | None = None) -> dict[str, Any]:
    """Answer of GET /api/v1/jobs/{id}/overlap."""
    largest, mean = job.recorder.track.summary()
    return {
        "job": job.id,
        "clock": job.recorder.clock.view(),
        "first_ns": job.recorder.first_ns,
        "host": host_overlap(job, since),
        "switch": switch_overlap(job, since),
        "max": largest,
        "mean": mean,
        "toggles": [toggle.view() for toggle in job.toggles],
        "fabric_events": job.fabric_view(),
        "agreement": job.switch_log.agreement.view() | {"incomplete_ticks": job.switch_log.incomplete_ticks},
        "events": {"received": job.events_received, "dropped": job.events_dropped},
    }


def cct_view(job: Job, since: int = -1, limit: int = MAX_POINTS) -> dict[str, Any]:
    """Answer of GET /api/v1/jobs/{id}/cct: newest `limit` collectives with sequence > since, and percentiles
    of all.
    """
    records = [record for record in job.recorder.collectives.records if record.sequence > since][-limit:]
    return {
        "job": job.id,
        "summary": job.cct_figures(),
        "collectives": [
            {
                "sequence": r.sequence,
                "group": r.group,
                "iteration": r.iteration,
                "start_ns": r.start_ns,
                "end_ns": r.end_ns,
                "cct_s": r.cct_s,
                "busbw_gbps": r.busbw_gbps,
            }
            for r in records
        ],
    }


def progress_view(job: Job) -> dict[str, Any]:
    """Lowest and highest step in flight per ring of each group, and who is still in the lowest step of
    all.
    """
    lowest, ranks = job.recorder.stragglers()
    return {
        "rings": [ring._asdict() for ring in job.recorder.progress()],
        "lowest_step": lowest,
        "ranks_in_lowest": [
            {"rank": rank, "host": job.hosts[rank].name if rank < len(job.hosts) else None} for rank in ranks
        ],
    }
