# SPDX-License-Identifier: Apache-2.0
"""The report over a folder of results: Markdown, and one HTML page that needs nothing else.

Numbers come from the rows alone; what was not run is said to be not run, and a sweep that has not ended is marked
partial.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from symphony_experiments.claims import Judgement, Row, judge
from symphony_experiments.figures import draw
from symphony_experiments.scenario import Scenario
from symphony_experiments.statistics import LEVEL, Estimate, median
from symphony_experiments.store import Results

__all__ = ["Report", "make_report", "write_report"]

_MARK = {"reproduced": "✓", "in direction only": "~", "not reproduced": "✗", "not run": "·"}
_COLUMNS = (
    ("cct_ms", "CCT (ms)"),
    ("jct_ms", "JCT (ms)"),
    ("x_ideal", "x bound"),
    ("max_overlap", "max overlap"),
    ("mean_overlap", "mean overlap"),
    ("marked_symphony", "marked by Symphony"),
    ("marked_queue", "marked by queues"),
)


class Report(NamedTuple):
    """A report as its parts."""

    scenario: Scenario
    manifest: Mapping[str, Any]
    judgements: list[Judgement]
    table: list[list[str]]
    """Header first."""
    figures: list[tuple[str, bytes]]
    """File name without suffix, SVG."""
    done: int
    planned: int

    @property
    def is_partial(self) -> bool:
        """Runs are missing."""
        return self.done < self.planned


def make_report(results: Results) -> Report:
    """Judge, tabulate and draw what a folder holds.

    Raises:
        ResultsError: the folder cannot be read.
        ScenarioError: its manifest holds a scenario that this version does not understand.
    """
    manifest = results.manifest()
    scenario = Scenario.from_table(manifest["scenario"], where=f"{results.directory}/manifest.json")
    rows = results.rows()
    series = results.series()
    done = {row["key"] for row in rows}
    return Report(
        scenario=scenario,
        manifest=manifest,
        judgements=[judge(claim, rows) for claim in scenario.claim],
        table=_table(scenario, rows),
        figures=[(f"{scenario.name}-{i}", draw(spec, rows, series)) for i, spec in enumerate(scenario.figure, 1)],
        done=len(done),
        planned=len(manifest["runs"]),
    )


def write_report(results: Results) -> Report:
    """Write ``report.md``, ``report.html``, ``report.json`` (the verdicts) and ``figures/*.svg`` into the folder."""
    report = make_report(results)
    for name, svg in report.figures:
        (results.directory / "figures").mkdir(exist_ok=True)
        results.write_text(f"figures/{name}.svg", svg.decode())
    results.write_text("report.md", to_markdown(report))
    results.write_text("report.html", to_html(report))
    results.write_text("report.json", json.dumps({"claims": [*map(_claim_data, report.judgements)]}, indent=1) + "\n")
    return report


def _table(scenario: Scenario, rows: Sequence[Row]) -> list[list[str]]:
    """Medians with intervals, a line for each combination of variant, axes and job."""
    jobs = {row["job"] for row in rows}
    keys = ["variant", *scenario.axes(), *(["job"] if len(jobs) > 1 else [])]
    shown = [(name, title) for name, title in _COLUMNS if any(row.get(name) is not None for row in rows)]
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    table = [[*keys, "n", *(title for _, title in shown)]]
    for values, group in groups.items():
        cells = [_plain(value) for value in values] + [str(len(group))]
        for name, _ in shown:
            sample = [row[name] for row in group if row.get(name) is not None]
            cells.append(_estimate(median(sample)) if sample else "–")
        table.append(cells)
    return table


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _estimate(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return _number(estimate.value)
    if estimate.low == estimate.high == estimate.value:
        return _number(estimate.value)
    return f"{_number(estimate.value)} [{_number(estimate.low)}, {_number(estimate.high)}]"


def _percent(value: float) -> str:
    return f"{100 * value:+.1f} %"


def _claim_cells(judgement: Judgement) -> list[str]:
    claim, verdict, ours, difference = judgement
    number = _percent if claim.statistic == "change" else _number
    if claim.paper is None:
        paper = f"{claim.direction} than the baseline"
    elif isinstance(claim.paper, tuple):
        paper = " to ".join(number(value) for value in claim.paper)
    else:
        paper = number(claim.paper)
    said = "–"
    if ours is not None:
        said = number(ours.value)
        if ours.low is not None and ours.high is not None:
            said += f" [{number(ours.low)}, {number(ours.high)}]"
        said += f", n = {ours.n}"
    if difference is None:
        apart = "–"
    elif claim.statistic == "change":
        apart = f"{100 * difference:+.1f} points"
    else:
        apart = f"{difference:+.4g}"
    return [claim.text, claim.source, paper, said, apart, f"{_MARK[verdict]} {verdict}"]


def _claim_data(judgement: Judgement) -> dict[str, Any]:
    claim, verdict, ours, difference = judgement
    return {
        "id": claim.id,
        "text": claim.text,
        "source": claim.source,
        "paper": claim.paper,
        "ours": None if ours is None else ours._asdict(),
        "difference": difference,
        "verdict": verdict,
    }


_CLAIM_HEADER = ["claim", "source", "the paper", "ours", "difference", "verdict"]


def _notes(report: Report) -> list[str]:
    scenario, manifest = report.scenario, report.manifest
    notes = [scenario.about]
    if report.is_partial:
        notes.append(
            f"PARTIAL: {report.done} of {report.planned} runs are finished; "
            "`symphony-experiments run` again does the others."
        )
    if manifest["quick"]:
        notes.append("Quick form: fewer seeds or smaller sizes than the scenario's own; see the manifest.")
    notes.append(
        f"Medians over seeds with {100 * LEVEL:.0f} % bootstrap intervals. Made by version {manifest['version']}"
        f" (commit {manifest['commit'] or 'unknown'}); seeds and hashes of the step traces are in manifest.json."
    )
    return [note for note in notes if note]


def to_markdown(report: Report) -> str:
    """The report as Markdown; figures are linked from ``figures/``."""
    lines = [f"# {report.scenario.name}: {report.scenario.title}", "", f"*{report.scenario.paper}*", ""]
    for note in _notes(report):
        lines += [note, ""]
    if report.judgements:
        lines += ["## Verdicts", "", *_md_table([_CLAIM_HEADER, *map(_claim_cells, report.judgements)]), ""]
    for name, _ in report.figures:
        lines += [f"![{name}](figures/{name}.svg)", ""]
    lines += ["## Figures in numbers", "", *_md_table(report.table), ""]
    return "\n".join(lines)


def _md_table(table: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(table[0]), "|" + "---|" * len(table[0]), *(line(row) for row in table[1:])]


_CSS = """
:root { color-scheme: light dark; --ink: #1c1c1c; --paper: #fff; --line: #d0d0d0; --soft: #f4f4f4; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --paper: #16181b; --line: #3a3e44; --soft: #22252a; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 68rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .7rem .3rem 0; text-align: left; vertical-align: top; }
figure { margin: 1.2rem 0; background: #fff; padding: .5rem; display: inline-block; border: 1px solid var(--line); }
figure img { max-width: 100%; height: auto; }
.partial { border-left: 4px solid #D55E00; padding-left: .7rem; font-weight: 600; }
"""


def to_html(report: Report) -> str:
    """The report as one HTML page, figures included."""
    title = html.escape(f"{report.scenario.name}: {report.scenario.title}")
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_CSS}</style></head><body>',
        f"<h1>{title}</h1><p><em>{html.escape(report.scenario.paper)}</em></p>",
    ]
    for note in _notes(report):
        mark = ' class="partial"' if note.startswith("PARTIAL") else ""
        parts.append(f"<p{mark}>{html.escape(note)}</p>")
    if report.judgements:
        parts += ["<h2>Verdicts</h2>", _html_table([_CLAIM_HEADER, *map(_claim_cells, report.judgements)])]
    for name, svg in report.figures:
        data = base64.b64encode(svg).decode()
        parts.append(f'<figure><img alt="{html.escape(name)}" src="data:image/svg+xml;base64,{data}"></figure>')
    parts += ["<h2>Figures in numbers</h2>", _html_table(report.table), "</body></html>\n"]
    return "\n".join(parts)


def _html_table(table: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in table[0])
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in table[1:])
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
