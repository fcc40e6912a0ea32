# SPDX-License-Identifier: Apache-2.0
"""Fabric files: what they can say, and that a bad one is refused with file, line and reason."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fabric_twin.cli import main
from fabric_twin.errors import ConfigError
from fabric_twin.fabric_file import load_fabric
from fabric_twin.presets import PRESETS, changed, get_preset
from fabric_twin.switch import device_ports
from fabric_twin.topology import Topology

if TYPE_CHECKING:
    from conftest import Net

    Make = Callable[..., Net]

LAB = """\
name: lab
settings: {mtu: 1024, dcqcn: spec, pmax: 1}
defaults: {gbps: 100, delay_us: 0.5}
switches:
  - {name: left}
  - {name: right, symphony: false}
  - {name: top, tier: 1, symphony: true}
hosts:
  - {name: a, address: 192.168.0.1}
  - {name: b}
  - {name: c}
links:
  - {ends: [a, left]}
  - {ends: [left, b], gbps: 25}
  - {ends: [c, right]}
  - {ends: [b, right]}
  - {ends: ["left:130", top], gbps: 400, delay_us: 2}
  - {ends: [top, right]}
  - {ends: [top, right]}
"""


def written(folder: Path, text: str) -> Path:
    """A file with this text."""
    path = folder / "lab.yaml"
    path.write_text(text)
    return path


def test_a_file_describes_switches_hosts_nics_and_links(tmp_path: Path) -> None:
    """Ends in any order, a host with two NICs, parallel links, Symphony by switch, rates and delays by link."""
    spec = load_fabric(written(tmp_path, LAB))
    topology = Topology(spec, 1)
    assert (spec.name, spec.mtu, spec.dcqcn, spec.pmax) == ("lab", 1024, "spec", 1.0)
    assert [host.name for host in topology.hosts] == ["a", "b.r0", "c", "b.r1"]
    assert [str(host.address) for host in topology.hosts] == ["192.168.0.1", "10.0.0.2", "10.0.1.2", "10.1.1.1"]
    assert [switch.name for switch in topology.symphony_switches] == ["left", "top"]
    up, slow = topology.port("left->top"), topology.port("left->b.r0")
    assert (up.gbps, up.delay_us, slow.gbps, slow.delay_us) == (400.0, 2.0, 25.0, 0.5)
    assert device_ports(topology, 0) == {0: topology.port("left->a").index, 1: slow.index, 130: up.index}
    a, c = topology.host("a"), topology.host("c")
    down = {topology.ports[topology.path(a, c, sport)[2]].name for sport in range(0xC000, 0xC040)}
    assert down == {"top->right", "top->right#2"}
    assert spec.description() | {"hosts": 3, "nics": 4, "switches": 3} == spec.description()


def test_the_documentations_example_is_a_fabric(tmp_path: Path) -> None:
    """docs/twin.md; h1's second NIC is on the other ToR."""
    text = (Path(__file__).parents[2] / "docs" / "twin.md").read_text()
    example = text.split("### Fabric files")[1].split("```yaml\n")[1].split("```")[0]
    topology = Topology(load_fabric(written(tmp_path, example)), 1)
    on = {host.name: topology.switches[host.tor].name for host in topology.hosts}
    assert on == {"h0": "tor0", "h1.r0": "tor1", "h1.r1": "tor0"}
    assert [switch.name for switch in topology.symphony_switches] == ["tor0", "spine0"]


@pytest.mark.parametrize("name", ["demo", "paper-256", "small-pods"])
def test_a_preset_written_as_a_file_is_the_same_fabric(tmp_path: Path, name: str) -> None:
    """Ports, addresses, device ports and all paths."""
    plan = PRESETS[name].plan()
    switches = [{"name": s.name, "tier": s.tier} for s in plan.switches]
    links = [{"ends": [n.host, plan.switches[n.switch].name]} for n in plan.nics]
    links += [{"ends": [plan.switches[k.upper].name, plan.switches[k.lower].name]} for k in plan.links]
    hosts = [{"name": host} for host in dict.fromkeys(n.host for n in plan.nics)]
    text = yaml.safe_dump({"switches": switches, "hosts": hosts, "links": links}, sort_keys=False)
    ours, theirs = Topology(load_fabric(written(tmp_path, text)), 3), Topology(PRESETS[name], 3)
    assert ours.ports == theirs.ports
    assert ours.hosts == theirs.hosts
    assert ours.switches == theirs.switches


