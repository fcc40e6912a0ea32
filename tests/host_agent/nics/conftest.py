# SPDX-License-Identifier: Apache-2.0
"""A network namespace with a veth pair, and a made-up sysfs: what can be real is, the rest is files."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from host_agent.nics.knobs import Workbench
from host_agent.nics.netlink import Netlink
from host_agent.nics.prepare import Journal, Preparation
from ring_bench.doctor import Machine
from ring_bench.doctor.machine import Output

CLONE_NEWNET = 0x40000000
_numbers = itertools.count()


class Namespace:
    """A network namespace of this test, with v0 (10.1.0.1/24, MTU 1500, off) and its other end v1 (on)."""

    def __init__(self) -> None:
        self.name = f"symphony-{os.getpid()}-{next(_numbers)}"
        self.run("netns", "add", self.name, outside=True)
        self.run("link", "add", "v0", "type", "veth", "peer", "name", "v1")
        for end in ("v0", "v1"):
            self.run("link", "set", end, "addrgenmode", "none")  # no link-local addresses by themselves
        self.run("addr", "add", "10.1.0.1/24", "dev", "v0")
        self.run("link", "set", "v1", "up")

    def run(self, *arguments: str, outside: bool = False) -> str:
        """Run ip(8) in the namespace."""
        where = [] if outside else ["-n", self.name]
        done = subprocess.run(["ip", *where, *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def state(self) -> list[Any]:
        """Everything that may be changed: links, addresses, permanent neighbours."""
        links = json.loads(self.run("-j", "link"))
        addresses = json.loads(self.run("-j", "addr"))
        neighbours = json.loads(self.run("-j", "neigh", "show", "nud", "permanent"))
        return [
            [(link["ifname"], link["mtu"], "UP" in link["flags"]) for link in links],
            [(link["ifname"], [(a["local"], a["prefixlen"]) for a in link["addr_info"]]) for link in addresses],
            sorted((entry["dst"], entry["dev"], entry["lladdr"]) for entry in neighbours),
        ]

    def enter(self) -> None:
        """Move the calling thread into it."""
        with open(f"/run/netns/{self.name}", "rb") as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")

    def close(self) -> None:
        """Remove it and all in it."""
        self.run("netns", "del", self.name, outside=True)


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    """A fresh namespace; needs root."""
    try:
        made = Namespace()
    except (RuntimeError, FileNotFoundError) as error:
        reason = f"network namespaces need root and iproute2: {error}"
        if os.environ.get("SYMPHONY_SKIP_MISSING_TOOLS") != "1":
            pytest.fail(reason)
        pytest.skip(reason)
    yield made
    made.close()


@pytest.fixture
def netlink(namespace: Namespace) -> Iterator[Netlink]:
    """Netlink of the namespace."""
    link = Netlink(namespace.enter)
    yield link
    link.close()


class Files:
    """A made-up machine: sysfs, procfs and programs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.outputs: dict[str, Output] = {}
        self.commands: list[str] = []
        self.write("proc/sys/kernel/random/boot_id", "boot-1")

    def write(self, path: str, text: str | int) -> Path:
        """Make a file."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
        return file

    def read(self, path: str) -> str:
        """Read a file."""
        return (self.root / path).read_text().strip()

    def rdma_device(self, name: str, netdev: str, *, soft: bool = False) -> None:
        """Make an RDMA device with one active port."""
        port = f"sys/class/infiniband/{name}/ports/1"
        for file, text in (("state", "4: ACTIVE"), ("phys_state", "5: LinkUp"), ("rate", "100 Gb/sec (4X EDR)")):
            self.write(f"{port}/{file}", text)
        self.write(f"{port}/gids/0", "0000:0000:0000:0000:0000:ffff:0a01:0001")
        self.write(f"{port}/gid_attrs/types/0", "RoCE v2")
        self.write(f"{port}/gid_attrs/ndevs/0", netdev)
        self.write(f"sys/class/infiniband/{name}/fw_ver", "22.31.1014")
        self.write("proc/self/net/dev", f"head\nhead\n  lo: 0\n  {netdev}: 0\n")
        if soft:
            self.write(f"sys/class/infiniband/{name}/parent", netdev)

    def quality(self, netdev: str) -> None:
        """Make the files that MLNX_OFED has."""
        base = f"sys/class/net/{netdev}"
        for priority in range(8):
            self.write(f"{base}/ecn/roce_np/enable/{priority}", 0)
            self.write(f"{base}/ecn/roce_rp/enable/{priority}", int(priority == 5))
        self.write(f"{base}/ecn/roce_np/cnp_dscp", 48)
        self.write(f"{base}/ecn/roce_np/cnp_802p_prio", 3)
        self.write(f"{base}/qos/trust", "pcp")

    def machine(self) -> Machine:
        """Look at it."""

        def run(command: Sequence[str], _timeout_s: float) -> Output:
            line = " ".join(command)
            self.commands.append(line)
            return next((out for begin, out in self.outputs.items() if line.startswith(begin)), Output(None, ""))

        return Machine(sys=self.root / "sys", proc=self.root / "proc", dev=self.root / "dev", run=run)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """An empty machine."""
    return Files(tmp_path / "machine")


@pytest.fixture
def preparation(files: Files, netlink: Netlink, tmp_path: Path) -> Preparation:
    """Preparation of the namespace's NICs."""
    return Preparation(Workbench(files.machine(), netlink), Journal(tmp_path / "state" / "nics", "boot-1"))
