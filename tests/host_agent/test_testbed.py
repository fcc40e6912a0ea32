# SPDX-License-Identifier: Apache-2.0
"""testbed.yaml, placement of flows, and clocks."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host_agent.clocks import JobClock
from host_agent.errors import BadInputError, TestbedError
from host_agent.models import BenchSpec, parse_bytes
from host_agent.placement import flows_by_switch, ring_edges
from host_agent.testbed import HostEntry, SwitchEntry, load_testbed

GOOD = """
name: lab
switches: [{name: tor0, url: "http://127.0.0.1:9401", bfrt: "127.0.0.1:50052"}]
hosts: [{name: h0, address: 10.0.0.1, switch: tor0}, {name: h1, address: 10.0.0.2, switch: tor0}]
twin: {http: "http://127.0.0.1:9301", verbs: /tmp/verbs.sock}
"""


def write(tmp_path: Path, text: str) -> Path:
    """A testbed file with this text."""
    path = tmp_path / "testbed.yaml"
    path.write_text(text)
    return path


def test_a_testbed_file_is_read(tmp_path: Path) -> None:
    """Keys of other programs (bfrt) are passed over."""
    testbed = load_testbed(write(tmp_path, GOOD))
    assert [host.name for host in testbed.pick(None, 1)] == ["h0"]
    assert [host.name for host in testbed.pick(["h1", "h0"], None)] == ["h1", "h0"]


def test_a_host_on_a_switch_without_symphony_names_none(tmp_path: Path) -> None:
    """And switches above the ToRs say so."""
    text = GOOD.replace(", switch: tor0}, {", "}, {").replace("{name: tor0", "{tier: 1, name: tor0")
    testbed = load_testbed(write(tmp_path, text))
    assert [host.switch for host in testbed.hosts] == [None, "tor0"]
    assert testbed.switches[0].tier == 1


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("switch: tor0}]", "switch: tor7}]", "tor7"),
        ("name: h1", "name: h0", "'h0' appears twice"),
        ("10.0.0.2", "10.0.0.1", "address '10.0.0.1' appears twice"),
        ("10.0.0.2", "ten", "hosts.1.address"),
        ('"http://127.0.0.1:9401"', "tor0:9401", "switches.0.url"),
        ("switches:", "switchs:", "switches"),
        ("name: lab", "name: [", "no YAML"),
    ],
)
def test_a_wrong_testbed_file_says_where(tmp_path: Path, old: str, new: str, words: str) -> None:
    """File, place and reason in one line."""
    path = write(tmp_path, GOOD.replace(old, new))
    with pytest.raises(TestbedError) as caught:
        load_testbed(path)
    assert words in caught.value.detail
    assert str(path) in caught.value.detail
    assert "\n" not in caught.value.detail


def test_a_missing_testbed_file_says_how_to_get_one(tmp_path: Path) -> None:
    """The twin writes it."""
    with pytest.raises(TestbedError, match="fabric-twin run --testbed-file"):
        load_testbed(tmp_path / "none.yaml")


@given(st.integers(1, 12), st.integers(1, 12), st.sampled_from(["MOD", "DIV"]))
def test_each_rank_sends_to_one_rank_and_hears_from_one(groups: int, size: int, kind: str) -> None:
    """Every group is one closed ring; a rank alone sends nothing."""
    world = groups * size
    n = groups if kind == "MOD" else size
    edges = ring_edges(world, BenchSpec(split=f"{kind} {n}"))
    if size == 1:
        assert edges == []
    else:
        assert sorted(sender for sender, _ in edges) == sorted(receiver for _, receiver in edges)
        assert len({sender for sender, _ in edges}) == world
        assert all(sender != receiver for sender, receiver in edges)


def test_a_split_that_does_not_fit_is_bad_input() -> None:
    """Groups of different sizes cannot run one schedule."""
    with pytest.raises(BadInputError, match=r"bench\.split"):
        ring_edges(10, BenchSpec(split="MOD 4"))


def test_flows_are_given_to_the_switch_of_their_source() -> None:
    """Two hosts on two switches: one flow each."""
    hosts = [HostEntry(name=f"h{i}", address=f"10.0.{i}.1", switch=f"tor{i}") for i in range(2)]
    flows = flows_by_switch(hosts, BenchSpec())
    assert flows == {"tor0": [("10.0.0.1", "10.0.1.1")], "tor1": [("10.0.1.1", "10.0.0.1")]}


def test_a_switch_above_the_tors_gets_the_flows_that_leave_their_tor() -> None:
    """Ranks 0 and 1 on tor0, 2 behind a ToR without Symphony: the flow from 0 to 1 stays below the spine."""
    hosts = [HostEntry(name=f"h{i}", address=f"10.0.0.{i}", switch=on) for i, on in enumerate(["tor0", "tor0", None])]
    switches = [SwitchEntry(name=name, tier=tier, url="http://x:1") for name, tier in (("tor0", 0), ("spine0", 1))]
    flows = flows_by_switch(hosts, BenchSpec(), switches)
    assert flows == {
        "tor0": [("10.0.0.0", "10.0.0.1"), ("10.0.0.1", "10.0.0.2")],
        "spine0": [("10.0.0.1", "10.0.0.2"), ("10.0.0.2", "10.0.0.0")],
    }
    assert [len(found) for found in flows_by_switch(hosts, None, switches).values()] == [2, 3]


@pytest.mark.parametrize(("text", "size"), [("32M", 32 << 20), ("1g", 1 << 30), (17, 17), ("4KB", 4096)])
def test_sizes_are_read_as_nccl_tests_writes_them(text: str | int, size: int) -> None:
    """Binary units."""
    assert parse_bytes(text) == size


def test_switch_samples_are_placed_by_the_clock_they_share() -> None:
    """On the twin by the switch's time; on hardware by wall clock, on this machine's monotonic clock."""
    assert JobClock("twin").place(123, 1e9) == 123
    clock = JobClock("monotonic")
    assert clock.place(123, 1000.5) - clock.place(123, 1000.0) == pytest.approx(500_000_000, abs=50_000_000)
