# SPDX-License-Identifier: Apache-2.0

"""The way to the peers: names, routes, neighbours, MTU, shared subnets; ring edges only."""

from __future__ import annotations

import ipaddress
import json

import pytest

from ring_bench.doctor import Severity

from .conftest import LIBRARY, V4, FakeHost

RING = ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")


def mtu_of(host: FakeHost, device: str, mtu: int) -> None:
    host.library(devices={**_devices(host), device: {"error": None, "ports": {"1": {"active_mtu": mtu}}}})


def _devices(host: FakeHost) -> dict[str, object]:
    return dict(json.loads(host.commands[LIBRARY].text)["devices"])


def test_only_the_two_ring_edges_of_this_host_are_looked_at(host: FakeHost) -> None:
    subjects = [finding.subject for finding in host.report("route", peers=RING).findings]
    assert subjects == ["10.0.0.1 -> 10.0.0.2", "10.0.0.1 -> 10.0.0.4"]
    assert not any("10.0.0.3" in command for command in host.asked)


def test_a_peer_list_without_this_host_is_an_error(host: FakeHost) -> None:
    finding = host.one("peers", Severity.ERROR, peers=("10.9.9.1", "10.9.9.2"))
    assert "none of 10.9.9.1, 10.9.9.2 is a usable RoCE address" in finding.evidence
    assert "10.0.0.1, 10.0.1.1" in finding.evidence


@pytest.mark.parametrize(
    ("peer", "evidence"),
    [
        ("127.0.0.1", "a loopback address"),
        ("fe80::1", "a link-local address"),
        ("10.0.0.1", "as 10.0.0.1 is"),
        ("no-such-host.invalid", "resolves to no address"),
    ],
)
def test_peers_that_cannot_be_meant_are_errors(host: FakeHost, peer: str, evidence: str) -> None:
    finding = host.one("peers", Severity.ERROR, peers=("10.0.0.1", peer))
    assert finding.subject == peer
    assert evidence in finding.evidence


def test_a_missing_route_is_found_with_the_kernels_words(host: FakeHost) -> None:
    host.answer("ip -j route get 10.0.0.4", "", status=2, errors="RTNETLINK answers: Network is unreachable\n")
    finding = host.one("route", Severity.ERROR, peers=RING)
    assert finding.subject == "10.0.0.1 -> 10.0.0.4"
    assert "Network is unreachable" in finding.evidence


def test_tcp_that_takes_another_port_than_roce_is_a_warning(host: FakeHost) -> None:
    host.answer("ip -j route get 10.0.0.2 from 10.0.0.1", [{"dev": "mgmt0"}])
    host.answer("ip -j route get 10.0.0.2 from 10.0.0.1 oif eth0", [{"dev": "eth0"}])
    finding = host.one("route", Severity.WARNING, peers=RING)
    assert "RoCE goes out of eth0, all else out of mgmt0" in finding.evidence


def test_a_silent_neighbour_is_asked_once_and_then_found(host: FakeHost) -> None:
    host.answer("ip -j neigh show 10.0.0.4", [{"dst": "10.0.0.4", "state": ["FAILED"]}])
    finding = host.one("neighbour", Severity.ERROR, peers=RING)
    assert "10.0.0.4 does not answer on eth0 (neighbour entry: FAILED)" in finding.evidence
    assert host.poked == [("10.0.0.1", "10.0.0.4")]


def test_a_neighbour_that_answers_when_asked_is_fine(host: FakeHost) -> None:
    host.answer("ip -j neigh show 10.0.0.4", [])

    def answers() -> None:
        host.answer("ip -j neigh show 10.0.0.4", [{"state": ["REACHABLE"]}])

    host.while_waiting = answers
    assert [f.severity for f in host.report("neighbour", peers=RING).findings] == [Severity.OK, Severity.OK]


