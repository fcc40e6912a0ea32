# SPDX-License-Identifier: Apache-2.0
"""Figures in the form of the paper's, readable without colour: every curve has a dash pattern and a marker of its own.

Colours are Okabe and Ito's palette (2008), which the colour-blind can tell apart. A figure is SVG, with its text as
text, and the same rows give the same bytes.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import BaseModel, ConfigDict

from symphony_experiments.statistics import cdf, median

__all__ = ["FigureSpec", "draw"]

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_HATCHES = ("", "///", "...", "xx", "\\\\\\", "++", "oo")
_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.grid": True,
    "grid.color": "#d8d8d8",
    "grid.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "svg.hashsalt": "symphony",
    "svg.fonttype": "none",
}
Row = Mapping[str, Any]


class FigureSpec(BaseModel):
    """One figure of a scenario."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["cdf", "timeline", "lines", "bars"]
    """cdf: over seeds; timeline: a kept curve over time, of the first seed; lines and bars: medians with intervals."""
    metric: str
    """A column of the rows; for a timeline, the name of the curve."""
    x: str | None = None
    """lines, bars: the column along the horizontal axis; none: one group."""
    by: str = "variant"
    """The column that tells the curves apart."""
    title: str = ""
    xlabel: str = ""
    ylabel: str = ""
    logx: bool = False
    relative_to: str | None = None
    """lines, bars: divide by the median of this curve at the same x."""


def draw(spec: FigureSpec, rows: Sequence[Row], series: Mapping[str, Mapping[str, Sequence[float]]]) -> bytes:
    """The figure as SVG.

    Args:
        spec: what to draw.
        rows: rows of finished runs; those without the metric are left out.
        series: key of a run -> curves.
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(5.2, 3.0), layout="constrained")
        axes = figure.add_subplot()
        {"cdf": _cdf, "timeline": _timeline, "lines": _lines, "bars": _bars}[spec.kind](axes, spec, rows, series)
        axes.set_title(spec.title, fontsize=9, loc="left")
        axes.set_xlabel(spec.xlabel)
        axes.set_ylabel(spec.ylabel)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(fontsize=8)
        sink = io.BytesIO()
        figure.savefig(sink, format="svg", metadata={"Date": None, "Creator": None})
        return sink.getvalue()


def _groups(spec: FigureSpec, rows: Sequence[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(str(row.get(spec.by)), []).append(row)
    return groups


def _look(i: int) -> dict[str, Any]:
    return {"color": _COLOURS[i % len(_COLOURS)], "linestyle": _DASHES[i % len(_DASHES)], "linewidth": 1.6}


def _cdf(axes: Axes, spec: FigureSpec, rows: Sequence[Row], _: Any) -> None:
    for i, (name, group) in enumerate(_groups(spec, rows).items()):
        values = [row[spec.metric] for row in group if row.get(spec.metric) is not None]
        if values:
            x, share = cdf(values)
            axes.step([x[0], *x], [0.0, *share], where="post", label=f"{name} (n = {len(values)})", **_look(i))
    axes.set_ylim(0, 1.02)


def _timeline(axes: Axes, spec: FigureSpec, rows: Sequence[Row], series: Mapping[str, Any]) -> None:
    for i, (name, group) in enumerate(_groups(spec, rows).items()):
        first = min(group, key=lambda row: row["seed"])
        curves = series.get(first["key"], {})
        if spec.metric in curves:
            axes.step(curves[f"{spec.metric}.t_ms"], curves[spec.metric], where="post", label=name, **_look(i))
    axes.set_ylim(bottom=0)


def _medians(spec: FigureSpec, group: Sequence[Row]) -> dict[Any, list[float]]:
    values: dict[Any, list[float]] = {}
    for row in group:
        if row.get(spec.metric) is not None:
            values.setdefault(row.get(spec.x) if spec.x else "", []).append(row[spec.metric])
    return values


def _points(spec: FigureSpec, rows: Sequence[Row]) -> dict[str, list[tuple[Any, float, float, float]]]:
    """Curve -> (x, median, downwards to the interval's end, upwards to it)."""
    groups = {name: _medians(spec, group) for name, group in _groups(spec, rows).items()}
    reference = groups.get(spec.relative_to, {}) if spec.relative_to else {}
    points: dict[str, list[tuple[Any, float, float, float]]] = {}
    for name, values in groups.items():
        for x, sample in values.items():
            scale = 1.0
            if spec.relative_to:
                if x not in reference:
                    continue
                scale = median(reference[x]).value
            value, low, high, _ = median(sample)
            low, high = (value if low is None else low), (value if high is None else high)
            points.setdefault(name, []).append((x, value / scale, (value - low) / scale, (high - value) / scale))
    return points


def _lines(axes: Axes, spec: FigureSpec, rows: Sequence[Row], _: Any) -> None:
    points = _points(spec, rows)
    words = any(isinstance(x, str) for curve in points.values() for x, *_ in curve)
    for i, (name, curve) in enumerate(points.items()):
        ordered = curve if words else sorted(curve)
        axes.errorbar(
            [x for x, *_ in ordered],
            [y for _, y, _, _ in ordered],
            yerr=[[down for _, _, down, _ in ordered], [up for _, _, _, up in ordered]],
            marker=_MARKERS[i % len(_MARKERS)],
            markersize=4,
            capsize=2,
            label=name,
            **_look(i),
        )
    if spec.logx and not words:
        axes.set_xscale("log")


def _bars(axes: Axes, spec: FigureSpec, rows: Sequence[Row], _: Any) -> None:
    points = _points(spec, rows)
    places = list(dict.fromkeys(x for curve in points.values() for x, *_ in curve))
    width = 0.8 / max(len(points), 1)
    for i, (name, curve) in enumerate(points.items()):
        axes.bar(
            [places.index(x) + (i + 0.5) * width - 0.4 for x, *_ in curve],
            [y for _, y, _, _ in curve],
            width * 0.92,
            yerr=[[down for _, _, down, _ in curve], [up for _, _, _, up in curve]],
            capsize=2,
            color=_COLOURS[i % len(_COLOURS)],
            edgecolor="white",
            hatch=_HATCHES[i % len(_HATCHES)],
            label=name,
        )
    axes.set_xticks(range(len(places)), [str(place) for place in places])
    axes.grid(visible=False, axis="x")
