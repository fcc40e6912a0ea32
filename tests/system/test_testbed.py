# SPDX-License-Identifier: Apache-2.0
"""The whole testbed on the twin as real processes: what a user of the demo sees, and what happens when parts die.

The stack is the demo's own (`deploy/demo.py`), on a small fabric.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from demo import Stack
from prometheus_server import prometheus

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "deploy" / "demo.py"
CHECK = ROOT / "dashboards" / "check_prometheus.py"
BENCH = {"size": "8M", "iterations": 6, "split": "MOD 4", "payload_scale": 256}
LONG = BENCH | {"size": "16M", "iterations": 400}
DEADLINE_S = 120.0


def until(condition: Callable[[], Any], what: str) -> Any:
    """The condition's first true value; fails when it takes too long."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    pytest.fail(f"{what}: not within {DEADLINE_S:.0f} s")


class Testbed:
    """A running stack and a client of its host-agent."""

    __test__ = False

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.api = httpx.Client(base_url=f"{stack.host_url}/api/v1", timeout=30)

    def start(self, name: str, bench: dict[str, Any], *, seed: int = 1, **symphony: Any) -> int:
        """POST a job over all hosts; returns its Job_ID."""
        body = {"name": name, "bench": bench, "seed": seed, "symphony": symphony or {"enabled": False}}
        answer = self.api.post("/jobs", json=body)
        assert answer.status_code == 201, answer.text
        return int(answer.json()["id"])

    def job(self, job_id: int) -> dict[str, Any]:
        """The job as host-agent shows it."""
        view: dict[str, Any] = self.api.get(f"/jobs/{job_id}").json()
        return view

    def ended(self, job_id: int) -> dict[str, Any]:
        """The job's last view, once its switches have let go of it."""
        until(lambda: not self.job(job_id)["on_switches"], f"end of job {job_id}")
        return self.job(job_id)

    def result(self, job_id: int) -> dict[str, Any]:
        """The finished job's ring-bench JSON."""
        view = self.ended(job_id)
        assert view["state"] == "finished", (view["error"], view["log_tail"])
        out: dict[str, Any] = self.api.get(f"/jobs/{job_id}/result").json()
        return out

    def sample(self, job_id: int) -> dict[str, Any]:
        """The latest register sample of tor0 for the job, or an empty one."""
        url = self.stack.testbed["switches"][0]["url"]
        answer = httpx.get(f"{url}/api/v1/registers", params={"job": job_id}, timeout=10)
        assert answer.status_code == 200, (answer.text, self.job(job_id))
        samples = answer.json()["samples"]
        return samples[0] if samples else {"seq": -1, "marked": {"symphony": 0}}


def launch(folder: Path) -> Testbed:
    """A stack on two ToRs."""
    (folder / "logs").mkdir()
    stack = Stack(folder, preset="small")
    try:
        stack.start()
    except BaseException:
        stack.stop()
        raise
    return Testbed(stack)


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """One stack for the tests that leave it whole."""
    bed = launch(tmp_path_factory.mktemp("bed"))
    yield bed
    bed.api.close()
    bed.stack.stop()


@pytest.fixture
def doomed(tmp_path: Path) -> Iterator[Testbed]:
    """A stack that the test may break."""
    bed = launch(tmp_path)
    yield bed
    bed.api.close()
    bed.stack.stop()


