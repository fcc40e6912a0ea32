# SPDX-License-Identifier: Apache-2.0
"""The GID tables, row by row: which entries carry step tags, and why the others cannot."""

from __future__ import annotations

from collections.abc import Iterator

from ring_bench.doctor.findings import Finding, error, fine, warning
from ring_bench.doctor.machine import Gid, Port
from ring_bench.doctor.options import Examination

__all__ = ["check_gid_index", "check_gids"]


def check_gids(on: Examination) -> Iterator[Finding]:
    """Has each port a RoCE v2 GID for an address of its own network device?"""
    machine = on.machine
    for port in on.ports:
        usable = machine.usable(port)
        rows = "; ".join(_row(gid, machine.rejection(gid)) for gid in port.gids) or "no entry"
        table = f"{rows}{_empty_slots(on, port)}"
        stale = [gid for gid in port.gids if (machine.rejection(gid) or "").startswith("stale")]
        if not usable:
            fix = (
                "bring the port up first: see port"
                if port.gids and port.state != "ACTIVE"
                else f"give {port.netdev} an address (ip addr add ADDRESS/24 dev {port.netdev}) and bring it up"
                if port.netdev
                else "move its network device into this namespace, or run in that one"
            )
            yield error("gid", port.name, f"no usable entry: {table}", fix)
        elif stale:
            fix = (
                f"make the device anew (rdma link delete {port.device}, then add)"
                if port.software
                else "reload the driver"
            )
            yield warning("gid", port.name, f"stale entries beside usable ones: {table}", fix)
        else:
            yield fine("gid", port.name, table)


def check_gid_index(on: Examination) -> Iterator[Finding]:
    """Is an index that some other program was told to use a good one?"""
    index = on.options.gid_index
    if index is None:
        return
    for port in on.ports:
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


def _row(gid: Gid, reason: str | None) -> str:
    return f"{gid.index}: {gid.address} {'usable' if reason is None else f'rejected ({reason})'}"


def _empty_slots(on: Examination, port: Port) -> str:
    folder = on.machine.infiniband / port.device / "ports" / str(port.number) / "gids"
    empty = len(on.machine.entries(folder)) - len(port.gids)
    return f"; {empty} empty" if empty > 0 else ""
