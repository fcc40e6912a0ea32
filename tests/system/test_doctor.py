# SPDX-License-Identifier: Apache-2.0
"""doctor on real soft-RoCE in the VM: each planted fault is named, with evidence and a fix; a good machine passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from soft_roce_vm import VirtualMachine

pytestmark = pytest.mark.system

PORTS = [f"rxe{i} port 1" for i in range(4)]
BOTH_WAYS = {("exchange", "10.77.0.1 -> 10.77.0.2"), ("exchange", "10.77.0.2 -> 10.77.0.1")}

Found = dict[str, str]


@pytest.fixture(scope="module")
def guest(vm: VirtualMachine) -> Path:
    """Folder with what all cases of doctor_guest.py left behind."""
    folder = vm.share / "doctor"
    folder.mkdir()
    status, output = vm.run("python tests/system/doctor_guest.py /share/doctor", timeout_s=500)
    assert status == 0, output
    return folder


def case(guest: Path, name: str) -> dict[str, Any]:
    """What one case left behind."""
    left: dict[str, Any] = json.loads((guest / f"{name}.json").read_text())
    assert left["err"] == ""
    assert left["report"]["schema_version"] == 1
    return left


def errors(guest: Path, name: str) -> dict[tuple[str, str], Found]:
    """The failing findings of a case, by id and subject: the exit status says that there are some, each has a fix."""
    left = case(guest, name)
    found = {(entry["id"], entry["subject"]): entry for entry in left["report"]["findings"] if failing(entry)}
    assert left["status"] == 1
    assert left["report"]["summary"]["error"] == len(found) > 0
    assert all(entry["evidence"] and entry["fix"] for entry in found.values())
    return found


def failing(entry: Found) -> bool:
    """Tell whether a finding must be mended."""
    return entry["severity"] == "error"


def of(guest: Path, name: str, check: str) -> dict[str, Found]:
    """All findings of one check, by subject."""
    return {entry["subject"]: entry for entry in case(guest, name)["report"]["findings"] if entry["id"] == check}


def test_a_good_machine_has_nothing_to_mend(guest: Path) -> None:
    """All checks but watching counters, with a probe, after every fault was undone: so those were the planted ones."""
    left = case(guest, "healthy")
    assert left["status"] == 0
    assert [entry for entry in left["report"]["findings"] if failing(entry)] == []
    whole = ("pyverbs", "abi", "devices", "uverbs", "provider", "port", "rxe", "gid", "gid-index", "mtu", "route")
    for check in whole:
        assert {entry["severity"] for entry in of(guest, "healthy", check).values()} == {"ok"}, check
    edges = {"10.77.0.1 -> 10.77.0.2", "10.77.0.2 -> 10.77.0.1"}
    for check in ("exchange", "sport-probe"):
        answers = of(guest, "healthy", check)
        assert {edge: entry["severity"] for edge, entry in answers.items()} == dict.fromkeys(edges, "ok")


def test_a_gid_index_that_another_program_must_not_use_is_named(guest: Path) -> None:
    """Index 0 is link-local; the fix is the index that carries the address."""
    found = errors(guest, "wrong-index")
    assert set(found) == {("gid-index", port) for port in PORTS}
    entry = found["gid-index", "rxe2 port 1"]
    assert entry["evidence"] == "index 0 cannot be used: link-local address"
    assert "use index 1 (10.77.0.3)" in entry["fix"]


def test_a_port_without_address_has_no_gid(guest: Path) -> None:
    """The row that is left is shown with its reason; the index of the others is empty here."""
    found = errors(guest, "no-address")
    assert set(found) == {("gid", "rxe1 port 1"), ("gid-index", "rxe1 port 1")}
    assert "0: fe80::77:ff:fe00:2 rejected (link-local address)" in found["gid", "rxe1 port 1"]["evidence"]
    assert "ip addr add ADDRESS/PREFIX dev h1" in found["gid", "rxe1 port 1"]["fix"]
    assert "index 1 cannot be used: the entry is empty" in found["gid-index", "rxe1 port 1"]["evidence"]


@pytest.mark.parametrize("name", ["port-down", "host-agent"])
def test_a_port_that_is_switched_off_is_named_with_the_command_that_mends_it(guest: Path, name: str) -> None:
    """By ring-bench and by host-agent; the GID follows from the port and says so."""
    found = errors(guest, name)
    assert set(found) == {("port", "rxe3 port 1"), ("gid", "rxe3 port 1")}
    assert "DOWN" in found["port", "rxe3 port 1"]["evidence"]
    assert found["port", "rxe3 port 1"]["fix"] == "ip link set h3 up"
    assert "1: 10.77.0.4 rejected (port is not active)" in found["gid", "rxe3 port 1"]["evidence"]
    assert "see port" in found["gid", "rxe3 port 1"]["fix"]


def test_host_agent_adds_its_own_checks(guest: Path) -> None:
    """Its pyroute2."""
    assert of(guest, "host-agent", "pyroute2")[""]["severity"] == "ok"


def test_a_port_without_carrier_is_told_apart_from_one_that_is_switched_off(guest: Path) -> None:
    """The other end is down: this end cannot mend it."""
    found = errors(guest, "no-carrier")
    assert set(found) == {("port", "rxe1 port 1")}
    assert "h1 is lowerlayerdown" in found["port", "rxe1 port 1"]["evidence"]
    assert "cable" in found["port", "rxe1 port 1"]["fix"]


def test_too_little_lockable_memory_is_named_with_both_limits(guest: Path) -> None:
    """Without CAP_IPC_LOCK, which would make it a warning as in the other cases."""
    found = errors(guest, "memlock")
    assert set(found) == {("memlock", "")}
    assert "may lock 64K (hard limit 2M), 256M are needed" in found["memlock", ""]["evidence"]
    assert "LimitMEMLOCK=infinity" in found["memlock", ""]["fix"]
    assert "CAP_IPC_LOCK" not in of(guest, "memlock", "capabilities")[""]["evidence"]


def test_a_process_in_another_network_namespace_is_told_so(guest: Path) -> None:
    """It sees and opens the devices, as a container does, but none of their addresses is its own."""
    found = errors(guest, "other-namespace")
    assert set(found) == {("gid", port) for port in PORTS}
    assert (
        "10.77.0.2 rejected (network device h1 is not in this network namespace)" in found["gid", PORTS[1]]["evidence"]
    )
    assert "host network" in found["gid", PORTS[1]]["fix"]
    own = of(guest, "other-namespace", "rxe")[""]
    assert (own["severity"], "network namespace of its own" in own["evidence"]) == ("warning", True)


def test_a_missing_provider_is_named_for_each_device(guest: Path) -> None:
    """libibverbs' folder of drivers is empty: kernel, nodes and pyverbs are as they should be."""
    found = errors(guest, "no-provider")
    assert set(found) == {("provider", f"rxe{i}") for i in range(4)}
    assert "the kernel has rxe1 (rxe), libibverbs does not list it" in found["provider", "rxe1"]["evidence"]
    assert "apt-get install ibverbs-providers" in found["provider", "rxe1"]["fix"]
    assert {entry["severity"] for entry in of(guest, "no-provider", "mtu").values()} == {"unknown"}


