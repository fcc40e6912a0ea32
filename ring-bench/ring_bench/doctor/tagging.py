# SPDX-License-Identifier: Apache-2.0
"""The step tag's way onto the wire: source port, bonding, and settings that overrule the traffic class."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ring_bench.doctor.findings import Finding, error, fine, unknown, warning
from ring_bench.doctor.machine import Machine, Port
from ring_bench.doctor.options import Examination
from ring_bench.verbs.pyverbs_library import is_mlx5

__all__ = ["check_lag", "check_sport", "check_traffic_class", "firmware_port", "pci_address"]


def check_sport(on: Examination) -> Iterator[Finding]:
    """How can the source port be set on this device? `--probe` tries it."""
    for port in on.roce:
        if is_mlx5(port.driver) and on.machine.library.get("mlx5") is False and not on.machine.library.get("error"):
            yield warning(
                "sport",
                port.name,
                "mlx5: flow label at RTR; this pyverbs has no mlx5 part, so the port cannot be changed in RTS",
                "python3-pyverbs and ibverbs-providers of one distribution; or --tagging per-step or static",
            )
        elif is_mlx5(port.driver) and on.machine.library.get("error"):
            yield unknown(
                "sport",
                port.name,
                "mlx5: flow label at RTR; whether this pyverbs has the mlx5 part, for changes in RTS, is not known",
                "mend pyverbs first",
            )
        elif is_mlx5(port.driver):
            yield fine(
                "sport",
                port.name,
                "mlx5: flow label at RTR; in RTS by mlx5dv_modify_qp_udp_sport, if the firmware can (--probe tries it)",
            )
        elif port.software:
            yield fine("sport", port.name, "rxe: flow label at RTR, and in SQD (RTS -> SQD -> RTS)")
        else:
            yield warning(
                "sport",
                port.name,
                f"driver {port.driver}: whether it takes the source port from the flow label is not known here",
                "try it (--probe), look at the wire, and use --tagging per-step or static",
            )


def check_lag(on: Examination) -> Iterator[Finding]:
    """Is the port part of a bond? Then firmware may choose the link per QP, whatever the source port says."""
    machine = on.machine
    for port in on.hardware:
        lag = machine.sys / "kernel" / "debug" / "mlx5" / (pci_address(machine, port) or "none") / "lag"
        bond = _bond(machine, port)
        if bond is None and machine.read(lag / "state") == "active":
            bond = "a group that the firmware made"
        if bond is None and is_mlx5(port.driver) and machine.read(lag / "state") is None:
            yield unknown(
                "lag",
                port.name,
                f"no bond of the kernel's; whether the firmware made a group is not known: {lag}/state cannot be read",
                "run as root with debugfs (mount -t debugfs none /sys/kernel/debug)",
            )
            continue
        if bond is None:
            yield fine("lag", port.name, "not bonded")
            continue
        folder = machine.netdev(bond) / "bonding"
        mode = (machine.read(folder / "mode") or "unknown").split()[0]
        hashing = (machine.read(folder / "xmit_hash_policy") or "unknown").split()[0]
        kind = machine.read(lag / "port_sel_mode") or "not known"
        yield warning(
            "lag",
            port.name,
            f"part of {bond} (mode {mode}, hash {hashing}), port selection of the firmware: {kind}",
            "take the NIC out of the bond for Symphony runs: with queue_affinity a QP keeps its link, whatever its tag",
        )


def check_traffic_class(on: Examination) -> Iterator[Finding]:
    """Will packets carry the traffic class that the program asks for?"""
    machine, wanted = on.machine, on.options.traffic_class
    if wanted & 3 not in (1, 2):
        yield error(
            "traffic-class",
            "",
            f"traffic class {wanted} is not ECN-capable: no switch can mark its packets",
            f"use {wanted & ~3 | 2}: the same DSCP {wanted >> 2}, with ECT(0)",
        )
    for port in on.roce:
        path = machine.infiniband / port.device / "tc" / str(port.number) / "traffic_class"
        text = machine.read(path)
        forced = re.search(r"Global tclass=(\d+)", text or "") or re.search(r"^(\d+)$", text or "")
        if text is None and path.exists():
            yield unknown("traffic-class", port.name, f"{path} cannot be read", f"as root: cat {path}")
        elif forced is None:
            detail = "says nothing" if text is not None else "does not exist"
            yield fine("traffic-class", port.name, f"nothing overrules the program ({path} {detail})")
        elif int(forced[1]) == wanted:
            yield fine("traffic-class", port.name, f"{path} forces {wanted}, as wanted")
        else:
            yield error(
                "traffic-class",
                port.name,
                f"{path} forces traffic class {forced[1]} on every QP; {wanted} is wanted",
                f"echo {wanted} > {path}, or echo -1 to let programs choose",
            )


def pci_address(machine: Machine, port: Port) -> str | None:
    """Give the PCI address of a hardware port's device; None without one."""
    path = machine.infiniband / port.device / "device"
    name = path.resolve().name if path.exists() else ""
    return name if re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d", name) else None


def firmware_port(machine: Machine, port: Port) -> int:
    """Give the number by which a card's firmware knows a port: the second is port 1 of the second PCI function."""
    address = pci_address(machine, port)
    return port.number if port.number > 1 or address is None else int(address[-1]) + 1


def _bond(machine: Machine, port: Port) -> str | None:
    """Give the bond that a port belongs to: above its network device, or below (a VLAN of a bond)."""
    names = dict.fromkeys([port.netdev, *(gid.netdev for gid in port.gids)])
    waiting = [name for name in names if name]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop(0)
        seen.add(name)
        folder = machine.netdev(name)
        if (folder / "bonding").is_dir():
            return name
        below = [entry.removeprefix("lower_") for entry in machine.entries(folder) if entry.startswith("lower_")]
        above = (folder / "master").resolve() if (folder / "master").exists() else folder
        if (above / "bonding").is_dir():
            return above.name
        waiting += [other for other in below if other not in seen]
    return port.netdev if "bond" in port.device else None
