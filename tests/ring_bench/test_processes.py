# SPDX-License-Identifier: Apache-2.0
"""One process per rank, as mpirun starts them: same results, and a clean end whatever dies."""

from __future__ import annotations

import json
import math
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ring_bench.cli import main
from ring_bench.rendezvous import SILENCE_S

if TYPE_CHECKING:
    from conftest import FakeTwin

ENDLESS = ["-b", "4K", "-n", "50000"]
PROGRAM = ("-m", "ring_bench")

# Registering memory as libibverbs does for many gigabytes: longer than SILENCE_S, and pyverbs does not release the GIL.
SLOW_TO_REGISTER = f"""
import ctypes
from ring_bench.cli import main
from ring_bench.verbs.twin import _Context
register = _Context.reg_mr
def stall(self, length):
    ctypes.PyDLL(None).sleep({math.ceil(SILENCE_S) + 1})
    return register(self, length)
_Context.reg_mr = stall
main()
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def start(
    twin: FakeTwin, *arguments: str, program: Sequence[str] = PROGRAM, **environment: str
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *program, "--verbs", str(twin.path), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


@contextmanager
def ranks(
    twin: FakeTwin, world: int, *arguments: str, program: Sequence[str] = PROGRAM
) -> Iterator[list[subprocess.Popen[str]]]:
    """Start a process per rank, the way mpirun on one host would; kill what is left in the end."""
    port = free_port()
    processes = [
        start(
            twin,
            "--master",
            f"127.0.0.1:{port}",
            *arguments,
            program=program,
            OMPI_COMM_WORLD_RANK=str(rank),
            OMPI_COMM_WORLD_SIZE=str(world),
        )
        for rank in range(world)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def wait_until_sending(twin: FakeTwin, messages: int = 300) -> None:
    deadline = time.monotonic() + 60
    while sum(name == "post_send" for name, _ in twin.calls) < messages:
        assert time.monotonic() < deadline, "the ranks do not start"
        time.sleep(0.01)


def results_of(path: Path) -> Any:
    return json.loads(path.read_text())


def test_three_processes_give_the_result_of_one(fake_twin: FakeTwin, tmp_path: Path) -> None:
    many, one = tmp_path / "many.json", tmp_path / "one.json"
    sizes = ["-b", "3000", "-e", "6000", "-f", "2", "-n", "3", "--rings", "2"]
    with ranks(fake_twin, 3, *sizes, "-J", str(many)) as processes:
        outputs = [process.communicate(timeout=60) for process in processes]
        assert [process.returncode for process in processes] == [0, 0, 0], outputs
        assert "# Out of bounds values : 0 OK" in outputs[0][0]
        assert outputs[1][0] == ""
    data = results_of(many)
    assert data["complete"] is True
    assert data["ranks_covered"] == [0, 1, 2]
    assert [row["wrong"] for row in data["results"]] == [0, 0]
    assert all(row["step_overlap"]["max"] >= 1 and row["step_us"] for row in data["results"])
    with pytest.raises(SystemExit) as left:
        main(["--verbs", str(fake_twin.path), "--world", "3", *sizes, "-J", str(one)])
    assert left.value.code == 0
    assert [row["size_bytes"] for row in results_of(one)["results"]] == [3000, 6000]
    assert sorted(tmp_path.glob("*.json")) == [many, one]


def test_a_process_that_registers_memory_for_seconds_is_not_taken_for_dead(fake_twin: FakeTwin) -> None:
    """Nor is rank 0, whose silence is everybody's."""
    with ranks(fake_twin, 2, "-b", "4K", "-n", "2", program=("-c", SLOW_TO_REGISTER)) as processes:
        outputs = [process.communicate(timeout=60) for process in processes]
        assert [process.returncode for process in processes] == [0, 0], outputs


