# SPDX-License-Identifier: Apache-2.0
"""What the kernel says of RDMA devices (/sys/class/infiniband), and which device and GID stand for a host.

A RoCE port has a sparse table of GIDs: an address, its type (only RoCE v2 has the UDP header that carries step
tags) and the network device it belongs to. Indexes differ between hosts and move when a link flaps, so a GID is
always chosen by what it is, and nothing falls back to an index.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ring_bench.errors import ProviderUnavailableError

__all__ = ["SYSFS", "Gid", "choose_gid", "device_names", "driver_of", "gid_table", "rate_gbps", "rejection"]

SYSFS = Path("/sys/class/infiniband")

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Gid:
    """An entry of a port's GID table."""

    device: str
    port: int
    index: int
    gid: str
    """Eight groups of four hexadecimal digits."""
    kind: str
    """"RoCE v2", "IB/RoCE v1" or what else the kernel names it."""
    netdev: str
    """Network device; empty where there is none."""
    active: bool
    """Whether the port is up."""

    @property
    def address(self) -> _Address:
        """The IP address that the GID is made of."""
        address = ipaddress.IPv6Address(self.gid)
        return address.ipv4_mapped or address


def device_names(root: Path = SYSFS) -> list[str]:
    """Give the names of all RDMA devices that the kernel has, rxe2 before rxe10; empty without any."""
    names = [path.name for path in root.iterdir()] if root.is_dir() else []
    return sorted(
        names, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"([0-9]+)", name)]
    )


def driver_of(device: str, root: Path = SYSFS) -> str:
    """Give the kernel driver of a device: "mlx5_core", "rxe" and so on; "unknown" where the kernel tells none."""
    driver = root / device / "device" / "driver"
    if driver.exists():
        return driver.resolve().name
    return "rxe" if (root / device / "parent").exists() else "unknown"  # only rxe has this file


def rate_gbps(device: str, port: int, root: Path = SYSFS) -> float | None:
    """Give the speed of a port in 10^9 bits per second; None where the kernel tells none."""
    match = re.match(r"\d+(?:\.\d+)?", _read(f"{root}/{device}/ports/{port}/rate"))
    return float(match[0]) or None if match else None


def gid_table(device: str, root: Path = SYSFS) -> list[Gid]:
    """Give the GIDs of all ports of a device in table order; empty slots, whose files cannot be read, are left out."""
    table = []
    for port in _numbers(f"{root}/{device}/ports"):
        folder = f"{root}/{device}/ports/{port}"
        active = "ACTIVE" in _read(f"{folder}/state")
        for slot in _numbers(f"{folder}/gids"):  # soft-RoCE has 1,024, nearly all of them empty
            gid = _read(f"{folder}/gids/{slot}")
            if not gid.strip("0:"):
                continue
            kind = _read(f"{folder}/gid_attrs/types/{slot}")
            netdev = _read(f"{folder}/gid_attrs/ndevs/{slot}")
            table.append(Gid(device, port, slot, gid, kind, netdev, active))
    return table


def rejection(gid: Gid, netdevs: Collection[str]) -> str | None:
    """Say why a GID cannot be used; None: it can.

    Args:
        gid: The entry.
        netdevs: Network devices of this process's network namespace.
    """
    if gid.kind != "RoCE v2":
        return f"type {gid.kind}: no UDP header, so no step tag"
    if gid.address.is_link_local:
        return "link-local address"
    if not gid.netdev:
        return "belongs to no network device"
    if gid.netdev not in netdevs:
        return f"network device {gid.netdev} is not in this network namespace"
    if not gid.active:
        return "port is not active"
    return None


def choose_gid(
    host: str | int,
    names: Sequence[str],
    gids_of: Callable[[str], Sequence[Gid]],
    problems: Mapping[str, str],
    netdevs: Collection[str],
) -> Gid:
    """Find the device and GID that stand for a host.

    Args:
        host: Name of an RDMA device or network device, an IP address of this machine, or a host name with such an
            address. A number r (rank r without ``--hosts``): the r-th usable device, counted round. Where a device
            has several usable GIDs, IPv4 goes before IPv6 and low index before high.
        names: Devices that can be asked.
        gids_of: Gives a device's GID table.
        problems: Devices that cannot be asked, and why not.
        netdevs: Network devices of this process's network namespace.

    Raises:
        ProviderUnavailableError: No device, or no usable GID; says why each one was rejected.
    """
    if not names and not problems:
        raise ProviderUnavailableError(
            "this machine has no RDMA device: load the NIC's driver (mlx5_ib), or make a soft-RoCE device "
            "(rdma link add rxe0 type rxe netdev eth0)"
        )
    if host in problems:
        raise ProviderUnavailableError(f"RDMA device {host} {problems[str(host)]}")
    table = [gid for name in ([host] if host in names else names) for gid in gids_of(str(name))]
    if isinstance(host, int):
        devices = [
            name for name in names if any(gid.device == name and rejection(gid, netdevs) is None for gid in table)
        ]
        wanted = [gid for gid in table if gid.device == devices[host % len(devices)]] if devices else table
    else:
        wanted = table if host in names else _meant_by(host, names, table, problems)
    usable = [gid for gid in wanted if rejection(gid, netdevs) is None]
    if usable:
        return min(usable, key=lambda gid: (gid.address.version, gid.index))
    rows = "; ".join(f"{gid.device} GID {gid.index} {gid.address}: {rejection(gid, netdevs)}" for gid in wanted)
    rows = rows or "its GID table is empty, give its network device an address"
    raise ProviderUnavailableError(f"no usable RoCE v2 address for host {host}: {rows}{_listed(problems)}")


def _meant_by(host: str, names: Sequence[str], table: Sequence[Gid], problems: Mapping[str, str]) -> list[Gid]:
    if by_netdev := [gid for gid in table if gid.netdev == host]:
        return by_netdev
    try:
        resolved = {ipaddress.ip_address(str(info[4][0]).split("%")[0]) for info in socket.getaddrinfo(host, None)}
    except OSError:
        resolved = set()
    if by_address := [gid for gid in table if gid.address in resolved]:
        return by_address
    addresses = ", ".join(f"{gid.address} ({gid.device})" for gid in table)
    known = f"has the address {', '.join(sorted(map(str, resolved)))}, which" if resolved else "has no address and"
    raise ProviderUnavailableError(
        f"host {host} {known} is no RDMA device of this machine: there are {', '.join(names) or 'none'} "
        f"with addresses {addresses or 'none'}; --hosts takes their names or addresses{_listed(problems)}"
    )


def _listed(problems: Mapping[str, str]) -> str:
    return "".join(f"; {name} {problem}" for name, problem in problems.items())


def _numbers(folder: str) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(folder) if name.isdigit())
    except OSError:  # the device has gone, or never was
        return []


def _read(path: str) -> str:
    """Read a file of one line with three system calls, not the dozen of a Python file: a GID table is many files."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 4096).decode("ascii", "replace").strip()
    except OSError:  # EINVAL: an empty slot
        return ""
    finally:
        os.close(descriptor)
