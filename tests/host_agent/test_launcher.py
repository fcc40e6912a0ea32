# SPDX-License-Identifier: Apache-2.0
"""Starting and ending benchmarks: command line, states, whole process groups, leftovers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from host_agent.launcher import end_leftover, tail

BODY = {"name": "j", "bench": {"size": "8M", "iterations": 3, "split": "MOD 2", "rings": 2}, "seed": 7}


@asynccontextmanager
async def running(
    make_bench: Callable[..., Any], mode: str, twin: httpx.AsyncBaseTransport | None = None
) -> AsyncIterator[Any]:
    """A hub whose benchmark behaves as `mode` says, on a twin that nobody runs or that answers as given."""
    bench = make_bench(mode=mode)
    if twin is not None:
        bench.hub._twin = httpx.AsyncClient(base_url="http://twin", transport=twin)
    await bench.hub.start()
    try:
        yield bench
    finally:
        await bench.client.aclose()
        await bench.hub.close()


def alive(pid: int) -> bool:
    """The process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def child_of(job: Any, eventually: Callable[..., Any]) -> int:
    """PID of the process that the fake benchmark forked, from its log."""
    log = job.folder / "ring-bench.log"
    await eventually(lambda: log.exists() and "child" in log.read_text())
    return int(log.read_text().split("child", 1)[1].split()[0])


