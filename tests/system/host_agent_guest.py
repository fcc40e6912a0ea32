# SPDX-License-Identifier: Apache-2.0
"""Runs in the guest for test_host_agent_guest.py: a host-agent, and a ring of four ranks between two of its scrapes;
and the preparation of a network device.

    host_agent_guest.py FOLDER

Leaves FOLDER/before.txt and FOLDER/after.txt, what /metrics said, FOLDER/hw_counters.json, what the kernel said of
rxe0 at the end, and FOLDER/nics.json, how the network device was before, prepared and restored. The agent's log is
FOLDER/host-agent.log. Exits with the agent's status.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from host_agent.nics.models import Wishes
from host_agent.nics.service import NicService
from ring_bench.cli import main as ring_bench

URL = "http://127.0.0.1:9400"
TESTBED = """\
name: guest
switches: [{name: tor0, url: "http://127.0.0.1:9401"}]
hosts: [{name: h0, address: 10.77.0.1, switch: tor0}]
"""
HW_COUNTERS = Path("/sys/class/infiniband/rxe0/ports/1/hw_counters")
SENT = re.compile(
    r'^node_infiniband_port_packets_transmitted_total\{device="rxe0",port="1"\} ([\d.e+]+)$', re.MULTILINE
)
LIMIT_S = 90


def kernel() -> dict[str, int]:
    """What the kernel counted at rxe0."""
    return {path.name: int(path.read_text()) for path in HW_COUNTERS.iterdir() if path.name != "lifespan"}


def scraped(agent: subprocess.Popen[bytes], good: Callable[[str], bool]) -> str:
    """Scrape until the answer is good."""
    limit, text = time.monotonic() + LIMIT_S, "no answer"
    while time.monotonic() < limit and agent.poll() is None:
        try:
            text = httpx.get(f"{URL}/metrics", timeout=10.0).raise_for_status().text
        except httpx.HTTPError:
            pass  # it is starting
        else:
            if good(text):
                return text
        time.sleep(0.5)
    sys.exit(f"host_agent_guest.py: not what was waited for:\n{text}")


def shows_all(text: str) -> bool:
    """Whether the newest sample of rxe0 is from after its last packet."""
    sent = SENT.search(text)
    return sent is not None and float(sent[1]) == kernel()["sent_pkts"]


def ring() -> None:
    """Run it here: starting a process takes seconds."""
    try:
        ring_bench(["--provider", "pyverbs", "--world", "4", "-b", "256K", "-n", "1", "-w", "0"])
    except SystemExit as left:
        if left.code:
            raise


def dummy() -> dict[str, object]:
    """How the network device d0 is."""
    (link,) = json.loads(subprocess.check_output(["ip", "-j", "address", "show", "d0"]))
    rdma = json.loads(subprocess.check_output(["rdma", "-j", "link"]))
    return {
        "up": "UP" in link["flags"],
        "mtu": link["mtu"],
        "addresses": [entry["local"] for entry in link["addr_info"] if entry["family"] == "inet"],
        "rdma": [entry["ifname"] for entry in rdma if entry.get("netdev") == "d0"],
    }


def prepare(folder: Path) -> None:
    """Prepare a new network device, soft-RoCE and all, and restore it."""
    subprocess.run(["ip", "link", "add", "d0", "type", "dummy"], check=True)
    wish = {"netdev": "d0", "up": True, "mtu": 4200, "addresses": ["10.78.0.1/24"], "rxe": "rxe9"}
    service = NicService(folder / "nics")
    states = [dummy()]
    planned = [change.what for change in service.plan(Wishes.model_validate({"nics": [wish]})).changes]
    service.apply(Wishes.model_validate({"nics": [wish]}))
    states.append(dummy())
    service.restore(force=False)
    states.append(dummy())
    service.close()
    subprocess.run(["ip", "link", "del", "d0"], check=True)
    (folder / "nics.json").write_text(json.dumps({"planned": planned, "states": states}))


def main(folder: Path) -> int:
    """Start, scrape, run the ring, scrape, stop."""
    (folder / "testbed.yaml").write_text(TESTBED)
    command = ["host-agent", "serve", "--testbed", str(folder / "testbed.yaml"), "--state-dir", str(folder / "state")]
    with (folder / "host-agent.log").open("wb") as log:
        agent = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        (folder / "before.txt").write_text(scraped(agent, shows_all))
        ring()
        (folder / "after.txt").write_text(scraped(agent, shows_all))
        (folder / "hw_counters.json").write_text(json.dumps(kernel()))
        prepare(folder)
    finally:
        agent.send_signal(signal.SIGTERM)
        status = agent.wait(timeout=30)
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
