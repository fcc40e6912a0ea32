# SPDX-License-Identifier: Apache-2.0
"""The GID tables, row by row: which entries carry step tags, and why the others cannot."""

from __future__ import annotations

from collections.abc import Iterator

from ring_bench.doctor.findings import Finding, error, fine, unknown, warning
from ring_bench.doctor.machine import Gid, Port
from ring_bench.doctor.options import Examination

__all__ = ["check_gid_index", "check_gids"]


def check_gids(on: Examination) -> Iterator[Finding]:
    """Has each port a RoCE v2 GID for an address of its own network device?"""
    machine = on.machine
    for port in on.roce:
        usable = machine.usable(port)
        rows = "; ".join(_row(gid, machine.rejection(gid)) for gid in port.gids) or "no entry"
        table = f"{rows}{_empty_slots(on, port)}"
        stale = [gid for gid in port.gids if (machine.rejection(gid) or "").startswith("stale")]
        if not usable:
            yield error("gid", port.name, f"no usable entry: {table}", _way_to_a_gid(on, port))
        elif stale:
            yield warning("gid", port.name, f"stale entries beside usable ones: {table}", _renewal(port))
        elif not machine.addresses:
            evidence = f"{table}; without the program ip it is not known whether an address is stale"
            yield unknown("gid", port.name, evidence, "apt-get install iproute2")
        else:
            yield fine("gid", port.name, table)


def check_gid_index(on: Examination) -> Iterator[Finding]:
    """Is an index that some other program was told to use a good one?"""
    index = on.options.gid_index
    if index is None:
        return
    for port in on.roce:
        usable = on.machine.usable(port)
        advice = f"use index {usable[0].index} ({usable[0].address})" if usable else "see gid"
        found = next((gid for gid in port.gids if gid.index == index), None)
        reason = "the entry is empty" if found is None else on.machine.rejection(found)
        if reason is not None:
            yield error(
                "gid-index", port.name, f"index {index} cannot be used: {reason}", f"{advice}, or choose by address"
            )
        else:
            assert found is not None
            yield fine("gid-index", port.name, f"index {index} is {found.address}, RoCE v2")


def _way_to_a_gid(on: Examination, port: Port) -> str:
    """Say how a port without a usable entry gets one, by what its entries lack."""
    machine = on.machine
    addresses = {gid.address for gid in port.gids if not gid.address.is_link_local}
    reasons = " ".join(machine.rejection(gid) or "" for gid in port.gids if gid.address in addresses)
    if port.gids and port.state != "ACTIVE":
        return "bring the port up first: see port"
    if "namespace" in reasons or not port.netdev:
        return "move its network device into this namespace, or run in that one (container: host network)"
    if "stale" in reasons:
        return _renewal(port)
    if addresses and all(gid.kind != "RoCE v2" for gid in port.gids):
        return "turn on RoCE v2: devlink dev param show tells of enable_roce; mlx4: options mlx4_core roce_mode=2"
    return f"give {port.netdev} an address (ip addr add ADDRESS/PREFIX dev {port.netdev}) and bring it up"


def _renewal(port: Port) -> str:
    if port.software:
        return f"make the device anew (rdma link delete {port.device}, then add)"
    return f"ip link set {port.netdev} down and up makes its entries anew; else reload the driver"


def _row(gid: Gid, reason: str | None) -> str:
    return f"{gid.index}: {gid.address} {'usable' if reason is None else f'rejected ({reason})'}"


def _empty_slots(on: Examination, port: Port) -> str:
    folder = on.machine.infiniband / port.device / "ports" / str(port.number) / "gids"
    empty = len(on.machine.entries(folder)) - len(port.gids)
    return f"; {empty} empty" if empty > 0 else ""