async def test_a_benchmark_gets_its_options_and_finishes(
    make_bench: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    """Options in nccl-tests' words, the job's token in the environment, host-agent's own kept from it."""
    async with running(make_bench, "ok") as bench:
        answer = await bench.client.post("/api/v1/jobs", json=BODY)
        assert answer.status_code == 201
        job = bench.hub.jobs.get(answer.json()["id"])
        await eventually(lambda: job.state == "finished" and not job.active)
        result = (await bench.client.get(f"/api/v1/jobs/{job.id}/result")).json()
        words = " ".join(result["arguments"])
        assert "--hosts h0,h1,h2,h3" in words
        assert "-b 8M -e 8M -n 3 -w 0" in words
        assert "--rings 2" in words
        assert "--job-tag 0" in words
        assert "--seed 7" in words
        assert f"--events http://127.0.0.1:9400/api/v1/jobs/{job.id}/events" in words
        assert result["token"] is True
        assert result["leaked"] is False
        assert bench.switches["tor0"].jobs == {}
        assert job.error is None


async def test_the_preset_is_known_when_the_twin_has_told_it_and_over_a_restart(
    make_bench: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    """The testbed has it before the first job; a job that was cut off keeps it, or has it from its result."""
    twin = httpx.MockTransport(lambda _: httpx.Response(200, json={"preset": "demo"}))
    async with running(make_bench, "hang", twin=twin) as bench:
        await eventually(lambda: bench.hub.preset == "demo")
        assert (await bench.client.get("/api/v1/testbed")).json()["preset"] == "demo"
        job = bench.hub.jobs.get((await bench.client.post("/api/v1/jobs", json=BODY)).json()["id"])
        assert job.preset == "demo"
        saved = json.loads((job.folder / "job.json").read_text())
    for preset in ("demo", None):  # None: written by an older host-agent
        (job.folder / "job.json").write_text(json.dumps({**saved, "preset": preset}))
        (job.folder / "result.json").write_text(json.dumps({"preset": "demo"}))
        async with running(make_bench, "ok") as bench:
            shown = (await bench.client.get(f"/api/v1/jobs/{job.id}")).json()
            assert (shown["state"], shown["preset"]) == ("failed", "demo")
            assert (await bench.client.get("/api/v1/testbed")).json()["preset"] is None


async def test_a_failing_benchmark_is_a_state_with_its_last_words(
    make_bench: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    """A dead rank: state failed, exit code and stderr in the job, entries gone from the switches."""
    async with running(make_bench, "fail") as bench:
        job = bench.hub.jobs.get((await bench.client.post("/api/v1/jobs", json=BODY)).json()["id"])
        await eventually(lambda: not job.active)
        shown = (await bench.client.get(f"/api/v1/jobs/{job.id}")).json()
        assert shown["state"] == "failed"
        assert shown["error"].endswith("exited with code 3: rank 3 on h3: RETRY_EXC_ERR towards h4, step 17")
        assert shown["log_tail"] == ["rank 3 on h3: RETRY_EXC_ERR towards h4, step 17"]
        assert bench.switches["tor1"].jobs == {}


async def test_a_missing_program_is_a_failed_job(make_bench: Callable[..., Any]) -> None:
    """The request is answered, the job says what could not be started."""
    bench = make_bench()
    bench.program.unlink()
    await bench.hub.start()
    answer = await bench.client.post("/api/v1/jobs", json=BODY)
    assert (answer.status_code, answer.json()["state"]) == (201, "failed")
    assert "could not be started" in answer.json()["error"]
    assert bench.switches["tor0"].jobs == {}
    await bench.client.aclose()
    await bench.hub.close()


@pytest.mark.parametrize("mode", ["hang", "stubborn"])
async def test_stopping_ends_the_whole_group(
    make_bench: Callable[..., Any],
    eventually: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
) -> None:
    """Leader and child are gone after stop, even when both ignore SIGTERM."""
    monkeypatch.setattr("host_agent.launcher.GRACE_S", 0.3)
    async with running(make_bench, mode) as bench:
        job = bench.hub.jobs.get((await bench.client.post("/api/v1/jobs", json=BODY)).json()["id"])
        leader, child = job.process.pid, await child_of(job, eventually)
        answer = await bench.client.post(f"/api/v1/jobs/{job.id}/stop")
        assert answer.json()["state"] == "stopped"
        await eventually(lambda: not alive(leader) and not alive(child))
        assert not (job.folder / "process.json").exists()


async def test_a_killed_leader_leaves_no_orphan(make_bench: Callable[..., Any], eventually: Callable[..., Any]) -> None:
    """The leader dies of SIGKILL: its child is ended too, the job says which signal it was."""
    async with running(make_bench, "orphan") as bench:
        job = bench.hub.jobs.get((await bench.client.post("/api/v1/jobs", json=BODY)).json()["id"])
        child = await child_of(job, eventually)
        await eventually(lambda: not job.active)
        assert job.state == "failed"
        assert "SIGKILL" in job.error
        await eventually(lambda: not alive(child))


async def test_closing_stops_running_jobs_and_keeps_their_files(
    make_bench: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    """What SIGTERM does to the service: processes gone, switch entries gone, folder there."""
    bench = make_bench(mode="hang")
    await bench.hub.start()
    job = bench.hub.jobs.get((await bench.client.post("/api/v1/jobs", json=BODY)).json()["id"])
    child = await child_of(job, eventually)
    await bench.client.aclose()
    await bench.hub.close()
    assert not alive(child)
    assert bench.switches["tor0"].jobs == {}
    assert json.loads((job.folder / "job.json").read_text())["state"] == "stopped"


async def test_deleting_a_running_job_stops_it(make_bench: Callable[..., Any], eventually: Callable[..., Any]) -> None:
    """DELETE means stop and forget; the files stay."""
    async with running(make_bench, "hang") as bench:
        job = bench.hub.jobs.get((await bench.client.post("/api/v1/jobs", json=BODY)).json()["id"])
        child = await child_of(job, eventually)
        assert (await bench.client.delete(f"/api/v1/jobs/{job.id}")).status_code == 204
        await eventually(lambda: not alive(child))
        assert (job.folder / "job.json").exists()


async def test_a_state_folder_that_cannot_be_written_is_507(make_bench: Callable[..., Any]) -> None:
    """Full disk or no rights: refused with the path, nothing on the switches."""
    bench = make_bench()
    bench.hub.store.runs.parent.mkdir(parents=True)
    bench.hub.store.runs.write_text("a file where a folder should be")
    await bench.hub.start()
    answer = await bench.client.post("/api/v1/jobs", json=BODY)
    assert (answer.status_code, answer.json()["code"]) == (507, "storage")
    assert "runs" in answer.json()["detail"]
    assert bench.switches["tor0"].jobs == {}
    await bench.client.aclose()
    await bench.hub.close()


async def test_leftovers_of_a_killed_host_agent_are_ended_at_the_next_start(
    make_bench: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    """After a SIGKILL of host-agent itself: the old group is killed, the job failed, its switch entries
    removed.
    """
    first = make_bench(mode="hang")
    await first.hub.start()
    job = first.hub.jobs.get((await first.client.post("/api/v1/jobs", json=BODY)).json()["id"])
    child = await child_of(job, eventually)
    second = make_bench()
    second.switches["tor0"].jobs[job.id] = {"job_id": job.id}
    await second.hub.start()
    await eventually(lambda: not alive(child))
    shown = (await second.client.get(f"/api/v1/jobs/{job.id}")).json()
    assert shown["state"] == "failed"
    await eventually(lambda: second.switches["tor0"].jobs == {})
    for bench in (first, second):
        await bench.client.aclose()
        await bench.hub.close()


def test_a_recycled_process_id_is_left_alone(tmp_path: Path) -> None:
    """process.json names a PID that now belongs to something else: nothing is killed."""
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        (tmp_path / "process.json").write_text(json.dumps({"pid": other.pid, "started": 1}))
        end_leftover(tmp_path, lambda _: None)
        assert other.poll() is None
    finally:
        os.killpg(other.pid, signal.SIGKILL)
        other.wait()


def test_the_tail_of_a_log_is_bounded(tmp_path: Path) -> None:
    """The last lines of a large log, without reading all of it into memory; none for no log."""
    log = tmp_path / "log"
    log.write_text("\n".join(f"line {i}" for i in range(100_000)))
    assert tail(log, 2) == ["line 99998", "line 99999"]
    assert tail(tmp_path / "none") == []
