# SPDX-License-Identifier: Apache-2.0
"""Fault injection, and the server's own edges: addresses, restart, bad schemas."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from fabric_twin.bfrt_server import BfRtServer, BindError, Info, MemoryBackend, P4Program, SchemaError
from fabric_twin.errors import TwinError
from switch_agent import bfrt_proto as p

if TYPE_CHECKING:
    from conftest import Lab, Raw


def hop(raw: Raw, member: int) -> p.TableEntry:
    """A next hop."""
    return raw.n.entry("nexthop", raw.n.key("nexthop", S_ACTION_MEMBER_ID=member), raw.n.data("nexthop", "drop"))


async def test_a_full_table_says_resource_exhausted(client: Raw, lab: Lab) -> None:
    """ES5; modifying is still possible, and so is inserting after a delete."""
    lab.server.faults.table_capacity["nexthop"] = 2
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.insert(hop(client, 1), hop(client, 2), hop(client, 3))
    failed = lab.failure(caught.value)
    assert failed.codes == [0, 0, 8]
    assert "nexthop is full" in failed.errors[2].message
    await client.write(lab.put(hop(client, 2), p.Update.MODIFY), lab.put(hop(client, 1), p.Update.DELETE))
    await client.insert(hop(client, 3))


async def test_the_schema_s_size_is_a_limit_too(client: Raw, lab: Lab) -> None:
    """A selector takes 256 groups."""
    groups = [
        client.n.entry(
            "Ingress.ecmp",
            client.n.key("Ingress.ecmp", S_SELECTOR_GROUP_ID=n),
            client.n.data("Ingress.ecmp", S_ACTION_MEMBER_ID=[], S_ACTION_MEMBER_STATUS=[]),
        )
        for n in range(257)
    ]
    await client.insert(*groups[:256])
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.insert(groups[256])
    assert lab.failure(caught.value).codes == [8]


async def test_a_held_lock_makes_calls_unavailable(client: Raw, lab: Lab) -> None:
    """Field-notes 56: transient, plain status, for Write, Read and Get."""
    lab.server.faults.locked = True
    for call in (client.insert(hop(client, 1)), client.read(hop(client, 1)), client.config()):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "Failed to acquire read lock" in (caught.value.details() or "")
    lab.server.faults.locked = False
    await client.insert(hop(client, 1))


async def test_a_restart_forgets_everything_and_ends_streams(client: Raw, lab: Lab) -> None:
    """Field-notes 51, 52: the client is a stranger afterwards, entries and registers are gone."""
    await client.insert(hop(client, 1), client.n.index("alpha", 7, f1=70))
    address = lab.server.address
    await lab.server.faults.restart()
    assert lab.server.address == address
    with pytest.raises(grpc.aio.AioRpcError):
        await client.next_message()
    again = await lab.client(0)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await again.read(hop(again, 1))
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    await again.subscribe()
    await again.bind()
    assert (await again.register("alpha", 7, from_hw=False))["Ingress.alpha.f1"] == [1] * 4
    assert lab.backend.tables["nexthop"].entries == ()


async def test_slow_reads_hit_the_client_s_deadline(client: Raw, lab: Lab) -> None:
    """The read waits; other calls go on meanwhile."""
    lab.server.faults.read_delay_s = 30.0
    reading = asyncio.ensure_future(client._read(p.ReadRequest(p4_name="symphony"), timeout=0.2).read())
    await client.insert(hop(client, 1))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await reading
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_half_open_stream_keeps_id_and_binding(client: Raw, lab: Lab) -> None:
    """Field-notes 49: the dead peer still owns the program, until the server notices."""
    lab.server.faults.half_open = True
    await client.close()
    other = await lab.client(1)
    await other.subscribe()
    deadline = time.monotonic() + 5
    while not lab.server._sessions._unnoticed and time.monotonic() < deadline:
        await other.config()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await other.bind()
    assert caught.value.code() == grpc.StatusCode.ALREADY_EXISTS
    again = await lab.client(0)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await again.subscribe()
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    lab.server.faults.half_open = False
    await again.subscribe()
    await other.bind()


async def test_a_client_that_does_not_read_loses_the_oldest_notices(lab: Lab) -> None:
    """The server's memory stays bounded."""
    raw = await lab.client(4)
    await raw.subscribe(enable_port_status_change_notifications=True)
    session = lab.server._sessions._sessions[4]
    for _ in range(2000):
        lab.server.faults.port_down(8)
        lab.server.faults.port_up(8)
    assert session.outbox.qsize() == 1024


async def test_an_unknown_port_cannot_go_down(lab: Lab) -> None:
    """KeyError that names it."""
    with pytest.raises(KeyError, match="77"):
        lab.server.set_port_up(77, False)


# ------------------------------------------------------------------------------ addresses and schemas


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])  # noqa: S104  # to be refused
def test_only_loopback_is_served(host: str) -> None:
    """BF-Runtime has no authentication (field-notes 64); the message says what to do."""
    program = P4Program.from_description()
    with pytest.raises(BindError, match="SSH tunnel"):
        BfRtServer(MemoryBackend(program), program, host=host)


async def test_a_taken_port_is_refused(lab: Lab) -> None:
    """Two servers never share a port silently."""
    program = P4Program.from_description()
    with pytest.raises(BindError, match=str(lab.server.port)):
        await BfRtServer(MemoryBackend(program), program, port=lab.server.port).start()


async def test_starting_twice_is_an_error_and_stopping_twice_is_none(lab: Lab) -> None:
    """Errors are the package's own, under the twin's base class."""
    with pytest.raises(TwinError, match="runs already"):
        await lab.server.start()
    await lab.server.stop()
    await lab.server.stop()
    await lab.server.start()


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({}, "no list named 'tables'"),
        ({"tables": [_t := {"name": "a", "id": 1, "table_type": "Register"}, {**_t, "name": "b"}]}, "share the id"),
        (
            {"tables": [{**_t, "key": [{"id": 1, "name": "k", "match_type": "Exact", "type": {"type": "blob"}}]}]},
            "unknown type 'blob'",
        ),
    ],
    ids=["no-tables", "same-id", "unknown-type"],
)
def test_unusable_schemas_are_refused_with_the_reason(document: dict[str, Any], says: str) -> None:
    """SchemaError names table and field."""
    with pytest.raises(SchemaError, match=says):
        Info(document)


def test_short_names_are_the_shortest_unique_suffix() -> None:
    """ "x" when unique, "Egress.x" when two controls have one."""
    names = ["pipe.Ingress.x", "pipe.Egress.x", "pipe.Ingress.y"]
    info = Info({"tables": [{"name": n, "id": i, "table_type": "Register"} for i, n in enumerate(names)]})
    assert [spec.short_name for spec in info.tables.values()] == ["Ingress.x", "Egress.x", "y"]
    assert info.find("x") is None
    assert info.find("Egress.x") is info.tables[1]
