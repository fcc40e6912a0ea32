# SPDX-License-Identifier: Apache-2.0
"""The form that starts a demo job on the twin; the same path as POST /api/v1/jobs."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from nicegui import ui
from pydantic import ValidationError

from host_agent.hub import Hub
from host_agent.jobs import Job
from host_agent.models import JobRequest

__all__ = ["StartForm"]

Runner = Callable[[Callable[[], Awaitable[object]]], Awaitable[bool]]


class StartForm:
    """A dialog; `open` shows it with fresh defaults."""

    def __init__(self, hub: Hub, run: Runner, chosen: Callable[[Job], None]) -> None:
        self._hub = hub
        self._run = run
        self._chosen = chosen
        hosts = len(hub.testbed.hosts)
        switches = len(hub.testbed.switches)
        # One rank per ToR in each group, as in the paper's simulations.
        per_switch = hosts // switches if switches and hosts % switches == 0 else 0
        with ui.dialog() as self._dialog, ui.card().classes("sy-dialog"):
            ui.label("Start a demo job on the twin").classes("sy-title")
            with ui.element("div").classes("sy-form"):
                self._name = ui.input("Name").classes("full")
                self._world = ui.number("Ranks", value=hosts, min=1, max=hosts, precision=0)
                self._split = ui.input("Split into groups", value=f"MOD {per_switch}" if per_switch > 1 else "")
                self._size = ui.input("Size per rank", value="32M")
                self._iterations = ui.number("Iterations", value=20, min=1, max=100_000, precision=0)
                self._release = ui.select(["in-order", "independent"], value="in-order", label="Release rule")
                self._tagging = ui.select(
                    {"per-step": "a QP per step", "retag": "persistent QPs, retagged"}, value="per-step", label="QPs"
                )
                self._scale = ui.number("Payload scale", value=64, min=1, precision=0)
                self._seed = ui.number("Seed", value=1, min=0, precision=0)
                self._symphony = ui.select(["off", "paper", "refined"], value="off", label="Symphony").classes("full")
            ui.label(
                "Payload scale S: each element moved stands for S on the wire; "
                "times and packets are those of the full size."
            ).classes("sy-note")
            with ui.row().classes("sy-row").style("justify-content:flex-end;margin-top:8px"):
                ui.button("Cancel", on_click=self._dialog.close).props("flat no-caps")
                ui.button("Start now", icon="play_arrow", on_click=self._start).props("unelevated no-caps")

    def open(self) -> None:
        """Show the form."""
        self._name.value = time.strftime("demo-%H%M%S")
        self._dialog.open()

    async def _start(self) -> None:
        symphony: dict[str, Any] = {"enabled": self._symphony.value != "off"}
        if self._symphony.value != "off":
            symphony["variant"] = self._symphony.value
        try:
            request = JobRequest.model_validate(
                {
                    "name": self._name.value,
                    "world": self._world.value,
                    "seed": self._seed.value,
                    "symphony": symphony,
                    "bench": {
                        "size": self._size.value,
                        "iterations": self._iterations.value,
                        "split": self._split.value or None,
                        "release": self._release.value,
                        "tagging": self._tagging.value,
                        "payload_scale": self._scale.value,
                    },
                }
            )
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            ui.notify(f"{where}: {first['msg']}", type="negative")
            return

        async def create() -> None:
            self._chosen(await self._hub.create(request))

        if await self._run(create):
            self._dialog.close()
