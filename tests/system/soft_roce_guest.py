# SPDX-License-Identifier: Apache-2.0
"""Runs in the guest for test_soft_roce.py: many runs of ring-bench in one process, since starting one takes seconds.

    soft_roce_guest.py FOLDER

Leaves FOLDER/NAME.json for each case below: exit status, both outputs and the result, and where packets were
captured FOLDER/NAME.pcap; FOLDER/objects.json has what single verbs objects answered.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ring_bench.cli import main
from ring_bench.counters import judge
from ring_bench.errors import RingBenchError
from ring_bench.verbs.api import Opcode, QpAttributes, QpState, connect
from ring_bench.verbs.pyverbs_ import PyverbsProvider

sys.path.append(str(Path(__file__).resolve().parents[2] / "deploy" / "vm"))

from capture_roce import captured

WORLD = ["--provider", "pyverbs", "--world", "4", "-w", "0", "-n", "1"]
CAPTURED = [*WORLD, "-n", "2", "-b", "200K", "-d", "int32", "--rings", "2", "--job-tag", "5"]

EXACT = {  # 4 B to 4 MiB; 1 B, 2 KiB, 4 MiB; and 4 MiB in other ways
    "float-1-ring": ["-b", "4", "-e", "4M", "-f", "32", "-d", "float", "--rings", "1", "--tagging", "retag"],
    "int32-4-rings": ["-b", "1", "-e", "4M", "-f", "2048", "-d", "int32", "--rings", "4", "--tagging", "per-step"],
    "float-2-rings": ["-b", "4M", "-d", "float", "--rings", "2", "--tagging", "static"],
    "int32-3-rings": ["-b", "4M", "-d", "int32", "--rings", "3", "--tagging", "retag", "--segment", "128K"],
}
TAGGED = {
    "per-step": ["--tagging", "per-step"],
    "retag": ["--tagging", "retag", "--segment", "16K"],
    "static": ["--tagging", "static", "--slots", "8"],
}


def sh(command: str) -> str:
    """Run a line of shell; give its output."""
    return subprocess.run(["bash", "-c", command], check=True, capture_output=True, text=True).stdout


def bench(folder: Path, name: str, arguments: list[str]) -> None:
    """Run ring-bench and leave what it said."""
    path = folder / f"{name}.json"
    out, err, status = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([*arguments, "-J", str(path)])
        except SystemExit as leave:
            status = int(leave.code or 0)
    result = json.loads(path.read_text()) if path.exists() else None
    path.write_text(json.dumps({"status": status, "out": out.getvalue(), "err": err.getvalue(), "result": result}))


def refusal(call: Callable[[], object]) -> str:
    """Give the text of the error that a call raises."""
    try:
        call()
    except RingBenchError as error:
        return f"{getattr(error, 'code', '-')}: {error}"
    return "no error"


def gid_change(provider: PyverbsProvider, netdev: str) -> str:
    """Give a network device another address, and tell what the provider's snapshots say of it."""
    before, limit, remarks = provider.counters(), time.monotonic() + 10, ""
    sh(f"ip addr add 10.77.9.9/32 dev {netdev}")
    while not remarks and time.monotonic() < limit:  # the kernel makes the GID a little later
        ports = judge("guest", before, provider.counters(), traffic_class=106)
        remarks = "; ".join(remark for port in ports if port.verdicts.gid_changed for remark in port.remarks)
    sh(f"ip addr del 10.77.9.9/32 dev {netdev}")
    return remarks


