# SPDX-License-Identifier: Apache-2.0
"""Carries out events (`fabric_twin.events`) at their virtual times, for a running twin and for simulations alike.

Whoever runs the fabric runs it to `next_ps` at most, and then calls `carry_out`: an event comes after everything else
that happens at its time. What `Fabric.take_events` gives goes through `take`, which keeps what is about background
flows. A run starts with `undo`, which takes back what events have done, and `begin`: the events that came with the
timeline are due again, counted from now; those added since that nobody has ended begin again.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np

from fabric_twin.background import Background
from fabric_twin.errors import FabricError, UnknownNameError
from fabric_twin.events import (
    BackgroundConstant,
    BackgroundIncast,
    Event,
    HostSlow,
    LinkDown,
    LinkFlap,
    LinkLoss,
    LinkRate,
    LinkUp,
    SwitchRestart,
    describe,
)
from fabric_twin.fabric import Fabric, FabricEvent
from fabric_twin.slow_hosts import SlowHosts

__all__ = ["Occurrence", "Timeline"]

MS: Final = 10**9
LOG: Final = 4096
"""Occurrences that are remembered."""

Restart = Callable[[str, float, Callable[[], None]], None]
"""Restart the control plane of a switch, which is then away for so many ms, and call the last when it is back."""


@dataclass(frozen=True)
class Occurrence:
    """Something an event did: `phase` is begin, end or failed."""

    sequence: int
    t_ns: int
    event: int
    kind: str
    phase: str
    what: str

    def view(self) -> dict[str, Any]:
        """As REST shows it."""
        return asdict(self)


@dataclass
class _Link:
    """A directed link without events, and what events make of it; the newest rate and loss hold."""

    gbps: float
    drop: float
    rates: dict[int, float] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    down: set[int] = field(default_factory=set)


@dataclass
class _Active:
    """An event that has begun: what undoes it, and what of it shows in figures."""

    event: Event
    undo: Callable[[], None]
    background: Background | None = None


class Timeline:
    """The events of a fabric.

    Args:
        fabric: what they happen to.
        events: of every run; their times count from its begin.
        slow: the hosts' processes, where there are some that can be slowed down.
        restart: restarts a switch's control plane.

    Raises:
        UnknownNameError: an event names a link, host or switch that the fabric has not.
        FabricError: it cannot happen here.
    """

    def __init__(
        self,
        fabric: Fabric,
        events: Sequence[Event] = (),
        *,
        slow: SlowHosts | None = None,
        restart: Restart | None = None,
    ) -> None:
        self.fabric = fabric
        self.log: deque[Occurrence] = deque(maxlen=LOG)
        self._slow = slow
        self._restart = restart
        self._events = [event for event in events if event.clock_ns is None]
        self._ids = itertools.count(1)
        self._order = itertools.count()
        self._sequence = itertools.count(1)
        self._start_ps = fabric.now_ps
        self._due: list[tuple[int, int, int, Callable[[], None]]] = []
        self._active: dict[int, _Active] = {}
        self._added: dict[int, Event] = {}
        """Events that happen once and are still to come, those for the next run, and those that somebody has to end."""
        self._links: dict[str, _Link] = {}
        self._flows = 0
        for number, event in enumerate(events, 1):
            try:
                self._check(event)
            except FabricError as error:
                raise type(error)(f"event {number} ({event.kind}): {error}") from None
        self._added |= {next(self._ids): event for event in events if event.clock_ns is not None}
        self._schedule_all()

    # ---------------------------------------------------------------------------------------- time

    @property
    def next_ps(self) -> int | None:
        """When `carry_out` is to be called next, or None."""
        return self._due[0][0] if self._due else None

    def carry_out(self) -> None:
        """Do what is due."""
        while self._due and self._due[0][0] <= self.fabric.now_ps:
            _, _, owner, action = heapq.heappop(self._due)
            try:
                action()
            except FabricError as error:
                self._note(owner, "failed", str(error))

    def at(self, time_ps: int, action: Callable[[], None]) -> None:
        """Have `action` called at a time, or at once when that has passed."""
        self._at(0, time_ps, action)

    def _at(self, owner: int, time_ps: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time_ps, next(self._order), owner, action))

    def undo(self) -> None:
        """Take everything back that events have done, and forget what is still to come of them."""
        for owner in list(self._active):
            self._end(owner, note=False)
        if self._slow is not None:
            self._slow.clear()
        self._due.clear()
        self._reroute()

    def begin(self) -> None:
        """A run starts now, after `undo`."""
        self._start_ps = self.fabric.now_ps
        self._flows = 0
        self._schedule_all()
        self._added = {owner: event for owner, event in self._added.items() if event.at_ms is None}
        self.carry_out()

    def _schedule_all(self) -> None:
        for owner, event in [*((next(self._ids), event) for event in self._events), *self._added.items()]:
            self._at(owner, self._time_of(event, self._start_ps), partial(self._begin, owner, event))

    def _time_of(self, event: Event, otherwise: int) -> int:
        if event.clock_ns is not None:
            return event.clock_ns * 1000
        return otherwise if event.at_ms is None else self._start_ps + round(event.at_ms * MS)

    # ---------------------------------------------------------------------------------------- from outside

    def add(self, event: Event, *, next_run: bool = False) -> int:
        """Enter an event while the fabric runs; returns its number. Without a time it happens now.

        `next_run`: one with `at_ms` waits for the next run, as none is under way.

        Raises:
            UnknownNameError: it names what the fabric has not.
            FabricError: it cannot happen here.
        """
        self._check(event)
        owner = next(self._ids)
        now = self.fabric.now_ps
        when = self._time_of(event, now)
        if event.at_ms is not None and next_run:
            self._added[owner] = event
        elif when <= now:
            self._begin(owner, event)
            if event.at_ms is None and event.clock_ns is None and _lasts(event):
                self._added[owner] = event
        else:
            self._at(owner, when, partial(self._begin, owner, event))
            if event.clock_ns is not None:
                self._added[owner] = event
        return owner

    def end(self, owner: int) -> None:
        """End an event before its time, or have it not begin.

        Raises:
            UnknownNameError: no such event is under way or to come.
        """
        waiting = [entry for entry in self._due if entry[2] != owner]
        if self._added.pop(owner, None) is None and owner not in self._active and len(waiting) == len(self._due):
            raise UnknownNameError(f"no event {owner} is under way or to come")
        self._due = waiting
        heapq.heapify(self._due)
        if owner in self._active:
            self._end(owner)

    def set_link(self, name: str, *, gbps: float | None = None, drop: float | None = None) -> None:
        """What a link is like where no event says otherwise. Raises as `Fabric.set_link`."""
        link = self._links.get(name)
        if link is None:
            self.fabric.set_link(name, gbps=gbps, drop=drop)
            return
        link.gbps = link.gbps if gbps is None else gbps
        link.drop = link.drop if drop is None else drop
        self._apply(name)

    def take(self, events: list[FabricEvent]) -> list[FabricEvent]:
        """Keep what is about background flows; the rest is for jobs."""
        for active in self._active.values():
            if active.background is not None:
                events = active.background.take(events)
        return events

    @property
    def has_background(self) -> bool:
        """Flows of no job are there: the fabric has always something to do."""
        return any(active.background is not None for active in self._active.values())

    def view(self, since: int = 0) -> dict[str, Any]:
        """What is under way, what is to come, and what has occurred since occurrence number `since`."""
        coming: dict[int, int | None] = {}
        for when, _, owner, _ in sorted(self._due, key=lambda entry: entry[:2]):
            if owner and owner not in self._active:
                coming[owner] = when // 1000
        for owner in self._added.keys() - self._active.keys():  # in the next run
            coming.setdefault(owner, None)
        active = []
        for owner, entry in self._active.items():
            active.append({"id": owner, **entry.event.model_dump(exclude_none=True)})
            if entry.background is not None:
                active[-1] |= {"skipped": entry.background.skipped, "bytes": entry.background.delivered_bytes}
        return {
            "now_ns": self.fabric.now_ns,
            "start_ns": self._start_ps // 1000,
            "active": active,
            "coming": [{"id": owner, "t_ns": t_ns} for owner, t_ns in coming.items()],
            "newest": self.log[-1].sequence if self.log else 0,
            "log": [occurrence.view() for occurrence in self.log if occurrence.sequence > since],
        }

    def this_run(self) -> list[dict[str, Any]]:
        """What has occurred in the run, times from its start: the same for the same seed."""
        start_ns = self._start_ps // 1000
        return [
            {"t_ns": o.t_ns - start_ns, "kind": o.kind, "phase": o.phase, "what": o.what}
            for o in self.log
            if o.t_ns >= start_ns
        ]

    # ---------------------------------------------------------------------------------------- events

    def _check(self, event: Event) -> None:
        topology = self.fabric.topology
        for name in event.links():
            topology.port(name)
        hosts = [topology.host(name).index for name in event.hosts()]
        if isinstance(event, BackgroundConstant | BackgroundIncast) and hosts[-1] in hosts[:-1]:
            raise FabricError(f"{event.target} would send to itself: loopback does not cross the fabric")
        if isinstance(event, HostSlow) and self._slow is None:
            raise FabricError("no processes run here that could be slow")
        if isinstance(event, SwitchRestart):
            if self._restart is None:
                raise FabricError("no control plane runs here that could restart")
            tors = [s.name for s in topology.switches if s.tier == 0]
            if event.switch not in tors:
                raise UnknownNameError(f"no ToR {event.switch!r}; there are {tors[0]} to {tors[-1]}")

    def _note(self, owner: int, phase: str, what: str, kind: str = "") -> None:
        if owner in self._active:
            kind = self._active[owner].event.kind
        self.log.append(Occurrence(next(self._sequence), self.fabric.now_ns, owner, kind, phase, what))

    def _begin(self, owner: int, event: Event) -> None:
        if event.clock_ns is not None:
            self._added.pop(owner, None)
        if isinstance(event, LinkUp):
            self._note(owner, "begin", describe(event), event.kind)
            for other in [o for o, active in self._active.items() if set(active.event.links()) & set(event.links())]:
                self.end(other)
            return
        background = None
        undo: Callable[[], None] = _nothing
        if isinstance(event, LinkDown | LinkFlap | LinkRate | LinkLoss):
            undo = partial(self._release, owner, event)
            self._impair(owner, event)
        elif isinstance(event, HostSlow):
            undo = self._slow_down(event)
        elif isinstance(event, BackgroundConstant | BackgroundIncast):
            stream = np.random.default_rng([self.fabric.seed, 0x666C6F77, self._flows])
            background = Background(self.fabric, event, partial(self._at, owner), stream, self._flows)
            self._flows += len(background)
            undo = background.stop
        self._active[owner] = _Active(event, undo, background)
        self._note(owner, "begin", describe(event))
        if isinstance(event, LinkFlap):
            self._after(event.down_ms, owner, partial(self._flap_up, owner, event, 1))
        elif isinstance(event, SwitchRestart):
            assert self._restart is not None
            self._restart(event.switch, event.down_ms, partial(self._end, owner))
        elif event.for_ms is not None:
            self._after(event.for_ms, owner, partial(self.end, owner))

    def _after(self, ms: float, owner: int, action: Callable[[], None]) -> None:
        self._at(owner, self.fabric.now_ps + round(ms * MS), action)

    def _end(self, owner: int, *, note: bool = True) -> None:
        active = self._active.get(owner)
        if active is None:
            return
        if note:
            self._note(owner, "end", describe(active.event))
        del self._active[owner]
        active.undo()

    def _slow_down(self, event: HostSlow) -> Callable[[], None]:
        slow, topology = self._slow, self.fabric.topology
        assert slow is not None
        chosen = topology.hosts if event.host == "all" else [topology.host(name) for name in event.host]
        each = [slow.slow_down(host.index, event.compute, self.fabric.seed) for host in chosen]

        def undo() -> None:
            for one in each:
                one()

        return undo

    # ---------------------------------------------------------------------------------------- links

    def _impair(self, owner: int, event: LinkDown | LinkFlap | LinkRate | LinkLoss) -> None:
        for name in event.links():
            info = self.fabric.topology.port(name)
            link = self._links.setdefault(name, _Link(info.gbps, self.fabric.drop_of(name)))
            if isinstance(event, LinkRate):
                link.rates[owner] = event.gbps
            elif isinstance(event, LinkLoss):
                link.losses[owner] = event.drop
            else:
                link.down.add(owner)
            self._apply(name)
        if isinstance(event, LinkDown | LinkFlap):
            self._reroute_later(event.reroute_ms)

    def _release(self, owner: int, event: LinkDown | LinkFlap | LinkRate | LinkLoss) -> None:
        for name in event.links():
            link = self._links[name]
            link.rates.pop(owner, None)
            link.losses.pop(owner, None)
            link.down.discard(owner)
            self._apply(name)
            if not (link.rates or link.losses or link.down):
                del self._links[name]
        if isinstance(event, LinkDown | LinkFlap):
            self._reroute_later(event.reroute_ms)

    def _apply(self, name: str) -> None:
        link = self._links[name]
        gbps = next(reversed(link.rates.values()), link.gbps)
        drop = 1.0 if link.down else next(reversed(link.losses.values()), link.drop)
        self.fabric.set_link(name, gbps=gbps, drop=drop)

    def _flap_up(self, owner: int, event: LinkFlap, done: int) -> None:
        if done == event.times:
            self.end(owner)
            return
        for name in event.links():
            self._links[name].down.discard(owner)
            self._apply(name)
        self._note(owner, "end", f"{event.link} up (flap)")
        self._reroute_later(event.reroute_ms)
        self._after(event.up_ms, owner, partial(self._flap_down, owner, event, done))

    def _flap_down(self, owner: int, event: LinkFlap, done: int) -> None:
        self._impair(owner, event)
        self._note(owner, "begin", describe(event))
        self._after(event.down_ms, owner, partial(self._flap_up, owner, event, done + 1))

    def _reroute_later(self, after_ms: float | None) -> None:
        if after_ms is not None:
            self._after(after_ms, 0, self._reroute)

    def _reroute(self) -> None:
        """Routing learns which links are down now."""
        self.fabric.avoid(name for name, link in self._links.items() if link.down)


def _nothing() -> None:
    pass


def _lasts(event: Event) -> bool:
    """It goes on until somebody ends it."""
    return not isinstance(event, LinkUp | LinkFlap | SwitchRestart | BackgroundIncast) and event.for_ms is None
