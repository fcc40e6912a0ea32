# SPDX-License-Identifier: Apache-2.0
"""The paper's two-flow experiment (Fig. 9) on a real twin, without Symphony, as one process."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.system

FLOWS = [sys.executable, "-m", "ring_bench", "flows", "--segment", "8M"]


@pytest.fixture
def verbs(tmp_path: Path) -> Iterator[Path]:
    """Socket of a twin with four hosts on one switch."""
    path = tmp_path / "verbs.sock"
    command = [
        sys.executable,
        "-c",
        "from fabric_twin.cli import main; main()",
        "run",
        "--preset",
        "two-flows",
        "--verbs",
        str(path),
    ]
    command += ["--http-port", "0", "--bfrt-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as twin:
        assert twin.stdout is not None
        try:
            for line in twin.stdout:
                if "REST" in line:
                    break
            yield path
        finally:
            twin.terminate()
            twin.stdout.read()


def test_flows_share_the_port_as_long_as_they_run_at_once(verbs: Path, tmp_path: Path) -> None:
    """1 GiB alone takes 929 ms, as on the paper's hardware (MTU 1024); at 500 ms delay near its 1382 ms."""
    path = tmp_path / "flows.json"
    command = [*FLOWS, "--verbs", str(verbs), "--delays", "0,500,1000", "-J", str(path)]
    subprocess.run(command, check=True, timeout=300)
    result: dict[str, Any] = json.loads(path.read_text())
    assert (result["preset"], result["clock"], result["mtu"]) == ("two-flows", "twin", 1024)
    alone, half, whole = ([flow["duration_ns"] / 1e6 for flow in run["flows"]] for run in result["runs"])
    assert alone == pytest.approx([929, 929], rel=0.01)
    assert half[0] == pytest.approx(1382, rel=0.05)
    assert half[1] == pytest.approx(1399, rel=0.05)
    assert whole[0] == pytest.approx(1885, rel=0.05)
    concurrent = [run["concurrent_ns"] / 1e6 for run in result["runs"]]
    assert concurrent[0] == 0
    assert concurrent[1] == pytest.approx(882, rel=0.06)


def test_processes_of_their_own_are_refused_on_the_twin(verbs: Path) -> None:
    """Each of them says so, instead of waiting for the others for ever."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        master = f"127.0.0.1:{free.getsockname()[1]}"
    commands = [[*FLOWS, "--verbs", str(verbs), "--master", master, "--rank", str(rank)] for rank in range(3)]
    ranks = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    for rank in ranks:
        _, err = rank.communicate(timeout=60)
        assert rank.returncode in (1, 2)
        assert "on the twin all three ranks are in one process" in err
