# SPDX-License-Identifier: Apache-2.0
"""Small building blocks of the page."""

from __future__ import annotations

from nicegui import ui

from host_agent.models import JobState

__all__ = ["Tile", "chip", "number", "seconds", "state_chip"]

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
    """A duration in the unit that reads best."""
    if value is None:
        return "–"
    unit, scaled = ("s", value) if value >= 1 else ("ms", value * 1e3) if value >= 1e-3 else ("µs", value * 1e6)
    return f"{scaled:.3g} {unit}" if scaled < 999.5 else f"{scaled:.0f} {unit}"


def number(value: int) -> str:
    """A count, with k and M."""
    if value >= 1_000_000:
        return f"{value / 1e6:.2f} M"
    return f"{value / 1e3:.1f} k" if value >= 100_000 else f"{value:,}".replace(",", " ")
