# SPDX-License-Identifier: Apache-2.0
"""Fixed tables: ports, their statistics and notifications, the device's make-up, queue counters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from fabric_twin.bfrt_server import BfRtServer, MemoryBackend, P4Program, Port
from switch_agent import bfrt_proto as p

if TYPE_CHECKING:
    from conftest import Lab, Raw

ANY = p.TargetDevice()  # fixed tables do not care about pipes


def port(raw: Raw, number: int, **values: Any) -> p.TableEntry:
    """A $PORT entry."""
    data = raw.n.data("$PORT", **values) if values else None
    return raw.n.entry("$PORT", raw.n.key("$PORT", S_DEV_PORT=number), data)


async def show(raw: Raw, number: int) -> dict[str, Any]:
    """A port's data."""
    return raw.n.show((await raw.read(port(raw, number), target=ANY))[0])


async def codes(lab: Lab, call: Any) -> list[int]:
    """Canonical codes of a failing batch."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return lab.failure(caught.value).codes


async def test_ports_of_the_start_are_up(client: Raw) -> None:
    """With the speed and name they were given."""
    shown = await show(client, 8)
    assert shown["$SPEED"] == "BF_SPEED_10G"
    assert shown["$PORT_NAME"] == "1/0"
    assert shown["$PORT_UP"] is True
    assert len(await client.read(client.n.entry("$PORT"))) == 3


async def test_add_then_enable_then_up(client: Raw) -> None:
    """Field-notes 62; MODIFY may name the changed fields only."""
    await client.insert(port(client, 24, S_SPEED="BF_SPEED_100G", S_FEC="BF_FEC_TYP_NONE"))
    shown = await show(client, 24)
    assert (shown["$PORT_ENABLE"], shown["$PORT_UP"]) == (False, False)
    await client.write(
        p.Update(type=p.Update.MODIFY, entity=p.Entity(table_entry=port(client, 24, S_PORT_ENABLE=True)))
    )
    shown = await show(client, 24)
    assert (shown["$SPEED"], shown["$PORT_ENABLE"], shown["$PORT_UP"]) == ("BF_SPEED_100G", True, True)


async def test_ports_that_cannot_be(client: Raw, lab: Lab) -> None:
    """Unknown speed, no FEC, a read-only field, a device port beyond the chip."""
    call = client.insert(
        port(client, 24, S_SPEED="BF_SPEED_7G", S_FEC="BF_FEC_TYP_NONE"),
        port(client, 24, S_SPEED="BF_SPEED_100G"),
        port(client, 24, S_SPEED="BF_SPEED_100G", S_FEC="BF_FEC_TYP_NONE", S_PORT_UP=True),
        port(client, 512, S_SPEED="BF_SPEED_100G", S_FEC="BF_FEC_TYP_NONE"),
    )
    assert await codes(lab, call) == [3, 3, 3, 3]


async def test_a_port_going_down_and_up_is_told_to_those_who_asked(client: Raw, lab: Lab) -> None:
    """Key $DEV_PORT of table $PORT, port_up; nothing to clients that did not ask."""
    listener = await lab.client(5)
    await listener.subscribe(enable_port_status_change_notifications=True)
    lab.server.faults.port_down(8)
    lab.server.faults.port_down(8)
    lab.server.faults.port_up(8)
    got = [(await listener.next_message()).port_status_change_notification for _ in range(2)]
    assert [change.port_up for change in got] == [False, True]
    assert got[0].table_entry.table_id == client.n.id("$PORT")
    assert got[0].table_entry.key == client.n.key("$PORT", S_DEV_PORT=8)
    lab.server.faults.port_down(16)
    assert (await show(client, 16))["$PORT_UP"] is False


async def test_disabling_a_port_is_told_too(lab: Lab, client: Raw) -> None:
    """Administrative changes are port status changes; so is deleting the port."""
    listener = await lab.client(5)
    await listener.subscribe(enable_port_status_change_notifications=True)
    await client.write(lab.put(port(client, 0, S_PORT_ENABLE=False), p.Update.MODIFY))
    await client.write(lab.put(port(client, 8), p.Update.DELETE))
    got = [(await listener.next_message()).port_status_change_notification for _ in range(2)]
    assert [(c.table_entry.key.fields[0].exact.value[-1], c.port_up) for c in got] == [(0, False), (8, False)]


async def test_a_port_change_that_is_rolled_back_is_told_twice(lab: Lab, client: Raw) -> None:
    """Down, and up again when the batch fails."""
    listener = await lab.client(5)
    await listener.subscribe(enable_port_status_change_notifications=True)
    await codes(
        lab,
        client.write(
            lab.put(port(client, 8, S_PORT_ENABLE=False), p.Update.MODIFY),
            lab.put(port(client, 99, S_PORT_ENABLE=False), p.Update.MODIFY),
            atomicity=p.WriteRequest.ROLLBACK_ON_ERROR,
        ),
    )
    got = [(await listener.next_message()).port_status_change_notification.port_up for _ in range(2)]
    assert got == [False, True]


async def test_the_attribute_turns_notifications_off(lab: Lab, client: Raw) -> None:
    """port_status_notify of $PORT; it reads back."""
    listener = await lab.client(5)
    await listener.subscribe(enable_port_status_change_notifications=True)

    async def set_notify(enable: bool) -> bool:
        attribute = p.TableAttribute(table_id=client.n.id("$PORT"))
        attribute.port_status_notify.enable = enable
        entity = p.Entity(table_attribute=attribute)
        await client.write(p.Update(type=p.Update.INSERT, entity=entity))
        attribute.port_status_notify.Clear()
        attribute.port_status_notify.SetInParent()
        ask = p.Entity(table_attribute=attribute)
        return (await client.read(ask))[0].table_attribute.port_status_notify.enable

    assert not await set_notify(False)
    lab.server.faults.port_down(8)
    assert await set_notify(True)
    lab.server.faults.port_down(16)
    change = (await listener.next_message()).port_status_change_notification
    assert change.table_entry.key == client.n.key("$PORT", S_DEV_PORT=16)


async def test_statistics_exist_for_each_port(client: Raw, lab: Lab) -> None:
    """64-bit counters; NOT_FOUND for other ports; read-only."""
    entry = client.n.entry("$PORT_STAT", client.n.key("$PORT_STAT", S_DEV_PORT=8))
    shown = client.n.show((await client.read(entry))[0])
    assert shown["$OctetsReceived"] == [0]
    assert len(await client.read(client.n.entry("$PORT_STAT"))) == 3
    entry.key.fields[0].exact.value = b"\0\0\0\7"
    assert await codes(lab, client.read(entry)) == [5]
    assert await codes(lab, client.write(lab.put(entry, p.Update.DELETE))) == [12]


async def test_the_device_s_make_up(client: Raw) -> None:
    """A table without key: its default entry."""
    entry = p.TableEntry(table_id=client.n.id("tf2.dev.device_configuration"), is_default_entry=True)
    shown = client.n.show((await client.read(entry, target=ANY))[0])
    assert (shown["sku"], shown["num_pipes"], shown["num_stages"]) == ("TOFINO2", [4], [20])


async def test_queue_counters_are_read_by_key(client: Raw, lab: Lab) -> None:
    """pg_id, pg_queue; read-all is UNIMPLEMENTED, a queue beyond the end INVALID_ARGUMENT."""
    name = "tf2.tm.counter.queue"
    entry = client.n.entry(name, client.n.key(name, pg_id=1, pg_queue=3))
    assert client.n.show((await client.read(entry))[0])["watermark_cells"] == [0]
    assert await codes(lab, client.read(client.n.entry(name))) == [12]
    entry.key.fields[1].exact.value = b"\0\0\0\x80"
    assert await codes(lab, client.read(entry)) == [3]


class LiveBackend(MemoryBackend):
    """Knows what its ports have received."""

    def read_fixed(self, table: str, key: Mapping[str, int]) -> Mapping[str, int]:
        """Statistics as the twin would give them."""
        if table == "$PORT_STAT":
            return {"$FramesReceivedOK": 100 + key["$DEV_PORT"]}
        return {"usage_cells": key["pg_queue"]} if table == "tf2.tm.counter.queue" else {}


async def test_a_backend_can_give_live_values(lab: Lab) -> None:
    """FixedTableSource.read_fixed shows through for all fixed tables."""
    program = P4Program.from_description()
    async with BfRtServer(LiveBackend(program), program, port=0, ports=[Port(8, "1/0")]) as server:
        lab.server = server
        raw = await lab.client(p4_name="symphony")
        stat = (await raw.read(raw.n.entry("$PORT_STAT")))[0]
        assert raw.n.show(stat)["$FramesReceivedOK"] == [108]
        name = "tf2.tm.counter.queue"
        queue = (await raw.read(raw.n.entry(name, raw.n.key(name, pg_id=0, pg_queue=9))))[0]
        assert raw.n.show(queue)["usage_cells"] == [9]
        assert (await show(raw, 8))["$PORT_UP"] is True
