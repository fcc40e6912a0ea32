# SPDX-License-Identifier: Apache-2.0
"""RED as the control plane has installed it: what ranges mean, and that the ToR's ports do it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from fabric_twin.bfrt_server import InstalledEntry, TableSnapshot
from fabric_twin.daemon import Twin, TwinConfig
from fabric_twin.engine.state import Port
from fabric_twin.presets import get_preset
from fabric_twin.red_profile import CELL_BYTES, NO_RED, red_of
from fabric_twin.switch import TwinSwitch, device_ports

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Net

    Make = Callable[..., Net]

LAST = (1 << 19) - 1
ALWAYS = 0xFFFF
ANY = (0, 0)


def entry(
    low: int, high: int, prob: int, *, busy: int = 1, port: tuple[int, int] = ANY, priority: int = 20
) -> InstalledEntry:
    """One range of queue depth."""
    key = {"eg_intr_md.egress_port": port, "eg_intr_md.deq_qdepth": (low, high)}
    return InstalledEntry(key, priority, "Egress.set_red", {"prob": prob, "busy": busy})


def ramp(
    kmin: int, kmax: int, pmax: float, steps: int, port: tuple[int, int] = ANY, priority: int = 20
) -> list[InstalledEntry]:
    """Nothing below kmin, `steps` pieces, always from kmax on; depths in cells."""
    width = (kmax - kmin) // steps
    found = [entry(1, kmin - 1, 0, port=port, priority=priority)]
    for piece in range(steps):
        low = kmin + piece * width
        prob = round(65536 * pmax * (piece + 0.5) / steps)
        found.append(entry(low, low + width - 1, prob, port=port, priority=priority))
    return [*found, entry(kmax, LAST, ALWAYS, port=port, priority=priority)]


@pytest.mark.parametrize("pmax", [0.01, 0.2, 1.0])
@pytest.mark.parametrize("steps", [1, 4, 16, 64])
def test_a_ramp_in_steps_is_kmin_kmax_and_pmax(pmax: float, steps: int) -> None:
    """In whatever order the entries come."""
    red = red_of(reversed(ramp(320, 640, pmax, steps)), 5)
    assert (red.kmin, red.kmax, red.busy_min_cells) == (320 * CELL_BYTES, 640 * CELL_BYTES, 1)
    assert red.pmax == pytest.approx(pmax, abs=0.002)


def test_without_an_entry_for_it_a_port_has_no_red() -> None:
    """As the program's default action has it."""
    assert red_of([], 5)[:3] == NO_RED[:3]
    assert red_of(ramp(320, 640, 0.2, 8, port=(6, 0x1FF)), 5)[:3] == NO_RED[:3]
    assert red_of([entry(1, LAST, 0)], 5) == NO_RED


def test_a_ports_own_ranges_win_by_priority() -> None:
    """Also where the common ones have begun already."""
    own = [entry(0, 0, 0, busy=0, port=(5, 0x1FF), priority=10), *ramp(600, 800, 0.5, 4, (5, 0x1FF), 10)]
    entries = [*ramp(320, 640, 0.2, 4), *own]
    assert red_of(entries, 5).kmin == 600 * CELL_BYTES
    assert red_of(entries, 6).kmin == 320 * CELL_BYTES


def test_a_threshold_without_a_ramp() -> None:
    """Kmin = Kmax: all or nothing."""
    red = red_of([entry(1, 99, 0), entry(100, LAST, ALWAYS)], 1)
    assert (red.kmin, red.kmax) == (100 * CELL_BYTES - 1, 100 * CELL_BYTES)


@pytest.mark.parametrize(
    ("entries", "what"),
    [
        ([entry(10, 20, 500), entry(21, 30, 400), entry(31, LAST, ALWAYS)], "falls with the depth"),
        ([entry(10, 20, 500), entry(21, LAST, 40_000)], "ends at 0.610"),
        (
            [entry(100, 199, 500), entry(200, 299, 9000), entry(300, 399, 10_000), entry(400, LAST, ALWAYS)],
            "straight line",
        ),
        ([entry(1, 20, 0), entry(21, 30, 0, busy=0), entry(31, LAST, ALWAYS)], "not at a larger one"),
    ],
)
def test_what_is_no_red_is_refused(entries: list[InstalledEntry], what: str) -> None:
    """The text says at which depth."""
    with pytest.raises(ValueError, match=what):
        red_of(entries, 5)


def test_the_ports_of_a_tor_do_what_the_entries_say(two_racks: Make, caplog: pytest.LogCaptureFixture) -> None:
    """Preset without entries; the entries' thresholds with them; a bad profile is told and changes nothing."""
    net = two_racks(kmin=10**6, kmax=10**7, pmax=0.3, spines=1, dcqcn="off")
    switch = TwinSwitch(net.fabric, 0)

    def kmin(link: str) -> int:
        return net.port(link, Port.KMIN)

    uplink = ramp(100, 200, 1.0, 4, port=(128, 0x1FF), priority=10)
    switch.table_changed("red_profile", TableSnapshot([*ramp(320, 640, 0.2, 4), *uplink], None))
    assert (kmin("tor0->h0"), kmin("tor0->spine0"), kmin("tor1->h4")) == (320 * CELL_BYTES, 100 * CELL_BYTES, 10**6)
    assert net.port("tor0->h0", Port.PMAX) == pytest.approx(0.2 * 2**32, rel=0.01)
    assert not caplog.records

    senders = [net.pair(host, 4 + host)[0] for host in (0, 1)]
    for sender in senders:
        net.send(sender, 100 * 4096)
    net.run()
    assert net.port("tor0->spine0", Port.MARKED) > 20

    with caplog.at_level(logging.ERROR):
        switch.table_changed("red_profile", TableSnapshot([entry(10, LAST, 40_000)], None))
    assert kmin("tor0->spine0") == 100 * CELL_BYTES
    assert (
        "tor0: red_profile of port 0, 1, 2, 3, 128: not applied: the marking probability ends at 0.610" in caplog.text
    )

    caplog.clear()
    with caplog.at_level(logging.ERROR):
        switch.table_changed("red_profile", TableSnapshot([entry(0, 9, 0, busy=0), entry(10, LAST, 0)], None))
    assert kmin("tor0->spine0") == NO_RED.kmin
    assert "busy from cell 10 on" in caplog.text

    switch.table_changed("red_profile", TableSnapshot([], None))
    assert kmin("tor0->spine0") == kmin("tor0->h0") == 10**6


def test_device_ports_are_those_that_the_port_table_shows(tmp_path: Path) -> None:
    """One numbering for red_profile and $PORT."""
    preset = get_preset("small")
    twin = Twin(TwinConfig(preset, 1, tmp_path / "verbs.sock", bfrt_port=0, http_port=0))
    for tor in range(preset.tors):
        assert list(device_ports(twin.fabric.topology, tor)) == [port.dev_port for port in twin._ports(tor)]
