# SPDX-License-Identifier: Apache-2.0
"""The process: interpreter, pyverbs and rdma-core's private interface, locked memory, capabilities."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from ring_bench.doctor.findings import Finding, error, fine, unknown, warning
from ring_bench.doctor.library import private_abi
from ring_bench.doctor.machine import Machine
from ring_bench.doctor.options import Examination
from ring_bench.units import format_size

__all__ = ["check_abi", "check_capabilities", "check_memlock", "check_pyverbs"]

_SYSTEM_PYTHON = "/usr/bin/python3"
_INSTALL = (
    "apt-get install python3-pyverbs, and make the venv with the distribution's Python: "
    f"{_SYSTEM_PYTHON} -m venv --system-site-packages"
)
CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_NET_RAW": 13, "CAP_IPC_LOCK": 14, "CAP_SYS_ADMIN": 21}


def check_pyverbs(on: Examination) -> Iterator[Finding]:
    """Is the library there, whole, and the one that is meant?"""
    library = on.machine.library
    who = f"{library.get('executable', sys.executable)} (Python {library.get('python', 'unknown')})"
    location, problem = library.get("location"), library.get("error")
    if problem is None:
        yield fine("pyverbs", "", f"{who} has pyverbs at {location}, version {library.get('version') or 'unknown'}")
    elif location is not None and not library.get("compiled"):
        yield error(
            "pyverbs",
            "",
            f"{who} finds pyverbs at {location}, a source tree without compiled modules, and looks no further",
            "start from another folder and take the tree out of PYTHONPATH",
        )
    elif location is None and "executable" in library:
        elsewhere = on.machine.run(_SYSTEM_PYTHON, "-c", "import pyverbs; print(pyverbs.__file__)")
        there = elsewhere.status == 0
        evidence = f"{who} has no pyverbs; {_SYSTEM_PYTHON} has {elsewhere.text.strip() if there else 'none either'}"
        yield error("pyverbs", "", evidence, _INSTALL.partition("and ")[2] if there else _INSTALL)
    else:
        yield error("pyverbs", "", f"{who} cannot load pyverbs: {problem}", _INSTALL)


def check_abi(on: Examination) -> Iterator[Finding]:
    """Does pyverbs want the private interface that the installed libibverbs has?"""
    wanted = on.machine.library.get("abi_wanted") or []
    loaded = on.machine.library.get("libibverbs")
    library = Path(loaded) if loaded else _libibverbs(on.machine)
    exported = private_abi(library) if library is not None else []
    if library is None:
        yield error(
            "abi", "", "the loader finds no libibverbs.so.1", "apt-get install libibverbs1 ibverbs-providers rdma-core"
        )
    elif not exported:
        evidence = f"{library} cannot be read, or names no private interface: whether pyverbs fits is not known"
        yield unknown("abi", "", evidence, "dpkg -l libibverbs1 python3-pyverbs: one version of both")
    elif not wanted:
        yield unknown(
            "abi",
            "",
            f"{library} has the private interface {_versions(exported)}; no pyverbs to compare with",
            "mend pyverbs first",
        )
    elif set(wanted) <= set(exported):
        yield fine("abi", "", f"pyverbs wants IBVERBS_PRIVATE_{_versions(wanted)}, {library} has it")
    else:
        yield error(
            "abi",
            "",
            f"pyverbs at {on.machine.library.get('location')} wants IBVERBS_PRIVATE_{_versions(wanted)}, "
            f"{library} has {_versions(exported)}",
            "take pyverbs and rdma-core from the same source: pip uninstall pyverbs, apt-get install python3-pyverbs; "
            "or run with the rdma-core that this pyverbs was built with (LD_LIBRARY_PATH)",
        )


def check_memlock(on: Examination) -> Iterator[Finding]:
    """May this process lock what it will register? Asked of the process itself: shells and services differ."""
    machine, needed = on.machine, on.options.memory
    limits = re.search(r"^Max locked memory\s+(\S+)\s+(\S+)", machine.read(machine.proc / "self/limits") or "", re.M)
    if limits is None:
        yield unknown("memlock", "", f"{machine.proc}/self/limits does not tell")
        return
    soft, hard = (None if text == "unlimited" else int(text) for text in limits.groups())
    where = _whose(machine)
    evidence = f"{where} may lock {_bytes(soft)} (hard limit {_bytes(hard)}), {format_size(needed)} are needed"
    advice = (
        f"raise it for {where}: systemd LimitMEMLOCK=infinity; limits.conf memlock and a new login; "
        "docker --ulimit memlock=-1 or --cap-add IPC_LOCK"
    )
    if hard is None or hard >= needed:
        yield fine("memlock", "", evidence)  # the provider raises the soft limit to the hard one
    elif "CAP_IPC_LOCK" in (_capabilities(machine) or ()) and not _in_user_namespace(machine):
        yield warning("memlock", "", f"{evidence}; only CAP_IPC_LOCK lifts the limit here", advice)
    else:
        yield error("memlock", "", evidence, advice)


def check_capabilities(on: Examination) -> Iterator[Finding]:
    """What this process may do."""
    machine = on.machine
    held = _capabilities(machine)
    if held is None:
        yield unknown("capabilities", "", f"{machine.proc}/self/status does not tell")
        return
    has, lacks = ([name for name in CAPABILITIES if (name in held) is wanted] for wanted in (True, False))
    evidence = f"{_whose(machine)} has {', '.join(has) or 'none of those that matter here'}"
    if has and _in_user_namespace(machine):
        evidence += ", in a user namespace only: they lift no limit and set nothing of the host's (rootless container)"
    if "CAP_NET_ADMIN" in lacks:
        evidence += "; without CAP_NET_ADMIN it can run benchmarks, but not prepare NICs"
    yield fine("capabilities", "", evidence)


def _capabilities(machine: Machine) -> set[str] | None:
    match = re.search(r"^CapEff:\s*([0-9a-f]+)", machine.read(machine.proc / "self/status") or "", re.M)
    if match is None:
        return None
    bits = int(match[1], 16)
    return {name for name, bit in CAPABILITIES.items() if bits >> bit & 1}


def _in_user_namespace(machine: Machine) -> bool:
    """Tell whether this process's users are not the machine's: then its capabilities count inside only."""
    mapping = machine.read(machine.proc / "self/uid_map")
    return mapping is not None and mapping.split() != ["0", "0", str(2**32 - 1)]


def _whose(machine: Machine) -> str:
    """Name the systemd unit or container that this process runs in."""
    group = (machine.read(machine.proc / "self/cgroup") or "").splitlines()
    path = group[-1].rpartition(":")[2] if group else ""
    for part in reversed(path.split("/")):
        if part.endswith(".service"):
            return f"service {part}"
        if part.startswith(("docker-", "kubepods", "docker", "lxc", "libpod")):
            return "this container"
    return "this process"


def _libibverbs(machine: Machine) -> Path | None:
    listed = machine.run("ldconfig", "-p")
    if listed.status is None:
        listed = machine.run("/sbin/ldconfig", "-p")
    match = re.search(r"libibverbs\.so\.1 .*=> (\S+)", listed.text)
    return Path(match[1]) if match else None


def _versions(versions: list[int]) -> str:
    return ", ".join(map(str, versions)) or "none"


def _bytes(limit: int | None) -> str:
    return "any amount of memory" if limit is None else format_size(limit)
