# SPDX-License-Identifier: Apache-2.0
"""Runs in the guest for test_doctor.py: plants a fault, asks doctor, mends it, and so on, in one process.

    doctor_guest.py FOLDER

Leaves FOLDER/NAME.json for each case: exit status, report and standard error. Every fault is undone, also when a case
breaks off, and the last case shows that the machine is as before.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from ring_bench.cli import main

PEERS = ["--peers", "10.77.0.1,10.77.0.2,10.77.0.3,10.77.0.4"]
PROBED = ["--peers", "10.77.0.1,10.77.0.2", "--probe"]
BLOCK = "ingress protocol ip u32 match ip protocol 17 0xff match ip dport 4791 0xffff action drop"
FILTER = """
table inet planted {
    chain roce { meta l4proto udp th dport { 53, 4789-4800 } counter drop; }
    chain input { type filter hook input priority 0; ct state established,related accept; jump roce; }
}
"""
HOSTS = range(4)
RECOVERY_S = 30.0
GIDS = Path("/sys/class/infiniband")
UNPRIVILEGED = ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"]  # root's CAP_IPC_LOCK lifts the limit


def sh(command: str) -> str:
    """Run a line of shell; give its output."""
    return subprocess.run(["bash", "-ec", command], check=True, capture_output=True, text=True).stdout


def doctor(folder: Path, name: str, *arguments: str) -> None:
    """Run ring-bench doctor in this process and leave what it said."""
    out, err, status = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(["doctor", "--json", "--interval", "0", *arguments])
        except SystemExit as leave:
            status = int(leave.code or 0)
    keep(folder, name, status, out.getvalue(), err.getvalue())


def command(folder: Path, name: str, *words: str) -> None:
    """Run a doctor as a program of its own and leave what it said."""
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    keep(folder, name, done.returncode, done.stdout, done.stderr)


def keep(folder: Path, name: str, status: int, out: str, err: str) -> None:
    """Leave a case; standard output must be the report and nothing else."""
    (folder / f"{name}.json").write_text(json.dumps({"status": status, "report": json.loads(out), "err": err}))


@contextlib.contextmanager
def planted(fault: str, cure: str) -> Iterator[None]:
    """Plant a fault; the cure is given in any case, and then hosts get what a link loses when it goes down."""
    try:
        sh(fault)
        yield
    finally:
        sh(cure)
        restore()


def restore() -> None:
    """Give every host the neighbours that soft-roce-net gave it, and wait for its address in the GID table."""
    pairs = [(i, j) for i in HOSTS for j in HOSTS if i != j]
    sh(";".join(f"ip neigh replace 10.77.0.{j + 1} lladdr 02:77:00:00:00:0{j + 1} dev h{i}" for i, j in pairs))
    deadline = time.monotonic() + RECOVERY_S
    while not all(host_is_whole(i) for i in HOSTS):
        if time.monotonic() > deadline:
            raise TimeoutError(f"a device did not come back: {sh('rdma link; ip addr; rdma resource')}")
        time.sleep(0.05)


def host_is_whole(host: int) -> bool:
    """Tell whether a device is active and has its address at index 1, as after the boot."""
    port = GIDS / f"rxe{host}" / "ports" / "1"
    gid = f"0000:0000:0000:0000:0000:ffff:0a4d:000{host + 1}"
    return (port / "gids" / "1").read_text().strip() == gid and "ACTIVE" in (port / "state").read_text()


def all_cases(folder: Path) -> None:
    """Plant everything, one after the other."""
    doctor(folder, "wrong-index", "--gid-index", "0", "--only", "gid,gid-index")
    with planted("ip addr del 10.77.0.2/24 dev h1", "ip addr add 10.77.0.2/24 dev h1"):
        doctor(folder, "no-address", *PEERS, "--gid-index", "1")
    with planted("ip link set h3 down", "ip link set h3 up"):
        doctor(folder, "port-down", *PEERS)
        command(folder, "host-agent", "host-agent", "doctor", "--json", "--only", "port,gid,pyroute2")
    with planted("ip link set p1 down", "ip link set p1 up"):
        doctor(folder, "no-carrier", "--only", "port")
    limited = [*UNPRIVILEGED, "prlimit", "--memlock=65536:2097152", "ring-bench", "doctor", "--json"]
    command(folder, "memlock", *limited, "--only", "memlock,capabilities")
    elsewhere = ["unshare", "--net", "ring-bench", "doctor", "--json", "--only", "uverbs,gid,rxe"]
    command(folder, "other-namespace", *elsewhere)
    with planted("mount -t tmpfs none /etc/libibverbs.d", "umount /etc/libibverbs.d"):
        doctor(folder, "no-provider", "--only", "pyverbs,devices,uverbs,provider,port,mtu")
    with planted(
        "ip link set h1 mtu 1500; ip link set p1 mtu 1500", "ip link set p1 mtu 4200; ip link set h1 mtu 4200"
    ):
        doctor(folder, "mtu-mismatch", *PEERS)
    with planted("ip link set p1 mtu 1500", "ip link set p1 mtu 4200"):
        doctor(folder, "mtu-link", *PROBED, "--only", "mtu,exchange")
    with planted(f"tc qdisc add dev h1 clsact; tc filter add dev h1 {BLOCK}", "tc qdisc del dev h1 clsact"):
        doctor(folder, "blocked", *PROBED)
    with planted(f"nft -f - <<< '{FILTER}'", "nft delete table inet planted"):
        doctor(folder, "filtered", *PROBED)
    doctor(folder, "healthy", *PROBED, "--gid-index", "1")


if __name__ == "__main__":
    all_cases(Path(sys.argv[1]))