def test_behind_a_gateway_the_gateway_is_the_neighbour(host: FakeHost) -> None:
    host.answer("ip -j route get", [{"dev": "eth0", "gateway": "10.0.0.254"}])
    host.answer("ip -j neigh show", [])
    host.answer("ip -j neigh show 10.0.0.254 dev eth0", [{"state": ["STALE"]}])
    findings = host.report("route", "neighbour", peers=("10.0.0.1", "10.0.7.1")).findings
    assert {f.severity for f in findings} == {Severity.OK}
    assert "by gateway 10.0.0.254" in findings[0].evidence


def test_a_port_mtu_that_its_network_device_does_not_hold_is_an_error(host: FakeHost) -> None:
    host.write("sys/class/net/eth0/mtu", 1500)
    finding = host.found("mtu", Severity.ERROR)[0]
    assert "active MTU 4096, eth0 1500: packets of up to 4160 bytes do not pass eth0" in finding.evidence


def test_a_switch_with_a_smaller_mtu_is_an_error(host: FakeHost) -> None:
    findings = host.found("mtu", Severity.ERROR, switch_mtu=1500)
    assert len(findings) == 2
    assert "do not pass the switch" in findings[0].evidence
    assert findings[0].fix == "an L3 MTU of 4200 on the switch ports; the same on the whole path"


def test_packets_of_ipv6_are_larger(host: FakeHost) -> None:
    for index in (2, 3):
        host.gid("mlx5_0", index, "fd00:0000:0000:0000:0000:0000:0000:0001", "RoCE v2", "eth0")
    host.addresses["eth0"] = ["fd00::1/64"]
    assert "up to 4180 bytes" in host.one("mtu", Severity.ERROR, devices=("mlx5_0",), switch_mtu=4170).evidence
    host.one("mtu", Severity.OK, devices=("mlx5_1",), switch_mtu=4170)


def test_each_link_that_is_too_small_gets_a_command_that_can_be_typed(soft: FakeHost) -> None:
    soft.write("sys/class/net/eth0/mtu", 1500)
    soft.write("sys/class/net/eth0/iflink", 50)
    soft.netdev("p0", index=50, mtu=1500)
    fix = soft.one("mtu", Severity.ERROR, switch_mtu=1500).fix
    assert fix.split(", ")[:2] == ["ip link set eth0 mtu 4200", "ip link set p0 mtu 4200"]
    assert "an L3 MTU of 4200 on the switch ports" in fix


def test_the_other_end_of_a_virtual_link_counts_too(soft: FakeHost) -> None:
    soft.write("sys/class/net/eth0/iflink", 50)
    soft.netdev("p0", index=50, mtu=1500)
    finding = soft.one("mtu", Severity.ERROR)
    assert "eth0 4200, p0 1500: packets of up to 4160 bytes do not pass p0" in finding.evidence
    assert finding.fix.startswith("ip link set p0 mtu 4200")


def test_a_bridge_of_a_smaller_mtu_is_a_warning_since_it_forwards_by_its_members_mtu(soft: FakeHost) -> None:
    soft.write("sys/class/net/eth0/iflink", 50)
    soft.netdev("p0", index=50)
    soft.netdev("br0", index=51, mtu=1500)
    soft.link("sys/class/net/p0/master", soft.root / "sys/class/net/br0")
    (finding,) = soft.report("mtu").findings
    assert finding.severity is Severity.WARNING
    assert "eth0 4200, p0 4200, br0 1500" in finding.evidence
    assert "ip link show master br0" in finding.fix


def test_a_small_mtu_is_a_warning(host: FakeHost) -> None:
    host.write("sys/class/net/eth0/mtu", 1500)
    mtu_of(host, "mlx5_0", 1024)
    finding = host.one("mtu", Severity.WARNING, devices=("mlx5_0",))
    assert "active MTU 1024, eth0 1500" in finding.evidence


@pytest.mark.parametrize(("peers", "severity"), [((), Severity.WARNING), (("10.0.0.1", "10.0.1.1"), Severity.ERROR)])
def test_ports_of_different_mtu_are_an_error_only_in_one_ring(
    host: FakeHost, peers: tuple[str, ...], severity: Severity
) -> None:
    mtu_of(host, "mlx5_1", 1024)
    finding = host.one("mtu-mismatch", severity, peers=peers)
    assert "mlx5_0 port 1 4096, mlx5_1 port 1 1024" in finding.evidence