def processes(marker: str) -> list[str]:
    """Command lines of all running processes that mention `marker`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(marker.encode() in word for word in words):
                found.append(b" ".join(words).decode(errors="replace"))
    return found


def test_the_same_seed_gives_the_same_results_and_another_seed_others(testbed: Testbed) -> None:
    """Register sampling goes on all the while and changes nothing."""
    results = [
        testbed.result(testbed.start(name, BENCH, seed=seed, enabled=True, variant="paper"))["results"]
        for name, seed in (("one", 1), ("again", 1), ("other", 2))
    ]
    first, again, other = (json.dumps(r, sort_keys=True) for r in results)
    assert first == again
    assert first != other
    assert results[0][0]["wrong"] == 0


def test_hosts_and_switches_agree_on_the_step_overlap(testbed: Testbed) -> None:
    """Within one step for at least 95 % of the samples: of some 300, as one in 40 was taken beside a change."""
    view = testbed.ended(testbed.start("agree", LONG))
    assert view["agreement"]["samples"] >= 10
    assert view["agreement"]["share"] >= 0.95


def test_a_toggle_while_packets_fly_shows_within_one_register_sample(testbed: Testbed) -> None:
    """Off -> on -> off over REST; nothing restarts, every sum stays right."""
    job = testbed.start("toggle", LONG, variant="paper", enabled=False)
    until(lambda: testbed.job(job)["cct"]["collectives"] > 20, "iterations")
    assert testbed.sample(job)["marked"]["symphony"] == 0

    def marks_after(seq: int) -> int:
        newer = until(lambda: (s := testbed.sample(job))["seq"] > seq and s, "a register sample")
        return int(newer["marked"]["symphony"])

    testbed.api.patch(f"/jobs/{job}/symphony", json={"enabled": True}).raise_for_status()
    at_change = testbed.sample(job)["seq"]
    assert marks_after(at_change + 1) > 0

    testbed.api.patch(f"/jobs/{job}/symphony", json={"enabled": False}).raise_for_status()
    settled = marks_after(testbed.sample(job)["seq"] + 1)
    assert marks_after(testbed.sample(job)["seq"] + 2) == settled
    testbed.api.post(f"/jobs/{job}/stop").raise_for_status()
    assert testbed.ended(job)["state"] == "stopped"


def test_every_dashboard_query_finds_data_of_a_real_run(testbed: Testbed, tmp_path: Path) -> None:
    """The shipped Prometheus configuration scrapes the stack while a job runs; no query is invalid or empty."""
    addresses = {"host-agent": testbed.stack.host_url.removeprefix("http://")}
    addresses |= {s["name"]: s["url"].removeprefix("http://") for s in testbed.stack.testbed["switches"]}
    with prometheus(tmp_path / "prometheus", addresses) as url:
        job = testbed.start("scraped", LONG, enabled=True, variant="refined")
        check = [sys.executable, str(CHECK), "--url", url, "--window", "5m", "--wait", "60s"]
        done = subprocess.run(check, capture_output=True, text=True, timeout=120, check=False)
        testbed.api.post(f"/jobs/{job}/stop").raise_for_status()
        testbed.ended(job)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_switch_that_restarts_gets_its_jobs_back(testbed: Testbed) -> None:
    """bf_switchd restarts with empty tables while a job runs: the agent puts everything back by itself."""
    job = testbed.start("restart", LONG, enabled=True, variant="paper")
    until(lambda: testbed.sample(job)["marked"]["symphony"] > 0, "marks")
    httpx.post(f"{testbed.stack.twin_url}/api/v1/switches/tor0/restart", json={"down_s": 0.2}, timeout=60)
    before = until(lambda: (s := testbed.sample(job))["seq"] >= 0 and s, "a sample after the restart")
    until(lambda: testbed.sample(job)["marked"]["symphony"] > before["marked"]["symphony"], "marks after the restart")
    testbed.api.post(f"/jobs/{job}/stop").raise_for_status()
    testbed.ended(job)


def test_a_killed_benchmark_is_a_failed_job_with_a_reason(testbed: Testbed) -> None:
    """SIGKILL of ring-bench: the job says so, no process stays, the next job runs."""
    job = testbed.start("killed", LONG)
    until(lambda: testbed.job(job)["cct"]["collectives"] > 2, "iterations")
    folder = testbed.job(job)["folder"]
    pid = json.loads((Path(folder) / "process.json").read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    view = testbed.ended(job)
    assert view["state"] == "failed"
    assert "SIGKILL" in view["error"]
    assert not processes(folder)
    assert testbed.result(testbed.start("after", BENCH))["results"][0]["wrong"] == 0


def test_bad_requests_say_what_is_wrong(testbed: Testbed) -> None:
    """Unknown job, unknown field, null, impossible sizes: an answer with a reason each, and nothing started."""
    jobs = len(testbed.api.get("/jobs").json()["jobs"])
    for method, path, body, status in (
        ("PATCH", "/jobs/999/symphony", {"enabled": True}, 404),
        ("POST", "/jobs", {"name": "x", "bench": {"size": "12 parsecs"}}, 422),
        ("POST", "/jobs", {"name": "x", "bench": BENCH, "hosts": ["nowhere"]}, 422),
        ("POST", "/jobs", {"name": "x", "bench": BENCH, "symphony": {"gain": 1}}, 422),
        ("POST", "/jobs", {"name": "x", "bench": BENCH, "symphony": {"k": None}}, 422),
        ("POST", "/jobs", {"name": "../x", "bench": BENCH}, 422),
    ):
        answer = testbed.api.request(method, path, json=body)
        assert answer.status_code == status, (path, body, answer.text)
        assert answer.json()["detail"]
    assert len(testbed.api.get("/jobs").json()["jobs"]) == jobs


def test_when_the_twin_dies_jobs_fail_and_services_stay_up(doomed: Testbed) -> None:
    """SIGKILL of the twin in the middle of a run: a clear error, no hang, and no new job is accepted."""
    job = doomed.start("orphaned", LONG)
    until(lambda: doomed.job(job)["cct"]["collectives"] > 2, "iterations")
    doomed.stack.process("fabric-twin").kill()
    view = until(lambda: (v := doomed.job(job))["state"] == "failed" and v, "the job's failure")
    assert "twin" in view["error"]
    answer = until(
        lambda: (a := doomed.api.post("/jobs", json={"name": "next", "bench": BENCH})).is_error and a, "a refusal"
    )
    assert answer.status_code in (502, 503)
    assert "tor" in answer.json()["detail"]
    assert httpx.get(f"{doomed.stack.host_url}/metrics", timeout=10).is_success
    assert not processes(view["folder"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ending_the_demo_takes_every_process_along(tmp_path: Path, number: signal.Signals) -> None:
    """At whatever moment, here during the first run."""
    folder = tmp_path / "demo"
    command = [sys.executable, str(DEMO), "--output", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True) as demo:
        try:
            until(lambda: list(folder.glob("state/host-agent/**/process.json")) or demo.poll() is not None, "a run")
            assert demo.poll() is None, demo.stdout and demo.stdout.read()
            os.kill(demo.pid, number)
            demo.wait(timeout=60)
        finally:
            demo.kill()
    until(lambda: not processes(str(folder)), "the end of all processes")
