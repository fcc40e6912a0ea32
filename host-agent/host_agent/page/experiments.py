# SPDX-License-Identifier: Apache-2.0
"""The page at `/experiments`: results of symphony-experiments, their verdicts, the way to each report."""

from __future__ import annotations

from typing import Any, Final

from nicegui import run, ui

from host_agent.experiments import Experiments
from host_agent.page.style import CSS
from host_agent.page.widgets import chip

__all__ = ["experiments_page"]

VERDICTS: Final = {
    "reproduced": "good",
    "in direction only": "warn",
    "not reproduced": "bad",
    "not run": "",
}


def experiments_page(experiments: Experiments) -> None:
    """Add the page to the application."""

    @ui.page("/experiments", title="Experiments · Symphony testbed")
    async def page() -> None:
        ui.add_css(CSS)
        ui.colors(primary="#3b82f6", positive="#10b981", negative="#d33a3a")
        ui.dark_mode(value=None)
        with ui.header().classes("sy-top"):
            ui.html("Symphony <span>testbed</span>", sanitize=False).classes("sy-brand")
            ui.label("experiments").classes("sy-soft")
            ui.element("div").classes("sy-grow")
            ui.link("Live page", "/").classes("sy-link")
        found = await run.io_bound(experiments.listing) or []
        with ui.element("main").classes("sy-results"):
            if not found:
                with ui.element("div").classes("sy-card sy-empty"):
                    ui.label("No results yet.").classes("sy-title")
                    ui.label(f"symphony-experiments run fig5 --quick writes into results/; shown is {experiments.root}")
            for entry in found:
                _card(entry)


def _card(entry: dict[str, Any]) -> None:
    with ui.element("section").classes("sy-card"):
        with ui.element("div").classes("sy-row sy-wrap"):
            ui.label(entry["name"]).classes("sy-h")
            if entry["problem"]:
                chip("unreadable", "bad")
                ui.label(entry["problem"]).classes("sy-soft")
                return
            ui.label(entry["title"]).classes("sy-grow")
            planned, finished = entry["runs"]["planned"], entry["runs"]["finished"]
            chip(f"{finished} of {planned} runs", "good" if finished == planned else "warn")
            if entry["quick"]:
                chip("quick")
            if entry["report"]:
                ui.link("Report", entry["report"], new_tab=True).classes("sy-link")
        ui.label(" · ".join(filter(None, [entry["paper"], entry["written"]]))).classes("sy-soft")
        with ui.element("ul").classes("sy-claims"):
            for claim in entry["claims"] or []:
                with ui.element("li"):
                    chip(str(claim["verdict"]), VERDICTS.get(claim["verdict"], ""))
                    ui.label(str(claim["text"]))
