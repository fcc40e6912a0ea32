# SPDX-License-Identifier: Apache-2.0
"""Fabrics of two and three tiers: paths, how they share the links, delays, Symphony in any tier, rails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabric_twin.bfrt_server import TableSnapshot
from fabric_twin.daemon import Twin, TwinConfig
from fabric_twin.engine.state import Port, Qp
from fabric_twin.errors import ConfigError, FabricError
from fabric_twin.fabric import ACKED, DELIVERED, Fabric
from fabric_twin.presets import PRESETS, Preset, Settings, Skew, get_preset
from fabric_twin.switch import TwinSwitch, device_ports
from fabric_twin.topology import Host, Topology

if TYPE_CHECKING:
    from conftest import Net

    Make = Callable[..., Net]

ACK_BYTES = 66
RATES = st.sampled_from([10.0, 25.0, 40.0, 100.0, 200.0, 400.0])
STEPS = range(0xC000, 0xC000 + 1024)


@st.composite
def pods(draw: st.DrawFn, **fixed: Any) -> Preset:
    """Two or three tiers, one or two rails, links of mixed rates."""
    n_pods, rails = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    shape = {
        "pods": n_pods,
        "tors": n_pods * rails * draw(st.integers(1, 3)),
        "hosts_per_tor": draw(st.integers(1, 6)),
        "spines": draw(st.integers(1, 4)),
        "cores": draw(st.integers(1, 4)) if n_pods > 1 else 0,
        "rails": rails,
        "host_gbps": draw(RATES),
        "uplink_gbps": draw(RATES),
        "core_gbps": draw(RATES),
        "delay_us": draw(st.sampled_from([0.1, 0.5, 1.0])),
        "routing": draw(st.sampled_from(["ecmp", "static"])),
    }
    return Preset("any", **{**shape, **fixed})  # type: ignore[arg-type]


def loads(topology: Topology, flows: list[tuple[Host, Host]], steps: range = STEPS[:1]) -> Counter[str]:
    """Flows per directed link, over all steps."""
    return Counter(
        topology.ports[p].name for src, dst in flows for sport in steps for p in topology.path(src, dst, sport)
    )


def shifted(topology: Topology, by: int) -> list[tuple[Host, Host]]:
    """Each NIC to the one `by` places further."""
    hosts = topology.hosts
    return [(host, hosts[(host.index + by) % len(hosts)]) for host in hosts]


@given(spec=pods(), data=st.data(), sport=st.integers(0xC000, 0xFFFF))
def test_every_pair_has_a_path_that_goes_up_and_then_down(spec: Preset, data: st.DataObject, sport: int) -> None:
    """No switch twice, each link starts where the last one ends; what a seed decides is which, not how long."""
    topology = Topology(spec, data.draw(st.integers(0, 9)))
    ends = data.draw(st.lists(st.sampled_from(topology.hosts), min_size=2, max_size=2)) if spec.n_hosts > 1 else []
    if len(ends) < 2 or ends[0] is ends[1]:
        return
    src, dst = ends
    ports = [topology.ports[p] for p in topology.path(src, dst, sport)]
    assert (ports[0].index, ports[-1].index) == (src.nic, dst.down)
    assert all(before.peer == after.node for before, after in pairwise(ports))
    tiers = [topology.switches[port.node].tier for port in ports[1:]]
    top = tiers.index(max(tiers))
    assert all(a < b for a, b in pairwise(tiers[: top + 1]))
    assert all(a > b for a, b in pairwise(tiers[top:]))
    pod = spec.tors // spec.pods
    assert len(ports) == (2 if src.tor == dst.tor else 4 if src.tor // pod == dst.tor // pod else 6)


@given(spec=pods(routing="ecmp", pods=2, tors=4, rails=1, cores=3), seed=st.integers(0, 99))
@settings(max_examples=20)
def test_ecmp_spreads_the_steps_of_a_pair_over_all_links_of_equal_cost(spec: Preset, seed: int) -> None:
    """At the ToR and at the spines, to within five sigma of an even share."""
    topology = Topology(spec, seed)
    used = loads(topology, [(topology.hosts[0], topology.hosts[-1])], STEPS)
    up = [used[f"tor0->spine{i}"] for i in range(spec.spines)]
    cores = [sum(used[f"spine{i}->core{j}"] for i in range(spec.spines)) for j in range(spec.cores)]
    for shares in (up, cores):
        k = len(shares)
        assert all(abs(n - 1024 / k) <= 5 * (1024 * (k - 1)) ** 0.5 / k for n in shares)


@given(
    spines=st.integers(1, 4), cores=st.integers(1, 4), more=st.integers(1, 2), n_pods=st.integers(2, 3),
    tors=st.integers(1, 3), rails=st.integers(1, 2),
)  # fmt: skip
def test_static_paths_load_all_links_of_a_tier_equally(
    spines: int, cores: int, more: int, n_pods: int, tors: int, rails: int
) -> None:
    """Rings from rack to rack and from pod to pod, wherever the number of hosts can be shared evenly."""
    hosts_per_tor = spines * cores * more
    spec = Preset(
        "static", tors=n_pods * tors * rails, hosts_per_tor=hosts_per_tor, spines=spines, pods=n_pods, cores=cores,
        rails=rails, routing="static",
    )  # fmt: skip
    topology = Topology(spec, 1)
    for by in (tors * hosts_per_tor, hosts_per_tor):
        used = loads(topology, shifted(topology, by))
        for kind in (("tor", "->spine"), ("spine", "->core"), ("core", "->spine"), ("spine", "->tor")):
            on = {n: used[n] for n in (p.name for p in topology.ports) if n.startswith(kind[0]) and kind[1] in n}
            per_switch: dict[str, set[int]] = {}
            for name, flows in on.items():
                end = name.split("->")[1 if kind[1] == "->tor" else 0]
                per_switch.setdefault(end, set()).add(flows)
            assert all(len(values) == 1 for values in per_switch.values()), (kind, by, on)


def test_static_paths_depend_on_neither_step_nor_seed() -> None:
    """Two of a rack's eight rings on each of the demo's four uplinks, in every step."""
    topology = Topology(get_preset("demo", routing="static"), 1)
    other = Topology(get_preset("demo", routing="static"), 2)
    for src, dst in shifted(topology, 8):
        assert len({tuple(topology.path(src, dst, sport)) for sport in STEPS[::97]}) == 1
        assert topology.path(src, dst, 0xC000) == other.path(src, dst, 0xC001)
    assert {loads(topology, shifted(topology, 8))[f"tor2->spine{i}"] for i in range(4)} == {2}


@given(factor=st.floats(1, 2), static=st.booleans(), seed=st.integers(0, 99))
@settings(max_examples=12, deadline=None)
def test_a_skewed_link_carries_its_factor_and_other_switches_links_what_they_did(
    factor: float, static: bool, seed: int
) -> None:
    """Load over 128 steps of 8 rings against an even share, within 4 %; with ECMP within five sigma of its own luck."""
    routing = "static" if static else "ecmp"
    before = Topology(get_preset("demo", routing=routing), seed)
    after = Topology(get_preset("demo", routing=routing, skew=Skew("tor1->spine2", factor)), seed)
    flows = [(a, b) for a, b in shifted(before, 8) if a.tor in (1, 2)]
    was, now = loads(before, flows, STEPS[:128]), loads(after, flows, STEPS[:128])
    share = sum(was[f"tor1->spine{i}"] for i in range(4)) / 4
    assert share == 256
    assert now["tor1->spine2"] == pytest.approx(factor * share, abs=10 if static else 5 * (4 * share / 4) ** 0.5)
    assert sum(now[f"tor1->spine{i}"] for i in range(4)) == 4 * share
    assert all(now[f"tor2->spine{i}"] == was[f"tor2->spine{i}"] for i in range(4))


def test_a_skew_in_a_balanced_fabric_is_exact_after_few_steps() -> None:
    """The paper's 1.13x: of 120 steps x 2 rings on the link 240 become 271, to within two."""
    topology = Topology(get_preset("demo", routing="static", skew=Skew("tor1->spine2", 1.13)), 1)
    used = loads(topology, shifted(topology, 8), STEPS[:120])
    assert used["tor1->spine2"] == pytest.approx(1.13 * 240, abs=2)
    assert {used[f"tor0->spine{i}"] for i in range(4)} == {240}


