# SPDX-License-Identifier: Apache-2.0
"""The session state machine against a server that restarts, is owned, goes silent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from fabric_twin.bfrt_server import BfRtServer
from switch_agent.agent.tables import check_schema, signed_fields
from switch_agent.bfrt import Client, Schema, Session, SessionOptions, SessionState
from switch_agent.bfrt.status import owner_from_details, update_errors
from switch_agent.dataplane.schema import bfrt_json
from switch_agent.errors import NotReadyError, ReadOnlyError, SwitchUnavailableError


@asynccontextmanager
async def running(server: BfRtServer | str, **changes: Any) -> AsyncIterator[Session]:
    """A session with options that do not make tests wait; ``check`` and ``on_up`` go to the session."""
    hooks = {name: changes.pop(name) for name in ("check", "on_up") if name in changes}
    session = Session(
        SessionOptions(
            **{
                "address": server if isinstance(server, str) else server.address,
                "p4_name": "symphony",
                "signed": signed_fields(),
                "backoff_max": 0.2,
                "rebind_interval": 0.1,
                **changes,
            }
        ),
        **hooks,
    )
    task = asyncio.create_task(session.run())
    try:
        yield session
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_comes_up_bound_and_reconciled(server: BfRtServer) -> None:
    """The callback runs with ownership before the session counts as ready."""
    seen: list[tuple[bool, SessionState]] = []

    async def on_up(client: Client, owned: bool) -> None:
        seen.append((owned, session.state))

    async with running(server, on_up=on_up, check=check_schema) as session:
        await session.wait_for(SessionState.READY, timeout=10)
        assert seen == [(True, SessionState.RECONCILING)]
        assert session.programs == ("symphony",)
    assert session.state is SessionState.CLOSED


async def test_unreachable_switch_stays_connecting_and_says_why() -> None:
    """Nothing listens: requests get NotReady with address and cause, attempts go on."""
    async with running("127.0.0.1:9") as session:
        await session.wait_until(lambda: session.last_error is not None, timeout=10)
        assert session.state is SessionState.CONNECTING
        with pytest.raises(NotReadyError, match=r"127\.0\.0\.1:9 \(state connecting\).*UNAVAILABLE"):
            session.reader()


async def test_restart_brings_a_fresh_session(server: BfRtServer) -> None:
    """After a restart of the switch the callback runs again with a new client that works."""
    clients: list[Client] = []

    async def on_up(client: Client, owned: bool) -> None:
        clients.append(client)

    async with running(server, on_up=on_up) as session:
        await session.wait_for(SessionState.READY, timeout=10)
        await server.faults.restart()
        await session.wait_until(lambda: session.generation == 2 and session.owned, timeout=10)
        assert len(clients) == 2
        assert session.reconnects == 1
        schema = clients[1].schema
        assert schema is not None
        assert await session.writer().usage([schema.table("job_params")], from_hw=False) == [0]


async def test_second_client_reads_only_and_takes_over(server: BfRtServer) -> None:
    """While another owns the program: reads work, writes name the owner; when it leaves, we own it."""
    async with AsyncExitStack() as first_life:
        first = await first_life.enter_async_context(running(server))
        await first.wait_for(SessionState.READY, timeout=10)
        async with running(server) as second:
            await second.wait_for(SessionState.READ_ONLY, timeout=10)
            assert second.client_id == 102
            assert second.owner == 101
            schema = second.schema
            assert schema is not None
            assert await second.reader().usage([schema.table("job_params")], from_hw=False) == [0]
            with pytest.raises(ReadOnlyError, match="client 101"):
                second.writer()
            await first_life.aclose()
            await second.wait_for(SessionState.READY, timeout=10)
            second.writer()


async def test_unknown_program_lists_the_loaded_ones(server: BfRtServer) -> None:
    """A wrong program name is answered with those the switch has."""
    async with running(server, p4_name="symfony") as session:
        await session.wait_until(lambda: session.last_error is not None, timeout=10)
        assert "no program symfony; it has symphony" in str(session.last_error)


async def test_all_problems_of_a_schema_come_in_one_message(server: BfRtServer) -> None:
    """The check's findings are reported together and keep the session from becoming ready."""

    def check(_: Schema) -> list[str]:
        return ["table a is missing", "register b has 16 bits, not 32"]

    async with running(server, check=check) as session:
        await session.wait_until(lambda: session.last_error is not None, timeout=10)
        assert "(2 problems): table a is missing; register b has 16 bits, not 32" in str(session.last_error)