def test_without_pyverbs_the_active_mtu_is_unknown_not_wrong(host: FakeHost) -> None:
    devices = _devices(host)
    host.library(devices={})
    assert len(host.found("mtu", Severity.UNKNOWN)) == 2
    host.library(devices={"mlx5_0": devices["mlx5_0"]})
    assert "known of 1 of 2 ports only" in host.one("mtu-mismatch", Severity.UNKNOWN).evidence


def test_two_ports_in_one_subnet_need_their_sysctls(host: FakeHost) -> None:
    host.addresses["eth1"] = ["10.0.0.5/24"]
    for device in ("all", "eth0", "eth1"):
        for setting, value in (("arp_ignore", 0), ("arp_announce", 0), ("rp_filter", 1)):
            host.write(f"proc/sys/net/ipv4/conf/{device}/{setting}", value)
    finding = host.one("subnet", Severity.WARNING)
    assert finding.subject == "eth0, eth1"
    assert "eth0 arp_ignore 0 (want 1), eth0 arp_announce 0 (want 2), eth0 rp_filter 1" in finding.evidence


def test_with_the_sysctls_set_for_all_they_are_fine(host: FakeHost) -> None:
    host.addresses["eth1"] = ["10.0.0.5/24"]
    for setting, value in (("arp_ignore", 1), ("arp_announce", 2), ("rp_filter", 2)):
        host.write(f"proc/sys/net/ipv4/conf/all/{setting}", value)
    assert "are set for that" in host.one("subnet", Severity.OK).evidence


def test_settings_that_cannot_be_read_are_not_called_set(host: FakeHost) -> None:
    host.addresses["eth1"] = ["10.0.0.5/24"]
    assert "eth0 arp_ignore" in host.one("subnet", Severity.UNKNOWN).evidence


def ipv6(host: FakeHost, netdev: str, address: str) -> None:
    """Give a port an IPv6 address and its entry."""
    host.addresses[netdev] = [address, "fe80::1/64"]
    plain = ipaddress.ip_interface(address).ip.exploded
    host.gid("mlx5_0" if netdev == "eth0" else "mlx5_1", 3, plain, "RoCE v2", netdev)


def test_two_ports_in_one_ipv6_prefix_are_found_too(host: FakeHost) -> None:
    ipv6(host, "eth0", "fd00::1:1/120")
    ipv6(host, "eth1", "fd00::1:2/120")
    finding = host.one("subnet", Severity.WARNING)
    assert finding.subject == "eth0, eth1"
    assert "ip -6 rule add from" in finding.fix
    ipv6(host, "eth1", "fd00::2:2/120")  # their link-local prefix is each link's own
    assert "a subnet of its own" in host.one("subnet", Severity.OK).evidence


@pytest.mark.parametrize("address", ["fd00::1/127", "fd00::1/128"])
def test_a_point_to_point_link_of_ipv6_shares_nothing(host: FakeHost, address: str) -> None:
    ipv6(host, "eth0", address)
    host.addresses["eth1"].append("fd00::/127" if address.endswith("127") else "fd00::1/128")
    assert "a subnet of its own" in host.one("subnet", Severity.OK).evidence


def test_without_the_program_ip_no_port_is_said_to_have_a_subnet_of_its_own(host: FakeHost) -> None:
    host.addresses.clear()
    assert "not known" in host.one("subnet", Severity.UNKNOWN).evidence


def test_a_nic_without_rdma_in_the_subnet_of_a_roce_port_counts_too(host: FakeHost) -> None:
    host.addresses["mgmt0"] = ["10.0.0.200/16"]
    host.write("proc/sys/net/ipv4/conf/all/arp_ignore", 0)
    finding = host.one("subnet", Severity.WARNING)
    assert finding.subject == "eth0, eth1, mgmt0"
    assert "mgmt0 arp_ignore 0" in finding.evidence


def test_networks_that_no_roce_port_is_in_do_not_matter(host: FakeHost) -> None:
    host.addresses |= {"docker0": ["172.17.0.1/16"], "br0": ["172.17.0.2/16"]}
    assert "a subnet of its own" in host.one("subnet", Severity.OK).evidence


