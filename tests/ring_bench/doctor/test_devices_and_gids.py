# SPDX-License-Identifier: Apache-2.0

"""Devices, nodes, providers, ports and GID tables, each with a planted fault."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from ring_bench.doctor import Severity

from .conftest import EMPTY, LIBRARY, V4, FakeHost

PORT = "sys/class/infiniband/mlx5_0/ports/1"


def test_no_device_names_the_module_that_the_running_kernel_lacks(bare: FakeHost) -> None:
    bare.write("proc/sys/kernel/osrelease", "5.15.0-aws")
    bare.answer("modinfo", "", status=1)
    finding = bare.one("devices", Severity.ERROR)
    assert "linux-modules-extra-5.15.0-aws" in finding.fix


def test_no_device_with_the_module_at_hand_says_how_to_make_one(bare: FakeHost) -> None:
    bare.answer("modinfo", "/lib/modules/rdma_rxe.ko\n")
    assert "rdma link add rxe0 type rxe netdev" in bare.one("devices", Severity.ERROR).fix


def test_a_device_that_is_not_there_is_answered_with_those_that_are(host: FakeHost) -> None:
    finding = host.one("devices", Severity.ERROR, devices=("mlx5_7",))
    assert (finding.subject, finding.evidence) == ("mlx5_7", "is none of mlx5_0 (mlx5_core), mlx5_1 (mlx5_core)")


def test_a_wrong_name_beside_a_right_one_is_not_passed_over(host: FakeHost) -> None:
    assert host.one("devices", Severity.ERROR, devices=("mlx5_0", "mlx5_11")).subject == "mlx5_11"


def test_no_device_in_a_namespace_of_its_own_points_to_the_initial_one(bare: FakeHost) -> None:
    bare.write("proc/sys/net/core/somaxconn", 4096)
    bare.remove("proc/sys/net/core/netdev_max_backlog")
    assert "rdma dev set NAME netns" in bare.one("devices", Severity.ERROR).fix


@pytest.mark.parametrize(
    ("usage", "status", "meaning"),
    [("", None, "is missing"), ("Usage: rdma link show [DEV/PORT_INDEX]", 0, "too old for rdma link add")],
)
def test_soft_roce_needs_an_rdma_program_that_adds_links(
    bare: FakeHost, usage: str, status: int | None, meaning: str
) -> None:
    bare.answer("modinfo", "/lib/modules/rdma_rxe.ko\n")
    bare.answer("rdma link help", usage, status=status)
    assert meaning in bare.one("devices", Severity.ERROR).fix


def test_a_kernel_whose_rdma_program_tells_nothing_yet_is_not_called_old(bare: FakeHost) -> None:
    bare.answer("modinfo", "/lib/modules/rdma_rxe.ko\n")
    bare.answer("rdma link help", "", status=1, errors="Failed to open NETLINK_RDMA socket")
    assert bare.one("devices", Severity.ERROR).fix.endswith("type rxe netdev NETDEV")


def test_devices_can_be_chosen_by_either_name(host: FakeHost) -> None:
    for name in ("mlx5_1", "eth1"):
        report = host.report("port", devices=(name,))
        assert [finding.subject for finding in report.findings] == ["mlx5_1 port 1"]


def test_a_node_that_a_container_or_a_service_hides_is_found(host: FakeHost) -> None:
    host.remove("dev/infiniband/uverbs1")
    finding = host.one("uverbs", Severity.ERROR)
    assert finding.subject == "mlx5_1"
    assert "PrivateDevices=no" in finding.fix
    assert "--device /dev/infiniband" in finding.fix


@pytest.mark.parametrize(
    ("number", "fix"), [(errno.EACCES, "read and write permission"), (errno.EPERM, "DeviceAllow=char-infiniband_verbs")]
)
def test_a_node_that_cannot_be_opened_tells_permission_and_device_cgroup_apart(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, number: int, fix: str
) -> None:
    really = os.open

    def refuse(path: Any, flags: int, *more: Any) -> int:  # root may open everything
        if "uverbs0" in str(path):
            raise OSError(number, os.strerror(number))
        return really(path, flags, *more)

    monkeypatch.setattr(os, "open", refuse)
    finding = host.one("uverbs", Severity.ERROR)
    assert os.strerror(number) in finding.evidence
    assert fix in finding.fix


def test_a_kernel_without_uverbs_is_found(host: FakeHost) -> None:
    host.remove("sys/class/infiniband_verbs")
    assert {finding.fix for finding in host.found("uverbs", Severity.ERROR)} == {"modprobe ib_uverbs"}


def test_a_device_that_libibverbs_does_not_list_lacks_its_provider(soft: FakeHost) -> None:
    soft.library(devices={})
    finding = soft.one("provider", Severity.ERROR)
    assert "the kernel has rxe0 (rxe), libibverbs does not list it" in finding.evidence
    assert "ibverbs-providers" in finding.fix


def test_a_provider_of_another_kernel_interface_is_told_apart(soft: FakeHost) -> None:
    soft.library(devices={})
    complaint = "libibverbs: Warning: Driver rxe does not support the kernel ABI of 1 (supports 2 to 2) for device rxe0"
    soft.commands[LIBRARY] = soft.commands[LIBRARY]._replace(errors=complaint)
    finding = soft.one("provider", Severity.ERROR)
    assert "kernel ABI of 1 (supports 2 to 2)" in finding.evidence
    assert "different versions" in finding.fix


def test_a_device_that_cannot_be_opened_says_why(host: FakeHost) -> None:
    host.library(devices={"mlx5_0": {"error": "Errno: 13, Permission denied", "ports": {}}})
    findings = host.found("provider", Severity.ERROR)
    assert "Permission denied" in findings[0].evidence


@pytest.mark.parametrize(
    ("plant", "evidence", "fix"),
    [
        (("phys_state", "3: Disabled"), "DOWN, Disabled", "cable"),
        (("link_layer", "InfiniBand"), "no UDP header", "LINK_TYPE_P1=2"),
    ],
)
def test_a_port_that_cannot_carry_roce_is_found(
    host: FakeHost, plant: tuple[str, str], evidence: str, fix: str
) -> None:
    host.write(f"{PORT}/state", "1: DOWN")
    host.write(f"{PORT}/{plant[0]}", plant[1])
    finding = host.one("port", Severity.ERROR)
    assert finding.subject == "mlx5_0 port 1"
    assert evidence in finding.evidence
    assert fix in finding.fix


def test_a_port_of_infiniband_is_one_finding_and_what_follows_from_it_is_not_said_again(host: FakeHost) -> None:
    """Its entries need no other namespace, its MTU no switch: it needs to be Ethernet."""
    host.write(f"{PORT}/link_layer", "InfiniBand")
    for index in range(4):
        host.gid("mlx5_0", index, EMPTY, None, None)
    about = {(found.id, found.severity) for found in host.report().findings if found.subject.startswith("mlx5_0 port")}
    assert about == {("port", Severity.ERROR)}


def test_the_fix_for_infiniband_names_the_port_and_the_card(host: FakeHost) -> None:
    base = "sys/class/infiniband/mlx5_0/ports"
    (host.root / base / "1").rename(host.root / base / "2")
    host.write(f"{base}/2/link_layer", "InfiniBand")
    assert "mlxconfig -d 0000:03:00.0 set LINK_TYPE_P2=2" in host.one("port", Severity.ERROR).fix


def test_a_port_of_unknown_link_layer_is_not_called_active_ethernet(host: FakeHost) -> None:
    host.remove(f"{PORT}/link_layer")
    assert "link layer is not known" in host.one("port", Severity.UNKNOWN, devices=("mlx5_0",)).evidence


def test_a_device_without_ports_is_not_usable_and_alone_an_error(bare: FakeHost, host: FakeHost) -> None:
    """Not "none of" a list that has it."""
    (host.root / "sys/class/infiniband/usnic_0").mkdir()
    for devices, severity in (((), Severity.WARNING), (("usnic_0",), Severity.ERROR)):
        finding = host.one("devices", severity, devices=devices)
        assert (finding.subject, finding.evidence.partition(" (")[0]) == ("usnic_0", "has no RDMA ports")
    for name in ("mlx5_0", "mlx5_1"):
        host.remove(f"sys/class/infiniband/{name}")
    assert host.one("devices", Severity.ERROR).subject == "usnic_0"
    assert host.report().exit_status() == 1


def test_a_network_device_that_is_switched_off_is_the_reason_of_a_down_port(host: FakeHost) -> None:
    host.write(f"{PORT}/state", "1: DOWN")
    host.write("sys/class/net/eth0/flags", "0x1002")
    assert host.one("port", Severity.ERROR).fix == "ip link set eth0 up"
    assert "see port" in host.one("gid", Severity.ERROR).fix


def test_every_row_of_the_gid_table_comes_with_its_reason(host: FakeHost) -> None:
    evidence = host.report("gid", devices=("mlx5_0",)).findings[0].evidence
    assert "0: fe80::77:ff:fe00:1 rejected (type IB/RoCE v1" in evidence
    assert "1: fe80::77:ff:fe00:1 rejected (link-local address)" in evidence
    assert "2: 10.0.0.1 rejected (type IB/RoCE v1: no UDP header, so no step tag)" in evidence
    assert "3: 10.0.0.1 usable; 1 empty" in evidence


def test_a_gid_of_another_network_namespace_is_not_usable(host: FakeHost) -> None:
    host.gid("mlx5_0", 3, V4.format(0, 1), "RoCE v2", "pod7")
    finding = host.one("gid", Severity.ERROR)
    assert "network device pod7 is not in this network namespace" in finding.evidence
    assert "host network" in finding.fix


def test_a_gid_whose_address_is_gone_is_stale(host: FakeHost) -> None:
    host.addresses["eth0"] = ["10.0.0.77/24"]
    finding = host.one("gid", Severity.ERROR)
    assert "stale: eth0 no longer has this address" in finding.evidence
    assert "makes its entries anew" in finding.fix


def test_without_the_program_ip_a_table_does_not_pass_for_fresh(host: FakeHost) -> None:
    host.addresses.clear()
    finding = host.one("gid", Severity.UNKNOWN, devices=("mlx5_0",))
    assert "not known whether an address is stale" in finding.evidence


def test_a_table_of_roce_v1_alone_is_answered_with_how_to_get_v2(host: FakeHost) -> None:
    for index in (1, 3):
        host.gid("mlx5_0", index, EMPTY, None, None)
    assert "turn on RoCE v2" in host.one("gid", Severity.ERROR).fix


def test_a_stale_gid_beside_a_good_one_is_a_warning(soft: FakeHost) -> None:
    soft.gid("rxe0", 5, V4.format(0, 9), "RoCE v2", "eth0")
    finding = soft.one("gid", Severity.WARNING)
    assert "5: 10.0.0.9 rejected (stale" in finding.evidence
    assert "rdma link delete rxe0" in finding.fix


def test_global_ipv6_alone_is_good_enough(host: FakeHost) -> None:
    for index in (2, 3):
        host.gid("mlx5_0", index, "fd00:0000:0000:0000:0000:0000:0000:0001", "RoCE v2", "eth0")
    host.addresses["eth0"] = ["fd00::1/64"]
    assert len(host.report("gid").of(Severity.OK)) == 2


@pytest.mark.parametrize(
    ("index", "reason"), [(0, "type IB/RoCE v1"), (1, "link-local address"), (4, "empty"), (9, "empty")]
)
def test_a_wrong_gid_index_is_answered_with_a_right_one(host: FakeHost, index: int, reason: str) -> None:
    finding = host.one("gid-index", Severity.ERROR, gid_index=index, devices=("mlx5_0",))
    assert reason in finding.evidence
    assert "use index 3 (10.0.0.1)" in finding.fix


def test_a_right_gid_index_is_confirmed(host: FakeHost) -> None:
    assert "index 3 is 10.0.0.1" in host.one("gid-index", Severity.OK, gid_index=3, devices=("mlx5_0",)).evidence


def test_soft_roce_outside_the_initial_namespace_is_a_warning(soft: FakeHost) -> None:
    soft.write("proc/sys/net/core/somaxconn", 4096)
    soft.remove("proc/sys/net/core/netdev_max_backlog")  # which only the initial namespace has
    assert "network namespace of its own" in soft.one("rxe", Severity.WARNING).evidence


def test_soft_roce_without_the_rdma_program_is_a_warning(soft: FakeHost) -> None:
    del soft.commands["rdma link help"]
    assert "iproute2" in soft.one("rxe", Severity.WARNING).fix
