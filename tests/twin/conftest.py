# SPDX-License-Identifier: Apache-2.0
"""A small fabric with handles that tests like: connect two hosts, send, run until nothing happens any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fabric_twin.engine import kernel
from fabric_twin.engine.dcqcn import CcQp
from fabric_twin.engine.state import CC_SHIFT, Ctl, Packet, Port, Qp, Sc, Sw
from fabric_twin.fabric import ACKED, DELIVERED, Fabric, FabricEvent
from fabric_twin.presets import Preset, Settings

HEADER = 62
GAP = 20
ACK = 66
US = 10**6
MS = 10**9


class Net:
    """A fabric under test. Times are picoseconds of virtual time."""

    def __init__(self, preset: Settings, seed: int = 1) -> None:
        self.preset = preset
        self.fabric = Fabric(preset, seed)
        self.events: list[FabricEvent] = []
        self.messages: dict[int, int] = {}
        """Message number -> its place among all messages sent."""
        self.order: list[tuple[int, int, int]] = []
        """(kind, place of the message, receiver's or sender's row) of every event."""
        self._numbers = 0
        self._sent = 0

    def pair(self, a: int, b: int, *, receives: int = 100_000, sport: int = 0xC000, **options: Any) -> tuple[int, int]:
        """Connect a QP on host `a` with one on host `b`; both can send."""
        hosts = self.fabric.topology.hosts
        self._numbers += 2
        qa = self.fabric.create_qp(hosts[a], 0x10 + self._numbers)
        qb = self.fabric.create_qp(hosts[b], 0x11 + self._numbers)
        self.connect(qa, qb, a, b, sport=sport, **options)
        self.fabric.receives(qb, receives)
        self.fabric.receives(qa, receives)
        return qa, qb

    def connect(self, qa: int, qb: int, a: int, b: int, *, sport: int = 0xC000, **options: Any) -> None:
        """(Re)connect two QPs that exist."""
        hosts = self.fabric.topology.hosts
        settings: dict[str, Any] = {
            "mtu": self.preset.mtu, "psn": 0, "ect": True, "timeout": 14, "retry_cnt": 7, "rnr_retry": 7,
            "rnr_timer_ps": 100 * US, **options,
        }  # fmt: skip
        self.fabric.connect(qb, hosts[a], qa, sport=0xC000, **settings)
        self.fabric.connect(qa, hosts[b], qb, sport=sport, **settings)

    def send(self, q: int, length: int, *, write: bool = True, imm: bool = True, signaled: bool = True) -> int:
        """Post a message; returns its place among all messages."""
        m = self.fabric.post(q, length, write=write, imm=imm, signaled=signaled)
        self.messages[m] = self._sent
        self._sent += 1
        return self._sent - 1

    def take(self) -> list[FabricEvent]:
        """Note what has happened, free acknowledged messages."""
        events = self.fabric.take_events()
        for event in events:
            self.order.append((event.kind, self.messages.get(event.message, -1), event.qp))
            if event.kind == ACKED:
                self.fabric.free_message(event.message)
        self.events += events
        return events

    def run(self, until: int | None = None) -> list[FabricEvent]:
        """Run to `until`, or until nothing can happen any more; returns the events on the way."""
        first = len(self.events)
        while self.fabric.run(until) not in (kernel.IDLE, kernel.REACHED):
            self.take()
        self.take()
        return self.events[first:]

    def run_until(self, done: Callable[[], bool]) -> None:
        """Run slice by slice until `done`."""
        while not done():
            assert self.fabric.run() != kernel.IDLE, "the fabric went idle first"
            self.take()

    def delivered(self) -> list[int]:
        """Places of the messages delivered, in order."""
        return [place for kind, place, _ in self.order if kind == DELIVERED]

    def acked(self) -> list[int]:
        """Places of the messages acknowledged, in order."""
        return [place for kind, place, _ in self.order if kind == ACKED]

    def time_of(self, kind: int, index: int = 0) -> int:
        """When the `index`-th event of this kind happened."""
        return [event.time_ps for event in self.events if event.kind == kind][index]

    def qp(self, q: int, column: Qp) -> int:
        """A column of a QP."""
        return int(self.fabric.view.qp[q + column])

    def rate(self, q: int) -> float:
        """DCQCN's present rate of a QP, bits per second."""
        return float(self.fabric.view.ccq[(q >> CC_SHIFT) + CcQp.RATE])

    def port(self, name: str, column: Port) -> int:
        """A column of a directed link."""
        index = self.fabric.topology.port(name).index
        return int(self.fabric.view.port[index * Port.COLUMNS + column])

    def ports(self, column: Port) -> list[int]:
        """A column of all directed links."""
        values: list[int] = self.fabric.view.port[column :: Port.COLUMNS].tolist()
        return values

    def serial(self, payload: int, gbps: float | None = None) -> int:
        """Time that a packet with `payload` bytes occupies a link."""
        return (payload + HEADER + GAP) * round(8000 / (gbps or self.fabric.topology.hosts[0].gbps))

    def packets(self, length: int) -> list[int]:
        """Payloads of the packets of a message."""
        mtu = self.preset.mtu
        return [mtu] * ((length - 1) // mtu) + [length - (length - 1) // mtu * mtu] if length else [0]

    def check_idle(self) -> None:
        """Nothing is left anywhere: no packet, no byte in a buffer, no pause, and every record is free again."""
        for host in self.fabric.topology.hosts:
            self.fabric.host_counters(host)  # takes the CNPs that no rate was asked after
        view = self.fabric.view
        assert self.fabric.next_event_ps is None
        assert view.sc[Sc.IN_FLIGHT] == 0
        assert view.sw[Sw.USED :: Sw.COLUMNS].tolist() == [0] * len(self.fabric.topology.switches)
        for column in (Port.Q_BYTES, Port.IN_BYTES, Port.PAUSED, Port.XOFF, Port.ACTIVE):
            assert not any(self.ports(column)), column
        for column in (Port.Q_HEAD, Port.FLIGHT_HEAD, Port.FLIGHT_TAIL):
            assert set(self.ports(column)) == {-1}, column
        assert (
            view.sc[Sc.FREE_PACKETS] == len(view.pk) // Packet.COLUMNS == chain(view.pk, int(view.sc[Sc.FREE_PACKET]))
        )
        assert view.sc[Sc.FREE_CTLS] == len(view.ctl) // Ctl.COLUMNS == chain(view.ctl, int(view.sc[Sc.FREE_CTL]))


def chain(pool: Any, head: int) -> int:
    """Length of a free list."""
    count = 0
    while head >= 0:
        head, count = int(pool[head]), count + 1
    return count


@pytest.fixture(scope="session")
def net_of() -> Callable[..., Net]:
    """Makes a net of any fabric."""
    return Net


@pytest.fixture(scope="session")
def one_switch() -> Callable[..., Net]:
    """Makes a net of some hosts on one switch; keywords change the preset."""

    def make(hosts: int = 8, seed: int = 1, **changes: Any) -> Net:
        return Net(Preset("one-switch", **{"tors": 1, "hosts_per_tor": hosts, "spines": 0, **changes}), seed)

    return make


@pytest.fixture(scope="session")
def two_racks() -> Callable[..., Net]:
    """Makes a net of two racks; keywords change the preset."""

    def make(hosts: int = 4, seed: int = 1, **changes: Any) -> Net:
        return Net(Preset("two-racks", **{"tors": 2, "hosts_per_tor": hosts, "spines": 2, **changes}), seed)

    return make
