# SPDX-License-Identifier: Apache-2.0
"""Agents on the switches of a running twin: they watch, and what they watch stays as it is."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from .processes import served, twin, wait_ready

BENCH = ("--world", "8", "--split", "MOD 2", "-b", "16M", "-e", "16M", "-n", "32", "-w", "0", "--payload-scale", "256")
INTERVAL_MS = 50


async def ring(folder: Path, name: str) -> dict[str, Any]:
    """Run ring-bench to its end; its result."""
    target = folder / f"{name}.json"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ring_bench", *BENCH, "--seed", "7"),
        *("--verbs", str(folder / "verbs.sock"), "-J", str(target)),
        stdout=PIPE,
        stderr=PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 180)
    assert process.returncode == 0, out.decode() + err.decode()
    return dict(json.loads(await asyncio.to_thread(target.read_text)))


async def samples_beyond(http: httpx.AsyncClient, url: str, moment: float) -> list[dict[str, Any]]:
    """All samples of job 1 once there is one that is later than `moment` (Unix time)."""
    async with asyncio.timeout(20):
        while True:
            answer = await http.get(f"{url}/api/v1/samples?job=1&limit=10000")
            samples: list[dict[str, Any]] = answer.json()["samples"]
            if samples[-1]["time_unix_s"] > moment:
                return samples
            await asyncio.sleep(0.02)


@asynccontextmanager
async def agents_on_a_twin(
    folder: Path,
) -> AsyncIterator[tuple[httpx.AsyncClient, list[str], list[dict[str, Any]]]]:
    """A twin with two ToRs, an agent on each: a client, the agents' addresses, flows of all hosts."""
    async with AsyncExitStack() as stack:
        testbed = await stack.enter_async_context(twin(folder, "--preset", "small"))
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=30))
        urls = []
        for switch in testbed["switches"]:
            args = ("--sample-interval-ms", str(INTERVAL_MS))
            _, url = await stack.enter_async_context(served(switch["bfrt"], folder / switch["name"], *args))
            urls.append(url)
        for url in urls:
            await wait_ready(url)
        yield http, urls, [{"src": host["address"], "dst": None} for host in testbed["hosts"]]


@pytest.mark.system
async def test_a_job_with_symphony_off_is_one_that_no_switch_knows(tmp_path: Path) -> None:
    """Byte for byte: the switches count its packets, and nothing else changes."""
    async with agents_on_a_twin(tmp_path) as (http, urls, flows):
        unknown = await ring(tmp_path, "unknown")
        for url in urls:
            job = {"name": "ring", "job_tag": 0, "flows": flows, "symphony": {"enabled": False}}
            assert (await http.put(f"{url}/api/v1/jobs/1", json=job)).status_code == 200
        off = await ring(tmp_path, "off")
        ended = time.time()
        tracked = [(await samples_beyond(http, url, ended))[-1] for url in urls]
    assert all(sample["packets"]["all"] > 10_000 for sample in tracked)
    assert all(sample["marked"]["symphony"] == 0 < sample["marked"]["queue"] for sample in tracked)
    assert json.dumps(off["results"], sort_keys=True) == json.dumps(unknown["results"], sort_keys=True)


@pytest.mark.system
async def test_a_seeded_run_is_the_same_to_the_byte_while_agents_sample(tmp_path: Path) -> None:
    """Symphony `paper` marks, two agents read all registers 20 times a second, and two runs are equal."""
    async with agents_on_a_twin(tmp_path) as (http, urls, flows):
        job = {"name": "ring", "job_tag": 0, "flows": flows, "symphony": {"enabled": True, "variant": "paper"}}
        results, marks = [], []
        for name in ("first", "second"):
            for url in urls:
                assert (await http.put(f"{url}/api/v1/jobs/1", json=job)).status_code == 200
            result = await ring(tmp_path, name)
            ended = time.time()
            results.append(json.dumps(result["results"], sort_keys=True))
            for url in urls:
                samples = await samples_beyond(http, url, ended)
                moving = {sample["packets"]["all"] for sample in samples}
                assert len(moving) > 10, "the agent sampled while packets flew"
                marks.append(samples[-1]["marked"]["symphony"])
                assert (await http.delete(f"{url}/api/v1/jobs/1")).status_code == 204
    assert sum(marks) > 1000, "Symphony was at work"
    assert results[0] == results[1]
    assert marks[:2] == marks[2:]


@pytest.mark.system
async def test_the_benchmark_restarts_a_switch_under_load_and_loses_nothing() -> None:
    """Eight restarts while 100 jobs send and are toggled; the script itself compares every entry afterwards."""
    script = Path(__file__).parents[3] / "benchmarks" / "switch.py"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(script), "--only", "restarts", "--restarts", "8", "--json"), stdout=PIPE, stderr=PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 240)
    assert process.returncode == 0, err.decode()
    figures = json.loads(out)
    assert figures["restart.count"] == 8
    assert figures["restart.p50_s"] < 2.0, figures
