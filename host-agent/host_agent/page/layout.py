# SPDX-License-Identifier: Apache-2.0
"""The page's frame: top bar, job list, the chosen job's panel; and how it is attached to the application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from fastapi import FastAPI
from nicegui import ui
from starlette.exceptions import HTTPException

from host_agent.auth import TokenGate
from host_agent.errors import HostAgentError, UnauthorizedError, UnknownJobError
from host_agent.hub import Hub
from host_agent.jobs import Job
from host_agent.page.experiments import experiments_page
from host_agent.page.job_panel import JobPanel
from host_agent.page.start_form import StartForm
from host_agent.page.style import CSS
from host_agent.page.widgets import chip, state_chip

__all__ = ["Access", "LivePage", "attach_page"]

REFRESH_S: Final = 1.0
FAVICON: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><circle cx="16" cy="16" r="11" fill="none" '
    'stroke="#3b82f6" stroke-width="4" stroke-dasharray="14 4"/></svg>'
)


def attach_page(app: FastAPI, hub: Hub) -> None:
    """Serve the live page from `app` (one application per process: NiceGUI is a singleton)."""
    gate: TokenGate = app.state.gate

    @app.api_route("/api/{rest:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"], include_in_schema=False)
    async def unknown(rest: str) -> None:
        # NiceGUI answers every other path with HTML; programs get JSON.
        raise HTTPException(404, f"there is no /api/{rest}; /openapi.json lists what there is")

    if app.state.experiments is not None:
        experiments_page(app.state.experiments)

    @ui.page("/", title="Symphony testbed")
    async def live(job: int | None = None) -> None:
        LivePage(hub, gate, job, has_experiments=app.state.experiments is not None).build()

    ui.run_with(app, favicon=FAVICON, dark=None, tailwind=False, show_welcome_message=False, reconnect_timeout=10)


class Access:
    """The token that somebody typed into this page, kept in memory for as long as the page is open."""

    def __init__(self, gate: TokenGate) -> None:
        self._gate = gate
        self._token: str | None = None

    async def run(self, action: Callable[[], Awaitable[object]]) -> bool:
        """Do a state change, asking for the token first if one is needed; errors are shown. True if it
        worked.
        """
        try:
            self._gate.check(self._token)
        except UnauthorizedError:
            if not await self._ask():
                return False
        try:
            await action()
        except HostAgentError as error:
            ui.notify(error.detail, type="negative", multi_line=True, timeout=12_000, close_button="Close")
            return False
        return True

    async def _ask(self) -> bool:
        with ui.dialog() as dialog, ui.card().classes("sy-dialog"):
            ui.label("This host-agent needs its token for changes").classes("sy-title")
            field = ui.input("Token", password=True, password_toggle_button=True).classes("w-full")
            field.on("keydown.enter", lambda: dialog.submit(field.value))
            with ui.row():
                ui.button("Use it", on_click=lambda: dialog.submit(field.value)).props("unelevated no-caps")
                ui.button("Cancel", on_click=lambda: dialog.submit(None)).props("flat no-caps")
        given = await dialog
        dialog.delete()
        if not given:
            return False
        try:
            self._gate.check(str(given))
        except UnauthorizedError as error:
            ui.notify(error.detail, type="negative")
            return False
        self._token = str(given)
        return True


class LivePage:
    """One open page."""

    def __init__(self, hub: Hub, gate: TokenGate, chosen: int | None, *, has_experiments: bool = False) -> None:
        self._hub = hub
        self._has_experiments = has_experiments
        self._access = Access(gate)
        self._chosen = chosen
        self._seen: object = None
        self._panel: JobPanel | None = None

    def build(self) -> None:
        """Lay the page out and keep it current."""
        ui.add_css(CSS)
        ui.colors(primary="#3b82f6", positive="#10b981", negative="#d33a3a")
        self._top()
        with ui.element("main").classes("sy-main"):
            with ui.element("div").classes("sy-side"):
                form = StartForm(self._hub, self._access.run, self._choose)
                ui.button("Start a demo job", icon="play_arrow", on_click=form.open).props(
                    "unelevated no-caps" + ("" if self._hub.testbed.twin else " disable")
                ).classes("full-width")
                if self._hub.testbed.twin is None:
                    ui.label("No twin in this testbed: start ranks on the hosts and register the job.").classes(
                        "sy-note"
                    )
                self._list = ui.element("div").classes("sy-jobs")
            self._main = ui.element("div").classes("sy-panel")
        self._refresh()
        ui.timer(REFRESH_S, self._refresh)

    def _top(self) -> None:
        dark = ui.dark_mode(value=None)
        with ui.header().classes("sy-top"):
            ui.html("Symphony <span>testbed</span>", sanitize=False).classes("sy-brand")
            ui.label(self._hub.testbed.name).classes("sy-soft sy-clip")
            ui.element("div").classes("sy-grow")
            if self._has_experiments:
                ui.link("Experiments", "/experiments").classes("sy-link")
            self._switches = ui.element("div").classes("sy-switches")
            ui.button(icon="dark_mode", on_click=lambda: _toggle_dark(dark)).props(
                'flat round dense color=grey aria-label="Dark or light"'
            )

    def _choose(self, job: Job) -> None:
        self._chosen = job.id
        ui.navigate.history.replace(f"/?job={job.id}")
        self._seen = None
        self._refresh()

    def _refresh(self) -> None:
        jobs = sorted(self._hub.jobs, key=lambda job: (not job.active, -job.created_unix_s))
        if self._chosen is None and jobs:
            self._chosen = jobs[0].id
        seen = (self._chosen, [(job.id, job.state, job.enabled, job.variant) for job in jobs], self._collectors())
        if seen != self._seen:
            self._seen = seen
            self._fill_list(jobs)
            self._fill_switches()
        try:
            job = self._hub.jobs.get(self._chosen) if self._chosen is not None else None
        except UnknownJobError:
            job, self._chosen = None, None
        if self._panel is None or self._panel.job is not job:
            self._main.clear()
            with self._main:
                if job is None:
                    self._panel = None
                    self._empty(bool(jobs))
                else:
                    self._panel = JobPanel(self._hub, job, self._access.run)
        if self._panel is not None:
            self._panel.refresh()

    def _empty(self, any_jobs: bool) -> None:
        with ui.element("div").classes("sy-card sy-empty"):
            ui.label("Choose a job on the left." if any_jobs else "No job yet.").classes("sy-title")
            ui.html(
                "Start a demo job here, or with <code>host-agent jobs start</code>, or <code>POST /api/v1/jobs</code>.",
                sanitize=False,
            )

    def _fill_list(self, jobs: list[Job]) -> None:
        self._list.clear()
        with self._list:
            for job in jobs:
                classes = "sy-job sy-on" if job.id == self._chosen else "sy-job"
                with ui.element("button").classes(classes).on("click", lambda job=job: self._choose(job)):
                    with ui.element("div").classes("sy-row"):
                        ui.label(job.name).classes("sy-grow sy-clip").style("font-weight:600")
                        state_chip(job.state)
                    with ui.element("div").classes("sy-row"):
                        ui.label(f"job {job.id} · {len(job.hosts)} ranks").classes("sy-soft sy-grow")
                        if job.enabled:
                            chip(job.variant, "good")

    def _collectors(self) -> list[tuple[str, bool | None]]:
        return [(name, status.success) for name, status in self._hub.collectors.items()]

    def _fill_switches(self) -> None:
        self._switches.clear()
        collectors = self._collectors()
        with self._switches:
            if len(collectors) > 8:
                down = [name for name, success in collectors if success is False]
                chip(f"{len(collectors)} switches", "good sy-dot")
                collectors = [(name, False) for name in down[:4]]
            for name, success in collectors:
                kind = {True: "good", False: "bad", None: ""}[success]
                with chip(name, f"{kind} sy-dot"):
                    ui.tooltip({True: "agent answers", False: "agent does not answer", None: "not asked yet"}[success])


def _toggle_dark(dark: ui.dark_mode) -> None:
    dark.value = not dark.value  # automatic (None) becomes dark