def test_ranks_can_use_a_fabric_of_mixed_delays(tmp_path: Path, net_of: Make) -> None:
    """Everything arrives and nothing is dropped, with pause frames over links of 0.5 and 2 us."""
    text = LAB.replace("pmax: 1}", "pmax: 1, buffer_bytes: 60000}")
    net = net_of(load_fabric(written(tmp_path, text)))
    pairs = [net.pair(a, b)[0] for a, b in combinations(range(4), 2)]
    for q in pairs:
        net.send(q, 300_000)
    net.run()
    assert len(net.acked()) == 6
    assert net.fabric.stats().drops == 0
    net.check_idle()


def without(line: str) -> str:
    """The file without a line that holds this."""
    return "".join(row for row in LAB.splitlines(keepends=True) if line not in row)


BAD = [
    (LAB.replace("[c, right]", "[c, rigth]"), 15, "leads to 'rigth', but there is no switch or host of that name"),
    (without("[c, right]"), 11, "host c has no link"),
    (LAB.replace("[left, b]", "[left, a]"), 9, "host a has 1 addresses and 2 links"),
    (LAB.replace("[left, b]", '["left:3", b]').replace("a, left]", 'a, "left:3"]'), 14, "two links to one port, left"),
    (LAB.replace("[b, right]", '["b:0", right]'), 16, "two links to one port, b:0; the other is in line 14"),
    (LAB.replace("gbps: 25", "gbps: 0"), 14, "gbps of link left - b is '0'; allowed are 0.01 to 800"),
    (LAB.replace("gbps: 25", "gbps: .nan"), 14, "allowed are 0.01 to 800"),
    (LAB.replace("gbps: 25", "gbps: [25]"), 14, "is no number; allowed are 0.01 to 800"),
    (LAB.replace("delay_us: 2", "delay_us: -1"), 17, "delay_us of link left - top is '-1'; allowed are 0 to 1000"),
    (LAB.replace("gbps: 100", "gbps: fast"), 3, "gbps of defaults is 'fast'"),
    (LAB.replace("name: top, tier: 1", "name: top, tier: 0"), 17, "joins two switches of tier 0"),
    (LAB.replace("[top, right]", "[top, left]"), 9, "no route from a to c: no path goes up from left"),
    (LAB.replace("{name: b}", "{name: a}"), 10, "there are two of the name a"),
    (LAB.replace("{name: right,", "{name: left,"), 6, "there are two of the name left"),
    (LAB.replace("[c, right]", "[c, a]"), 15, "link c - a joins two hosts"),
    (LAB.replace("[c, right]", "[c]"), 15, "a link has 1 ends; it must have two"),
    (LAB.replace("[c, right]", '["c:x", right]'), 15, "port 'x' of c; allowed are 0 to 249"),
    (LAB.replace("left:130", "left:512"), 17, "port '512' of left; allowed are 0 to 511"),
    (LAB.replace("gbps: 25", "speed: 25"), 14, "a link has an unknown key 'speed'; there are ends, gbps, delay_us"),
    (LAB.replace("192.168.0.1", "10.0.0.2"), 10, "b has the address 10.0.0.2 of a"),
    (LAB.replace("192.168.0.1", "10.0.0"), 9, "address of a is '10.0.0', which is no IPv4 address"),
    (LAB.replace("192.168.0.1", "[10.0.0.1, 10.1.0.1]"), 9, "host a has 2 addresses and 1 links"),
    (LAB.replace("mtu: 1024", "mtu: 20"), 2, "has mtu 20; allowed are 256 to 9000 bytes"),
    (LAB.replace("mtu: 1024", "mtu: big"), 2, "mtu must be a whole number"),
    (LAB.replace("dcqcn: spec", "skew: left->top=1.5"), 2, "left->top shares its traffic with 0 other links"),
    (LAB.replace("dcqcn: spec", "colour: red"), 2, "settings has an unknown key 'colour'"),
    (LAB.replace("{name: b}", "{name: b b}"), 10, "name of a host must be a letter and then"),
    (LAB.replace("{name: b}", "{name: 10.0.0.1}"), 10, "name of a host must be a letter and then"),
    (LAB.replace("{name: b}", "{name: a.r1}"), 10, ".r and a number is how its NICs are called"),
    (LAB.replace("symphony: true", "symphony: maybe"), 7, "symphony of top must be true or false"),
    (LAB.replace("tier: 1", "tier: 1.5"), 7, "tier of top must be a whole number"),
    (LAB + "links: []\n", 20, "the file has links twice"),
    (without("defaults").replace("links:", "wires:"), 11, "the file has an unknown key 'wires'"),
    (LAB.replace("links:", "cables: &x\n  - *x\nlinks:"), 12, "unknown key 'cables'"),
    (LAB.replace("[c, right]", "[c, right"), 15, "no YAML"),
    (LAB.replace("{name: b}", "!!python/object:os.system b"), 10, "a host must be a map"),
    ("- 1\n", 1, "the file must be a map"),
    ("switches: []\nhosts: []\nlinks: []\n", 2, "there is no host"),
    ("switches: []\nhosts: []\n", 1, "the file has no links"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "reason"), BAD, ids=[reason[:40] for _, _, reason in BAD])
