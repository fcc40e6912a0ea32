# SPDX-License-Identifier: Apache-2.0
"""ECharts options of the live page, made from a job's bounded curves; no NiceGUI here.

Colours work on light and dark ground alike. Times are those of the job's clock, counted from its first post.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, Final, NamedTuple

from host_agent.fabric_events import spans
from host_agent.jobs import Job
from host_agent.recorder import RingProgress
from host_agent.views import MAX_POINTS, host_overlap, switch_overlap, switch_series

__all__ = [
    "TimeAxis",
    "alpha_options",
    "cct_options",
    "fabric_notes",
    "marks_options",
    "overlap_options",
    "progress_options",
    "time_axis",
]


Options = dict[str, Any]

HOST: Final = "#3b82f6"
SWITCH: Final = "#f59e0b"
SYMPHONY: Final = "#10b981"
FABRIC: Final = "#ef4444"
MUTED: Final = "#8b95a5"
GRID: Final = "rgba(139,149,165,0.20)"
SERIES: Final = ("#3b82f6", "#f59e0b", "#8b5cf6", "#10b981", "#ef4444", "#06b6d4", "#ec4899", "#84cc16")
LABEL: Final[Options] = {"color": MUTED, "fontSize": 11}
LABEL_ROWS: Final = 2
"""Rows for the labels of toggles, above the plot."""
ROW_PX: Final = 14
LABEL_SHARE: Final = 0.22
"""Width of a toggle's label, as a share of the time axis of the narrowest plot."""
PLAIN: Final[Options] = LABEL | {":formatter": "String"}
"""Numbers of an axis as they are; ECharts' own way has commas, which nothing else on the page has."""
COUNTS: Final[Options] = LABEL | {
    ":formatter": "v => v >= 1e6 ? v / 1e6 + ' M' : v >= 1e3 ? v / 1e3 + ' k' : String(v)"
}
"""Numbers of an axis as `host_agent.page.widgets.number` writes them."""
MAX_NUMBERS: Final = 24
"""Events of the fabric shown in one chart: the newest."""
MAX_LANES: Final = 24
"""Rings shown in the progress chart: those furthest behind."""
MAX_SWITCHES: Final = 8
"""Switches shown in one chart."""


class TimeAxis(NamedTuple):
    """Origin and unit of a time axis."""

    origin_ns: int
    unit: str
    ns_per_unit: float

    def of(self, t_ns: float | None) -> float:
        """Place a moment of the job's clock."""
        return round(((t_ns or 0) - self.origin_ns) / self.ns_per_unit, 4)


def time_axis(job: Job) -> TimeAxis:
    """Seconds, milliseconds or microseconds, whichever reads best for the run so far."""
    origin = job.recorder.first_ns
    if origin is None:
        figures = job.switch_log.figures
        place = job.recorder.clock.place
        origin = place(figures[0].t_ns, figures[0].time_unix_s) if figures else 0
    span = (job.recorder.frontier_ns or origin) - origin
    if span >= 2e9:
        return TimeAxis(origin, "s", 1e9)
    return TimeAxis(origin, "ms", 1e6) if span >= 2e6 else TimeAxis(origin, "µs", 1e3)


def _base(axis: TimeAxis | None, y_name: str) -> Options:
    return {
        "animation": False,
        "textStyle": {"fontFamily": "inherit"},
        "color": list(SERIES),
        "grid": {"left": 58, "right": 16, "top": 34, "bottom": 42},
        "legend": {
            "top": 2,
            "right": 0,
            "icon": "roundRect",
            "itemWidth": 12,
            "itemHeight": 4,
            "textStyle": LABEL,
            "type": "scroll",
        },
        "tooltip": {"trigger": "axis", "confine": True, "textStyle": {"fontSize": 12}},
        "xAxis": {
            "type": "value",
            "name": f"time since first post [{axis.unit}]" if axis else "",
            "nameLocation": "middle",
            "nameGap": 26,
            "nameTextStyle": LABEL,
            "axisLabel": PLAIN | {"hideOverlap": True},
            "axisLine": {"lineStyle": {"color": MUTED}},
            "splitLine": {"show": False},
            "min": 0,
        },
        "yAxis": _y_axis(y_name),
    }


