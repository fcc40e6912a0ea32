# SPDX-License-Identifier: Apache-2.0
"""The degree of step overlap as the switches see it, and how well it agrees with the hosts.

Each switch agent samples its registers at ticks aligned to the wall clock and resets step_max after each, so
that one sample stands for the window since the previous one: step_max is the largest step seen in it,
step_min the smallest still being worked on at its end. A tick's figure over several switches is serial
max(step_max) - serial min(step_min) + 1, over the switches that saw packets of the job in their window (a
switch whose hosts all wait keeps an old step_min, which says nothing about now).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from host_agent.clocks import JobClock
from host_agent.overlap import StepTrack, unwrap

__all__ = ["GAP_TICKS", "Agreement", "SwitchLog", "SwitchSample", "TickFigure", "Window"]

HISTORY: Final = 20_000
"""Samples kept per switch, and tick figures per job."""
OPEN_TICKS: Final = 400
"""Ticks that wait for a switch's sample; at 50 ms a tick, 20 s."""
GAP_TICKS: Final = 3
"""More ticks than this from one sample to the next: nobody looked in between, and no line may join the two."""
LATE_S: Final = 2.0
"""A switch's newest sample is this much (wall clock) older than another's: its counters are not those of now. Agents
are asked one by one, twice a second.
"""


@dataclass(frozen=True)
class SwitchSample:
    """One register sample of a job on a switch, with the window it stands for."""

    seq: int
    """Number of the tick on the wall clock (time / interval): agents with the same interval share it."""
    time_unix_s: float
    switch_time_ns: int | None
    step_min: int | None
    step_max: int | None
    alpha: int | None
    packets: int | None
    outpacing: int | None
    marked_symphony: int | None
    marked_queue: int | None
    window: tuple[int, float] | None
    """switch_time_ns and time_unix_s of the previous sample: this sample's window reaches back to there."""
    active: bool
    """The switch saw packets of the job in the window."""


class Window(NamedTuple):
    """The stretch (begin, end] that one switch's sample stands for, on both of the clocks that it can be
    placed by.
    """

    site: int
    begin_ns: int
    begin_unix_s: float
    end_ns: int
    end_unix_s: float


@dataclass(frozen=True)
class TickFigure:
    """What all switches of a job say together at one sampling tick."""

    tick: int
    time_unix_s: float
    t_ns: int
    """Where on the switches' clock: the latest of their times."""
    step_min: int
    step_max: int
    overlap: int
    windows: tuple[Window, ...]
    """Of each active switch: what the hosts' figure is compared over."""


@dataclass
class Agreement:
    """How often the two figures differ by at most one step."""

    samples: int = 0
    within_one_step: int = 0
    differences: dict[int, int] = field(default_factory=dict)
    """switch - host -> number of samples."""

    def count(self, switch: int, host: int) -> None:
        """Compare one tick."""
        difference = switch - host
        self.samples += 1
        self.within_one_step += abs(difference) <= 1
        self.differences[difference] = self.differences.get(difference, 0) + 1

    def view(self) -> dict[str, Any]:
        """As REST shows it; share is null before the first sample."""
        return {
            "samples": self.samples,
            "within_one_step": self.within_one_step,
            "share": self.within_one_step / self.samples if self.samples else None,
            "differences": {str(k): v for k, v in sorted(self.differences.items())},
        }


