# SPDX-License-Identifier: Apache-2.0
"""A healthy host with two ConnectX ports, as files and command outputs, in which tests plant their faults."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ring_bench.doctor import Finding, Machine, Options, Report, Severity, diagnose
from ring_bench.doctor.machine import Address, Ethtool, Output

LIBRARY = "ring_bench.doctor.library"
EXCHANGE = "ring_bench.doctor.exchange"
V4 = "0000:0000:0000:0000:0000:ffff:0a00:{:02x}{:02x}"
LINK_LOCAL = "fe80:0000:0000:0000:0077:00ff:fe00:0001"
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"

LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max locked memory         {}            {}            bytes
Max open files            1024                 1048576              files
"""


class FakeHost:
    """Files below one folder, commands in a table; the longest matching beginning of a command line answers."""

    def __init__(self, root: Path) -> None:
        self.sys, self.proc, self.dev = root / "sys", root / "proc", root / "dev"
        self.root = root
        self.commands: dict[str, Output] = {}
        self.asked: list[str] = []
        self.statistics: dict[str, dict[str, int]] = {}
        self.fec: dict[str, list[str]] = {}
        self.global_pause: tuple[bool, bool] = (False, False)
        self.poked: list[tuple[str, str]] = []
        self.while_waiting: Callable[[], None] = lambda: None
        self.addresses: dict[str, list[str]] = {"lo": ["127.0.0.1/8"]}

    # -- planting

    def write(self, path: str, text: str | int) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
        return file

    def remove(self, path: str) -> None:
        target = self.root / path
        shutil.rmtree(target) if target.is_dir() else target.unlink()

    def link(self, path: str, target: Path) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.symlink_to(target)

    def answer(self, command: str, text: Any = "", *, status: int | None = 0, errors: str = "") -> None:
        """Give what a command prints; what is no text is printed as JSON."""
        printed = text if isinstance(text, str) else json.dumps(text)
        self.commands[command] = Output(status, printed, errors)

    def device(self, name: str, netdev: str, address: str, *, driver: str = "mlx5_core", number: int = 0) -> None:
        """Plant an RDMA device with one port, its network device and its GIDs."""
        base = f"sys/class/infiniband/{name}"
        port = f"{base}/ports/1"
        for file, text in (
            ("state", "4: ACTIVE"),
            ("phys_state", "5: LinkUp"),
            ("link_layer", "Ethernet"),
            ("rate", "100 Gb/sec (4X EDR)"),
        ):
            self.write(f"{port}/{file}", text)
        last = [int(part) for part in address.split(".")][2:]
        self.gid(name, 0, LINK_LOCAL, "IB/RoCE v1", netdev)
        self.gid(name, 1, LINK_LOCAL, "RoCE v2", netdev)
        self.gid(name, 2, V4.format(*last), "IB/RoCE v1", netdev)
        self.gid(name, 3, V4.format(*last), "RoCE v2", netdev)
        self.gid(name, 4, EMPTY, None, None)
        self.write(f"sys/class/infiniband_verbs/uverbs{number}/ibdev", name)
        self.write(f"dev/infiniband/uverbs{number}", "")
        if driver == "rxe":
            self.write(f"{base}/parent", netdev)
        else:
            pci = self.root / "sys/devices" / f"0000:0{number + 3}:00.0"
            self.write(f"sys/devices/{pci.name}/numa_node", 0)
            self.write(f"sys/devices/{pci.name}/local_cpulist", "0-7")
            self.write(f"sys/kernel/debug/mlx5/{pci.name}/lag/state", "disabled")
            (self.root / "sys/drivers" / driver).mkdir(parents=True, exist_ok=True)
            (pci / "driver").symlink_to(self.root / "sys/drivers" / driver)
            self.link(f"{base}/device", pci)
        self.netdev(netdev, index=number + 2)
        self.addresses[netdev] = [f"{address}/24"]
        for counter, value in (("np_ecn_marked_roce_packets", 10), ("np_cnp_sent", 9), ("rp_cnp_handled", 8)):
            self.write(f"{port}/hw_counters/{counter}", value)
        for counter in ("rp_cnp_ignored", "out_of_sequence", "local_ack_timeout_err", "rnr_nak_retry_err"):
            self.write(f"{port}/hw_counters/{counter}", 0)
        self.write(f"{port}/hw_counters/lifespan", 10)
        library = json.loads(self.commands[LIBRARY].text)
        library["devices"][name] = {"error": None, "ports": {"1": {"active_mtu": 4096, "max_mtu": 4096}}}
        self.answer(LIBRARY, library)

    def gid(self, device: str, index: int, gid: str, kind: str | None, netdev: str | None) -> None:
        port = f"sys/class/infiniband/{device}/ports/1"
        self.write(f"{port}/gids/{index}", gid)
        for folder, value in (("types", kind), ("ndevs", netdev)):
            if value is None:  # reading an empty slot fails
                (self.root / port / "gid_attrs" / folder / str(index)).unlink(missing_ok=True)
                (self.root / port / "gid_attrs" / folder / str(index)).mkdir(parents=True)
            else:
                self.write(f"{port}/gid_attrs/{folder}/{index}", value)

    def netdev(self, name: str, *, index: int, mtu: int = 4200) -> None:
        base = f"sys/class/net/{name}"
        for file, value in (
            ("mtu", mtu),
            ("ifindex", index),
            ("iflink", index),
            ("flags", "0x1003"),
            ("operstate", "up"),
            ("dev_port", 0),
            ("carrier_changes", 1),
        ):
            self.write(f"{base}/{file}", value)
        self.statistics[name] = {"rx_prio3_pause": 0, "tx_prio3_bytes": 0, "rx_discards_phy": 0}
        self.fec[name] = ["RS"]
        for leg in ("roce_np", "roce_rp"):
            for priority in range(8):
                self.write(f"{base}/ecn/{leg}/enable/{priority}", 1)
        self.write(f"{base}/ecn/roce_np/cnp_802p_prio", 6)
        self.write(f"{base}/ecn/roce_np/cnp_dscp", 48)
        self.write(f"{base}/qos/trust", "dscp")
        self.answer(f"dcb -j pfc show dev {name}", {"prio-pfc": [n == 3 for n in range(8)]})
        self.answer(f"dcb -N -j app show dev {name}", {"dscp-prio": [[26, 3], [48, 6]]})

    def library(self, **changes: Any) -> None:
        """Change what pyverbs says of itself."""
        self.answer(LIBRARY, {**json.loads(self.commands[LIBRARY].text), **changes})

    # -- looking

    def machine(self) -> Machine:
        def run(command: Sequence[str], _timeout_s: float) -> Output:
            line = " ".join(command)
            if command[0] == sys.executable:
                line = " ".join(command[command.index("-m") + 1 :])
            self.asked.append(line)
            if line == "ip -j addr show":
                return self._addresses()
            known = [begin for begin in self.commands if line.startswith(begin)]
            return self.commands[max(known, key=len)] if known else Output(None, "")

        def poke(source: Address, target: Address) -> None:
            self.poked.append((str(source), str(target)))

        def read_statistics(netdev: str) -> dict[str, int]:
            if netdev not in self.statistics:
                raise OSError(95, "Operation not supported")
            return dict(self.statistics[netdev])

        def read_fec(netdev: str) -> list[str]:
            if netdev not in self.fec:
                raise OSError(95, "Operation not supported")
            return self.fec[netdev]

        netdevs = "".join(f"{name}: 0 0\n" for name in ("lo", *sorted(self.statistics)))
        self.write("proc/self/net/dev", f"Inter-|   Receive\n face |bytes\n{netdevs}")
        return Machine(
            sys=self.sys,
            proc=self.proc,
            dev=self.dev,
            run=run,
            ethtool_of=Ethtool(read_statistics, read_fec, lambda _: self.global_pause),
            poke=poke,
            pause=lambda _: self.while_waiting(),
        )

    def _addresses(self) -> Output:
        links = [
            {"ifname": name, "addr_info": [{"local": a.split("/")[0], "prefixlen": int(a.split("/")[1])} for a in held]}
            for name, held in self.addresses.items()
        ]
        return Output(0, json.dumps(links))

    def report(self, *only: str, **options: Any) -> Report:
        return diagnose(self.machine(), Options(**options), only=only)

    def found(self, check: str, severity: Severity, **options: Any) -> list[Finding]:
        """Give the findings of one check that are of one severity; there is at least one."""
        findings = self.report(check, **options).findings
        chosen = [finding for finding in findings if finding.severity is severity]
        assert chosen, findings
        assert all(finding.fix for finding in chosen if severity in (Severity.WARNING, Severity.ERROR))
        return chosen

    def one(self, check: str, severity: Severity, **options: Any) -> Finding:
        findings = self.found(check, severity, **options)
        assert len(findings) == 1, findings
        return findings[0]


