# SPDX-License-Identifier: Apache-2.0
"""The NICs of this machine as they are: network device, RDMA device, addresses and GIDs, quality of service."""

from __future__ import annotations

from typing import Any

from host_agent.nics.knobs import Unsupported, Workbench
from host_agent.nics.netlink import Link
from ring_bench.doctor import Machine
from ring_bench.doctor.machine import Port
from ring_bench.doctor.quality import enabled_priorities
from ring_bench.doctor.tagging import pci_address

__all__ = ["inventory"]


def inventory(bench: Workbench) -> list[dict[str, Any]]:
    """All network devices but loopback, those with an RDMA device first; null where this machine does not tell."""
    machine = bench.machine
    links, addresses = bench.netlink.links(), bench.netlink.addresses()
    ports = machine.ports
    views = [_port_view(bench, port, links.get(port.netdev), addresses.get(port.netdev, [])) for port in ports]
    with_rdma = {port.netdev for port in ports}
    views += [
        _link_view(link, addresses.get(name, []))
        for name, link in links.items()
        if name != "lo" and name not in with_rdma
    ]
    return views


def _link_view(link: Link | None, addresses: list[str]) -> dict[str, Any]:
    return {
        "netdev": link.name if link else None,
        "up": link.up if link else None,
        "state": link.state if link else None,
        "mtu": link.mtu if link else None,
        "mac": link.mac if link else None,
        "kind": link.kind if link else None,
        "addresses": addresses,
        "rdma": None,
    }


def _port_view(bench: Workbench, port: Port, link: Link | None, addresses: list[str]) -> dict[str, Any]:
    machine = bench.machine
    ecn = machine.netdev(port.netdev) / "ecn"
    rdma = {
        "device": port.device,
        "port": port.number,
        "driver": port.driver,
        "state": port.state,
        "gbps": port.gbps,
        "pci": pci_address(machine, port),
        "numa_node": machine.number(machine.infiniband / port.device / "device" / "numa_node"),
        "firmware": machine.read(machine.infiniband / port.device / "fw_ver"),
        "gids": _gids(machine, port),
        "trust": _value(bench, port.netdev, "trust"),
        "traffic_class": _value(bench, port.netdev, "traffic_class"),
        "ecn_np": enabled_priorities(machine, ecn / "roce_np"),
        "ecn_rp": enabled_priorities(machine, ecn / "roce_rp"),
        "cnp_dscp": machine.number(ecn / "roce_np" / "cnp_dscp"),
        "cnp_priority": machine.number(ecn / "roce_np" / "cnp_802p_prio"),
    }
    return {**_link_view(link, addresses), "netdev": port.netdev or None, "rdma": rdma}


def _gids(machine: Machine, port: Port) -> list[dict[str, Any]]:
    return [
        {"index": gid.index, "address": str(gid.address), "kind": gid.kind, "rejected": machine.rejection(gid)}
        for gid in port.gids
    ]


def _value(bench: Workbench, netdev: str, what: str) -> Any:
    if not netdev:
        return None
    try:
        return bench.knob(netdev, what, "").read()
    except Unsupported:
        return None
