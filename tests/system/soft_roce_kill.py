# SPDX-License-Identifier: Apache-2.0
"""Runs in the guest for test_soft_roce.py: four ranks as processes, one of which is killed in the middle of the run.

    soft_roce_kill.py FOLDER VICTIM

Prints JSON: exit status of each rank and how many seconds after the kill it was gone; stderr of rank r is in
FOLDER/killed-r.err, and the ranks write their result at FOLDER/killed.json.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

SENT = Path("/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts")
OPTIONS = ["--provider", "pyverbs", "--world", "4", "--master", "127.0.0.1:29600", "-b", "256K", "-n", "100000"]


def main(folder: Path, victim: int) -> None:
    """Start, wait until data flow, kill, wait for the others."""
    ranks = []
    for rank in range(4):
        command = ["ring-bench", *OPTIONS, "--rank", str(rank), "-J", str(folder / "killed.json")]
        with (folder / f"killed-{rank}.err").open("w") as err:
            ranks.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=err))
    while int(SENT.read_text()) == 0:
        time.sleep(0.1)
    before = int(SENT.read_text())
    while int(SENT.read_text()) < before + 1000:
        time.sleep(0.1)
    ranks[victim].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    gone: dict[int, tuple[int, float]] = {}
    while len(gone) < len(ranks):
        for rank, process in enumerate(ranks):
            if rank not in gone and process.poll() is not None:
                gone[rank] = (process.returncode, time.monotonic() - killed)
        time.sleep(0.05)
    print(json.dumps([gone[rank] for rank in range(4)]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
