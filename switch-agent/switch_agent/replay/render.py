# SPDX-License-Identifier: Apache-2.0
"""A replay's report for people: tables on a terminal and a picture."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from switch_agent.replay.report import JobReport, ReplayReport, Window
from switch_agent.replay.steps import Group, Inference

__all__ = ["picture", "print_report"]

_TIMELINE_ROWS = 20
_JOBS_SHOWN = 10
_LANES_SHOWN, _GROUPS_SHOWN, _MEMBERS_SHOWN = 20, 5, 16
_WIDTH_IN, _HEIGHT_IN = 10.0, 8.0


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count) or "-"


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0))
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*(f"{cell:.6g}" if isinstance(cell, float) else escape(str(cell)) for cell in row))
    return table


def _capture_table(report: ReplayReport) -> Table:
    capture, roce = report.capture, report.roce
    names = ", ".join(file.path for file in capture.files)
    table = Table(title=escape(f"Capture {names}"), title_justify="left", show_header=False, box=box.SIMPLE)
    several = len(capture.files) > 1
    for file in capture.files:
        kind = ", ".join((file.format, *([file.compression] if file.compression else []), *file.link_types))
        table.add_row("file", escape(f"{file.path}: {kind}, {file.records} records" if several else kind))
    sequence = {name: count for name, count in roce.sequence.model_dump().items() if count}
    rows = [
        ("records", f"{capture.records}: RoCE {capture.roce}"),
        ("forms", _counts(capture.forms) if capture.forms else "plain RoCEv2"),
        ("other traffic", _counts(capture.other)),
        ("not opened", _counts(capture.closed)),
        ("junk", _counts(capture.junk)),
        ("duration", f"{capture.duration_s:.6f} s"),
        ("opcodes", _counts(roce.opcodes)),
        ("ECN", _counts(roce.ecn)),
        ("replies", _counts(roce.replies)),
        ("sequence", _counts(sequence)),
    ]
    for name, value in rows:
        table.add_row(name, escape(value))
    return table


def _jobs_table(jobs: Sequence[JobReport], variant: str) -> Table:
    columns = (
        *("job", "packets", "ahead", "step ends", "min", "max", "overlap", "alpha", "psn rec"),
        *("would mark", "not ECT", "CE"),
    )
    rows = [
        (
            *(job.name, job.packets, job.outpacing, job.step_ends),
            *(job.registers.step_min, job.registers.step_max, job.max_overlap),
            *(job.registers.alpha, job.registers.psn_rec),
            *(job.would_mark, job.unmarkable.not_ect, job.unmarkable.already_ce),
        )
        for job in jobs
    ]
    return _table(f"Jobs (parameters: {variant}; overlap: the largest of a window)", columns, rows)


def _timeline_table(job: JobReport) -> Table:
    """Up to 20 lines; each stands for a run of windows and shows the largest overlap among them."""
    size = math.ceil(len(job.timeline) / _TIMELINE_ROWS)
    rows = []
    for first in range(0, len(job.timeline), size):
        run: list[Window] = job.timeline[first : first + size]
        rows.append(
            (
                f"{run[0].start_s:.6f}",
                max(window.overlap for window in run),
                run[-1].step_min,
                run[-1].step_max,
                sum(window.packets for window in run),
                sum(window.outpacing for window in run),
                sum(window.would_mark for window in run),
                run[-1].alpha,
            )
        )
    title = f"Timeline of {job.name}" + (f", a line is {size} windows" if size > 1 else "")
    return _table(title, ("from s", "overlap", "step min", "max", "packets", "outpacing", "would mark", "alpha"), rows)


def _lanes_table(group: Group) -> Table:
    """Up to 20 lanes: those that are most often the last."""
    order = sorted(group.lanes, key=lambda lane: -(lane.last_share or 0.0))[:_LANES_SHOWN]
    rows = [
        (
            f"{lane.src} > {lane.dst}",
            ",".join(f"{qpn:#x}" for qpn in lane.qpns),
            *(lane.steps, lane.messages, lane.retransmitted, lane.missing_messages),
            "-" if lane.step_ms is None else lane.step_ms,
            "-" if lane.last_share is None else f"{lane.last_share:.0%}",
        )
        for lane in group.lanes
        if lane in order
    ]
    more = f", {len(rows)} of {len(group.lanes)}" if len(rows) < len(group.lanes) else ""
    return _table(
        f"Lanes{more} (last: share of the time with several steps under way in which it is at the lowest)",
        ("from > to", "QP", "steps", "messages", "resent", "missing", "ms/step", "last"),
        rows,
    )


def _print_inferred(inferred: Inference, console: Console) -> None:
    """Print the groups with most lanes: what they are, how sure that is and why, lanes, collectives, overlap."""
    shown = sorted(inferred.groups, key=lambda group: -len(group.lanes))[:_GROUPS_SHOWN]
    for group in shown:
        table = Table(title="Steps without tags", title_justify="left", show_header=False, box=box.SIMPLE)
        overlap = "not told" if group.max_overlap is None else str(group.max_overlap)
        rows = (
            (
                group.shape,
                " > ".join(group.members[:_MEMBERS_SHOWN]) + (" ..." if group.members[_MEMBERS_SHOWN:] else ""),
            ),
            ("messages per step", str(group.messages_per_step)),
            ("confidence", f"{group.confidence:.2f}"),
            *(("because" if i == 0 else "", reason) for i, reason in enumerate(group.reasons)),
            ("largest overlap", overlap),
            ("laggards", ", ".join(group.laggards) or "-"),
        )
        for name, value in rows:
            table.add_row(name, escape(value))
        console.print(table)
        console.print(_lanes_table(group))
        if group.candidates:
            title = f"What may be collectives: {len(group.candidates)}"
            columns = ("from s", "CCT ms", "first step", "steps", "kind")
            found = [(f"{c.start_s:.6f}", c.cct_ms, c.first_step, c.steps, c.kind) for c in group.candidates]
            more = [("...", "", "", "", "")] if len(found) > _TIMELINE_ROWS else []
            console.print(_table(title, columns, [*found[:_TIMELINE_ROWS], *more]))
        if group.timeline:
            size = math.ceil(len(group.timeline) / _TIMELINE_ROWS)
            runs = [group.timeline[i : i + size] for i in range(0, len(group.timeline), size)]
            lines = [max(run, key=lambda window: window.overlap) for run in runs]
            title = "Overlap, the largest of" + (f" {size} windows" if size > 1 else " a window")
            figures = [(f"{line.start_s:.6f}", line.overlap, line.step_min, line.step_max) for line in lines]
            console.print(_table(title, ("from s", "overlap", "step min", "max"), figures))
    if len(inferred.groups) > len(shown):
        console.print(f"Note: {len(inferred.groups) - len(shown)} more groups of lanes are in the JSON report.")
    for note in inferred.notes:
        console.print(f"Note: {escape(note)}")


def print_report(report: ReplayReport, console: Console) -> None:
    """Print capture, jobs and timelines (of the ten jobs with the most packets), and steps without tags."""
    console.print(_capture_table(report))
    if report.inferred:
        _print_inferred(report.inferred, console)
    if report.jobs:
        console.print(_jobs_table(report.jobs, report.settings.variant))
    for job in _largest(report.jobs):
        console.print(_timeline_table(job))
    for note in (*report.partial, *report.notes):
        console.print(f"Note: {escape(note)}")


def _largest(jobs: Sequence[JobReport]) -> list[JobReport]:
    chosen = sorted(jobs, key=lambda job: -job.packets)[:_JOBS_SHOWN]
    return [job for job in jobs if job in chosen]


def picture(report: ReplayReport) -> bytes:
    """Return overlap, outpacing share, would-be marks and alpha over time as PNG."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(_WIDTH_IN, _HEIGHT_IN), layout="constrained")
    axes = figure.subplots(4, 1, sharex=True)
    shown = _largest(report.jobs)
    width = report.settings.window_ms / 1000
    for job in shown:
        columns: tuple[list[float], ...] = ([], [], [], [], [])
        end = None
        for window in job.timeline:
            if end is not None and window.start_s > end + width / 2:  # a pause: break the line
                _append(columns, end, (math.nan,) * 4)
            share = window.outpacing / window.packets
            figures = (window.overlap, share, window.would_mark, window.alpha)
            _append(columns, window.start_s, figures)
            end = window.start_s + width
            _append(columns, end, figures)
        for axis, column in zip(axes, columns[1:], strict=True):
            axis.plot(columns[0], column, label=job.name, linewidth=1.2)
    labels = ("step overlap", "share of packets\noutpacing", "would-be marks\nper window", "alpha")
    for axis, label in zip(axes, labels, strict=True):
        axis.set_ylabel(label)
        axis.margins(y=0.1)
        axis.set_ylim(bottom=0)
        axis.grid(visible=True, alpha=0.3)
    axes[0].yaxis.set_major_locator(MaxNLocator(integer=True))
    axes[-1].set_xlabel("time since the first RoCEv2 packet, s")
    left_out = len(report.jobs) - len(shown)
    more = f"; {left_out} smaller jobs not shown" if left_out else ""
    names = " + ".join(Path(file.path).name for file in report.capture.files)
    name = names.replace("$", r"\$")  # else a file name could be taken for a formula
    axes[0].set_title(
        f"{name}: parameters {report.settings.variant}, windows of {report.settings.window_ms:g} ms{more}"
    )
    if shown:
        axes[0].legend(loc="upper right", fontsize="small")
    else:
        axes[0].text(0.5, 0.5, "no tracked packets", ha="center", va="center", transform=axes[0].transAxes)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    return drawn.getvalue()


def _append(columns: tuple[list[float], ...], time: float, figures: tuple[float, ...]) -> None:
    for column, value in zip(columns, (time, *figures), strict=True):
        column.append(value)
