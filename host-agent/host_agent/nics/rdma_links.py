# SPDX-License-Identifier: Apache-2.0
"""Soft-RoCE links, by the program ``rdma`` (no netlink library speaks its protocol), and who holds a device open.

Removing a link whose device somebody holds hangs in the kernel until they let go, and other network commands with it.
So holders are looked for first, and every command has a time limit.
"""

from __future__ import annotations

import os
from typing import Final

from host_agent.errors import ConflictError, NicError, NotPermittedError
from ring_bench.doctor import Machine

__all__ = ["add_rxe", "delete_rxe", "holders", "rxe_of"]

TIMEOUT_S: Final = 10.0


def rxe_of(machine: Machine, netdev: str) -> str | None:
    """The soft-RoCE device on a network device; None without one."""
    for name in machine.entries(machine.infiniband):
        if machine.read(machine.infiniband / name / "parent") == netdev:
            return name
    return None


def holders(machine: Machine, device: str) -> list[str]:
    """The processes that have a device open, as "PID (name)"; those of other users are seen by root only."""
    verbs = machine.sys / "class" / "infiniband_verbs"
    nodes = {name for name in machine.entries(verbs) if machine.read(verbs / name / "ibdev") == device}
    found = []
    for process in machine.entries(machine.proc):
        if not process.isdigit():
            continue
        folder = machine.proc / process / "fd"
        for descriptor in machine.entries(folder):
            try:
                target = os.readlink(folder / descriptor)
            except OSError:
                continue
            if "/infiniband/" in target and target.rpartition("/")[2] in nodes:
                found.append(f"{process} ({machine.read(machine.proc / process / 'comm') or '?'})")
                break
    return found


def add_rxe(machine: Machine, name: str, netdev: str) -> None:
    """Make a soft-RoCE device. Raises NicError, NotPermittedError."""
    if not (machine.sys / "module" / "rdma_rxe").exists():
        machine.run("modprobe", "rdma_rxe", timeout_s=TIMEOUT_S)  # where that fails, rdma says what is missing
    _rdma(machine, "link", "add", name, "type", "rxe", "netdev", netdev)


def delete_rxe(machine: Machine, name: str) -> None:
    """Remove a soft-RoCE device. Raises ConflictError while somebody holds it, NicError, NotPermittedError."""
    held = holders(machine, name)
    if held:
        raise ConflictError(
            f"{name} is in use by process {', '.join(held)}: removing it now would hang; end them first", holders=held
        )
    _rdma(machine, "link", "delete", name)


def _rdma(machine: Machine, *arguments: str) -> None:
    output = machine.run("rdma", *arguments, timeout_s=TIMEOUT_S)
    if output.status == 0:
        return
    command = " ".join(("rdma", *arguments))
    if output.status is None:
        raise NicError(f"{command}: the program rdma is missing: apt-get install iproute2 (5.0 or newer)")
    if "not permitted" in output.last_words.lower():
        raise NotPermittedError(
            f"{command}: {output.last_words}; it needs CAP_NET_ADMIN: run `host-agent nics` as root"
        )
    hint = "; is the module rdma_rxe there (modprobe rdma_rxe)?" if "not supported" in output.last_words else ""
    raise NicError(f"{command}: {output.last_words}{hint}")
