# SPDX-License-Identifier: Apache-2.0
"""The host around the NIC: CPUs near it, their clock rate, the wall clock, and who may reach the switch's server."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ring_bench.doctor.findings import Finding, fine, unknown, warning
from ring_bench.doctor.machine import Machine
from ring_bench.doctor.options import Examination

__all__ = ["check_clock", "check_cpus", "check_exposure", "parse_cpus"]

BFRT_PORT = 50052
_LISTEN = "0A"
_WORST_CLOCK_US = 10_000
"""A fifth of the interval at which switch agents sample."""
_LOOPBACK = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")


def check_cpus(on: Examination) -> Iterator[Finding]:
    """May this process run where the NIC is, on more than one CPU, at full speed?"""
    machine = on.machine
    status = machine.read(machine.proc / "self/status") or ""
    match = re.search(r"^Cpus_allowed_list:\s*(\S+)", status, re.M)
    allowed = parse_cpus(match[1]) if match else set()
    for port in on.hardware:
        device = machine.infiniband / port.device / "device"
        node = machine.number(device / "numa_node")
        near = parse_cpus(machine.read(device / "local_cpulist") or "")
        if node is not None and node < 0 and _nodes(machine) == 1:
            yield fine("numa", port.name, "this machine has one NUMA node")
            continue
        if node is None or node < 0 or not near or not allowed:
            yield unknown("numa", port.name, "the kernel names no NUMA node", "see lstopo")
            continue
        there, here = machine.read(device / "local_cpulist"), match[1] if match else "?"
        evidence = f"on NUMA node {node} (CPUs {there}); this process may use {here}"
        if not allowed & near:
            yield warning(
                "numa",
                port.name,
                f"{evidence}: every access crosses nodes",
                f"numactl --cpunodebind={node}, as a set of CPUs",
            )
        else:
            yield fine("numa", port.name, evidence)
    if len(allowed) == 1 and on.hardware:
        yield warning(
            "affinity",
            "",
            f"this process is bound to CPU {min(allowed)} alone; ranks bound to one CPU stall each other",
            "distinct CPUs per local rank, not CPU 0 (mpirun --bind-to core, taskset)",
        )
    elif allowed:
        yield fine("affinity", "", f"this process may use {len(allowed)} CPUs")
    governors = {
        machine.read(machine.sys / "devices/system/cpu" / f"cpu{cpu}" / "cpufreq/scaling_governor") for cpu in allowed
    } - {None}
    if governors - {"performance"}:
        yield warning(
            "governor",
            "",
            f"CPU frequency governor {', '.join(sorted(map(str, governors)))}",
            "cpupower frequency-set -g performance",
        )
    elif governors:
        yield fine("governor", "", "performance")


def check_clock(on: Examination) -> Iterator[Finding]:
    """Is the wall clock kept? Switch samples are placed on the hosts' time by it."""
    tracking = on.machine.run("chronyc", "-c", "tracking")
    fields = tracking.text.strip().split(",")
    figures = [_number(field) for field in (fields[4], fields[11])] if len(fields) > 11 else []
    if tracking.status == 0 and figures and None not in figures:
        offset_us, bound_us = (1e6 * abs(figure or 0.0) for figure in figures)
        evidence = f"chrony: {offset_us:.0f} us off {fields[1] or fields[0]}, root dispersion {bound_us:.0f} us"
        if fields[-1] == "Not synchronised" or fields[2] == "0":
            yield warning(
                "clock",
                "",
                "chrony runs, but has no source that it follows: the wall clock is not synchronised",
                "chronyc sources shows which servers answer; UDP port 123 must be open to them",
            )
        elif offset_us + bound_us > _WORST_CLOCK_US:
            fix = "chronyc makestep and a nearer server, or ptp4l and phc2sys where the NICs do PTP"
            yield warning("clock", "", f"{evidence}: too far to place switch samples beside the hosts' steps", fix)
        else:
            yield fine("clock", "", evidence)
        return
    answer = on.machine.run("timedatectl", "show", "-p", "NTPSynchronized", "--value").text.strip()
    if answer == "yes":
        yield fine("clock", "", "synchronised by NTP (systemd); steps of a few us need PTP")
    elif answer == "no":
        yield warning(
            "clock",
            "",
            "the wall clock is not synchronised: switch samples cannot be placed beside the hosts' steps",
            "install chrony, or ptp4l and phc2sys where the NICs do PTP",
        )
    else:
        yield unknown("clock", "", "neither chronyc nor timedatectl tells", "install chrony")


def check_exposure(on: Examination) -> Iterator[Finding]:
    """Does a BF-Runtime server here listen for more than this machine? It has no authentication."""
    listeners = _listeners(on.machine, BFRT_PORT)
    if listeners is None:
        evidence = f"{on.machine.proc}/self/net/tcp cannot be read: what listens here is not known"
        yield unknown("bfrt-exposed", "", evidence, f"ss -ltn sport = :{BFRT_PORT}")
    elif any(address not in _LOOPBACK for address in listeners):
        yield warning(
            "bfrt-exposed",
            "",
            f"TCP port {BFRT_PORT} (BF-Runtime, without authentication) listens beyond loopback",
            "let bf_switchd serve it on 127.0.0.1 only, or a firewall; switch-agent runs on the switch itself",
        )
    else:
        yield fine("bfrt-exposed", "", f"nothing listens on TCP port {BFRT_PORT} beyond loopback")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def parse_cpus(text: str) -> set[int]:
    """Read a kernel list of CPUs: "0-3,8"."""
    found: set[int] = set()
    for low, high in re.findall(r"(\d+)(?:-(\d+))?", text):
        found.update(range(int(low), int(high or low) + 1))
    return found


def _nodes(machine: Machine) -> int:
    folder = machine.sys / "devices" / "system" / "node"
    return sum(bool(re.fullmatch(r"node\d+", name)) for name in machine.entries(folder))


def _listeners(machine: Machine, port: int) -> list[str] | None:
    """Give the addresses that a TCP port listens on, as the kernel writes them; None where that cannot be read. (A
    kernel without IPv6 has no tcp6.)
    """
    tables = [machine.read(machine.proc / "self/net" / table) for table in ("tcp", "tcp6")]
    if tables[0] is None:
        return None
    found = []
    for line in (line for table in tables if table for line in table.splitlines()[1:]):
        fields = line.split()
        address, _, number = fields[1].partition(":")
        if fields[3] == _LISTEN and int(number, 16) == port:
            found.append(address)
    return found
