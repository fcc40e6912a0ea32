# SPDX-License-Identifier: Apache-2.0
"""The host-agent in the VM: counters of real soft-RoCE devices, and preparing one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from soft_roce_vm import VirtualMachine

pytestmark = pytest.mark.system

NAMES = {  # node_exporter's, by soft-RoCE's
    "sent_pkts": "node_infiniband_port_packets_transmitted_total",
    "rcvd_pkts": "node_infiniband_port_packets_received_total",
    "out_of_seq_request": "node_infiniband_out_of_sequence_packets_received_total",
    "duplicate_request": "node_infiniband_duplicate_requests_packets_total",
    "link_downed": "node_infiniband_link_downed_total",
    "rcvd_seq_err": "node_infiniband_packet_sequence_errors_total",
    "rcvd_rnr_err": "node_infiniband_rnr_nak_retry_packets_received_total",
}
OTHER = "symphony_nic_statistics_total"

Series = dict[tuple[str, str, str], float]


def series(path: Path) -> Series:
    """What a scrape said of the NICs: (metric, device, counter of the kernel or "") -> value."""
    return {
        (sample.name, sample.labels["device"], sample.labels.get("counter", "")): sample.value
        for family in text_string_to_metric_families(path.read_text())
        for sample in family.samples
        if sample.name.startswith("node_infiniband_") or sample.name == OTHER
    }


@pytest.fixture(scope="module")
def guest(vm: VirtualMachine) -> Path:
    """Folder with what host_agent_guest.py left behind."""
    folder = vm.share / "host-agent"
    folder.mkdir()
    status, output = vm.run("python tests/system/host_agent_guest.py /share/host-agent", timeout_s=300)
    log = folder / "host-agent.log"
    assert status == 0, output + (log.read_text() if log.exists() else "")
    return folder


def test_the_host_agent_reports_the_counters_of_soft_roce_and_they_grow_with_traffic(guest: Path) -> None:
    """Under node_exporter's names where it has one, with exactly the kernel's values; a ring makes them grow."""
    before, after = series(guest / "before.txt"), series(guest / "after.txt")
    kernel: dict[str, int] = json.loads((guest / "hw_counters.json").read_text())
    assert set(NAMES) <= set(kernel)
    for counter, value in kernel.items():
        key = (NAMES[counter], "rxe0", "") if counter in NAMES else (OTHER, "rxe0", counter)
        assert after[key] == value, counter
    for device in ("rxe0", "rxe1", "rxe2", "rxe3"):
        assert after["node_infiniband_state_id", device, ""] == 4
        for counter in ("sent_pkts", "rcvd_pkts"):
            key = (NAMES[counter], device, "")
            # 6 steps of a quarter of 256 KiB in packets of 4096 bytes
            assert after[key] - before[key] >= 6 * 16, (device, counter)


def test_a_network_device_is_prepared_with_soft_roce_and_restored(guest: Path) -> None:
    """By the real netlink and the real rdma: what was planned is there, then all is as before."""
    left = json.loads((guest / "nics.json").read_text())
    assert left["planned"] == ["mtu", "address", "up", "rxe"]
    before, prepared, restored = left["states"]
    assert before == {"up": False, "mtu": 1500, "addresses": [], "rdma": []}
    assert prepared == {"up": True, "mtu": 4200, "addresses": ["10.78.0.1"], "rdma": ["rxe9"]}
    assert restored == before
