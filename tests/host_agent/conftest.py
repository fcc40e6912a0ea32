# SPDX-License-Identifier: Apache-2.0
"""Fakes that speak the real interfaces: switch agents as small FastAPI apps, ring-bench as a small script."""

from __future__ import annotations

import asyncio
import stat
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, HTTPException, Request

from host_agent.app import create_app
from host_agent.hub import Hub
from host_agent.store import Store
from host_agent.switches import SwitchClient
from host_agent.testbed import SwitchEntry, Testbed


class FakeSwitch:
    """A switch agent after the contract: jobs in memory, samples as the test feeds them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.jobs: dict[int, dict[str, Any]] = {}
        self.samples: dict[int, list[dict[str, Any]]] = {}
        self.calls: list[tuple[str, int]] = []
        self.refuse: str | None = None
        """Answer state changes with 409 and this text."""
        self.down = False
        """Refuse connections."""
        self.frozen = False
        """Accept requests and never answer."""
        self.changes_frozen = False
        """The same for state changes only."""
        self.forget_patches = False
        """Answer PATCH with the old state, as a switch that did not take it."""
        self._seq = 0
        self.app = self._build()

    def feed(self, job_id: int, *, at: float, ns: int | None, low: int, high: int, packets: int, **more: Any) -> None:
        """Add a register sample taken at wall time `at` and switch time `ns`."""
        self._seq += 1
        sample = {
            "seq": self._seq,
            "job_id": job_id,
            "time_unix_s": at,
            "switch_time_ns": ns,
            "step_min": low,
            "step_max": high,
            "overlap": high - low + 1,
            "alpha": 1,
            "psn_recorded": 0,
            "packets": {"all": packets, "outpacing": 0},
            "marked": {"symphony": 0, "queue": 0},
            "live_pipes": [0],
        }
        self.samples.setdefault(job_id, []).append(sample | more)

    def _build(self) -> FastAPI:
        app = FastAPI()

        def change(kind: str, job_id: int) -> None:
            self.calls.append((kind, job_id))
            if self.refuse:
                raise HTTPException(409, self.refuse)

        @app.get("/api/v1/jobs")
        async def listing() -> list[dict[str, Any]]:
            return list(self.jobs.values())

        @app.put("/api/v1/jobs/{job_id}")
        async def put(job_id: int, request: Request) -> dict[str, Any]:
            change("put", job_id)
            self.jobs[job_id] = {**await request.json(), "job_id": job_id, "revision": 1}
            return self.jobs[job_id]

        @app.patch("/api/v1/jobs/{job_id}")
        async def patch(job_id: int, request: Request) -> dict[str, Any]:
            change("patch", job_id)
            job = self.jobs[job_id]
            if not self.forget_patches:
                job["symphony"] = {**job["symphony"], **await request.json()}
                job["revision"] += 1
            return job

        @app.delete("/api/v1/jobs/{job_id}")
        async def delete(job_id: int) -> dict[str, str]:
            change("delete", job_id)
            if self.jobs.pop(job_id, None) is None:
                raise HTTPException(404, "unknown job")
            return {"status": "deleted"}

        @app.get("/api/v1/samples")
        async def samples(job: int, since: int = 0, limit: int = 1000) -> dict[str, Any]:
            rows = [s for s in self.samples.get(job, []) if s["seq"] > since]
            return {"samples": rows[:limit]}

        return app


class SwitchTransport(httpx.AsyncBaseTransport):
    """The way to a fake switch."""

    def __init__(self, switch: FakeSwitch) -> None:
        self._switch = switch
        self._inner = httpx.ASGITransport(switch.app)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._switch.down:
            raise httpx.ConnectError("All connection attempts failed", request=request)
        if self._switch.frozen or (self._switch.changes_frozen and request.method != "GET"):
            await asyncio.Event().wait()
        return await self._inner.handle_async_request(request)


def make_testbed(switches: int = 2, hosts_per_switch: int = 2, *, twin: bool = True) -> Testbed:
    """h0, h1 ... spread over tor0, tor1 ...; addresses 10.0.<switch>.<n>."""
    return Testbed.model_validate(
        {
            "name": "test",
            "switches": [{"name": f"tor{i}", "url": f"http://tor{i}"} for i in range(switches)],
            "hosts": [
                {
                    "name": f"h{i * hosts_per_switch + n}",
                    "address": f"10.0.{i}.{n + 1}",
                    "switch": f"tor{i}",
                }
                for i in range(switches)
                for n in range(hosts_per_switch)
            ],
            "twin": {"http": "http://127.0.0.1:1", "verbs": "/nonexistent/verbs.sock"} if twin else None,
        }
    )


@dataclass
class Bench:
    """A hub with its app, its fake switches and a client, all in this process."""

    hub: Hub
    client: httpx.AsyncClient
    switches: dict[str, FakeSwitch]
    folder: Path
    program: Path

    async def register(self, name: str = "job", **more: Any) -> dict[str, Any]:
        """POST a job whose ranks somebody else starts."""
        answer = await self.client.post("/api/v1/jobs", json={"name": name, "provider": "external", **more})
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    async def report(self, job: dict[str, Any], **batch: Any) -> httpx.Response:
        """POST a batch of events as the job's ranks do."""
        body = {"run": "r1", "clock": "twin", "host": "h0", **batch}
        headers = {"Authorization": f"Bearer {job['reporting']['token']}"}
        return await self.client.post(f"/api/v1/jobs/{job['id']}/events", json=body, headers=headers)


@pytest.fixture
def fake_bench(tmp_path: Path) -> Path:
    """A program that behaves as the environment variable FAKE_BENCH says: ok, fail, hang, stubborn,
    orphan.
    """
    program = tmp_path / "fake-ring-bench"
    script = Path(__file__).with_name("fake_ring_bench.py").read_text()
    program.write_text(f"#!{sys.executable}\n{script}")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


@pytest.fixture
def make_bench(tmp_path: Path, fake_bench: Path) -> Callable[..., Bench]:
    """Build a Bench that is not started yet; `start_bench` is the usual way."""

    def build(
        *,
        testbed: Testbed | None = None,
        token: str | None = None,
        mode: str = "ok",
        poll_s: float = 0.02,
        **options: Any,
    ) -> Bench:
        chosen = testbed or make_testbed()
        switches = {switch.name: FakeSwitch(switch.name) for switch in chosen.switches}

        def factory(entry: SwitchEntry) -> SwitchClient:
            return SwitchClient(entry, transport=SwitchTransport(switches[entry.name]))

        environment = {"FAKE_BENCH": mode, "PATH": "/usr/bin:/bin", "HOST_AGENT_TOKEN": "not for ranks"}
        hub = Hub(
            chosen,
            Store(tmp_path / "state"),
            ring_bench=str(fake_bench),
            poll_s=poll_s,
            client_factory=factory,
            environment=environment,
        )
        app = create_app(hub, token=token, **options)
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:9400")
        return Bench(hub, client, switches, tmp_path, fake_bench)

    return build


@pytest.fixture
async def bench(make_bench: Callable[..., Bench]) -> AsyncIterator[Bench]:
    """A running hub on a testbed of two switches with two hosts each."""
    made = make_bench()
    await made.hub.start()
    yield made
    await made.client.aclose()
    await made.hub.close()


async def until(condition: Callable[[], Any], timeout_s: float = 10.0) -> Any:
    """Wait for a condition; fail the test when it does not come true."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"did not come true within {timeout_s} s: {condition}")
        await asyncio.sleep(0.01)


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """`await eventually(condition)` waits for it."""
    return until
