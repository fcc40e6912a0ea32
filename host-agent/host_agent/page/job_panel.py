# SPDX-License-Identifier: Apache-2.0
"""One job on the page: its Symphony switch, figures, charts and assumptions."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from nicegui import ui
from nicegui.events import ValueChangeEventArguments

from host_agent.hub import Hub
from host_agent.jobs import Job
from host_agent.models import SymphonySettings
from host_agent.page import charts
from host_agent.page.widgets import Tile, bandwidth, chip, number, seconds, state_chip

__all__ = ["JobPanel"]

Runner = Callable[[Callable[[], Awaitable[object]]], Awaitable[bool]]

CHARTS = (
    ("Degree of step overlap", "largest - smallest step in flight + 1", "w4 tall", charts.overlap_options),
    ("Step progress per ring", "", "w2 tall", charts.progress_options),
    ("Alpha per switch", "gain multiplier, eq. 3", "w2", charts.alpha_options),
    ("ECN marks per switch", "solid: Symphony, dashed: queue", "w2", charts.marks_options),
    ("Collective completion time", "busbw: of a collective by itself", "w2", charts.cct_options),
)


class JobPanel:
    """Shows `job`; `refresh` brings it up to date and sends nothing when nothing has changed."""

    def __init__(self, hub: Hub, job: Job, run: Runner) -> None:
        self.job = job
        self._hub = hub
        self._run = run
        self._version = -1
        self._syncing = False
        self._head()
        self._banners = ui.element("div").classes("sy-panel")
        self._shown_problems: object = None
        self._build_tiles()
        self._build_charts()
        self._build_assumptions()

    def refresh(self) -> None:
        """Bring everything up to date."""
        self._clock.text = self._elapsed()
        if self.job.version == self._version:
            return
        self._version = self.job.version
        self._sync_control()
        self._fill_banners()
        self._fill_tiles()
        for chart, options in self._charts:
            chart.options.clear()
            chart.options.update(options(self.job))
            chart.update()
        self._fabric.text = charts.fabric_notes(self.job)
        self._fabric.set_visibility(bool(self._fabric.text))
        lowest, ranks = self.job.recorder.stragglers(4)
        names = ", ".join(f"rank {rank} ({self.job.hosts[rank].name})" for rank in ranks if rank < len(self.job.hosts))
        self._behind.text = "" if lowest is None else f"lowest: step {lowest}, {names}"

    # -- head and control

    def _head(self) -> None:
        job = self.job
        with ui.element("div").classes("sy-card"), ui.element("div").classes("sy-row sy-wrap"):
            with ui.element("div").classes("sy-grow"):
                with ui.element("div").classes("sy-row"):
                    ui.label(job.name).classes("sy-title sy-clip")
                    self._state = ui.element("div")
                with ui.element("div").classes("sy-row"):
                    ui.label(f"job {job.id} · tag {job.tag} · {len(job.hosts)} ranks · {job.request.provider}").classes(
                        "sy-soft"
                    )
                    self._clock = ui.label("").classes("sy-soft")
            with ui.element("div").classes("sy-control"):
                self._toggle = ui.switch("Symphony", value=job.enabled, on_change=self._on_toggle).props(
                    "color=positive"
                )
                self._variant = (
                    ui.select(["paper", "refined"], value=job.variant, on_change=self._on_variant)
                    .props("dense outlined options-dense aria-label=Variant")
                    .classes("sy-variant")
                )
                self._stop = ui.button("Stop", icon="stop", on_click=self._on_stop).props(
                    "outline no-caps color=negative padding='4px 14px 4px 10px'"
                )

    # Called for our own updates too, so whether it is one must be asked now: a coroutine would run later.
    def _on_toggle(self, event: ValueChangeEventArguments[bool | None]) -> Awaitable[None] | None:
        return None if self._syncing else self._change(enabled=bool(event.value))

    def _on_variant(self, event: ValueChangeEventArguments[str]) -> Awaitable[None] | None:
        return None if self._syncing else self._change(variant=str(event.value))

    async def _change(self, **change: Any) -> None:
        settings = SymphonySettings.model_validate(change)
        if await self._run(lambda: self._hub.set_symphony(self.job.id, settings)):
            word = f"on ({self.job.variant})" if self.job.enabled else "off"
            ui.notify(f"Symphony {word}: read back from {len(self.job.flows)} switches", type="positive")
        self._version = -1
        self.refresh()

    async def _on_stop(self) -> None:
        await self._run(lambda: self._hub.stop(self.job.id))
        self.refresh()

    def _sync_control(self) -> None:
        job = self.job
        self._syncing = True
        self._toggle.value, self._variant.value = job.enabled, job.variant
        self._syncing = False
        for control in (self._toggle, self._variant, self._stop):
            control.set_enabled(not job.ended)
        self._stop.set_visibility(not job.ended)
        # Nothing is in flight any more: the overlap's history gets the room.
        self._progress_card.set_visibility(not job.ended)
        self._overlap_card.classes(**({"add": "w6", "remove": "w4"} if job.ended else {"add": "w4", "remove": "w6"}))
        self._state.clear()
        with self._state:
            state_chip(job.state)

    def _elapsed(self) -> str:
        job = self.job
        if job.started_unix_s is None:
            return ""
        wall = (job.ended_unix_s or time.time()) - job.started_unix_s
        first, last = job.recorder.first_ns, job.recorder.frontier_ns
        text = f"· {wall:.0f} s wall clock"
        if first is not None and last is not None and job.recorder.clock.kind == "twin":
            text += f" · {seconds((last - first) / 1e9)} virtual"
        return text

    def _fill_banners(self) -> None:
        job = self.job
        problems: list[tuple[str, str, list[str]]] = []
        if job.error:
            problems.append(("", job.error, job.log_tail))
        for switch, detail in list(job.switch_errors.items())[:4]:
            problems.append(("warn", detail if detail.startswith("switch ") else f"{switch}: {detail}", []))
        if job.ended and (missing := job.counters_missing):
            text = f"packets and marks are incomplete: {', '.join(missing)} could not be read at the end of the job"
            problems.append(("warn", text, []))
        if job.recorder.dropped:
            text = f"{job.recorder.dropped} step events were lost: the hosts' overlap has gaps"
            problems.append(("warn", text, []))
        if problems == self._shown_problems:
            return
        self._shown_problems = problems
        self._banners.clear()
        self._banners.set_visibility(bool(problems))
        with self._banners:
            for kind, text, lines in problems:
                with ui.element("div").classes(f"sy-banner {kind}"):
                    ui.label(text)
                    if lines:
                        ui.label("\n".join(lines)).classes("sy-log")

    # -- figures

    def _build_tiles(self) -> None:
        with ui.element("div").classes("sy-tiles"):
            self._overlap = Tile("Step overlap now", "Largest - smallest step in flight + 1, from the ranks' events")
            self._peak = Tile(
                "Max overlap",
                "Largest degree of step overlap of the run, warm-up included; mean weighted by time",
            )
            self._cct = Tile(
                "CCT p50",
                "Collective completion time: first post to last completion, per group and timed iteration",
            )
            self._busbw = Tile(
                "Bus bandwidth",
                "nccl-tests' busbw: size x 2(N-1)/N / mean time of the timed iterations so far, which overlap; "
                "newest alone: of the newest collectives, each over its own completion time",
            )
            self._marks = Tile("Symphony marks", "Packets marked by Symphony; share of the job's packets")
            self._queue = Tile("Queue marks", "Packets marked by the queues' RED")
            self._agree = Tile(
                "Overlap agreement", "Samples in which hosts' and switches' figures differ by at most one step"
            )

    def _fill_tiles(self) -> None:
        job, recorder = self.job, self.job.recorder
        largest, mean = recorder.track.summary()
        figures = job.switch_log.figures
        if job.ended:
            self._overlap.set("–", "ended")
        else:
            seen = f"switches: {figures[-1].overlap}" if figures else ""
            known = recorder.frontier_ns is not None
            self._overlap.set(str(recorder.current_overlap()) if known else "–", seen)
        self._peak.set("–" if largest is None else str(largest), "" if mean is None else f"mean {mean:.2f}")
        cct = recorder.collectives.summary()
        self._cct.set(seconds(cct["p50_s"]), "" if cct["p99_s"] is None else f"p99 {seconds(cct['p99_s'])}")
        newest = cct["busbw_gbps_newest"]
        self._busbw.set(
            bandwidth(cct["busbw_gbps"]), "" if job.ended or newest is None else f"newest alone {newest:.3g}"
        )
        totals, missing = job.switch_log.totals(), job.counters_missing
        for tile, kind in ((self._marks, "marked_symphony"), (self._queue, "marked_queue")):
            tile.set(number(totals[kind], at_least=bool(missing)), _share(totals[kind], totals["packets"], missing))
        agreement = job.switch_log.agreement
        share = "–" if not agreement.samples else f"{100 * agreement.within_one_step / agreement.samples:.1f} %"
        self._agree.set(share, f"of {number(agreement.samples)} samples" if agreement.samples else "")

    def _build_charts(self) -> None:
        self._charts = []
        with ui.element("div").classes("sy-charts"):
            for title, remark, classes, options in CHARTS:
                width, _, tall = classes.partition(" ")
                with ui.element("div").classes(f"sy-card sy-stack {width}") as card:
                    with ui.element("div").classes("sy-row sy-wrap sy-head"):
                        ui.label(title).classes("sy-h")
                        ui.label(remark).classes("sy-soft")
                    chart = ui.echart(options(self.job)).classes(f"sy-chart {tall}")
                    self._charts.append((chart, options))
                    if options is charts.overlap_options:
                        self._overlap_card = card
                        self._fabric = ui.label("").classes("sy-note")
                    if options is charts.progress_options:
                        self._progress_card = card
                        self._behind = ui.label("").classes("sy-note sy-two")

    def _build_assumptions(self) -> None:
        with ui.element("div").classes("sy-card"), ui.element("div").classes("sy-row sy-wrap"):
            ui.label("Assumptions").classes("sy-h").style("margin:0 4px 0 0")
            for text in assumptions(self.job):
                chip(text)


def assumptions(job: Job) -> list[str]:
    """What the figures of this job depend on, as far as it is known here."""
    out = []
    bench = job.request.bench
    if bench is None:
        out.append("release rule and QP mode: as its ranks were started")
    else:
        out += [
            f"release rule: {bench.release}",
            "QP mode: " + ("per-step" if bench.qp_mode == "per-step" else f"{bench.qp_mode} ({bench.tagging})"),
            f"{bench.size} per rank × {bench.iterations} iterations",
            f"split {bench.split}" if bench.split else "one group",
            f"{bench.rings} ring{'s' if bench.rings > 1 else ''}",
        ]
        if bench.payload_scale > 1:
            out.append(f"payload scale {bench.payload_scale}")
    out.append(f"preset: {job.preset or '–'}")
    out.append(f"seed: {'default' if job.request.seed is None else job.request.seed}")
    return out


def _share(part: int | None, whole: int | None, missing: Sequence[str]) -> str:
    if missing:
        return "without " + (", ".join(missing) if len(missing) <= 2 else f"{len(missing)} switches")
    return "" if part is None or not whole else f"{100 * part / whole:.2f} % of {number(whole)}"
