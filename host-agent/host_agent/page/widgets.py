# SPDX-License-Identifier: Apache-2.0
"""Small building blocks of the page."""

from __future__ import annotations

from nicegui import ui

from host_agent.models import JobState

__all__ = ["Tile", "bandwidth", "chip", "number", "seconds", "state_chip"]

_STATE_KIND: dict[JobState, str] = {
    "registered": "",
    "running": "live sy-dot",
    "finished": "good",
    "failed": "bad",
    "stopped": "warn",
}


def chip(text: str, kind: str = "") -> ui.label:
    """A pill; `kind` is good, warn, bad, live or empty."""
    return ui.label(text).classes(f"sy-chip {kind}")


def state_chip(state: JobState) -> ui.label:
    """A job's state in its colour."""
    return chip(state, _STATE_KIND[state])


class Tile:
    """A figure with its name above and a remark below."""

    def __init__(self, name: str, help_text: str) -> None:
        with ui.element("div").classes("sy-tile"):
            ui.label(name).classes("k")
            self._value = ui.label("–").classes("v")
            self._remark = ui.label("").classes("s")
            ui.tooltip(help_text)

    def set(self, value: str, remark: str = "") -> None:
        """Show another figure."""
        self._value.text = value
        self._remark.text = remark


def seconds(value: float | None) -> str:
    """A duration in the unit that reads best; a dash for one that is not known."""
    if value is None:
        return "–"
    unit, scaled = ("s", value) if value >= 1 else ("ms", value * 1e3) if value >= 1e-3 else ("µs", value * 1e6)
    return f"{scaled:.3g} {unit}" if scaled < 999.5 else f"{scaled:.0f} {unit}"


def bandwidth(gbps: float | None) -> str:
    """GB/s with three decimals, as in ring-bench's table; a dash for one that is not known."""
    return "–" if gbps is None else f"{gbps:.3f} GB/s"


def number(value: int | None, *, at_least: bool = False) -> str:
    """A count with three digits, k and M from 1000 on; a dash for one that is not known."""
    if value is None:
        return "–"
    shown = float(f"{value:.3g}")
    scale, unit = (1e6, " M") if shown >= 1e6 else (1e3, " k") if shown >= 1e3 else (1, "")
    digits = 0 if unit == "" else 2 - (len(str(int(shown / scale))) - 1)
    return ("≥ " if at_least else "") + f"{shown / scale:.{max(0, digits)}f}{unit}"
