# SPDX-License-Identifier: Apache-2.0
"""The engine may become faster; what happens in it may not change, not by a picosecond and not by a coin.

Each case runs some traffic and hashes all that hosts were told, in order and with times, and the books at the end: what
each link and host has counted, how full each buffer was, Symphony's counters and registers, the state of the dice. The
hashes were recorded with the engine that made one event of every hop of every packet. A change of the *model* changes
them, and is then written down in docs/twin.md: ``python tests/twin/test_traces.py`` prints the new ones.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fabric_twin.engine import kernel
from fabric_twin.engine.state import COUNTERS, Msg, Port, Qp, Sc, Sw
from fabric_twin.fabric import ACKED, Fabric, FabricEvent
from fabric_twin.presets import Preset

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
from twin import RingDriver

US = 10**6
DEMO: dict[str, Any] = {"tors": 4, "hosts_per_tor": 8, "spines": 4}
SMALL: dict[str, Any] = {"tors": 2, "hosts_per_tor": 4, "spines": 2}
ONE: dict[str, Any] = {"tors": 1, "hosts_per_tor": 8, "spines": 0}

LINK_COUNTERS = (
    Port.TX_BYTES, Port.TX_PACKETS, Port.MARKED, Port.DROPPED, Port.MAX_Q_BYTES, Port.PAUSES, Port.PAUSED_PS,
)  # fmt: skip
SCALARS = (Sc.NOW, Sc.DATA_PACKETS, Sc.DROPS, Sc.CNPS, Sc.IN_FLIGHT, Sc.RNG_FABRIC, Sc.RNG_SYMPHONY)


class Trace:
    """A hash over everything that a fabric tells its hosts; put between `take_events` and whoever calls it."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self._hash = hashlib.sha256()
        self._take = fabric.take_events
        fabric.take_events = self.take  # type: ignore[method-assign]

    def take(self) -> list[FabricEvent]:
        """The events, which are noted."""
        events = self._take()
        for event in events:
            numbers = event.time_ps, event.kind, event.qp // Qp.COLUMNS, event.message // Msg.COLUMNS
            self._hash.update(np.array(numbers, dtype=np.int64).tobytes())
        return events

    def digest(self) -> str:
        """Of all events and of the books as they are now."""
        for host in self.fabric.topology.hosts:
            self.fabric.host_counters(host)
        view, regs = self.fabric.view, self.fabric.planes.regs
        books = [view.port[column :: Port.COLUMNS] for column in LINK_COUNTERS]
        books += [view.qp[column :: Qp.COLUMNS] for column in COUNTERS]
        books += [view.sw[Sw.MAX_USED :: Sw.COLUMNS], view.sc[list(SCALARS)], view.counts[view.counts != 0]]
        books += [array[array != 0] for array in regs._replace(alpha=regs.alpha - 1)]
        for numbers in books:
            self._hash.update(np.ascontiguousarray(numbers, dtype=np.int64).tobytes())
        return self._hash.hexdigest()[:16]


def ring(preset: dict[str, Any], steps: int, variant: str, seed: int) -> str:
    """The demo's traffic."""
    driver = RingDriver(Preset("traced", **preset), steps, variant, seed)
    trace = Trace(driver.fabric)
    driver.run()
    return trace.digest()


def mixture(preset: dict[str, Any], seed: int, **options: Any) -> str:
    """Messages of many sizes between random hosts from random times on, both ways, with marks, losses and retries.

    Args:
        preset: fields of the fabric.
        seed: of the fabric and of the choice of flows.
        options: `drop` on some links, `receives` posted per QP, `timeout`, `slice_ps` to run in slices.
    """
    fabric = Fabric(Preset("traced", **preset), seed)
    trace = Trace(fabric)
    dice = np.random.default_rng(seed)
    hosts = fabric.topology.hosts
    for port in fabric.topology.ports[::3]:
        fabric.set_link(port.name, drop=options.get("drop", 0.0))
    common = {"mtu": fabric.preset.mtu, "ect": True, "timeout": options.get("timeout", 8), "retry_cnt": 7}
    common |= {"rnr_retry": 7, "rnr_timer_ps": 100 * US}
    qps = []
    for i in range(24):
        a, b = (int(x) for x in dice.choice(len(hosts), 2, replace=False))
        qa, qb = fabric.create_qp(hosts[a], 100 + i), fabric.create_qp(hosts[b], 200 + i)
        fabric.connect(qb, hosts[a], qa, sport=0xC000, psn=7, **common)  # type: ignore[arg-type]
        fabric.connect(qa, hosts[b], qb, sport=0xC000 + i, psn=0xFFFFF0, **common)  # type: ignore[arg-type]
        fabric.receives(qa, options.get("receives", 1000))
        fabric.receives(qb, options.get("receives", 1000))
        qps += [qa, qb]

    def settle(until: int | None) -> None:
        while fabric.run(until) not in (kernel.IDLE, kernel.REACHED):
            for event in fabric.take_events():
                if event.kind == ACKED:
                    fabric.free_message(event.message)
                    fabric.receives(event.qp, 1)
        for event in fabric.take_events():
            if event.kind == ACKED:
                fabric.free_message(event.message)

    for i in range(150):
        q = qps[int(dice.integers(len(qps)))]
        length = int(dice.choice([0, 1, 700, 4096, 30_000, 200_000, 1_000_000]))
        fabric.post(q, length, write=bool(dice.integers(4)), imm=bool(dice.integers(2)), signaled=i % 3 == 0)
        until = fabric.now_ps + int(dice.integers(120 * US))
        while fabric.now_ps + options.get("slice_ps", until) < until:
            settle(fabric.now_ps + options["slice_ps"])
        settle(until)
    for q in qps:
        fabric.receives(q, 1000)
    settle(None)
    return trace.digest()