@pytest.mark.parametrize(
    ("victim", "number", "word"),
    [
        (1, signal.SIGKILL, "died"),
        (0, signal.SIGKILL, "died"),  # its connections are everybody's
        (1, signal.SIGSTOP, "fell silent"),  # as when its host loses power
        (0, signal.SIGSTOP, "fell silent"),
    ],
)
def test_when_a_rank_dies_all_others_end_within_five_seconds_and_name_it(
    fake_twin: FakeTwin, tmp_path: Path, victim: int, number: signal.Signals, word: str
) -> None:
    path = tmp_path / "r.json"
    with ranks(fake_twin, 3, *ENDLESS, "-J", str(path)) as processes:
        wait_until_sending(fake_twin)
        processes[victim].send_signal(number)
        killed = time.monotonic()
        left = [rank for rank in range(3) if rank != victim]
        outputs = {rank: processes[rank].communicate(timeout=30) for rank in left}
        assert time.monotonic() - killed < 5
        for rank, (_, err) in outputs.items():
            assert processes[rank].returncode == 1
            assert f"rank {victim}" in err
            assert word in err
    for rank in left:
        data = results_of(path if rank == 0 else tmp_path / f"r.rank{rank}.json")
        assert data["complete"] is False
        failure = data["failure"]
        assert (failure["kind"], failure["rank"]) == ("died", victim)
        assert failure["host"] == platform.node()
        assert 0 < failure["step"] < data["steps_total"]
        assert data["ranks_covered"] == [rank]


@pytest.mark.parametrize(
    ("rank", "world", "others"),
    [
        ("RANK", "WORLD_SIZE", {"LOCAL_WORLD_SIZE": "2"}),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", {"SLURM_STEP_NUM_NODES": "1"}),
    ],
)
def test_torchruns_and_sruns_environment_start_a_run(
    fake_twin: FakeTwin, rank: str, world: str, others: dict[str, str]
) -> None:
    """As ``torchrun --no-python ring-bench`` and ``srun ring-bench`` do."""
    master = ["--master", f"127.0.0.1:{free_port()}"]
    both = [
        start(fake_twin, *master, "-b", "4K", "-n", "2", **others, **{rank: str(number), world: "2"})
        for number in range(2)
    ]
    outputs = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert "2 ranks" in outputs[0][0]


def test_ranks_with_different_options_do_not_start(fake_twin: FakeTwin) -> None:
    port = str(free_port())
    common = ["--master", f"127.0.0.1:{port}", "--world", "2", "-b", "4K"]
    first = start(fake_twin, *common, "--rank", "0")
    second = start(fake_twin, *common, "--rank", "1", "-o", "max")
    for process in (first, second):
        _, err = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "disagree about op" in err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_run_cleanly_with_a_partial_result(
    fake_twin: FakeTwin, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    path = tmp_path / "r.json"
    process = start(fake_twin, "--world", "4", *ENDLESS, "-J", str(path))
    try:
        wait_until_sending(fake_twin)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == status, err
    assert f"stopped by {number.name}" in err
    assert "Traceback" not in err
    assert "# INCOMPLETE: stopped by" in out
    data = results_of(path)
    assert data["failure"]["kind"] == "interrupted"
    assert data["results"][0]["iterations"] > 0
    assert data["results"][0]["wrong"] == 0


def test_a_twin_that_dies_ends_the_run_with_a_partial_result(fake_twin: FakeTwin, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    process = start(fake_twin, "--world", "2", *ENDLESS, "-J", str(path))
    try:
        wait_until_sending(fake_twin)
        fake_twin.close()
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 1
    assert "did fabric-twin end" in err
    assert results_of(path)["failure"]["kind"] == "fabric_gone"


def test_a_twin_on_hold_is_given_up_after_the_time_out(fake_twin: FakeTwin, capsys: pytest.CaptureFixture[str]) -> None:
    fake_twin.silent = True
    with pytest.raises(SystemExit) as left:
        main(["--verbs", str(fake_twin.path), "--world", "2", "-b", "4K", "-T", "0.2"])
    assert left.value.code == 1
    err = capsys.readouterr().err
    assert "no completion for 0.2 s" in err
    assert "rank 0 (h0) waits for ring 0: step 0 from rank 1" in err