async def test_a_switch_that_stops_answering_is_given_up(server: BfRtServer) -> None:
    """Two requests without an answer end the session, although the stream still stands."""
    async with running(server, rpc_timeout=0.2) as session:
        await session.wait_for(SessionState.READY, timeout=10)
        server.faults.read_delay_s = 30.0
        client = session.reader()
        assert client.schema is not None
        for _ in range(2):
            with pytest.raises(SwitchUnavailableError):
                await client.usage([client.schema.table("job_params")], from_hw=False)
        await session.wait_for(SessionState.LOST, SessionState.BINDING, timeout=10)
        assert "DEADLINE_EXCEEDED" in (session.last_error or "")
        server.faults.read_delay_s = 0.0
        await session.wait_for(SessionState.READY, timeout=10)


async def test_an_idle_session_probes(server: BfRtServer) -> None:
    """Without any request of ours a dead switch is noticed all the same."""
    async with running(server, rpc_timeout=0.1, probe_interval=0.05) as session:
        await session.wait_for(SessionState.READY, timeout=10)
        server.faults.read_delay_s = 30.0
        await session.wait_for(SessionState.LOST, SessionState.BINDING, timeout=10)


async def test_requests_under_way_fail_with_the_session(server: BfRtServer) -> None:
    """A request that is under way when the session goes ends in an error, not in a cancelled caller."""
    async with running(server) as session:
        await session.wait_for(SessionState.READY, timeout=10)
        server.faults.read_delay_s = 3.0
        client = session.reader()
        assert client.schema is not None
        reading = asyncio.create_task(client.usage([client.schema.table("job_params")], from_hw=False))
        await asyncio.sleep(0)
        session.lose("test")
        with pytest.raises(SwitchUnavailableError):
            await reading


def test_owner_is_read_from_the_refusal() -> None:
    """Both wordings of the driver give the owner, not the asker."""
    assert owner_from_details("Client 7 trying to bind but Client 12 already owns this P4") == 12
    assert owner_from_details("Client ID 3 already owns this P4. ALREADY_EXISTS") == 3
    assert owner_from_details("nonsense") is None


def test_details_that_are_none_give_no_errors() -> None:
    """Foreign bytes in grpc-status-details-bin are ignored, the plain status speaks then."""
    assert update_errors(b"\xff\xff\xff") == []


def test_the_check_finds_nothing_wrong_with_our_program() -> None:
    """The description that the agent checks against and the served schema agree."""
    info = json.dumps(bfrt_json()).encode()
    assert check_schema(Schema.parse("symphony", info, signed=signed_fields())) == []


def test_the_check_names_table_field_and_width() -> None:
    """A missing table, a missing key, a wrong width and a wrong kind are all found."""
    document = json.loads(json.dumps(bfrt_json()))
    tables = {table["name"]: table for table in document["tables"]}
    document["tables"].remove(tables["pipe.Ingress.exp2"])
    tables["pipe.Ingress.job_params"]["key"][0]["name"] = "ig_md.jobs"
    tables["pipe.Ingress.alpha"]["data"][0]["singleton"]["type"]["width"] = 32
    tables["pipe.Ingress.job_all"]["table_type"] = "Meter"
    problems = check_schema(Schema.parse("symphony", json.dumps(document).encode()))
    assert problems == [
        "pipe.Ingress.job_params has no key ig_md.job",
        "table pipe.Ingress.exp2 is missing",
        "pipe.Ingress.alpha field Ingress.alpha.f1 has 32 bits, not 16",
        "pipe.Ingress.job_all is a Meter, not a Counter",
    ]