def _y_axis(name: str) -> Options:
    return {
        "type": "value",
        "name": name,
        "nameLocation": "middle",
        "nameGap": 44,
        "nameTextStyle": LABEL,
        "axisLabel": LABEL,
        "splitLine": {"lineStyle": {"color": GRID}},
        "min": 0,
    }


def overlap_options(job: Job) -> Options:
    """Degree of step overlap over time, from hosts and from switches; stretches with Symphony on are
    tinted.
    """
    axis = time_axis(job)
    host: list[list[Any]] = [[axis.of(t), value] for t, value in host_overlap(job)]
    switch: list[list[Any]] = [[axis.of(t), value] for t, value in switch_overlap(job, breaks=True)]
    end = max([point[0] for point in (*host[-1:], *switch[-1:])], default=0.0)
    numbers, disturbed = _fabric_marks(job, axis, end)
    lines, areas = _toggle_marks(job, axis, end, ROW_PX if numbers else 0)
    options = _base(axis, "steps")
    options["grid"] |= {"top": 34 + (LABEL_ROWS - (not numbers)) * ROW_PX}
    options["yAxis"] |= {"minInterval": 1, "boundaryGap": [0, "6%"]}
    options["series"] = [
        {
            "name": "hosts (step events)",
            "type": "line",
            "step": "end",
            "showSymbol": False,
            "sampling": "max",
            "lineStyle": {"width": 1.6, "color": HOST},
            "itemStyle": {"color": HOST},
            "areaStyle": {"color": HOST, "opacity": 0.10},
            "data": host,
            "markLine": {"silent": True, "symbol": "none", "data": lines + numbers},
            "markArea": {
                "silent": True,
                "itemStyle": {"color": SYMPHONY, "opacity": 0.10},
                "data": areas + disturbed,
            },
        },
        {
            "name": "switches (registers)",
            "type": "line",
            "showSymbol": len(switch) < 120,
            "symbolSize": 4,
            "lineStyle": {"width": 1.2, "color": SWITCH, "type": "solid"},
            "itemStyle": {"color": SWITCH},
            "data": switch,
        },
    ]
    return options


def _toggle_marks(job: Job, axis: TimeAxis, end: float, above: int) -> tuple[list[Options], list[list[Options]]]:
    """A line per toggle, labelled so many pixels above the plot, and the stretches with Symphony on."""
    toggles = [(max(0.0, axis.of(toggle.t_ns[1])), toggle) for toggle in job.toggles if toggle.t_ns is not None]
    rows = _label_rows([x for x, _ in toggles], LABEL_SHARE * max([end, *(x for x, _ in toggles)]))
    lines: list[Options] = []
    areas: list[list[Options]] = []
    since = 0.0 if job.request.symphony.enabled else None
    for (x, toggle), row in zip(toggles, rows, strict=True):
        label: Options = {"show": False}
        if row is not None:
            text = f"on: {toggle.variant}" if toggle.enabled else "off"
            label = {"formatter": text, "color": SYMPHONY, "fontSize": 11}
            label |= {"position": "end", "distance": 4 + above + row * ROW_PX}
        lines.append({"xAxis": x, "lineStyle": {"color": SYMPHONY, "type": "dashed", "width": 1.5}, "label": label})
        if toggle.enabled and since is None:
            since = x
        elif not toggle.enabled and since is not None:
            areas.append([{"xAxis": since}, {"xAxis": x}])
            since = None
    if since is not None:
        areas.append([{"xAxis": since}, {"xAxis": max(end, since)}])
    return lines, areas


