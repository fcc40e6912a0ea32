# SPDX-License-Identifier: Apache-2.0
"""Collectives and trainings of real ranks on a real twin: exact, repeatable, one process or several."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.system

TRAINING = "train resnet50 -n 1 -w 0 --payload-scale 512 --compute-scale 0.1 --compute-jitter lognormal:0.2"


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The verbs socket of a running twin of 8 hosts."""
    path = tmp_path_factory.mktemp("twin") / "verbs.sock"
    program = (sys.executable, "-c", "from fabric_twin.cli import main; main()", "run", "--preset", "small")
    options = ("--verbs", str(path), "--bfrt-port", "0", "--http-port", "0")
    with subprocess.Popen((*program, *options), stdout=subprocess.PIPE, text=True) as twin:
        assert twin.stdout is not None
        while "REST" not in (line := twin.stdout.readline()):
            assert line, "the twin ended"
        yield str(path)
        twin.terminate()


def start(socket: str, arguments: str, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        (sys.executable, "-m", "ring_bench", *arguments.split(), "--verbs", socket, *more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(*processes: subprocess.Popen[str]) -> None:
    outputs = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), outputs


def result(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize(
    "collective", ["all_gather", "reduce_scatter", "broadcast -r 3", "all_reduce --dims 4x2", "all_reduce --rings 2"]
)
def test_every_collective_is_exact_on_the_twin(socket: str, tmp_path: Path, collective: str) -> None:
    finish(start(socket, f"{collective} --world 8 -b 100001 -n 3", "-J", str(tmp_path / "r.json")))
    (row,) = result(tmp_path / "r.json")["results"]
    assert row["wrong"] == 0
    assert 0 < row["busbw_gbps"] <= 1.25  # a 10G link carries no more


def test_a_training_of_four_processes_is_that_of_one_to_the_nanosecond(socket: str, tmp_path: Path) -> None:
    one, many = tmp_path / "one.json", tmp_path / "many.json"
    finish(start(socket, f"{TRAINING} --world 4", "-J", str(one)))
    apart = f"{TRAINING} --world 4 --master 127.0.0.1:29655 --rank"
    finish(*(start(socket, f"{apart} {rank}", "-J", str(many)) for rank in range(4)))
    assert result(one)["training"]["wrong"] == 0
    assert result(one)["training"] == result(many)["training"]


def test_less_computation_hides_less_communication(socket: str, tmp_path: Path) -> None:
    shares = []
    for scale in (0, 2):
        path = tmp_path / f"{scale}.json"
        arguments = f"train resnet50 --world 8 -n 1 -w 0 --payload-scale 512 --compute-scale {scale}"
        finish(start(socket, arguments, "-J", str(path)))
        training = result(path)["training"]
        shares.append(training["exposed_us"] / (training["jct_us"]))
    assert shares[0] == pytest.approx(1, abs=0.01)  # nothing to hide behind
    assert shares[1] < 0.5