@pytest.mark.parametrize("ratio", [1, 2, 4, 8])
@pytest.mark.parametrize("upper", [1, 2, 4])
def test_oversubscription_is_what_was_asked(ratio: int, upper: int) -> None:
    """Rates of the links that are there, summed up at a ToR and at a spine."""
    spec = get_preset("paper-512", uplink_gbps=40, core_gbps=20, oversubscription=f"1:{ratio},1:{upper}")
    topology = Topology(spec, 1)

    def rate(switch: str, up: bool) -> float:
        node = next(s for s in topology.switches if s.name == switch)
        ports = [topology.ports[p] for p in node.ports]
        return sum(p.gbps for p in ports if (p.peer >= 0 and topology.switches[p.peer].tier > node.tier) is up)

    assert rate("tor3", False) / rate("tor3", True) == ratio
    assert rate("spine1", False) / rate("spine1", True) == upper
    assert spec.oversubscription == [ratio, upper]


def test_an_impossible_oversubscription_says_what_is_possible() -> None:
    """A number of uplinks is whole."""
    with pytest.raises(ConfigError, match=r"needs 0\.5 uplinks of 10 Gb/s; 1 give 1:4"):
        get_preset("rack16", oversubscription="1:8")


@given(spec=pods(), data=st.data())
@settings(max_examples=25, deadline=None)
def test_an_acknowledgement_takes_the_sum_over_the_way_back(net_of: Make, spec: Preset, data: st.DataObject) -> None:
    """Delay and 66 bytes of each link, as the hosts see it: from delivery to acknowledgement."""
    if spec.n_hosts < 2:
        return
    net = net_of(spec)
    hosts = net.fabric.topology.hosts
    a, b = data.draw(st.permutations(range(len(hosts))).map(lambda order: order[:2]))
    qa, _ = net.pair(a, b)
    net.send(qa, 1000)
    net.run()
    ports = [net.fabric.topology.ports[p] for p in net.fabric.topology.path(hosts[a], hosts[b], 0xC000)]
    way_back = sum(round(p.delay_us * 1e6) + ACK_BYTES * round(8000 / p.gbps) for p in ports)
    assert net.time_of(ACKED) - net.time_of(DELIVERED) == way_back
    net.check_idle()