def _fabric_marks(job: Job, axis: TimeAxis, end: float) -> tuple[list[Options], list[list[Options]]]:
    """A numbered line where something happened to the fabric (`fabric_notes` says what), tinted while it lasts."""
    lines: list[Options] = []
    areas: list[list[Options]] = []
    for number, (event, over_ns) in enumerate(spans(job.fabric_events or ()), 1):
        x = max(0.0, axis.of(event.t_ns))
        until = max(x, end if over_ns is None else min(end, axis.of(over_ns)))
        label = {"formatter": str(number), "color": FABRIC, "fontSize": 11, "position": "end", "distance": 4}
        lines.append({"xAxis": x, "lineStyle": {"color": FABRIC, "type": "dotted", "width": 1.5}, "label": label})
        areas.append([{"xAxis": x, "itemStyle": {"color": FABRIC, "opacity": 0.06}}, {"xAxis": until}])
    return lines[-MAX_NUMBERS:], areas[-MAX_NUMBERS:]


def fabric_notes(job: Job) -> str:
    """What the numbers in the overlap's chart stand for; "" when nothing has happened."""
    axis = time_axis(job)
    notes = []
    for number, (event, over_ns) in enumerate(spans(job.fabric_events or ()), 1):
        times = [f"{max(0.0, axis.of(t_ns)):.4g}" for t_ns in (event.t_ns, over_ns) if t_ns is not None]
        notes.append(f"{number}: {event.what}, {'from' if over_ns else 'at'} {' to '.join(times)} {axis.unit}")
    notes = notes[-MAX_NUMBERS:]
    notes += [f"{event.what} (could not happen)" for event in job.fabric_events or () if event.phase == "failed"]
    return "Fabric  " + " · ".join(notes) if notes else ""


def _label_rows(places: Sequence[float], width: float) -> list[int | None]:
    """The row of each label (ascending places), so that none covers another; None: there is no room for it.

    The newest come first: what holds now is always said.
    """
    rows: list[int | None] = [None] * len(places)
    free = [float("inf")] * LABEL_ROWS
    for index in range(len(places) - 1, -1, -1):
        for row in range(LABEL_ROWS):
            if places[index] + width <= free[row]:
                rows[index], free[row] = row, places[index]
                break
    return rows


def progress_options(job: Job) -> Options:
    """Steps in flight per ring of each group: a bar from the lowest to the highest."""
    rings = job.recorder.progress()
    busy = [ring for ring in rings if ring.lowest is not None]
    shown = sorted(busy, key=lambda ring: (ring.lowest, ring.group, ring.ring))[:MAX_LANES] if busy else []
    shown.sort(key=lambda ring: (ring.group, ring.ring), reverse=True)
    several = len({ring.ring for ring in rings}) > 1
    low = min((ring.lowest for ring in shown if ring.lowest is not None), default=0)
    options = _base(None, "")
    options["grid"] = {"left": 62, "right": 52, "top": 12, "bottom": 42}  # right: the last bar's label
    options["legend"] = {"show": False}
    options["tooltip"] |= {"axisPointer": {"type": "shadow"}}
    options["yAxis"] = {
        "type": "category",
        "data": [f"group {r.group}" + (f" ring {r.ring}" if several else "") for r in shown],
        "axisLabel": {"color": MUTED, "fontSize": 10},
        "axisTick": {"show": False},
        "axisLine": {"show": False},
    }
    options["xAxis"] |= {"name": "step in flight (lowest to highest)", "min": max(0, low - 1), "minInterval": 1}
    options["xAxis"]["splitLine"] = {"show": True, "lineStyle": {"color": GRID}}
    options["series"] = [
        {
            "name": "below",
            "type": "bar",
            "stack": "range",
            "silent": True,
            "itemStyle": {"color": "transparent"},
            "tooltip": {"show": False},
            "data": [(ring.lowest or 0) - 0.4 for ring in shown],
        },
        {
            "name": "steps in flight",
            "type": "bar",
            "stack": "range",
            "barMaxWidth": 14,
            "itemStyle": {"color": HOST, "borderRadius": 3, "opacity": 0.85},
            "label": {"show": True, "position": "right", "fontSize": 10, "color": MUTED},
            "data": [_bar(ring) for ring in shown],
        },
    ]
    return options


def _bar(ring: RingProgress) -> Options:
    lowest, highest = ring.lowest or 0, ring.highest or 0
    text = f"{lowest}–{highest}" if highest > lowest else str(lowest)
    return {"value": round(highest - lowest + 0.8, 1), "label": {"formatter": text}}


