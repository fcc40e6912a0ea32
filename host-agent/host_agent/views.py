# SPDX-License-Identifier: Apache-2.0
"""A job's curves, bounded: what the history endpoints, the event stream and the live page all show."""

from __future__ import annotations

from typing import Any, Final

from host_agent.jobs import Job
from host_agent.overlap import downsample

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


def switch_overlap(job: Job, since: int | None = None, limit: int = MAX_POINTS) -> list[list[int]]:
    """[[t_ns, overlap], ...]: the switches' figure at each sampling tick, on the job's clock."""
    place = job.recorder.clock.place
    points = [[place(figure.t_ns, figure.time_unix_s), figure.overlap] for figure in job.switch_log.figures]
    if since is not None:
        points = [point for point in points if point[0] > since]
    stride = -(-len(points) // limit) if points else 1
    return points[::stride]


def switch_series(job: Job, switch: str, limit: int = MAX_POINTS) -> list[dict[str, int | None]]:
    """A switch's samples over time: alpha and the counters (null where the agent could not read one)."""
    place = job.recorder.clock.place
    samples = [s for s in job.switch_log.samples[switch] if s.switch_time_ns is not None]
    stride = -(-len(samples) // limit) if samples else 1
    return [
        {
            "t_ns": place(s.switch_time_ns or 0, s.time_unix_s),
            "alpha": s.alpha,
            "marked_symphony": s.marked_symphony,
            "marked_queue": s.marked_queue,
            "packets": s.packets,
            "outpacing": s.outpacing,
        }
        for s in samples[::stride]
    ]


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
        "agreement": job.switch_log.agreement.view() | {"incomplete_ticks": job.switch_log.incomplete_ticks},
        "events": {"received": job.recorder.received, "dropped": job.recorder.dropped},
    }


def cct_view(job: Job, since: int = -1, limit: int = MAX_POINTS) -> dict[str, Any]:
    """Answer of GET /api/v1/jobs/{id}/cct: newest `limit` collectives with sequence > since, and percentiles
    of all.
    """
    records = [record for record in job.recorder.collectives.records if record.sequence > since][-limit:]
    return {
        "job": job.id,
        "summary": job.recorder.collectives.summary(),
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