def test_a_bad_file_is_refused_with_its_line_and_nothing_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, line: int, reason: str
) -> None:
    """Exit code 2, one line, no socket, no testbed file."""
    path = written(tmp_path, text)
    verbs, testbed = tmp_path / "verbs.sock", tmp_path / "testbed.yaml"
    with pytest.raises(SystemExit) as caught:
        main(["run", "--fabric", str(path), "--verbs", str(verbs), "--testbed-file", str(testbed)])
    out, err = capsys.readouterr()
    assert (caught.value.code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"fabric-twin: {path}:{line}: ")
    assert reason in err
    assert not verbs.exists()
    assert not testbed.exists()


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"\x00", b"", b"[" * 5000, b"a: " * 5000, b"#" * ((16 << 20) + 1)])
def test_what_is_no_text_of_a_fabric_is_refused(tmp_path: Path, raw: bytes) -> None:
    """Bytes of all kinds end in one error that names the file."""
    path = tmp_path / "noise.yaml"
    path.write_bytes(raw)
    with pytest.raises(ConfigError, match=r"noise\.yaml"):
        load_fabric(path)


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, Any]:
    """Switches of up to three tiers with random links upwards (some parallel), hosts with one to three NICs."""
    tiers = draw(st.lists(st.integers(0, 2), min_size=1, max_size=7))
    switches = [{"name": f"s{i}", "tier": tier} for i, tier in enumerate(tiers)]
    hosts = [{"name": f"h{i}"} for i in range(draw(st.integers(1, 6)))]
    place = st.integers(0, len(tiers) - 1)
    speeds = st.fixed_dictionaries({}, optional={"gbps": st.floats(0.01, 800), "delay_us": st.floats(0, 1000)})
    links = [
        {"ends": [host["name"], f"s{switch}"], **draw(speeds)}
        for host in hosts
        for switch in draw(st.lists(place, min_size=1, max_size=3))
    ]
    for a, b in draw(st.lists(st.tuples(place, place), max_size=14)):
        if tiers[a] != tiers[b]:
            links.append({"ends": [f"s{a}", f"s{b}"], **draw(speeds)})
    return {"switches": switches, "hosts": hosts, "links": draw(st.permutations(links))}


@given(graph=graphs(), sport=st.integers(0xC000, 0xFFFF), static=st.booleans())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_that_is_accepted_has_up_down_paths_for_all_hosts_of_a_rail(
    tmp_path: Path, graph: dict[str, Any], sport: int, static: bool
) -> None:
    """And one that is refused for its routes has a pair without one."""
    path = written(tmp_path, yaml.safe_dump({**graph, "settings": {"routing": "static" if static else "ecmp"}}))
    try:
        topology = Topology(load_fabric(path), 1)
    except ConfigError as error:
        assert "no route" in str(error) or "has no link" in str(error)  # noqa: PT017
        return
    for src, dst in ((a, b) for a in topology.hosts for b in topology.hosts if a is not b and a.rail == b.rail):
        ports = [topology.ports[p] for p in topology.path(src, dst, sport)]
        assert (ports[0].index, ports[-1].index) == (src.nic, dst.down)
        assert all(before.peer == after.node for before, after in pairwise(ports))
        tiers = [topology.switches[port.node].tier for port in ports[1:]]
        top = tiers.index(max(tiers))
        assert all(a < b for a, b in pairwise(tiers[: top + 1]))
        assert all(a > b for a, b in pairwise(tiers[top:]))


def test_settings_on_the_command_line_change_the_files(tmp_path: Path) -> None:
    """Shape comes from the file alone; the name says what was changed."""
    spec = changed(load_fabric(written(tmp_path, LAB)), mtu=4096, symphony_tiers="none")
    assert spec.name == "lab,mtu=4096,symphony_tiers=none"
    assert [switch.name for switch in Topology(spec, 1).symphony_switches] == ["top"]
    assert get_preset("demo", routing="static").name == "demo,routing=static"