@pytest.fixture
def bare(tmp_path: Path) -> FakeHost:
    """A host without RDMA devices whose software is all right."""
    host = FakeHost(tmp_path)
    host.write("proc/self/limits", LIMITS.format("unlimited", "unlimited"))
    host.write("proc/self/status", "Name:\tpython\nCapEff:\t0000000000003000\nCpus_allowed_list:\t0-7\n")
    host.write("proc/self/cgroup", "0::/system.slice/host-agent.service")
    host.write("proc/self/uid_map", "         0          0 4294967295")
    host.write("proc/sys/net/core/netdev_max_backlog", 1000)
    host.write("proc/self/net/tcp", "  sl  local_address rem_address   st")
    library = tmp_path / "libibverbs.so.1"
    library.write_bytes(b"\0IBVERBS_1.1\0IBVERBS_PRIVATE_34\0")
    host.answer("ldconfig -p", f"\tlibibverbs.so.1 (libc6,x86-64) => {library}\n")
    host.answer(
        LIBRARY,
        {
            "executable": "/opt/venv/bin/python",
            "python": "3.11.2",
            "location": "/usr/lib/python3/dist-packages/pyverbs",
            "compiled": True,
            "version": None,
            "abi_wanted": [34],
            "error": None,
            "mlx5": True,
            "devices": {},
        },
    )
    host.answer("nft -j list ruleset", {"nftables": [{"metainfo": {"version": "1.0.6"}}]})
    host.answer("rdma -V", "rdma utility, iproute2-6.1.0\n")
    host.answer(
        "rdma link help", "Usage: rdma link show [DEV/PORT_INDEX]\n       rdma link add NAME type TYPE netdev NETDEV"
    )
    host.answer("timedatectl show", "yes\n")
    host.answer("mlxconfig", "ROCE_CC_PRIO_MASK_P1    255\n")
    return host


@pytest.fixture
def host(bare: FakeHost) -> FakeHost:
    """A healthy host: mlx5_0 on eth0 with 10.0.0.1 and mlx5_1 on eth1 with 10.0.1.1."""
    bare.device("mlx5_0", "eth0", "10.0.0.1", number=0)
    bare.device("mlx5_1", "eth1", "10.0.1.1", number=1)
    bare.answer("ip -j route get", [{"dst": "10.0.0.2", "dev": "eth0"}])
    bare.answer("ping", "2 packets transmitted, 2 received\n")
    bare.answer("ip -j neigh show", [{"dst": "10.0.0.2", "lladdr": "02::1", "state": ["REACHABLE"]}])
    return bare


@pytest.fixture
def soft(bare: FakeHost) -> FakeHost:
    """A host with soft-RoCE: rxe0 on eth0 with 10.0.0.1."""
    bare.device("rxe0", "eth0", "10.0.0.1", driver="rxe")
    return bare
