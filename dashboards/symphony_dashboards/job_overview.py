# SPDX-License-Identifier: Apache-2.0
"""Symphony: job overview. From "is it good?" over "which is better?" to "why?" (investigate.py)."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard, heatmap, stat, table, timeseries
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync

from symphony_dashboards.investigate import collection_panels, nic_panels, switch_panels
from symphony_dashboards.series import HOST, JOB, RATE, SCRAPE_INTERVAL_S, SCRAPED, SHORT_JOBS, SWITCH
from symphony_dashboards.style import (
    DATASOURCE,
    OFF_ON,
    Query,
    choice_variable,
    datasource_variable,
    graph,
    heat,
    label_variable,
    levels,
    note,
    single,
    table_by,
    words,
)

__all__ = ["UID", "build"]

UID: Final = "symphony-job-overview"

_Panel = dashboard.Panel | heatmap.Panel | stat.Panel | table.Panel | timeseries.Panel


def build() -> dashboard.Dashboard:
    """The dashboard's builder."""
    board = (
        dashboard.Dashboard("Symphony: job overview")
        .uid(UID)
        .description(
            "Step overlap, completion times and marks of ring AllReduce jobs, and what Symphony does about them."
        )
        .tags(["symphony"])
        .editable()
        .timezone("browser")
        .time("now-15m", "now")
        .refresh("5s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(datasource_variable())
        .with_variable(label_variable("job", "Job", "label_values(symphony_job_info, job)"))
        .with_variable(label_variable("switch", "Switch", 'label_values(symphony_job_info{switch!=""}, switch)'))
        .with_variable(choice_variable("priority", "PFC priority", [str(p) for p in range(8)], "3"))
        .annotation(
            dashboard.AnnotationQuery()
            .name("Symphony switched")
            .datasource(DATASOURCE)
            .enable(True)
            .icon_color("purple")
            .expr(f"changes(symphony_job_enabled{{{HOST}}}[{3 * SCRAPE_INTERVAL_S}s]) > 0")
        )
    )
    number = 0
    for title, panels in (
        ("Overview", _overview()),
        ("Compare: jobs and settings", _compare()),
        ("Investigate: switches", switch_panels()),
        ("Investigate: NICs", nic_panels()),
        ("Investigate: are these figures complete?", collection_panels()),
    ):
        number += 1
        board = board.with_row(dashboard.Row(title).id(number))
        for panel in panels:
            number += 1
            board = board.with_panel(panel.id(number))
    return board


def _overview() -> list[_Panel]:
    overlap_levels = levels("green", (7, "yellow"), (16, "red"))
    return [
        single(
            "Step overlap now",
            note(
                "the degree of step overlap: largest minus smallest step in flight, plus 1, over all ranks and "
                "rings of the selected jobs; from the ranks' events (hosts) and from the switches' registers.",
                read="0: idle. 1: in lockstep. The paper has 3 to 6 with Symphony and 24 to 35 without.",
                is_not=f"the maximum: see the next panel. Nor {SCRAPED}.",
            ),
            Query(f'max(symphony_step_overlap{{{HOST}, source="host"}})', "hosts"),
            Query(f'max(symphony_step_overlap{{{HOST}, source="switch"}})', "switches"),
            unit="none",
            thresholds=overlap_levels,
        ),
        single(
            "Step overlap, max",
            note(
                "the largest step overlap that Prometheus saw in the time range.",
                read="compare before and after Symphony was switched (purple lines), with the range set to each.",
                is_not=f"the exact maximum of a run, which is in its result; nor {SCRAPED}.",
            ),
            Query(f'max(max_over_time(symphony_step_overlap{{{HOST}, source="host"}}[$__range]))', "hosts"),
            Query(f'max(max_over_time(symphony_step_overlap{{{HOST}, source="switch"}}[$__range]))', "switches"),
            unit="none",
            thresholds=overlap_levels,
        ),
        single(
            "Symphony",
            note(
                "whether Symphony is asked to be on, per job.",
                read="on: switches may mark packets that run ahead. No data: no active job.",
                is_not="proof that every switch does so: see 'asked and in force'.",
            ),
            Query(f"max by (job) (symphony_job_enabled{{{HOST}}})", "{{job}}"),
            unit="none",
            mappings=OFF_ON,
        ),
        single(
            "Completion time",
            note(
                "median and 99th percentile of the collective completion time (CCT: first post to last completion "
                "over all ranks of a group) of the selected jobs, since each job began.",
                read="lower is better; p99 far above p50 means that some iterations wait for stragglers.",
                is_not="exact: percentiles are interpolated inside histogram buckets, three per decade. The result "
                "of the run has exact ones. On the twin these are virtual seconds.",
            ),
            *(_since_start(quantile, "le") for quantile in (0.5, 0.99)),
            unit="s",
        ),
        single(
            "Bus bandwidth",
            note(
                "busbw as nccl-tests defines it (algbw x 2(n-1)/n), over the timed iterations so far.",
                read="bounded by the slowest link of the ring; compare it with the NICs' line rate.",
                is_not="the bytes on the wire, and no rate of this moment: an ended job keeps its last value.",
            ),
            Query(f"max by (job) (symphony_bus_bandwidth_bytes_per_second{{{JOB}}})", "{{job}}"),
            unit="Bps",
        ),
        single(
            "Collection",
            note(
                "whether all agents answer Prometheus, and whether all collectors' last rounds worked.",
                read="'failing': look into the last row before you believe the other panels.",
                is_not="the health of the switches or NICs themselves.",
            ),
            Query('min(up{job=~"host-agent|switch-agent"})', "agents"),
            Query("min(symphony_collector_success)", "collectors"),
            unit="none",
            mappings=words({0: ("failing", "red"), 1: ("ok", "green")}),
        ),
        graph(
            "Step overlap",
            note(
                "the degree of step overlap over time, from hosts and from switches, independently measured.",
                read="both lines should agree within a step or two. When Symphony is switched on (purple line) the "
                "overlap should fall within a few steps' time.",
                is_not=f"a queue length, and not a rate. Nor {SCRAPED}; host-agent's page draws every change.",
            ),
            Query(f'max by (job) (symphony_step_overlap{{{HOST}, source="host"}})', "{{job}}: hosts"),
            Query(f'max by (job) (symphony_step_overlap{{{HOST}, source="switch"}})', "{{job}}: switches"),
            unit="none",
            size=(16, 9),
            steps=True,
        ),
        graph(
            "Symphony: asked and in force",
            note(
                "what host-agent was asked for, and what holds on all of the job's switches (the lowest of them).",
                read="the lines coincide. 'In force' below 'asked': at least one switch did not take the change.",
                is_not="a count of marks: on with nothing to mark is normal while steps are in line.",
            ),
            Query(f"max by (job) (symphony_job_enabled{{{HOST}}})", "{{job}}: asked"),
            Query(f"min by (job) (symphony_job_enabled{{{SWITCH}}})", "{{job}}: in force"),
            unit="none",
            size=(8, 9),
            steps=True,
        ).mappings(OFF_ON),
    ]


def _since_start(quantile: float, by: str) -> Query:
    """A percentile of all CCTs of a job: works for runs of any length, and after the job is gone."""
    buckets = f"last_over_time(symphony_collective_duration_seconds_bucket{{{JOB}}}[$__range])"
    return Query(f"histogram_quantile({quantile}, sum by ({by}) ({buckets}))", f"p{quantile * 100:g}")


def _recent(metric: str, quantile: float) -> Query:
    expr = f"histogram_quantile({quantile}, sum by (job, le) (rate({metric}_bucket{{{JOB}}}{RATE})))"
    return Query(expr, f"{{{{job}}}}: p{quantile * 100:g}")


def _total(name: str, more: str) -> str:
    return f"sum by (job) (last_over_time({name}{{{SWITCH}, {more}}}[$__range]))"


def _compare() -> list[_Panel]:
    packets = "symphony_packets_total"
    marked = "symphony_ecn_marked_packets_total"
    return [
        table_by(
            "job",
            "Jobs side by side",
            note(
                "one line per job: its settings now, and its figures since it began.",
                read="compare jobs with the same size, world and release rule that differ in the variant only.",
                is_not="a history: a job whose settings were changed while it ran shows the last settings beside "
                "figures of the whole run.",
            ),
            Query(f"max by (job, variant, world, qp_mode, release_rule) (symphony_job_info{{{HOST}}})", "job"),
            (
                Query(f"max by (job) (last_over_time(symphony_job_enabled{{{HOST}}}[$__range]))", "Symphony"),
                "bool_on_off",
            ),
            (_since_start(0.5, "job, le")._replace(legend="CCT p50"), "s"),
            (_since_start(0.99, "job, le")._replace(legend="CCT p99"), "s"),
            (
                Query(
                    f"max by (job) (last_over_time(symphony_bus_bandwidth_bytes_per_second{{{JOB}}}[$__range]))",
                    "busbw",
                ),
                "Bps",
            ),
            (
                Query(
                    f'max by (job) (max_over_time(symphony_step_overlap{{{HOST}, source="host"}}[$__range]))',
                    "max overlap",
                ),
                "none",
            ),
            (Query(_total(marked, 'reason="symphony"'), "marked by Symphony"), "short"),
            (Query(_total(marked, 'reason="queue"'), "marked by queues"), "short"),
            (
                Query(
                    _total(packets, 'kind="outpacing"') + " / " + _total(packets, 'kind="all"'),
                    "outpacing share",
                ),
                "percentunit",
            ),
            shown=["variant", "world", "qp_mode", "release_rule"],
        ),
        heat(
            "Completion times",
            note(
                "how many collectives completed, by time of day (across) and completion time (up).",
                read="a narrow band is good; a second band above it is a group or an iteration that waits.",
                is_not="per rank: a collective's time is that of its slowest rank. " + SHORT_JOBS,
            ),
            Query(
                f"sum by (le) (increase(symphony_collective_duration_seconds_bucket{{{JOB}}}{RATE}))",
                "{{le}}",
            ),
            unit="s",
        ),
        graph(
            "Completion time",
            note(
                "median and 99th percentile of the collectives that completed within the rate interval.",
                read="look for a drop where Symphony was switched on; p99 matters more than p50 to a training job.",
                is_not="exact below a bucket's width; no line where nothing completed. " + SHORT_JOBS,
            ),
            _recent("symphony_collective_duration_seconds", 0.5),
            _recent("symphony_collective_duration_seconds", 0.99),
            unit="s",
        ),
        graph(
            "Bus bandwidth of running jobs",
            note(
                "busbw (nccl-tests' definition) of the newest collectives by themselves, mean over the groups.",
                read="higher is better; jobs that share links add up to what the links carry.",
                is_not="throughput of the NIC: headers, ACKs and retransmissions are not in it.",
            ),
            Query(
                f"max by (job) (symphony_collective_bus_bandwidth_bytes_per_second{{{JOB}}} "
                "and on (job) symphony_job_running == 1)",
                "{{job}}",
            ),
            unit="Bps",
        ),
        graph(
            "Step duration",
            note(
                "from a step's first post to its receiver's completion, median and 99th percentile.",
                read="overlapping steps share the link, so steps get longer while their overlap grows.",
                is_not="idle time between steps; that a rank waits for its turn does not show here. " + SHORT_JOBS,
            ),
            _recent("symphony_step_duration_seconds", 0.5),
            _recent("symphony_step_duration_seconds", 0.99),
            unit="s",
        ),
    ]