def test_ports_that_differ_in_mtu_are_named(guest: Path) -> None:
    """Both ends of one link have 1500: nothing is wrong with any link by itself."""
    found = errors(guest, "mtu-mismatch")
    assert set(found) == {("mtu-mismatch", "")}
    assert "rxe0 port 1 4096, rxe1 port 1 1024, rxe2 port 1 4096" in found["mtu-mismatch", ""]["evidence"]
    assert "the same MTU on every host" in found["mtu-mismatch", ""]["fix"]
    assert {entry["severity"] for entry in of(guest, "mtu-mismatch", "mtu").values()} == {"warning"}


def test_a_link_whose_ends_differ_in_mtu_is_named_and_seen_by_the_probe(guest: Path) -> None:
    """Small messages pass, full packets do not."""
    found = errors(guest, "mtu-link")
    edges = ["10.77.0.1 -> 10.77.0.2", "10.77.0.2 -> 10.77.0.1"]
    assert set(found) == {("mtu", "rxe1 port 1"), *(("exchange", edge) for edge in edges)}
    assert "packets of up to 4160 bytes do not pass p1" in found["mtu", "rxe1 port 1"]["evidence"]
    assert "ip link set p1 mtu 4200" in found["mtu", "rxe1 port 1"]["fix"]
    for edge in edges:
        assert "8 bytes arrive, 12295 bytes in full packets do not" in found["exchange", edge]["evidence"]
        assert "path MTU" in found["exchange", edge]["fix"]


def test_a_blocked_udp_port_is_found_by_the_probe(guest: Path) -> None:
    """tc drops what comes to 4791 at one host: its acknowledgements are lost too, and nothing else is wrong."""
    found = errors(guest, "blocked")
    assert set(found) == BOTH_WAYS
    for entry in found.values():
        assert "an 8-byte write does not arrive" in entry["evidence"]
        assert "UDP 4791" in entry["fix"]
    assert of(guest, "blocked", "firewall")[""]["severity"] == "ok"


def test_a_rule_of_nftables_that_blocks_the_udp_port_is_quoted(guest: Path) -> None:
    """The rule is found by reading, and that it really drops is found by the probe."""
    found = errors(guest, "filtered")
    assert set(found) == {("firewall", ""), *BOTH_WAYS}
    quoted = "nft table inet planted, chain input: udp dport {53,4789-4800} drop"
    assert quoted in found["firewall", ""]["evidence"]
    assert "udp dport 4791 accept" in found["firewall", ""]["fix"]