TIGHT = {"kmin": 5_000, "kmax": 60_000, "pmax": 0.3}
CASES: dict[str, tuple[Any, ...]] = {
    "demo off 1": (ring, DEMO, 4, "off", 1),
    "demo off 2": (ring, DEMO, 4, "off", 2),
    "demo paper": (ring, DEMO, 6, "paper", 1),
    "demo refined": (ring, DEMO, 6, "refined", 3),
    "demo spec off": (ring, {**DEMO, "dcqcn": "spec"}, 3, "off", 1),
    "demo spec paper": (ring, {**DEMO, "dcqcn": "spec"}, 3, "paper", 2),
    "demo spec refined": (ring, {**DEMO, "dcqcn": "spec"}, 3, "refined", 2),
    "demo without rate control": (ring, {**DEMO, "dcqcn": "off"}, 3, "refined", 2),
    "demo small buffer, lossless": (ring, {**DEMO, "dcqcn": "off", "buffer_bytes": 900_000}, 3, "paper", 2),
    "demo small buffer, lossy": (ring, {**DEMO, "buffer_bytes": 300_000, "pfc": False}, 3, "paper", 2),
    "16 hosts, fast": (ring, {"tors": 4, "hosts_per_tor": 4, "spines": 4, "uplink_gbps": 40.0}, 4, "refined", 5),
    "64 hosts": (ring, {"tors": 8, "hosts_per_tor": 8, "spines": 4, "mtu": 9000}, 3, "paper", 4),
    "100G, long links": (ring, {**SMALL, "host_gbps": 100.0, "uplink_gbps": 100.0, "delay_us": 5.0}, 6, "refined", 1),
    "mixture": (mixture, SMALL, 1),
    "mixture with marks": (mixture, {**SMALL, **TIGHT, "mtu": 1024}, 2),
    "mixture, spec": (mixture, {**SMALL, **TIGHT, "dcqcn": "spec"}, 3),
    "mixture with pauses": (mixture, {**ONE, "buffer_bytes": 150_000, "dcqcn": "off"}, 4),
    "mixture with pauses and marks": (mixture, {**SMALL, **TIGHT, "buffer_bytes": 200_000}, 5),
    "mixture with full buffers": (mixture, {**SMALL, "buffer_bytes": 90_000, "pfc": False}, 6),
    "mixture, one switch, lossy": (mixture, {**ONE, **TIGHT, "buffer_bytes": 90_000, "pfc": False}, 7),
    "mixture with lossy links": (mixture, {**SMALL, **TIGHT}, 8, {"drop": 0.01}),
    "mixture with lossy links, one switch": (mixture, ONE, 9, {"drop": 0.05}),
    "mixture without receives": (mixture, {**SMALL, **TIGHT}, 10, {"receives": 1}),
    "mixture with early timers": (mixture, {**SMALL, "buffer_bytes": 200_000}, 11, {"timeout": 4}),
    "mixture in slices": (mixture, {**SMALL, **TIGHT}, 12, {"slice_ps": 700_001}),
    "mixture without delays": (mixture, {**SMALL, **TIGHT, "delay_us": 0.0}, 13),
}

RECORDED = {
    "demo off 1": "0fef4bbe4438b4fc",
    "demo off 2": "62c8521a27153d23",
    "demo paper": "6635f7739ce7b131",
    "demo refined": "64cc8190995e4125",
    "demo spec off": "810114fd9882d32d",
    "demo spec paper": "ae8e0ae80a735757",
    "demo spec refined": "644ad31cda4d45b8",
    "demo without rate control": "6eb226989a290b39",
    "demo small buffer, lossless": "0116a452a40f516c",
    "demo small buffer, lossy": "39898fc96ffe13e9",
    "16 hosts, fast": "d4d33ba1309f398d",
    "64 hosts": "ff44c4c0d95d6289",
    "100G, long links": "fc94c4f8ca4a1e1b",
    "mixture": "7a91d1ccad960a9e",
    "mixture with marks": "889774ce45a29ea4",
    "mixture, spec": "e212aeddecda8dbc",
    "mixture with pauses": "a9929e0bc8922139",
    "mixture with pauses and marks": "185d9c6f2d9003b0",
    "mixture with full buffers": "7f52bcc33593c32f",
    "mixture, one switch, lossy": "1a14173e38d4b61c",
    "mixture with lossy links": "67c5ed09eeb8a93b",
    "mixture with lossy links, one switch": "8d95c63462d025ca",
    "mixture without receives": "ac1078f1e6006158",
    "mixture with early timers": "f95a2197a3dd2b8c",
    "mixture in slices": "84831617e93aad09",
    "mixture without delays": "4a70f960ae4f950f",
}


def run(case: str) -> str:
    """The hash of a case."""
    make, preset, *rest = CASES[case]
    options = rest.pop() if isinstance(rest[-1], dict) else {}
    digest: str = make(preset, *rest, **options)
    return digest


@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_the_engine_with_an_event_for_every_hop(case: str) -> None:
    """To the picosecond, whatever the engine folds."""
    assert run(case) == RECORDED[case]


if __name__ == "__main__":
    for case in CASES:
        print(f'    "{case}": "{run(case)}",')