def alpha_options(job: Job) -> Options:
    """Alpha (the gain multiplier of eq. 3) of each switch over time.

    The axis is logarithmic: while Symphony is off nothing bounds alpha, on it is near its set-point.
    """
    axis = time_axis(job)
    options = _base(axis, "alpha")
    options["yAxis"] |= {"type": "log", "min": 1, "axisLabel": COUNTS}
    options["series"] = [
        _line(switch, [[axis.of(p["t_ns"]), p["alpha"]] for p in points], index, step="end")
        for index, (switch, points) in enumerate(_per_switch(job).items())
    ]
    return options


def marks_options(job: Job) -> Options:
    """Packets marked with CE so far, per switch: by Symphony (solid) and by the queue's RED (dashed)."""
    axis = time_axis(job)
    options = _base(axis, "packets marked so far")
    options["yAxis"] |= {"nameGap": 46, "axisLabel": COUNTS}
    options["series"] = []
    for index, (switch, points) in enumerate(_per_switch(job).items()):
        for kind, name, dash in (("symphony", switch, "solid"), ("queue", f"{switch} (queue)", "dashed")):
            data = [[axis.of(p["t_ns"]), p[f"marked_{kind}"]] for p in points]
            options["series"].append(_line(name, data, index, dash=dash))
    options["legend"]["data"] = [series["name"] for series in options["series"][::2]]
    return options


def _per_switch(job: Job) -> dict[str, list[dict[str, int | None]]]:
    names = list(job.flows)[:MAX_SWITCHES]
    return {name: switch_series(job, name, MAX_POINTS // max(1, len(names)), breaks=True) for name in names}


def _line(name: str, data: Sequence[Any], index: int, *, dash: str = "solid", step: str | None = None) -> Options:
    colour = SERIES[index % len(SERIES)]
    line: Options = {
        "name": name,
        "type": "line",
        "showSymbol": False,
        "lineStyle": {"width": 1.4, "type": dash, "color": colour},
        "itemStyle": {"color": colour},
        "data": list(data),
    }
    return line | ({"step": step} if step else {})


def cct_options(job: Job) -> Options:
    """Completion time of each collective per timed iteration (a dot per group, a line for the median) and its
    bus bandwidth by itself.
    """
    log = job.recorder.collectives
    records = [record for record in log.records if log.timed(record.iteration)][-MAX_POINTS:]
    by_iteration: dict[int, list[Any]] = {}
    for record in records:
        by_iteration.setdefault(record.iteration, []).append(record)
    largest = max((record.cct_s for record in records), default=0.0)
    unit, scale = ("s", 1.0) if largest >= 2 else ("ms", 1e3) if largest >= 2e-3 else ("µs", 1e6)
    options = _base(None, f"CCT [{unit}]")
    options["grid"] |= {"right": 58}
    options["xAxis"] |= {"name": "iteration", "minInterval": 1}
    options["yAxis"] = [
        options["yAxis"],
        _y_axis("busbw [GB/s]") | {"splitLine": {"show": False}, "nameGap": 38},
    ]
    rates = {i: [r.busbw_gbps for r in group if r.busbw_gbps is not None] for i, group in sorted(by_iteration.items())}
    options["series"] = [
        {
            "name": "CCT per group",
            "type": "scatter",
            "symbolSize": 5,
            "itemStyle": {"color": HOST, "opacity": 0.35},
            "data": [[record.iteration, round(record.cct_s * scale, 4)] for record in records],
        },
        {
            "name": "CCT median",
            "type": "line",
            "showSymbol": False,
            "lineStyle": {"width": 2, "color": HOST},
            "itemStyle": {"color": HOST},
            "data": [
                [i, round(median(r.cct_s for r in group) * scale, 4)] for i, group in sorted(by_iteration.items())
            ],
        },
        {
            "name": "busbw median",
            "type": "line",
            "yAxisIndex": 1,
            "showSymbol": False,
            "lineStyle": {"width": 1.4, "color": SWITCH},
            "itemStyle": {"color": SWITCH},
            "data": [[i, round(median(group), 4)] for i, group in rates.items() if group],
        },
    ]
    return options
