# SPDX-License-Identifier: Apache-2.0
"""A switch (the twin's BF-Runtime server over plain memory), an agent on it, and a REST client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from fabric_twin.bfrt_server import BfRtServer, MemoryBackend, P4Program
from switch_agent.agent import Agent, AgentOptions, build_app
from switch_agent.bfrt import SessionState
from switch_agent.dataplane.lookup import lookup_tables


async def eventually(condition: Callable[[], Any], timeout: float = 10.0) -> Any:
    """Return the first true value of ``condition``, polled; fail after ``timeout`` seconds."""
    async with asyncio.timeout(timeout):
        while not (value := condition()):  # noqa: ASYNC110 - there is nothing to be notified by
            await asyncio.sleep(0.005)
        return value


class Bench:
    """One switch with one agent on it."""

    def __init__(self, server: BfRtServer, memory: MemoryBackend, agent: Agent, http: httpx.AsyncClient) -> None:
        self.server = server
        self.memory = memory
        self.agent = agent
        self.http = http

    async def put(self, job_id: int = 1, **changes: Any) -> dict[str, Any]:
        """Put a job and return its state; fails unless the answer is 200."""
        answer = await self.http.put(f"/api/v1/jobs/{job_id}", json=job_spec(**changes))
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def patch(self, job_id: int, **settings: Any) -> httpx.Response:
        """Patch a job."""
        return await self.http.patch(f"/api/v1/jobs/{job_id}", json=settings)

    def entries(self, table: str) -> list[Any]:
        """What the switch holds in a table."""
        return list(self.server.snapshot(table).entries)

    def set_register(self, name: str, index: int, pipe: int, **fields: int) -> None:
        """Poke a register, as packets would."""
        for field, value in fields.items():
            self.memory.registers[name][field][pipe, index] = value

    async def sample(self) -> dict[str, Any]:
        """Take one sample now and return the first job's."""
        frame = await self.agent.sampler.sample(0)
        assert frame is not None, self.agent.sampler.last_error
        return frame.view(0)


def job_spec(**changes: Any) -> dict[str, Any]:
    """A valid body for PUT, changed as given."""
    spec = {
        "name": "ring",
        "job_tag": 3,
        "first_step": 5,
        "flows": [{"src": "10.0.0.1", "dst": "10.0.1.1"}, {"src": "10.0.0.2", "dst": None}],
    }
    return spec | changes


@pytest.fixture(scope="session")
def program() -> P4Program:
    """The Symphony program."""
    return P4Program.from_description()


@pytest.fixture
def few_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three entries per look-up table instead of thousands, for tests that are about other things."""
    few = {name: replace(table, entries=table.entries[:3]) for name, table in lookup_tables().items()}
    monkeypatch.setattr("switch_agent.agent.reconcile.lookup_tables", lambda: few)


@pytest.fixture
async def switch(program: P4Program) -> AsyncIterator[tuple[BfRtServer, MemoryBackend]]:
    """A running switch with four pipes."""
    memory = MemoryBackend(program, name="tor0")
    async with BfRtServer(memory, program, port=0) as server:
        yield server, memory


def options(server: BfRtServer, folder: Path, **changes: Any) -> AgentOptions:
    """Options of an agent that only samples when told to."""
    base = AgentOptions(bfrt=server.address, state_dir=folder, name="tor0", sample_interval=3600.0)
    return replace(base, **changes)


@pytest.fixture
async def bench(switch: tuple[BfRtServer, MemoryBackend], tmp_path: Path, few_lookups: None) -> AsyncIterator[Bench]:
    """A ready agent."""
    server, memory = switch
    agent = Agent(options(server, tmp_path / "state"))
    transport = httpx.ASGITransport(build_app(agent))
    async with agent.running(), httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        await agent.session.wait_for(SessionState.READY, timeout=20)
        yield Bench(server, memory, agent, http)