def test_a_three_tier_fabric_of_mixed_rates_loses_nothing_and_keeps_order(net_of: Make) -> None:
    """An incast over all tiers from hosts of 40G to one, with PFC at work."""
    net = net_of(get_preset("small-pods", host_gbps=40, uplink_gbps=25, core_gbps=100, buffer_bytes=300_000))
    pairs = [net.pair(a, 0, sport=0xC000 + a)[0] for a in range(1, 16)]
    for _ in range(3):
        for q in pairs:
            net.send(q, 200_000)
    net.run()
    assert len(net.delivered()) == len(net.acked()) == 45
    per_qp: dict[int, list[int]] = {}
    for kind, place, q in net.order:
        if kind == ACKED:
            per_qp.setdefault(q, []).append(place)
    assert all(places == sorted(places) for places in per_qp.values())
    assert sum(net.ports(Port.PAUSES)) > 0
    assert net.fabric.stats().drops == 0
    net.check_idle()


def test_paths_avoid_links_that_are_down_in_every_tier_and_come_back() -> None:
    """Up and down, and as if they were up where no other way is left."""
    topology = Topology(PRESETS["small-pods"], 1)
    flows = shifted(topology, 4)[:8]
    before = [topology.path(a, b, sport) for a, b in flows for sport in STEPS[:64]]
    for name in ("tor0->spine1", "spine0->core1", "core0->spine3", "spine2->tor6"):
        down = topology.port(name).index
        assert any(down in path for path in before)
        topology.avoid({down})
        around = [topology.path(a, b, sport) for a, b in flows for sport in STEPS[:64]]
        assert not any(down in path for path in around)
        assert {len(path) for path in around} == {6}
    only = [topology.port(f"tor0->spine{i}").index for i in range(2)]
    topology.avoid(only)
    assert any(p in path for path in (topology.path(a, b, 0xC000) for a, b in flows) for p in only)
    topology.avoid(())
    assert [topology.path(a, b, sport) for a, b in flows for sport in STEPS[:64]] == before


