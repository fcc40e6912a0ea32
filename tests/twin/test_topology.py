# SPDX-License-Identifier: Apache-2.0
"""Leaf-spine graphs and the paths that ECMP takes through them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric_twin.engine.state import Port
from fabric_twin.errors import FabricError, UnknownNameError
from fabric_twin.presets import PRESETS, get_preset
from fabric_twin.topology import Topology

if TYPE_CHECKING:
    from conftest import Net

    Make = Callable[..., Net]

DEMO = Topology(PRESETS["demo"], seed=1)
TAGS = range(0xC000, 0x10000)


def names(topology: Topology, path: list[int]) -> list[str]:
    """Link names along a path."""
    return [topology.ports[p].name for p in path]


def spine(topology: Topology, src: int, dst: int, sport: int) -> str:
    """The spine that a 5-tuple crosses."""
    path = topology.path(topology.hosts[src], topology.hosts[dst], sport)
    return topology.ports[path[1]].name.split("->")[1]


@given(src=st.integers(0, 31), dst=st.integers(0, 31), sport=st.integers(0xC000, 0xFFFF))
def test_a_path_leads_from_link_to_link_to_its_host(src: int, dst: int, sport: int) -> None:
    """Two links inside a rack, four across; each starts where the one before ends."""
    if src == dst:
        return
    ports = [DEMO.ports[p] for p in DEMO.path(DEMO.hosts[src], DEMO.hosts[dst], sport)]
    assert ports[0].name == f"h{src}->tor{src // 8}"
    assert ports[-1].name == f"tor{dst // 8}->h{dst}"
    assert len(ports) == (2 if src // 8 == dst // 8 else 4)
    for before, after in pairwise(ports):
        assert before.peer == after.node


def test_neighbouring_source_ports_spread_evenly_over_the_spines() -> None:
    """1024 steps of a job between two hosts: each of four spines gets a quarter, within four sigma."""
    counts = Counter(spine(DEMO, 0, 9, 0xC000 + step) for step in range(1024))
    assert sorted(counts) == ["spine0", "spine1", "spine2", "spine3"]
    assert all(abs(n - 256) < 4 * (1024 * 3 / 16) ** 0.5 for n in counts.values())


def test_rings_of_one_step_spread_too() -> None:
    """The same port from many hosts does not end on one spine."""
    counts = Counter(spine(DEMO, h, (h + 8) % 32, 0xC007) for h in range(32))
    assert len(counts) == 4
    assert max(counts.values()) <= 16


def test_a_5_tuple_keeps_its_path_and_the_next_step_may_take_another() -> None:
    """ECMP is a function of the 5-tuple."""
    assert spine(DEMO, 0, 9, 0xC001) == spine(DEMO, 0, 9, 0xC001)
    assert len({spine(DEMO, 0, 9, sport) for sport in TAGS[:32]}) > 1


def test_without_the_source_port_the_step_does_not_matter() -> None:
    """Preset field `ecmp_sport`; different pairs of hosts still spread."""
    topology = Topology(get_preset("demo", ecmp_sport=False), seed=1)
    assert len({spine(topology, 0, 9, sport) for sport in TAGS[::97]}) == 1
    assert len({spine(topology, 0, dst, 0xC000) for dst in range(8, 32)}) > 1


def test_a_mask_of_zero_on_a_switch_hides_the_port_from_its_hash(two_racks: Make) -> None:
    """The control plane sets it; QPs that exist are routed anew."""
    net = two_racks()
    pairs = [net.pair(0, 5, sport=0xC000 + i) for i in range(16)]
    net.fabric.set_hash_sport_mask(0, 0)
    for a, _ in pairs:
        net.send(a, 4096)
    net.run()
    used = [net.port(f"tor0->spine{i}", Port.TX_PACKETS) for i in range(2)]
    assert sorted(used) == [0, 16]


def test_another_seed_takes_other_paths() -> None:
    """Every switch's hash has a salt from the seed."""
    other = Topology(PRESETS["demo"], seed=2)
    same = [spine(DEMO, 0, 9, sport) == spine(other, 0, 9, sport) for sport in TAGS[:400]]
    assert 50 < sum(same) < 150
    other.reseed(1)
    assert all(spine(DEMO, 0, 9, sport) == spine(other, 0, 9, sport) for sport in TAGS[:400])


def test_switches_hash_differently() -> None:
    """Two ToRs send the same addresses and port to different spines half the time or more."""
    same = [DEMO.switches[0].salt == DEMO.switches[1].salt, DEMO.switches[0].salt == DEMO.switches[4].salt]
    assert same == [False, False]


def test_hosts_and_links_are_found_by_name_number_and_address() -> None:
    """An unknown one says what names look like."""
    assert DEMO.host("h9") is DEMO.host(9) is DEMO.host("10.0.1.2")
    assert DEMO.port("tor0->spine1").gbps == 10.0
    with pytest.raises(UnknownNameError, match="no host 'h32'; this fabric has h0 to h31"):
        DEMO.host("h32")
    with pytest.raises(UnknownNameError, match="no link 'tor0->tor1'; names look like h0->tor0"):
        DEMO.port("tor0->tor1")
    with pytest.raises(FabricError, match="h3 sends to itself"):
        DEMO.path(DEMO.hosts[3], DEMO.hosts[3], 0xC000)


def test_one_switch_needs_no_spine() -> None:
    """The two-flows fabric: four hosts, one switch."""
    topology = Topology(PRESETS["two-flows"], seed=1)
    assert names(topology, topology.path(topology.hosts[0], topology.hosts[3], 0xC000)) == ["h0->tor0", "tor0->h3"]
