# SPDX-License-Identifier: Apache-2.0
"""The machine under examination, as the checks see it: files, programs, drivers.

Every way to the outside can be replaced, so that each fault can be planted in a test: the roots of /sys, /proc and
/dev, the runner of commands, the ethtool interface, and the packet that wakes up neighbour discovery.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ring_bench import ethtool
from ring_bench.rdma_sysfs import Gid, device_names, driver_of, gid_table, rate_gbps, rejection

__all__ = ["Address", "Ethtool", "Gid", "Machine", "Output", "Port", "run_command"]

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

COMMAND_TIMEOUT_S = 20.0
PROBE_TIMEOUT_S = 120.0
TIMED_OUT = 124


class Output(NamedTuple):
    """How a command ended."""

    status: int | None
    """Exit status; None: there is no such program; 124: it took too long."""
    text: str
    errors: str = ""

    @property
    def last_words(self) -> str:
        """The last line of its complaint, or what became of it."""
        if self.status is None:
            return "not installed"
        lines = (self.errors.strip() or self.text.strip()).splitlines()
        return lines[-1] if lines else f"exit status {self.status}"


def run_command(command: Sequence[str], timeout_s: float = COMMAND_TIMEOUT_S) -> Output:
    """Run a program to its end, in the C locale."""
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout_s,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
    except (FileNotFoundError, PermissionError):
        return Output(None, "")
    except subprocess.TimeoutExpired:
        return Output(TIMED_OUT, "", f"{command[0]} did not answer within {timeout_s:g} s")
    return Output(done.returncode, done.stdout, done.stderr)


class Ethtool(NamedTuple):
    """The drivers' own words; each function takes a network device and raises OSError where there are none."""

    statistics: Callable[[str], dict[str, int]] = ethtool.statistics
    fec_modes: Callable[[str], list[str]] = ethtool.fec_modes
    pause_frames: Callable[[str], tuple[bool, bool]] = ethtool.pause_frames


@dataclass(frozen=True, slots=True)
class Port:
    """A port of an RDMA device."""

    device: str
    number: int
    driver: str
    state: str
    """"ACTIVE", "DOWN" and so on."""
    phys_state: str
    link_layer: str
    netdev: str
    """Its network device; empty where it has none here."""
    gbps: float | None
    """None where the kernel tells none."""
    gids: tuple[Gid, ...]

    @property
    def name(self) -> str:
        """As findings name it."""
        return f"{self.device} port {self.number}"

    @property
    def software(self) -> bool:
        """Whether it is soft-RoCE, whose packets the kernel sends and receives."""
        return self.driver == "rxe"


def _poke(source: Address, target: Address) -> None:
    """Make the kernel look for a neighbour: one datagram to the discard port."""
    family = socket.AF_INET if source.version == 4 else socket.AF_INET6
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sender:
        sender.bind((str(source), 0))
        sender.sendto(b"", (str(target), 9))


