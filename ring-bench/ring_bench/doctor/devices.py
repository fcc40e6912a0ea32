# SPDX-License-Identifier: Apache-2.0
"""RDMA devices: the kernel's list against device nodes and libibverbs' list, ports, soft-RoCE's own troubles."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from ring_bench.doctor.findings import Finding, error, fine, unknown, warning
from ring_bench.doctor.machine import Machine, Port
from ring_bench.doctor.options import Examination
from ring_bench.doctor.tagging import firmware_port, pci_address

__all__ = ["check_devices", "check_nodes", "check_ports", "check_providers", "check_rxe"]

_CONTAINER = "container: --device /dev/infiniband; systemd: PrivateDevices=no, DeviceAllow=char-infiniband_verbs rw"
_RXE_MAKE = "modprobe rdma_rxe && rdma link add rxe0 type rxe netdev NETDEV"


def check_devices(on: Examination) -> Iterator[Finding]:
    """Has the kernel any RDMA device?"""
    machine = on.machine
    if not machine.devices:
        yield error(
            "devices", "", f"{machine.infiniband} is empty or missing: the kernel has no RDMA device", _how_to(on)
        )
        return
    names = ", ".join(f"{name} ({driver})" for name, driver in machine.devices.items())
    wanted = on.options.devices
    known = {*machine.devices, *(port.netdev for port in machine.ports)}
    for name in wanted:
        if name not in known:
            yield error("devices", name, f"is none of {names}", "give --device the name of an RDMA or network device")
    for name in machine.devices.keys() - {port.device for port in machine.ports}:
        if not wanted or name in wanted:
            evidence = f"has no RDMA ports ({machine.infiniband / name}/ports is empty or missing): not usable"
            say = warning if on.ports else error
            yield say("devices", name, evidence, f"a NIC for RoCE; driver {machine.devices[name]} makes no ports of it")
    if on.ports:
        yield fine("devices", "", names)


def check_nodes(on: Examination) -> Iterator[Finding]:
    """Has each device its node, and may this process use it? (sysfs is shared with containers, nodes are not.)"""
    machine = on.machine
    verbs = machine.sys / "class" / "infiniband_verbs"
    by_device = {machine.read(verbs / name / "ibdev"): name for name in machine.entries(verbs)}
    for device in dict.fromkeys(port.device for port in on.ports):
        name = by_device.get(device)
        if name is None:
            yield error(
                "uverbs", device, f"{verbs} has no entry for it: user space cannot reach it", "modprobe ib_uverbs"
            )
            continue
        node = machine.dev / "infiniband" / name
        if not node.exists():
            yield error("uverbs", device, f"the kernel has {name}, {node} is missing here", _CONTAINER)
        elif (refusal := _refusal(node)) is not None:
            evidence = f"{node} cannot be opened by user {os.geteuid()}: {refusal.strerror}"
            fix = f"give this user read and write permission on {node} (udev rule, group rdma)"
            if refusal.errno == errno.EPERM:  # whatever the permissions: the device cgroup
                fix = f"let this service or container use the device: {_CONTAINER}"
            yield error("uverbs", device, evidence, fix)
        else:
            yield fine("uverbs", device, f"{node} can be opened")


def check_providers(on: Examination) -> Iterator[Finding]:
    """Does libibverbs know each device, and can it be opened?"""
    machine = on.machine
    library = machine.library
    if library.get("error") and on.ports:
        yield unknown(
            "provider", "", "without pyverbs libibverbs cannot be asked for its devices", "mend pyverbs first"
        )
        return
    for device in dict.fromkeys(port.device for port in on.ports):
        seen = library.get("devices", {}).get(device)
        complaints = _about(device, machine, library.get("complaints", []))
        if seen is None:
            abi = next((line for line in complaints if "kernel ABI" in line), None)
            evidence = f"the kernel has {device} ({machine.devices[device]}), libibverbs does not list it"
            fix = (
                "install the rdma-core of this kernel's time: its provider and the kernel speak different versions"
                if abi
                else "apt-get install ibverbs-providers (the version of libibverbs1), so that the driver's "
                "provider and its /etc/libibverbs.d/*.driver are there"
            )
            yield error("provider", device, "; ".join([evidence, *complaints]), fix)
        elif seen["error"]:
            yield error("provider", device, "; ".join([f"cannot be opened: {seen['error']}", *complaints]), _CONTAINER)
        else:
            yield fine("provider", device, "libibverbs lists and opens it")


def check_ports(on: Examination) -> Iterator[Finding]:
    """Is each port an active Ethernet port?"""
    machine = on.machine
    for port in on.ports:
        link = machine.netdev(port.netdev)
        netdev = (
            f"{port.netdev} is {machine.read(link / 'operstate') or 'not in this namespace'}" if port.netdev else ""
        )
        evidence = f"{port.state}, {port.phys_state}" + (f"; {netdev}" if netdev else "")
        if port.link_layer == "InfiniBand":
            yield error(
                "port",
                port.name,
                "it runs InfiniBand, which has no UDP header and so no step tag",
                _to_ethernet(machine, port),
            )
        elif port.link_layer != "Ethernet":
            yield unknown(
                "port",
                port.name,
                f"{evidence}; its link layer is not known ({port.link_layer})",
                f"cat {machine.infiniband}/{port.device}/ports/{port.number}/link_layer; rdma link show",
            )
        elif port.state == "ACTIVE":
            speed = f", {port.gbps:g} Gb/s" if port.gbps else ""
            yield fine("port", port.name, evidence + speed)
        elif _switched_off(machine.number(link / "flags")):
            yield error(
                "port", port.name, f"{evidence}; {port.netdev} is switched off", f"ip link set {port.netdev} up"
            )
        else:
            yield error(
                "port",
                port.name,
                evidence,
                "check cable, switch port, and FEC and autonegotiation on both ends "
                f"(ethtool {port.netdev or 'NETDEV'})",
            )


def check_rxe(on: Examination) -> Iterator[Finding]:
    """Soft-RoCE: what its module, its namespace and its speed mean for a run."""
    machine = on.machine
    ports = [port for port in on.ports if port.software]
    if not ports:
        return
    lack = _rdma_lack(machine)
    if lack:
        yield warning("rxe", "", lack, "apt-get install iproute2 (5.1 or later): rdma adds and removes rxe links")
    if _own_namespace(machine):
        yield warning(
            "rxe",
            "",
            "this process is in a network namespace of its own; rxe of Linux 6.1 routes in the initial one only",
            "run in the initial namespace, with an address and an rxe link per rank",
        )
    for port in ports:
        yield fine(
            "rxe",
            port.name,
            f"soft-RoCE on {port.netdev}: tags and marks are real, speed and congestion control are not",
        )


def _to_ethernet(machine: Machine, port: Port) -> str:
    address = pci_address(machine, port)
    setting = f"LINK_TYPE_P{firmware_port(machine, port)}=2"
    if address is None:
        return f"set the port to Ethernet (mlxconfig .. set {setting}), then reboot"
    return f"set the port to Ethernet: mlxconfig -d {address} set {setting}, then reboot"


def _switched_off(flags: int | None) -> bool:
    return flags is not None and not flags & 1  # IFF_UP


def _how_to(on: Examination) -> str:
    """Say how this very machine gets a device."""
    machine = on.machine
    if _own_namespace(machine):
        return (
            "run in the initial network namespace (container: host network), or bring a device into this one: "
            "rdma system show tells whether namespaces share devices, rdma dev set NAME netns moves one"
        )
    module = machine.run("modinfo", "-F", "filename", "rdma_rxe")
    if module.status is None or module.status == 0:
        lack = _rdma_lack(machine)
        make = f"{_RXE_MAKE} ({lack}: apt-get install iproute2 first)" if lack else _RXE_MAKE
        return f"load the NIC's driver (modprobe mlx5_ib), or make a soft-RoCE device: {make}"
    release = machine.read(machine.proc / "sys/kernel/osrelease") or "$(uname -r)"
    return (
        f"load the NIC's driver (modprobe mlx5_ib); for soft-RoCE the module rdma_rxe is missing from kernel {release} "
        f"(Ubuntu: apt-get install linux-modules-extra-{release}; Debian: the linux-image package, no cloud kernel; "
        "or make soft-roce, which boots a virtual machine)"
    )


def _rdma_lack(machine: Machine) -> str | None:
    """Say what stands against making rxe links with the program rdma; None: nothing."""
    usage = machine.run("rdma", "link", "help")
    if usage.status is None:
        return "the program rdma is missing"
    text = f"{usage.text}{usage.errors}"  # without ib_core it shows no usage
    if "link show" in text and "link add" not in text:
        return f"the program rdma is too old for rdma link add ({machine.run('rdma', '-V').last_words})"
    return None


def _about(device: str, machine: Machine, complaints: list[str]) -> list[str]:
    """Pick what libibverbs complained of that concerns a device: by its name, its node or its provider."""
    driver = machine.devices[device].removesuffix("_core").removesuffix("_ib")
    return [line.strip() for line in complaints if device in line or driver in line or "userspace" in line]


def _own_namespace(machine: Machine) -> bool:
    """Tell whether this process is outside the initial network namespace: only there is this setting. (In a container
    process 1 is of the container, so a look at it does not tell.)
    """
    folder = machine.proc / "sys" / "net" / "core"
    return bool(machine.entries(folder)) and not (folder / "netdev_max_backlog").exists()


def _refusal(node: Path) -> OSError | None:
    try:
        os.close(os.open(node, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return error
    return None
