# SPDX-License-Identifier: Apache-2.0
"""Sessions: subscribing, owning a program, independent clients (bfrt-facts: StreamChannel, BIND)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest

from switch_agent import bfrt_proto as p

if TYPE_CHECKING:
    from conftest import Lab, Raw

BIND = p.SetForwardingPipelineConfigRequest.BIND


async def until_free(raw: Raw) -> None:
    """Subscribe as soon as the id is free."""
    for _ in range(200):
        try:
            await raw.subscribe()
        except grpc.aio.AioRpcError:
            await asyncio.sleep(0.01)
        else:
            return
    raise AssertionError("the client id did not become free")


async def test_subscribe_is_answered_with_status_ok(lab: Lab) -> None:
    """The answer carries google.rpc.Status with code 0."""
    raw = await lab.client(7)
    answer = await raw.subscribe(enable_port_status_change_notifications=True)
    assert answer.HasField("status")
    assert answer.status.code == 0
    assert answer.notifications.enable_port_status_change_notifications


async def test_a_second_client_with_the_same_id_is_refused(lab: Lab) -> None:
    """ES1: INVALID_ARGUMENT, and the stream ends."""
    first, second = await lab.client(7), await lab.client(7)
    await first.subscribe()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await second.subscribe()
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "Can't have two clients with the same client id" in (caught.value.details() or "")


async def test_a_second_subscribe_on_one_stream_is_ignored(client: Raw, lab: Lab) -> None:
    """No answer: the next message is the port notification that follows."""
    other = await lab.client(3)
    await other.subscribe(enable_port_status_change_notifications=True)
    await other.stream.write(p.StreamMessageRequest(client_id=3, subscribe=p.Subscribe()))
    await other.config()  # by now the server has read the message
    lab.server.faults.port_down(8)
    message = await other.next_message()
    assert message.WhichOneof("update") == "port_status_change_notification"


async def test_the_end_of_the_stream_frees_id_and_binding(lab: Lab) -> None:
    """Session and binding go, table state stays."""
    first = await lab.client(7, bound=True)
    await first.insert(first.n.index("alpha", 3, f1=9))
    await first.close()
    second = await lab.client(7)
    await until_free(second)
    await second.bind()
    assert (await second.register("alpha", 3))["Ingress.alpha.f1"] == [9, 9, 9, 9]


async def test_digest_acks_are_unimplemented(lab: Lab) -> None:
    """The server acknowledges digests itself."""
    raw = await lab.client(1)
    await raw.subscribe()
    await raw.stream.write(p.StreamMessageRequest(client_id=1, digest_ack=p.DigestListAck()))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await raw.next_message()
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ([], grpc.StatusCode.INVALID_ARGUMENT),
        ([p.ForwardingPipelineConfig(p4_name="symphony")] * 2, grpc.StatusCode.INVALID_ARGUMENT),
        (
            [p.ForwardingPipelineConfig(p4_name="symphony", bfruntime_info=b"{}")],
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        ([p.ForwardingPipelineConfig(p4_name="other")], grpc.StatusCode.NOT_FOUND),
    ],
    ids=["none", "two", "more-than-a-name", "unknown-program"],
)
async def test_bad_binds(lab: Lab, config: list[p.ForwardingPipelineConfig], code: grpc.StatusCode) -> None:
    """ES2: exactly one config with nothing but a known p4_name."""
    raw = await lab.client(1)
    await raw.subscribe()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await raw.set_config(BIND, config)
    assert caught.value.code() == code


async def test_bind_before_subscribe_is_unavailable(lab: Lab) -> None:
    """ES2: unknown client."""
    raw = await lab.client(1)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await raw.bind()
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert "Unknown client" in (caught.value.details() or "")


async def test_a_program_has_one_owner_and_binding_twice_is_refused(client: Raw, lab: Lab) -> None:
    """ES2: ALREADY_EXISTS for another client and for the owner itself."""
    other = await lab.client(1)
    await other.subscribe()
    for raw in (other, client):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await raw.bind()
        assert caught.value.code() == grpc.StatusCode.ALREADY_EXISTS
        assert "already owns" in (caught.value.details() or "")


async def test_independent_clients_name_the_program_in_each_request(lab: Lab, client: Raw) -> None:
    """No stream, no bind, while another client owns the program."""
    raw = await lab.client(99, p4_name="symphony")
    await raw.insert(raw.n.index("alpha", 0, f1=5))
    assert (await raw.register("alpha", 0))["Ingress.alpha.f1"] == [5] * 4


@pytest.mark.parametrize("name", ["", "nope"])
async def test_strangers_without_a_known_p4_name_get_not_found(lab: Lab, name: str) -> None:
    """ES3: what an agent sees after the driver restarted."""
    raw = await lab.client(5, p4_name=name)
    for call in (raw.insert(raw.n.index("alpha", 0, f1=5)), raw.read(raw.n.index("alpha", 0))):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        assert f"Unable to obtain BF_RT info for ({name})" in (caught.value.details() or "")


async def test_a_subscribed_client_without_bind_needs_p4_name_too(lab: Lab) -> None:
    """Subscribing alone opens no program."""
    raw = await lab.client(5)
    await raw.subscribe()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await raw.read(raw.n.index("alpha", 0))
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    raw.p4_name = "symphony"
    assert await raw.read(raw.n.index("alpha", 0))