def test_512_hosts_in_pods_send_to_each_other(net_of: Make) -> None:
    """One message from every host to the host in the opposite pod."""
    net = net_of(PRESETS["paper-512"])
    for a in range(512):
        net.send(net.pair(a, (a + 256) % 512, sport=0xC000 + a)[0], 4096)
    net.run()
    assert len(net.acked()) == 512
    net.check_idle()


# ------------------------------------------------------------------------------------------------ Symphony, rails


def test_symphony_runs_where_it_was_put(tmp_path: Path) -> None:
    """Every such switch has a BF-Runtime server and an entry in the testbed file, no other has."""
    spec = get_preset("small-pods", symphony_tiers="tor,core")
    twin = Twin(TwinConfig(spec, seed=1, verbs=tmp_path / "v", bfrt_port=50052, agent_port=9401))
    entries = twin.testbed()["switches"]
    names = [f"tor{i}" for i in range(8)] + ["core0", "core1"]
    assert [entry["name"] for entry in entries] == names
    assert [entry["tier"] for entry in entries] == [0] * 8 + [2] * 2
    assert [entry["bfrt"] for entry in entries] == [f"127.0.0.1:{50052 + i}" for i in range(10)]
    assert [entry["url"] for entry in entries] == [f"http://127.0.0.1:{9401 + i}" for i in range(10)]
    with pytest.raises(FabricError, match="spine0 does not run Symphony"):
        twin.fabric.set_classifier(8, None)
    with pytest.raises(FabricError, match="no switch 'spine0' with Symphony; there are tor0 to core1"):
        twin.bfrt_address_of("spine0")


def test_hosts_on_a_switch_without_symphony_name_no_switch(tmp_path: Path) -> None:
    """host-agent must not look for an agent there."""
    spec = get_preset("small", symphony_tiers="spine")
    testbed = Twin(TwinConfig(spec, seed=1, verbs=tmp_path / "v", bfrt_port=0)).testbed()
    assert [entry["name"] for entry in testbed["switches"]] == ["spine0", "spine1"]
    assert testbed["hosts"][0] == {"name": "h0", "address": "10.0.0.1"}


@pytest.mark.parametrize("tier", [0, 1, 2])
def test_a_switch_of_any_tier_tracks_the_packets_that_cross_it(net_of: Make, tier: int) -> None:
    """In the row of the pipe that they come in by: the one of hosts and lower switches, or that of uplinks."""
    net = net_of(Preset("line", tors=2, hosts_per_tor=1, spines=1, pods=2, cores=1, symphony_tiers="all"))
    fabric = net.fabric
    for switch in fabric.topology.switches:
        if switch.tier == tier:
            fabric.set_params(switch.index, 5, (0, 1, -1701, 0, 192, -64, 8, -390, 4096, 128))
            fabric.set_classifier(switch.index, lambda *_: (5, 9))
    qa, _ = net.pair(0, 1)
    net.send(qa, 10 * 4096)
    net.run()
    counts = {}
    for switch in fabric.topology.switches:
        packets = TwinSwitch(fabric, switch.index).read_counters("job_all")[:, 5, 0]
        counts[switch.name] = packets.tolist()
    crossed = {"tor0": [10, 0, 0, 0], "tor1": [0, 10, 0, 0], "spine0": [10, 0, 0, 0], "spine1": [0, 10, 0, 0]}
    crossed["core0"] = [10, 0, 0, 0]
    tiers = {switch.name: switch.tier for switch in fabric.topology.switches}
    assert counts == {name: row if tiers[name] == tier else [0] * 4 for name, row in crossed.items()}