class Machine:
    """A machine.

    Args:
        sys: Root of sysfs.
        proc: Root of procfs.
        dev: Root of device nodes.
        run: Runs a command.
        ethtool_of: The drivers' interface.
        poke: Sends a packet from an address of this machine to a neighbour.
        pause: Waits; for counters to move and neighbours to answer.
    """

    def __init__(
        self,
        *,
        sys: Path = Path("/sys"),
        proc: Path = Path("/proc"),
        dev: Path = Path("/dev"),
        run: Callable[[Sequence[str], float], Output] = run_command,
        ethtool_of: Ethtool = Ethtool(),  # noqa: B008 (immutable)
        poke: Callable[[Address, Address], None] = _poke,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.sys = sys
        self.proc = proc
        self.dev = dev
        self.ethtool = ethtool_of
        self.poke = poke
        self.pause = pause
        self._run = run

    # -- files and programs

    def read(self, path: Path) -> str | None:
        """Give a file's text without surrounding blanks; None where it is missing or cannot be read."""
        try:
            return path.read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def number(self, path: Path) -> int | None:
        """Give the number in a file; None where there is none."""
        text = self.read(path)
        try:
            return None if text is None else int(text, 0)
        except ValueError:
            return None

    def entries(self, folder: Path) -> list[str]:
        """Give the sorted names in a folder; empty without it."""
        try:
            return sorted(path.name for path in folder.iterdir())
        except OSError:
            return []

    def run(self, *command: str, timeout_s: float = COMMAND_TIMEOUT_S) -> Output:
        """Run a program."""
        return self._run(command, timeout_s)

    def json(self, *command: str) -> Any:
        """Run a program and give what its JSON says; None where it failed or said nothing."""
        output = self.run(*command)
        try:
            return json.loads(output.text) if output.status == 0 else None
        except ValueError:
            return None

    # -- network devices

    @cached_property
    def netdevs(self) -> list[str]:
        """Network devices of this process's network namespace."""
        text = self.read(self.proc / "self" / "net" / "dev") or ""
        return [line.split(":")[0].strip() for line in text.splitlines() if ":" in line]

    def netdev(self, name: str) -> Path:
        """Give the sysfs folder of a network device."""
        return self.sys / "class" / "net" / name

    @cached_property
    def addresses(self) -> dict[str, list[ipaddress.IPv4Interface | ipaddress.IPv6Interface]]:
        """IP addresses with their prefixes, by network device; empty where ``ip`` does not tell."""
        found: dict[str, list[ipaddress.IPv4Interface | ipaddress.IPv6Interface]] = {}
        for link in self.json("ip", "-j", "addr", "show") or []:
            for entry in link.get("addr_info", []):
                with contextlib.suppress(KeyError, ValueError):
                    text = f"{entry['local']}/{entry['prefixlen']}"
                    found.setdefault(link.get("ifname", ""), []).append(ipaddress.ip_interface(text))
        return found

    # -- RDMA devices

    @property
    def infiniband(self) -> Path:
        """Where the kernel lists RDMA devices."""
        return self.sys / "class" / "infiniband"

    @cached_property
    def ports(self) -> list[Port]:
        """All ports of all RDMA devices."""
        return [port for device in device_names(self.infiniband) for port in self._ports_of(device)]

    @cached_property
    def devices(self) -> dict[str, str]:
        """The driver of each RDMA device."""
        return {device: driver_of(device, self.infiniband) for device in device_names(self.infiniband)}

    def rejection(self, gid: Gid) -> str | None:
        """Say why a GID cannot be used; None: it can. An address that its network device no longer has is stale."""
        reason = rejection(gid, self.netdevs)
        if reason is None and self.addresses:
            held = {interface.ip for interface in self.addresses.get(gid.netdev, [])}
            return None if gid.address in held else f"stale: {gid.netdev} no longer has this address"
        return reason

    def usable(self, port: Port) -> list[Gid]:
        """Give the GIDs of a port that carry step tags, IPv4 first."""
        good = [gid for gid in port.gids if self.rejection(gid) is None]
        return sorted(good, key=lambda gid: (gid.address.version, gid.index))

    def port_of(self, address: Address) -> Port | None:
        """Give the port that has a usable GID for an address."""
        for port in self.ports:
            if any(gid.address == address for gid in self.usable(port)):
                return port
        return None

    @cached_property
    def library(self) -> dict[str, Any]:
        """What this interpreter's pyverbs and the installed libibverbs say (`ring_bench.doctor.library`)."""
        return self.ask("ring_bench.doctor.library")

    def ask(self, module: str, *arguments: str) -> dict[str, Any]:
        """Run a module that touches verbs, in a process of its own, and give the JSON object it prints.

        An open RDMA device must not be forked over, and a crash in a provider is then a finding.
        """
        # The current folder counts in that process as it does in this one: a source tree of pyverbs there may hide it.
        safe = [] if _imports_from_here() else ["-P"]
        output = self.run(sys.executable, *safe, "-m", module, *arguments, timeout_s=PROBE_TIMEOUT_S)
        lines = output.text.strip().splitlines()
        try:
            answer = json.loads(lines[-1]) if lines else {}
        except ValueError:
            answer = {}
        if not isinstance(answer, dict) or not answer:
            answer = {"error": f"python -m {module} broke off ({output.last_words})"}
        answer["complaints"] = [line for line in output.errors.splitlines() if "libibverbs" in line]
        return answer

    def _ports_of(self, device: str) -> list[Port]:
        folder = self.infiniband / device / "ports"
        table = gid_table(device, self.infiniband)
        found = []
        for number in sorted(int(name) for name in self.entries(folder) if name.isdigit()):
            port = folder / str(number)
            state = _after_colon(self.read(port / "state"))
            gids = tuple(gid for gid in table if gid.port == number)
            found.append(
                Port(
                    device=device,
                    number=number,
                    driver=self.devices[device],
                    state=state,
                    phys_state=_after_colon(self.read(port / "phys_state")),
                    link_layer=self.read(port / "link_layer") or "unknown",
                    netdev=self._netdev_of(device, number, gids),
                    gbps=rate_gbps(device, number, self.infiniband),
                    gids=gids,
                )
            )
        return found

    def _netdev_of(self, device: str, number: int, gids: Sequence[Gid]) -> str:
        folder = self.infiniband / device
        parent = self.read(folder / "parent")  # soft-RoCE
        if parent:
            return parent
        for gid in gids:
            if gid.netdev:
                return gid.netdev
        for name in self.entries(folder / "device" / "net"):
            if (self.number(self.netdev(name) / "dev_port") or 0) == number - 1:
                return name
        return ""


def _imports_from_here() -> bool:
    try:
        return bool({"", os.getcwd()} & set(sys.path))
    except FileNotFoundError:  # the folder has been removed
        return False


def _after_colon(text: str | None) -> str:
    return (text or "unknown").rpartition(":")[2].strip()