def test_an_address_on_a_vlan_is_routed_over_the_vlan(host: FakeHost) -> None:
    host.gid("mlx5_0", 5, V4.format(9, 1), "RoCE v2", "eth0.100")
    host.netdev("eth0.100", index=60)
    host.addresses["eth0.100"] = ["10.0.9.1/24"]
    host.answer("ip -j route get 10.0.9.2", [{"dev": "eth0.100"}])
    ring = ("10.0.9.1", "10.0.9.2")
    assert "over eth0.100" in host.one("route", Severity.OK, peers=ring).evidence
    assert "on eth0.100" in host.one("neighbour", Severity.OK, peers=ring).evidence


def test_a_destination_that_only_a_bound_lookup_takes_for_a_neighbour_has_no_route(host: FakeHost) -> None:
    host.answer("ip -j route get 10.0.0.4 from 10.0.0.1", "", status=2, errors="Network is unreachable")
    host.answer("ip -j route get 10.0.0.4 from 10.0.0.1 oif eth0", [{"dst": "10.0.0.4", "dev": "eth0"}])
    finding = host.one("route", Severity.WARNING, peers=RING)
    assert "the kernel takes 10.0.0.4 to be on the link" in finding.evidence
    assert "via GATEWAY" in finding.fix


def test_without_the_program_ip_routes_are_unknown_not_missing(host: FakeHost) -> None:
    del host.commands["ip -j route get"]
    assert "the program ip is missing" in host.one("route", Severity.UNKNOWN, peers=RING).evidence


def test_full_packets_that_come_back_prove_the_path(host: FakeHost) -> None:
    found = host.report("path-mtu", peers=RING).findings
    assert [(f.severity, f.subject) for f in found] == [
        (Severity.OK, "10.0.0.1 -> 10.0.0.2"),
        (Severity.OK, "10.0.0.1 -> 10.0.0.4"),
    ]
    assert "ping -n -c 2 -i 0.2 -W 1 -M do -s 4132 -I eth0 10.0.0.2" in host.asked


def test_a_switch_that_drops_full_packets_is_found_without_being_told_its_mtu(host: FakeHost) -> None:
    words = "From 10.0.0.254 icmp_seq=1 Frag needed and DF set (mtu = 1500)\n\n2 packets transmitted, 0 received\n"
    host.answer("ping -n -c 2 -i 0.2 -W 1 -M do -s 4132 -I eth0 10.0.0.4", words, status=1)
    finding = host.one("path-mtu", Severity.ERROR, peers=RING)
    assert finding.subject == "10.0.0.1 -> 10.0.0.4"
    assert "one of 4160 bytes, a full packet of active MTU 4096, is not: From 10.0.0.254" in finding.evidence
    assert "switch ports" in finding.fix


@pytest.mark.parametrize(
    ("status", "evidence"), [(1, "10.0.0.2 answers no ping over eth0: it is down"), (None, "ping does not run")]
)
def test_a_peer_that_answers_no_ping_is_unknown_though_its_neighbour_entry_looks_well(
    host: FakeHost, status: int | None, evidence: str
) -> None:
    host.answer("ping", "", status=status)
    assert evidence in host.found("path-mtu", Severity.UNKNOWN, peers=RING)[0].evidence
    host.answer("ip -j neigh show", [{"state": ["STALE"]}])
    assert {f.severity for f in host.report("neighbour", peers=RING).findings} == {Severity.OK}


def test_ends_on_this_machine_are_not_pinged(host: FakeHost) -> None:
    host.report("path-mtu", peers=("10.0.0.1", "10.0.1.1"))
    assert not [command for command in host.asked if command.startswith("ping")]


def test_without_a_ring_the_way_to_the_peers_does_not_pass_for_good(host: FakeHost) -> None:
    assert "not looked at" in host.one("peers", Severity.UNKNOWN).evidence


def test_one_host_is_no_ring(host: FakeHost) -> None:
    assert "all hosts of the ring" in host.one("peers", Severity.ERROR, peers=("10.0.0.1",)).fix
