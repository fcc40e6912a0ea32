# SPDX-License-Identifier: Apache-2.0
"""GET /metrics: built from live state at each scrape, so a job that is gone takes its series along.

Labels are bounded: job (name), source, switch. Nothing here does I/O: a dead switch cannot delay a scrape.
A figure that is not known is left out; it is never exported as 0. Figures of the switches themselves (alpha,
packets, marks) are exported by the switch agents.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from host_agent.hub import CollectorStatus, Hub
from host_agent.jobs import Job
from host_agent.streams import StreamSlots

__all__ = ["HubCollector", "metrics_text"]

STALE_S: Final = 5.0
"""A switch figure older than this (wall clock) is left out."""


class HubCollector(Collector):
    """Turns the hub's state into samples; `others` are collectors besides the switches, by name."""

    def __init__(self, hub: Hub, slots: StreamSlots, others: Mapping[str, CollectorStatus] | None = None) -> None:
        self._hub = hub
        self._slots = slots
        self._others = others or {}

    def collect(self) -> Iterator[Metric]:
        """All families; per name only the newest job, so that a reused name gives no duplicate series."""
        jobs = list({job.name: job for job in sorted(self._hub.jobs, key=lambda j: j.created_unix_s)}.values())
        yield from self._job_families(jobs)
        yield from self._duration_families(jobs)
        yield from self._own_families()

    def _job_families(self, jobs: list[Job]) -> Iterator[Metric]:
        info = InfoMetricFamily("symphony_job", "A job known to this host-agent.", labels=["job"])
        enabled = GaugeMetricFamily(
            "symphony_job_enabled", "1 while Symphony is asked to be on for the job.", labels=["job"]
        )
        running = GaugeMetricFamily("symphony_job_running", "1 while the job's ranks run.", labels=["job"])
        overlap = GaugeMetricFamily(
            "symphony_step_overlap",
            "Degree of step overlap: largest - smallest step in flight + 1; 0 when idle. "
            "source=host: from the ranks' events; source=switch: from the switches' registers.",
            labels=["job", "source"],
        )
        busbw = GaugeMetricFamily(
            "symphony_bus_bandwidth_bytes_per_second",
            "nccl-tests' busbw over the timed iterations so far, pipelined ones included: size x 2(N-1)/N / (first "
            "post to last completion / iterations), mean over groups; after the run the result's Avg bus bandwidth.",
            labels=["job"],
        )
        newest = GaugeMetricFamily(
            "symphony_collective_bus_bandwidth_bytes_per_second",
            "Of each group's newest collective by itself: size x 2(N-1)/N / its completion time, mean over groups. "
            "Less than symphony_bus_bandwidth_bytes_per_second where iterations overlap; there while a run lasts.",
            labels=["job"],
        )
        events = CounterMetricFamily("symphony_events", "Step events received from the ranks.", labels=["job"])
        dropped = CounterMetricFamily(
            "symphony_events_dropped",
            "Step events lost on the way to host-agent, or refused by it.",
            labels=["job"],
        )
        for job in jobs:
            bench = job.request.bench
            info.add_metric(
                [job.name],
                {
                    "job_id": str(job.id),
                    "provider": job.request.provider,
                    "world": str(len(job.hosts)),
                    "variant": job.variant,
                    "release_rule": bench.release if bench else "unknown",
                    "qp_mode": bench.qp_mode if bench else "unknown",
                },
            )
            running.add_metric([job.name], float(job.state == "running"))
            for counter, count in ((events, job.events_received), (dropped, job.events_dropped)):
                if count is not None:
                    counter.add_metric([job.name], count)
            figures = job.recorder.collectives.summary()
            alone = None if figures["final"] or job.ended else figures["busbw_gbps_newest"]
            for family, rate in ((busbw, figures["busbw_gbps"]), (newest, alone)):
                if rate is not None:
                    family.add_metric([job.name], rate * 1e9)
            if job.ended:
                continue
            enabled.add_metric([job.name], float(job.enabled))
            if job.recorder.frontier_ns is not None:
                overlap.add_metric([job.name, "host"], job.recorder.current_overlap())
            figure = job.switch_log.figures[-1] if job.switch_log.figures else None
            if figure is not None and time.time() - figure.time_unix_s < STALE_S:
                overlap.add_metric([job.name, "switch"], figure.overlap)
        yield from (info, enabled, running, overlap, busbw, newest, events, dropped)

    def _duration_families(self, jobs: list[Job]) -> Iterator[Metric]:
        collective = HistogramMetricFamily(
            "symphony_collective_duration_seconds",
            "Collective completion time: first post to last completion over all ranks of a group. Timed iterations; "
            "of ranks that somebody else started all of them, as their warm-up is not known here.",
            labels=["job"],
        )
        step = HistogramMetricFamily(
            "symphony_step_duration_seconds",
            "From a step's first post to its receiver's completion. Iterations as in "
            "symphony_collective_duration_seconds.",
            labels=["job"],
        )
        for job in jobs:
            if job.events_received is None:
                continue
            for family, histogram in (
                (collective, job.recorder.collectives.durations),
                (step, job.recorder.step_durations),
            ):
                family.add_metric([job.name], buckets=histogram.cumulative(), sum_value=histogram.total_s)
        yield from (collective, step)

    def _own_families(self) -> Iterator[Metric]:
        success = GaugeMetricFamily(
            "symphony_collector_success",
            "1 if the last poll of this source worked, 0 if not.",
            labels=["collector"],
        )
        last = GaugeMetricFamily(
            "symphony_collector_last_success_timestamp_seconds",
            "When a poll last worked.",
            labels=["collector"],
        )
        switches = {f"switch:{name}": status for name, status in self._hub.collectors.items()}
        for name, status in {**switches, **self._others}.items():
            if status.success is not None:
                success.add_metric([name], float(status.success))
            if status.last_success_unix_s is not None:
                last.add_metric([name], status.last_success_unix_s)
        streams = GaugeMetricFamily("symphony_event_streams_open", "Open server-sent event streams.", self._slots.open)
        jobs = GaugeMetricFamily("symphony_jobs", "Jobs in host-agent's list.", len(self._hub.jobs))
        yield from (success, last, streams, jobs)


def metrics_text(registry: CollectorRegistry) -> bytes:
    """The exposition in Prometheus' text format."""
    return generate_latest(registry)