def test_device_ports_count_down_links_from_pipe_0_and_uplinks_from_the_next_free_pipe() -> None:
    """With 130 hosts on a ToR the uplinks move to pipe 2, and so do the rows of what they bring."""
    fabric = Fabric(Preset("wide", tors=2, hosts_per_tor=130, spines=2))
    assert list(device_ports(fabric.topology, 0)) == [*range(130), 256, 257]
    assert list(device_ports(fabric.topology, 2)) == [0, 1]
    rows = {
        name: int(fabric.view.port[fabric.topology.port(name).index * Port.COLUMNS + Port.ROW])
        for name in ("h0->tor0", "h129->tor0", "spine1->tor0", "h130->tor1", "tor0->spine0")
    }
    assert rows == {"h0->tor0": 0, "h129->tor0": 1, "spine1->tor0": 2, "h130->tor1": 4, "tor0->spine0": -1}


def test_a_symphony_switch_has_no_more_ports_than_its_pipes() -> None:
    """512; one without Symphony has any number."""
    wide: dict[str, Any] = {"tors": 1, "hosts_per_tor": 250, "spines": 200}
    assert Topology(Preset("wide", **wide, symphony_tiers="none"), 1).symphony_switches == []
    Topology(Preset("wide", **wide), 1)
    with pytest.raises(ConfigError, match="tor0 has 570 ports, more than the 4 pipes of 128 ports"):
        Topology(Preset("wide", **{**wide, "spines": 320}), 1)


def test_the_table_of_a_spine_reaches_the_spine(net_of: Make) -> None:
    """BF-Runtime's backend addresses the switch, not the ToR of the same number."""
    net = net_of(get_preset("small", symphony_tiers="all"))
    switch = TwinSwitch(net.fabric, 3)
    switch.table_changed("ecmp_config", TableSnapshot([], ("set_mask", {"mask": 0})))
    assert [s.hash_sport_mask for s in net.fabric.topology.switches] == [0xFFFF] * 3 + [0]
    switch.write_register("alpha", 7, {"f1": 3}, None)
    assert net.fabric.planes.regs.alpha[:, 7].tolist() == [1] * 12 + [3] * 4


def test_a_host_with_two_nics_has_an_address_and_a_tor_for_each() -> None:
    """The name alone is the first NIC; the second rail is on the rack's second ToR."""
    topology = Topology(PRESETS["small-pods"], 1)
    first, second = topology.host("h3"), topology.host("h3.r1")
    assert first is topology.host("h3.r0") is topology.host("10.0.2.2")
    assert Topology(PRESETS["demo"], 1).host("h3.r0").name == "h3"
    assert (first.machine, first.rail, topology.switches[first.tor].name) == ("h3", 0, "tor2")
    assert (second.machine, second.rail, topology.switches[second.tor].name) == ("h3", 1, "tor3")
    assert str(second.address) == "10.1.3.2"
    assert [host.name for host in topology.hosts[:2]] == ["h0.r0", "h1.r0"]
    assert topology.path(first, second, 0xC000)


def test_more_distances_than_there_are_delay_lines_make_new_lines(net_of: Make) -> None:
    """Each pair of a fabric with links of many delays has acknowledgements of its own delay."""
    spec: Settings = PRESETS["small"]
    net = net_of(spec)
    view = net.fabric.view
    lines = len(view.line)
    delays = [net.fabric._ctl_line(1000 + i) for i in range(100)]
    assert len(set(delays)) == 100
    assert len(net.fabric.view.line) > lines
    assert [int(net.fabric.view.line[line]) for line in delays] == [1000 + i for i in range(100)]
    qa, _ = net.pair(0, 5)
    assert net.qp(qa, Qp.CTL_LINE) not in delays
    net.send(qa, 100_000)
    net.run()
    assert len(net.acked()) == 1
    net.check_idle()