def objects() -> dict[str, Any]:
    """Ask single verbs objects: what they refuse, and how they say it."""
    said: dict[str, Any] = {}
    said["no such device"] = refusal(lambda: PyverbsProvider().open_device("rxe7"))
    provider = PyverbsProvider(patience_s=0.2)
    context, peer = provider.open_device("10.77.0.1"), provider.open_device("h1")
    region, target = context.reg_mr(1 << 16), peer.reg_mr(1 << 16)
    cq, peer_cq = context.create_cq(64), peer.create_cq(64)
    qp, other = context.create_qp(cq, 4, 2), peer.create_qp(peer_cq, 4, 2)

    def attributes(gid: str, number: int, mtu: int = 4096) -> QpAttributes:
        return QpAttributes(gid, number, 7, 7, 0x4001, 106, mtu, 14, 7, 6, 12)

    def write() -> None:
        qp.post_send(
            1, Opcode.RDMA_WRITE, region, 0, 4096, remote_address=target.address, rkey=target.rkey, signaled=False
        )

    here, there = context.attributes.gid, peer.attributes.gid
    said["devices"] = [context.attributes.name, peer.attributes.name]
    said["cq full"] = refusal(lambda: context.create_qp(cq, 64, 64))
    said["rts too early"] = refusal(lambda: qp.modify(QpState.RTS, attributes(there, other.qp_num)))
    said["sport too early"] = refusal(lambda: qp.modify_udp_sport(0xC001))
    qp.modify(QpState.INIT)
    nobody = "0000:0000:0000:0000:0000:ffff:0a4d:0063"
    said["no neighbour"] = refusal(lambda: qp.modify(QpState.RTR, attributes(nobody, 17)))
    qp.modify(QpState.RESET)
    connect(qp, attributes(there, other.qp_num))
    connect(other, attributes(here, qp.qp_num))
    said["sport out of range"] = refusal(lambda: qp.modify_udp_sport(4791))
    for _ in range(4):
        write()
    said["sq full"] = refusal(write)
    said["sport while sending"] = refusal(lambda: qp.modify_udp_sport(0xC001))
    said["nothing comes"] = refusal(lambda: provider.wait(None))  # none of them is signaled
    other.post_recv(1)
    other.post_recv(2)
    said["rq full"] = refusal(lambda: other.post_recv(3))
    said["too long"] = refusal(lambda: other.post_send(1, Opcode.SEND, region, 0, 1 << 30))
    said["gid changed"] = gid_change(provider, "h1")
    provider.close()
    said["after close"] = refusal(lambda: provider.wait(0))
    provider.close()

    with PyverbsObjects() as opened:
        said["status"] = opened.write_with_wrong_key()
    return said


class PyverbsObjects:
    """A connected pair between rxe2 and rxe3."""

    def __enter__(self) -> PyverbsObjects:
        self.provider = PyverbsProvider(patience_s=20.0)
        devices = [self.provider.open_device(host) for host in ("rxe2", "rxe3")]
        self.regions = [device.reg_mr(4096) for device in devices]
        self.qps = [device.create_qp(device.create_cq(8), 2, 2) for device in devices]
        for here, there in ((0, 1), (1, 0)):
            gid, number = devices[there].attributes.gid, self.qps[there].qp_num
            connect(self.qps[here], QpAttributes(gid, number, 1, 1, 0x4001, 2, 1024, 14, 7, 6, 12))
        return self

    def __exit__(self, *_: object) -> None:
        self.provider.close()

    def write_with_wrong_key(self) -> str:
        """Give the status of a write that the other end must refuse."""
        address, rkey = self.regions[1].address, self.regions[1].rkey ^ 0xFF00
        self.qps[0].post_send(3, Opcode.RDMA_WRITE, self.regions[0], 0, 64, remote_address=address, rkey=rkey)
        (completion,) = self.provider.wait(None)
        return f"{completion.wr_id} {completion.status}"


def all_cases(folder: Path) -> None:
    """Run everything."""
    for name, options in EXACT.items():
        bench(folder, name, [*WORLD, *options])
    for name, options in TAGGED.items():
        with captured(folder / f"{name}.pcap"):
            bench(folder, name, [*CAPTURED, *options])
    bench(folder, "hosts-by-address", [*WORLD, "-b", "64", "--hosts", "10.77.0.4,10.77.0.3,10.77.0.2,10.77.0.1"])
    (folder / "objects.json").write_text(json.dumps(objects()))
    sh("ip link set p1 mtu 1500; ip link set h1 mtu 1500")
    bench(folder, "small-mtu", [*WORLD, "-b", "100K"])
    bench(folder, "mtu-too-large", [*WORLD, "-b", "100K", "--mtu", "4096"])
    sh("ip link set h1 mtu 4200; ip link set p1 mtu 4200; ip addr del 10.77.0.2/24 dev h1")
    bench(folder, "no-address", [*WORLD, "-b", "64", "--hosts", "rxe0,rxe1,rxe2,rxe3"])
    sh("ip addr add 10.77.0.2/24 dev h1")
    sh("for i in 1 3 4; do ip neigh replace 10.77.0.$i lladdr 02:77:00:00:00:0$i dev h1; done")
    bench(folder, "address-is-back", [*WORLD, "-b", "64"])


if __name__ == "__main__":
    all_cases(Path(sys.argv[1]))
