# SPDX-License-Identifier: Apache-2.0
"""``switch-agent watch``: the jobs of a switch as a live table, with rates and the overlap's last samples.

pkts/s are the job's tracked data packets, ahead is the share of them that outpaces the slowest step, marks/s and RED/s
are what Symphony and the queue mark; all since the screen before. Files and pipes get plain lines instead.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from switch_agent.agent.console import RestClient, plain_table
from switch_agent.errors import AgentUnreachableError

__all__ = ["Board", "watch"]

_BARS: Final = " ▁▂▃▄▅▆▇█"
_FRAME_LINES: Final = 7  # lines of the screen that are no jobs
_NARROW: Final = 110  # columns of a terminal that has no room for everything
_FIELDS: Final = [
    *("id", "job", "Symphony", "steps", "overlap"),
    *("alpha", "psn", "pkts/s", "ahead", "marks/s", "RED/s", "pipes"),
]
"""What a plain line says of a job."""


class Board:
    """What was seen so far, and how it looks. ``width`` is in characters, ``history`` in samples per job."""

    def __init__(self, width: int = 120, height: int = 40, history: int = 24) -> None:
        self.width = width
        self.height = height
        self._history = history
        self._jobs: dict[int, Mapping[str, Any]] = {}
        self._session: Mapping[str, Any] = {}
        self._samples: dict[int, Mapping[str, Any]] = {}
        self._before: dict[int, Mapping[str, Any]] = {}
        self._overlap: dict[int, deque[int]] = {}
        self._trouble: str | None = None

    def update(
        self, session: Mapping[str, Any], jobs: list[Mapping[str, Any]], samples: list[Mapping[str, Any]]
    ) -> None:
        """Take in the answers of ``/api/v1/switch``, ``jobs`` and ``registers``."""
        self._trouble = None
        self._session = session
        self._jobs = {job["job_id"]: job for job in jobs}
        now = {sample["job_id"]: sample for sample in samples}
        for job_id, sample in now.items():
            old = self._samples.get(job_id)
            if old is not None and old["seq"] != sample["seq"]:
                self._before[job_id] = old
                self._overlap.setdefault(job_id, deque(maxlen=self._history)).append(sample["overlap"])
        self._samples = now

    def trouble(self, text: str) -> None:
        """The agent does not answer; what was seen last stays, marked as old."""
        self._trouble = text

    def render(self) -> RenderableType:
        """Return the screen."""
        lines: list[RenderableType] = [self._headline()]
        if self._trouble:
            lines.append(Text(self._trouble, style="bold red"))
        elif self._session.get("reconcile_error"):
            lines.append(Text(self._session["reconcile_error"], style="red"))
        samples = list(self._samples.values())
        room = max(1, self.height - _FRAME_LINES)
        columns = ["id", "job", "Symphony", "steps", "overlap"]
        if self.width >= _NARROW:
            columns += ["overlap over time", "alpha", "psn", "pkts/s", "ahead", "marks/s", "RED/s", "pipes"]
        else:
            columns += ["alpha", "pkts/s", "marks/s", "RED/s"]
        rows = [self._row(sample, columns) for sample in samples[:room]]
        lines.append(plain_table("", columns, rows))
        if not samples:
            lines.append(Text("no samples: there are no jobs, or the switch does not answer", style="dim"))
        elif len(samples) > room:
            lines.append(Text(f"and {len(samples) - room} more jobs: use --job ID", style="dim"))
        lines.append(Text("Ctrl-C ends it", style="dim"))
        return Group(*lines)

    def lines(self) -> list[str]:
        """Return the same as text without colours or columns: a line per job, or one that says why there is none."""
        now = datetime.now().astimezone().isoformat(timespec="milliseconds")
        view = self._session
        start = f"{now} {view['name']} {view['state']}" if view else now
        if self._trouble:
            return [f"{start} {self._trouble}"]
        if not self._samples:
            return [f"{start} {view.get('last_error') or 'no samples: there are no jobs'}"]
        rows = (zip(_FIELDS, self._row(sample, _FIELDS), strict=True) for sample in self._samples.values())
        return [" ".join([start, *(f"{name}={_plain(cell)}" for name, cell in row)]) for row in rows]

    def _headline(self) -> Text:
        view = self._session
        if not view:
            return Text("no answer yet", style="dim")
        state = view["state"]
        style = {"ready": "bold green", "read-only": "bold yellow"}.get(state, "bold red")
        text = Text.assemble((f"{view['name']}  ", "bold"), (state, style), f"  {view['bfrt']}")
        if state == "read-only":
            text.append(f"  owned by {view['owner']}", style="yellow")
        elif state != "ready":
            text.append(f"  {view['last_error']}", style="red")
        sampler = view["sampler"]
        if sampler["last_success_unix_s"]:
            age = max(0.0, time.time() - sampler["last_success_unix_s"])
            text.append(f"  sampled {age * 1000:.0f} ms ago, every {sampler['interval_ms']:g} ms", style="dim")
        return text

    def _row(self, sample: Mapping[str, Any], columns: list[str]) -> list[Any]:
        job_id = sample["job_id"]
        settings = self._jobs.get(job_id, {}).get("symphony")
        overlap = sample["overlap"]
        low, high = sample["step_min"], sample["step_max"]
        cells: dict[str, Any] = {
            "id": job_id,
            "job": Text(sample["name"], style="bold"),
            "Symphony": _switch(settings),
            "steps": "-" if low is None else str(low) if overlap <= 1 else f"{low}-{high}",
            "overlap": Text(str(overlap), style=_overlap_style(overlap)),
            "overlap over time": self._sparkline(job_id),
            "alpha": sample["alpha"],
            "psn": sample["psn_recorded"],
            "pkts/s": _short(self._rate(sample, "packets", "all")),
            "ahead": self._share(sample),
            "marks/s": _short(self._rate(sample, "marked", "symphony")),
            "RED/s": _short(self._rate(sample, "marked", "queue")),
            "pipes": sample["live_pipes"],
        }
        return [cells[name] for name in columns]

    def _gain(self, sample: Mapping[str, Any], group: str, name: str) -> tuple[float, float] | None:
        """How much a counter gained since the sample before, and in how many seconds."""
        old = self._before.get(sample["job_id"])
        if old is None or sample["time_unix_s"] <= old["time_unix_s"]:
            return None
        return sample[group][name] - old[group][name], sample["time_unix_s"] - old["time_unix_s"]

    def _rate(self, sample: Mapping[str, Any], group: str, name: str) -> float | None:
        gain = self._gain(sample, group, name)
        return None if gain is None else max(0.0, gain[0] / gain[1])

    def _share(self, sample: Mapping[str, Any]) -> str:
        """Outpacing packets among all, in percent, since the sample before."""
        every, ahead = self._gain(sample, "packets", "all"), self._gain(sample, "packets", "outpacing")
        if every is None or ahead is None or every[0] <= 0:
            return "-"
        return f"{100 * ahead[0] / every[0]:.0f} %"

    def _sparkline(self, job_id: int) -> Text:
        seen = self._overlap.get(job_id, deque())
        top = max([*seen, 4])
        bars = "".join(_BARS[-(-value * (len(_BARS) - 1) // top)] for value in seen)
        return Text(bars.rjust(self._history), style=_overlap_style(max(seen, default=0)))


def _switch(settings: Mapping[str, Any] | None) -> Text:
    if settings is None:
        return Text("?", style="dim")
    if not settings["enabled"]:
        return Text("off", style="dim")
    return Text(settings["variant"], style="green")


def _overlap_style(overlap: int) -> str:
    return "dim" if overlap == 0 else "green" if overlap <= 2 else "yellow" if overlap <= 4 else "red"


def _short(value: float | None) -> str:
    """Return a number in at most five characters: 950, 12.3k, 4.5M."""
    if value is None:
        return "-"
    for limit, unit in ((1e3, ""), (1e6, "k"), (1e9, "M"), (1e12, "G")):
        if value < limit:
            scaled = value / limit * 1e3
            return f"{scaled:.0f}" if not unit else f"{scaled:.1f}{unit}"
    return f"{value:.1e}"


def _plain(cell: Any) -> str:
    """A cell of the table as one word."""
    text = ",".join(map(str, cell)) if isinstance(cell, list) else str(cell)
    return "-" if not text or cell is None else text.replace(" ", "")


def watch(client: RestClient, console: Console, *, interval: float, job: int | None) -> None:
    """Show the jobs, ``interval`` seconds apart, until interrupted: in place, or as plain lines without a terminal.

    An agent that does not answer at first is an error; later on it is shown, and asked again.
    """
    board = Board()
    live = Live(console=console, auto_refresh=False, screen=True) if console.is_terminal else None
    with live or contextlib.nullcontext():
        first = True
        while True:
            try:
                samples = client.get("/api/v1/registers", job=job)["samples"]
                board.update(client.get("/api/v1/switch"), client.get("/api/v1/jobs")["jobs"], samples)
            except AgentUnreachableError as error:
                if first:
                    raise
                board.trouble(str(error))
            first = False
            if live is None:
                print("\n".join(board.lines()), file=console.file, flush=True)
            else:
                board.width, board.height = console.size
                live.update(board.render(), refresh=True)
            time.sleep(interval)