class SwitchLog:
    """Samples of a job from its switches, combined tick by tick.

    `sites` are the job's switches in a fixed order; a switch is known to the host's figures by its index in
    it. Those in `transit` have none of the job's hosts behind them: what they see is no part of the figures.
    """

    def __init__(self, sites: Sequence[str], step_bits: int, transit: Collection[str] = ()) -> None:
        self.sites = tuple(sites)
        self._transit = frozenset(transit)
        self.step_bits = step_bits
        self.samples: dict[str, deque[SwitchSample]] = {name: deque(maxlen=HISTORY) for name in sites}
        self.last_seq = dict.fromkeys(sites, 0)
        self.silent: set[str] = set()
        """Switches whose agent did not answer when last asked for samples, or has given none since it does again."""
        self.figures: deque[TickFigure] = deque(maxlen=HISTORY)
        self.incomplete_ticks = 0
        self.agreement = Agreement()
        self._open: dict[int, dict[str, SwitchSample]] = {}
        self._closed_tick = -1
        self._unchecked: deque[TickFigure] = deque(maxlen=HISTORY)

    def add(self, switch: str, raw: dict[str, Any]) -> None:
        """Take one sample as the agent's REST gives it (contract: GET /api/v1/samples)."""
        seq = int(raw["seq"])
        history = self.samples[switch]
        if seq <= self.last_seq[switch]:
            return
        self.last_seq[switch] = seq
        before = history[-1] if history else None
        packets = raw.get("packets") or {}
        marked = raw.get("marked") or {}
        at, total = raw.get("switch_time_ns"), packets.get("all")
        began = before.switch_time_ns if before else None
        sample = SwitchSample(
            seq=seq,
            time_unix_s=float(raw["time_unix_s"]),
            switch_time_ns=at,
            step_min=raw.get("step_min"),
            step_max=raw.get("step_max"),
            alpha=raw.get("alpha"),
            packets=total,
            outpacing=packets.get("outpacing"),
            marked_symphony=marked.get("symphony"),
            marked_queue=marked.get("queue"),
            window=(began, before.time_unix_s) if before is not None and began is not None else None,
            active=at is not None and began != at and (before is None or before.packets != total),
        )
        history.append(sample)
        self._place(switch, sample)

    def latest(self, switch: str) -> SwitchSample | None:
        """The newest sample of a switch."""
        history = self.samples[switch]
        return history[-1] if history else None

    def check(self, track: StepTrack, clock: JobClock, until_ns: int) -> None:
        """Compare every figure up to `until_ns` (job clock) with what the hosts report over the same windows.

        Per active switch the hosts' figure takes the steps of the ranks behind it: the largest in flight at
        any time of its window, the smallest in flight at its end. Figures older than the track's detail are
        skipped.
        """
        while self._unchecked and clock.place(self._unchecked[0].t_ns, self._unchecked[0].time_unix_s) <= until_ns:
            figure = self._unchecked.popleft()
            spans = [
                (clock.place(w.begin_ns, w.begin_unix_s), clock.place(w.end_ns, w.end_unix_s), w.site)
                for w in figure.windows
            ]
            if track.folded_until is not None and min(begin for begin, _, _ in spans) <= track.folded_until:
                continue
            seen = [track.window(*span) for span in spans]
            largest = [high for high, _ in seen if high is not None]
            smallest = [low for _, low in seen if low is not None]
            if largest and smallest:
                self.agreement.count(figure.overlap, max(0, max(largest) - min(smallest) + 1))

    def totals(self) -> dict[str, int | None]:
        """Counters of the newest samples, summed over the switches that have them; None where none has.

        They count from the job's start, so what was not sampled in between is not lost; see `missing`.
        """
        out: dict[str, int | None] = {}
        newest = [sample for name in self.sites if (sample := self.latest(name)) is not None]
        for key in ("packets", "outpacing", "marked_symphony", "marked_queue"):
            known = [value for sample in newest if (value := getattr(sample, key)) is not None]
            out[key] = sum(known) if known else None
        return out

    def missing(self, ended_unix_s: float | None = None) -> list[str]:
        """Switches of which `totals` holds no counters, or old ones: their agent is silent, or reads none.

        Old is what is not of now, or of the job's end (`ended_unix_s`): one may be read long after it.
        """
        newest = {name: self.latest(name) for name in self.sites}
        latest = max((sample.time_unix_s for sample in newest.values() if sample is not None), default=0.0)
        if ended_unix_s is not None:
            latest = min(latest, ended_unix_s)
        return [
            name
            for name, sample in newest.items()
            if name in self.silent
            or (sample is None and latest)
            or (sample is not None and (sample.packets is None or sample.time_unix_s < latest - LATE_S))
        ]

    def _place(self, switch: str, sample: SwitchSample) -> None:
        tick = sample.seq
        if tick <= self._closed_tick:
            return
        row = self._open.setdefault(tick, {})
        row[switch] = sample
        if len(self._open) > OPEN_TICKS:  # a switch is silent: its ticks will not become complete
            del self._open[min(self._open)]
            self.incomplete_ticks += 1
        if len(row) == len(self.sites):
            for old in [t for t in self._open if t < tick]:
                del self._open[old]
                self.incomplete_ticks += 1
            self._close(tick, self._open.pop(tick))

    def _close(self, tick: int, row: dict[str, SwitchSample]) -> None:
        self._closed_tick = tick
        low: int | None = None
        high: int | None = None
        windows: list[Window] = []
        active = 0
        for site, name in enumerate(self.sites):
            sample = row[name]
            if name in self._transit or not sample.active or sample.step_min is None or sample.step_max is None:
                continue
            active += 1
            near = sample.step_min if low is None else low
            step_min = unwrap(sample.step_min, near, self.step_bits)
            step_max = unwrap(sample.step_max, step_min, self.step_bits)
            low = step_min if low is None else min(low, step_min)
            high = step_max if high is None else max(high, step_max)
            if sample.window is not None and sample.switch_time_ns is not None:
                windows.append(Window(site, *sample.window, sample.switch_time_ns, sample.time_unix_s))
        times = [s.switch_time_ns for s in row.values() if s.switch_time_ns is not None]
        if low is None or high is None or not times:
            return
        figure = TickFigure(
            tick=tick,
            time_unix_s=max(s.time_unix_s for s in row.values()),
            t_ns=max(times),
            step_min=low % (1 << self.step_bits),
            step_max=high % (1 << self.step_bits),
            overlap=max(0, high - low + 1),
            windows=tuple(windows),
        )
        self.figures.append(figure)
        if len(windows) == active:
            self._unchecked.append(figure)
