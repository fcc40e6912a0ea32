# SPDX-License-Identifier: Apache-2.0
"""``/metrics``: Prometheus families built from the newest snapshot, never from the switch.

A scrape does no I/O, so a dead switch cannot delay it. Series exist for what is known now: a job that is
gone, or a sample that is too old, leaves no series behind. Names are those of ``design.md`` §3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from switch_agent.bfrt.session import SessionState

if TYPE_CHECKING:
    from switch_agent.agent.service import Agent

__all__ = ["CONTENT_TYPE", "AgentCollector", "render"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MAX_JOBS: Final = 2000
"""Jobs with series; more are counted in ``symphony_series_dropped`` instead of flooding Prometheus."""


def render(agent: Agent) -> bytes:
    """Return the exposition text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(AgentCollector(agent))
    return generate_latest(registry)


class AgentCollector(Collector):
    """Families of one agent, with label ``switch``."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def describe(self) -> Iterable[Metric]:
        """Nothing is known before the first scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield all families; jobs first."""
        yield from self._job_families()
        yield from self._sample_families()
        yield from self._session_families()
        yield from self._sampler_families()

    def _job_families(self) -> Iterator[Metric]:
        agent = self._agent
        info = GaugeMetricFamily(
            "symphony_job_info",
            "1 for each job that this switch tracks.",
            labels=("job", "switch", "job_id", "job_tag", "variant", "scope"),
        )
        enabled = GaugeMetricFamily(
            "symphony_job_enabled", "1 while Symphony may mark packets of the job.", labels=("job", "switch")
        )
        jobs = agent.jobs.all()
        for job in jobs[:MAX_JOBS]:
            settings = job.spec.symphony
            info.add_metric(
                (
                    job.name,
                    agent.name,
                    str(job.job_id),
                    str(job.spec.job_tag),
                    settings.variant,
                    settings.params().scope,
                ),
                1,
            )
            enabled.add_metric((job.name, agent.name), int(job.enabled))
        dropped = GaugeMetricFamily(
            "symphony_series_dropped", f"Jobs beyond the {MAX_JOBS} that have series.", labels=("switch",)
        )
        dropped.add_metric((agent.name,), max(0, len(jobs) - MAX_JOBS))
        yield from (info, enabled, dropped)

    def _sample_families(self) -> Iterator[Metric]:
        switch = self._agent.name
        labels = ("job", "switch")
        overlap = GaugeMetricFamily(
            "symphony_step_overlap",
            "Steps between the slowest and the fastest in flight within the last sampling window; 0 idle.",
            labels=("job", "switch", "source"),
        )
        step_min = GaugeMetricFamily("symphony_step_min", "Smallest step in flight, modulo 2^10.", labels=labels)
        step_max = GaugeMetricFamily(
            "symphony_step_max", "Largest step seen in the last sampling window, modulo 2^10.", labels=labels
        )
        alpha = GaugeMetricFamily("symphony_alpha", "Gain multiplier alpha (paper eq. 3).", labels=labels)
        psn = GaugeMetricFamily(
            "symphony_psn_recorded",
            "Progress of the slowest step in packets (paper's psn_rec).",
            labels=labels,
        )
        packets = CounterMetricFamily(
            "symphony_packets", "Tracked data packets of the job.", labels=("job", "switch", "kind")
        )
        marked = CounterMetricFamily(
            "symphony_ecn_marked_packets",
            "Packets that this switch marked CE; a packet marked for both reasons counts in both.",
            labels=("job", "switch", "reason"),
        )
        for sample in self._agent.samples()[:MAX_JOBS]:
            job = sample["name"]
            overlap.add_metric((job, switch, "switch"), sample["overlap"])
            alpha.add_metric((job, switch), sample["alpha"])
            psn.add_metric((job, switch), sample["psn_recorded"])
            if sample["step_min"] is not None:
                step_min.add_metric((job, switch), sample["step_min"])
                step_max.add_metric((job, switch), sample["step_max"])
            for kind, value in sample["packets"].items():
                packets.add_metric((job, switch, kind), value)
            for reason, value in sample["marked"].items():
                marked.add_metric((job, switch, reason), value)
        yield from (overlap, step_min, step_max, alpha, psn, packets, marked)

    def _session_families(self) -> Iterator[Metric]:
        agent = self._agent
        switch = agent.name
        state = GaugeMetricFamily(
            "symphony_switch_session_state", "1 for the state the session is in.", labels=("switch", "state")
        )
        for each in SessionState:
            state.add_metric((switch, each.value), int(agent.session.state is each))
        reconnects = CounterMetricFamily(
            "symphony_switch_reconnects", "Sessions lost after they had been up.", labels=("switch",)
        )
        reconnects.add_metric((switch,), agent.session.reconnects)
        drift = GaugeMetricFamily(
            "symphony_reconcile_drift",
            "Entries that differ from the desired state, as of the last comparison.",
            labels=("switch",),
        )
        seconds = GaugeMetricFamily(
            "symphony_reconcile_duration_seconds", "How long the last reconcile took.", labels=("switch",)
        )
        if agent.drift is not None:
            drift.add_metric((switch,), 0 if agent.drift.repaired else agent.drift.total)
        if agent.reconcile_seconds is not None:
            seconds.add_metric((switch,), agent.reconcile_seconds)
        used = GaugeMetricFamily("symphony_table_entries", "Entries in the table.", labels=("switch", "table"))
        peak = GaugeMetricFamily(
            "symphony_table_entries_peak",
            "Most entries in the table since the agent started.",
            labels=("switch", "table"),
        )
        size = GaugeMetricFamily("symphony_table_size", "Size of the table.", labels=("switch", "table"))
        for table, use in agent.usage.tables.items():
            used.add_metric((switch, table), use.entries)
            peak.add_metric((switch, table), use.peak)
            size.add_metric((switch, table), use.size)
        misplaced = GaugeMetricFamily(
            "symphony_misplaced_jobs", "Jobs kept off the switch: their place does not suit it.", labels=("switch",)
        )
        misplaced.add_metric((switch,), len(agent.misplaced))
        repairs = CounterMetricFamily(
            "symphony_reconcile_repairs", "Entries that reconciles repaired.", labels=("switch",)
        )
        repairs.add_metric((switch,), agent.repairs)
        yield from (state, reconnects, drift, seconds, repairs, used, peak, size, misplaced)

    def _sampler_families(self) -> Iterator[Metric]:
        agent = self._agent
        switch, sampler = agent.name, agent.sampler
        success = GaugeMetricFamily(
            "symphony_collector_success",
            "1 when the collector's last round worked.",
            labels=("collector", "switch"),
        )
        up = agent.session.state in (SessionState.READY, SessionState.READ_ONLY)
        success.add_metric(("registers", switch), int(up and sampler.last_error is None))
        success.add_metric(("reconcile", switch), int(up and agent.reconcile_error is None))
        seconds = GaugeMetricFamily(
            "symphony_sample_duration_seconds", "How long the last sample took.", labels=("switch",)
        )
        seconds.add_metric((switch,), sampler.last_duration_s)
        stamp = GaugeMetricFamily(
            "symphony_last_sample_timestamp_seconds", "When the last sample worked.", labels=("switch",)
        )
        if sampler.last_success_unix_s is not None:
            stamp.add_metric((switch,), sampler.last_success_unix_s)
        counters = (
            ("symphony_samples", "Samples taken.", sampler.samples),
            ("symphony_sample_failures", "Samples that failed.", sampler.failures),
            (
                "symphony_sample_ticks_skipped",
                "Ticks for which the agent woke up too late.",
                sampler.skipped_ticks,
            ),
            (
                "symphony_step_max_resets",
                "State blocks whose stale step_max was brought back to step_min.",
                sampler.upkeep.step_max_resets,
            ),
            (
                "symphony_upkeep_failures",
                "Rounds in which step_max or a window could not be written.",
                sampler.upkeep_failures,
            ),
            ("symphony_step_rereads", "Readings repeated because step_min was ahead of itself.", sampler.rereads),
            (
                "symphony_windows_refreshed",
                "Jobs whose old or stuck windows were moved on.",
                sampler.upkeep.windows_refreshed,
            ),
            ("symphony_events_dropped", "Samples that slow stream readers lost.", sampler.dropped_frames),
        )
        yield from (success, seconds, stamp)
        for name, text, value in counters:
            family = CounterMetricFamily(name, text, labels=("switch",))
            family.add_metric((switch,), value)
            yield family
