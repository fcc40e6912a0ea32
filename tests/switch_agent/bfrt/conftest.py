# SPDX-License-Identifier: Apache-2.0
"""A switch and a client that is bound to its program."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from fabric_twin.bfrt_server import BfRtServer, MemoryBackend, P4Program
from switch_agent.agent.tables import check_schema, signed_fields
from switch_agent.bfrt import Client, Schema, Session, SessionOptions, SessionState


@pytest.fixture(scope="session")
def program() -> P4Program:
    """The Symphony program."""
    return P4Program.from_description()


@pytest.fixture
def memory(program: P4Program) -> MemoryBackend:
    """Registers and counters of a switch with four pipes."""
    return MemoryBackend(program, name="tor0")


@pytest.fixture
async def server(memory: MemoryBackend, program: P4Program) -> AsyncIterator[BfRtServer]:
    """A running switch."""
    async with BfRtServer(memory, program, port=0) as running:
        yield running


def session_options(server: BfRtServer, **changes: object) -> SessionOptions:
    """Options that do not make tests wait."""
    defaults: dict[str, object] = {
        "address": server.address,
        "p4_name": "symphony",
        "signed": signed_fields(),
        "backoff_max": 0.2,
        "rebind_interval": 0.1,
    }
    return SessionOptions(**(defaults | changes))  # type: ignore[arg-type]


@pytest.fixture
async def session(server: BfRtServer) -> AsyncIterator[Session]:
    """A session that is ready."""
    session = Session(session_options(server), check=check_schema)
    task = asyncio.create_task(session.run())
    await session.wait_for(SessionState.READY, timeout=10)
    yield session
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def client(session: Session) -> Client:
    """The session's client."""
    return session.writer()


@pytest.fixture
def schema(client: Client) -> Schema:
    """The live schema."""
    assert client.schema is not None
    return client.schema
