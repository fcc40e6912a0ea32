# SPDX-License-Identifier: Apache-2.0
"""Reads and writes against a BF-Runtime server over a socket."""

from __future__ import annotations

import asyncio

import grpc
import numpy as np
import pytest

from fabric_twin.bfrt_server import BfRtServer, MemoryBackend
from switch_agent.bfrt import Client, Entry, Schema, Session, SessionState, Ternary
from switch_agent.bfrt.bulk import decode_blocks, encode_register_updates
from switch_agent.bfrt.requests import (
    ALL_PIPES,
    KeyValue,
    Lpm,
    default_update,
    delete_update,
    insert_update,
    modify_update,
    operation_update,
    read_all,
    single_pipe_scope_update,
    upsert_update,
)
from switch_agent.errors import CodecError, SchemaError, SwitchBusyError, SwitchUnavailableError, WriteError

PARAMS = {
    "scope_mask": 0,
    "gate": 1,
    "lg_k": -1701,
    "lg_floor": -32768,
    "d_op": 192,
    "d_oth": -64,
    "n_sample": 8,
    "neg_window": -391,
    "warmup": 4096,
    "amax": 65535,
}


def params(job: int, **changes: int) -> Entry:
    """A job_params entry."""
    return Entry(key={"ig_md.job": job}, action="Ingress.set_params", data=PARAMS | changes)


async def test_signed_action_data_comes_back_as_written(client: Client, schema: Schema) -> None:
    """Negative logs and windows survive the two's complement on the wire."""
    table = schema.table("job_params")
    await client.write([insert_update(table, params(7))])
    (found,) = await client.read_keys(table, [{"ig_md.job": 7}], from_hw=True)
    assert found == Entry(key={"ig_md.job": 7}, action="Ingress.set_params", data=PARAMS)


async def test_each_failed_update_is_named(client: Client, schema: Schema) -> None:
    """The failures of a batch carry their own code, place and key; the others are applied."""
    table = schema.table("job_params")
    await client.write([insert_update(table, params(1))])
    with pytest.raises(WriteError) as caught:
        await client.write(
            [
                insert_update(table, params(2)),
                insert_update(table, params(1)),
                modify_update(table, params(9)),
                insert_update(table, params(3)),
            ]
        )
    first, second = caught.value.errors
    assert (first.index, first.status) == (1, grpc.StatusCode.ALREADY_EXISTS)
    assert (second.index, second.status) == (2, grpc.StatusCode.NOT_FOUND)
    assert "INSERT job_params[ig_md.job=1]" in str(caught.value)
    found = await client.read_keys(table, [{"ig_md.job": job} for job in (1, 2, 3, 9)], from_hw=True)
    assert [entry is not None for entry in found] == [True, True, True, False]


async def test_rollback_undoes_the_batch(client: Client, schema: Schema) -> None:
    """With rollback a failing batch leaves nothing behind."""
    table = schema.table("job_params")
    with pytest.raises(WriteError):
        await client.write([insert_update(table, params(1)), modify_update(table, params(9))], rollback=True)
    assert await client.read_keys(table, [{"ig_md.job": 1}], from_hw=True) == [None]


async def test_failures_of_later_batches_keep_their_index(client: Client, schema: Schema) -> None:
    """A write longer than one batch numbers its failures over all of it."""
    table = schema.table("job_params")
    updates = [insert_update(table, params(job)) for job in range(300)]
    with pytest.raises(WriteError) as caught:
        await client.write([*updates, insert_update(table, params(299))])
    assert [error.index for error in caught.value.errors] == [300]


async def test_a_full_table_says_so(server: BfRtServer, client: Client, schema: Schema) -> None:
    """RESOURCE_EXHAUSTED arrives as the update's own code."""
    server.faults.table_capacity["job_params"] = 1
    table = schema.table("job_params")
    with pytest.raises(WriteError) as caught:
        await client.write([insert_update(table, params(1)), insert_update(table, params(2))])
    assert caught.value.statuses() == {grpc.StatusCode.RESOURCE_EXHAUSTED}


async def test_wildcard_read_ends_with_the_default_entry(client: Client, schema: Schema) -> None:
    """All entries, then the default entry, which is marked as such."""
    table = schema.table("exp2")
    key: dict[str, KeyValue] = {"ig_md.lg": Ternary(0x8000, 0x8000), "$MATCH_PRIORITY": 3}
    await client.write([insert_update(table, Entry(key=key, action="Ingress.set_threshold", data={"thr": 9}))])
    entries = await client.read_entries(table, from_hw=True)
    assert [entry.is_default for entry in entries] == [False, True]
    assert dict(entries[0].key) == key


async def test_default_entry_is_set_by_modify(client: Client, schema: Schema) -> None:
    """ECMP hashing without source port is the default action's mask 0."""
    table = schema.table("ecmp_config")
    assert (await client.read_default(table, from_hw=True)).data == {"mask": 0xFFFF}
    await client.write([default_update(table, "Ingress.set_hash_sport", {"mask": 0})])
    assert (await client.read_default(table, from_hw=True)).data == {"mask": 0}


async def test_usage_counts_entries(client: Client, schema: Schema) -> None:
    """Several tables' usage in one RPC."""
    table = schema.table("job_params")
    await client.write([insert_update(table, params(job)) for job in (1, 2)])
    assert await client.usage([table, schema.table("job_classify")], from_hw=False) == [2, 0]


async def test_register_fields_are_lists_per_pipe(client: Client, schema: Schema, memory: MemoryBackend) -> None:
    """A write to one pipe leaves the others; a read gives every pipe's value."""
    table = schema.table("alpha")
    key = {"$REGISTER_INDEX": 5}
    one_pipe = modify_update(table, Entry(key=key, data={"Ingress.alpha.f1": 9}), pipe=2)
    with pytest.raises(WriteError, match="scope"):
        await client.write([one_pipe])
    await client.write([single_pipe_scope_update(table), one_pipe])
    (entry,) = await client.read_keys(table, [key], from_hw=True)
    assert entry is not None
    assert entry.pipes("Ingress.alpha.f1") == [1, 1, 9, 1]
    assert memory.registers["alpha"]["f1"][:, 5].tolist() == [1, 1, 9, 1]


async def test_from_hw_tells_shadow_and_hardware_apart(client: Client, schema: Schema, memory: MemoryBackend) -> None:
    """Without from_hw the driver's copy answers, until a Sync brings it up to date."""
    table = schema.table("alpha")
    key = {"$REGISTER_INDEX": 0}
    memory.registers["alpha"]["f1"][:, 0] = 7

    async def read(*, from_hw: bool) -> list[int]:
        (entry,) = await client.read_keys(table, [key], from_hw=from_hw)
        assert entry is not None
        return entry.pipes("Ingress.alpha.f1")

    assert await read(from_hw=False) == [1, 1, 1, 1]
    await client.write([operation_update(table, "Sync")])
    assert await read(from_hw=False) == [7, 7, 7, 7]
    memory.registers["alpha"]["f1"][:, 0] = 8
    assert await read(from_hw=True) == [8, 8, 8, 8]


async def test_bulk_blocks_equal_message_by_message_decoding(
    client: Client, schema: Schema, memory: MemoryBackend
) -> None:
    """Arrays cut out of the wire bytes hold what protobuf decodes, for several tables in one answer."""
    random = np.random.default_rng(1)
    for name, field in (("steps", "mn"), ("steps", "mx"), ("psn_rec", "f1"), ("window_start", "f1")):
        values = memory.registers[name][field]
        values[:] = random.integers(0, 1 << 32, values.shape)
    memory.counters["job_all"][:] = random.integers(0, 1 << 60, memory.counters["job_all"].shape)
    tables = [schema.table(name) for name in ("steps", "psn_rec", "window_start", "job_all")]
    raw = await client.read_raw(client.read_request([read_all(table, from_hw=True) for table in tables]))
    blocks = decode_blocks(raw)
    assert set(blocks) == {table.id for table in tables}
    for table in tables:
        block = blocks[table.id]
        entries = await client.read_entries(table, from_hw=True)
        (key,) = table.keys
        assert block.index.tolist() == [entry.key[key] for entry in entries]
        for name, spec in table.data.items():
            width_mask = (1 << spec.type.width) - 1
            expected = [[value & width_mask for value in entry.pipes(name)] for entry in entries]
            assert block.fields[spec.id].tolist() == expected


async def test_bulk_updates_write_every_index(client: Client, schema: Schema, memory: MemoryBackend) -> None:
    """Updates stamped from one stencil set their own index and value, in one pipe or in all."""
    table = schema.table("steps")
    index = np.array([0, 3, 1023], np.uint32)
    value = np.array([1, 0xFFFFFFFF, 0x80000001], np.uint32)
    await client.write([single_pipe_scope_update(table)])
    header = client.write_header().SerializeToString()
    for pipe in (1, ALL_PIPES):
        fields = {"Ingress.steps.mn": value, "Ingress.steps.mx": value[::-1]}
        await client.write_raw(header + encode_register_updates(table, index, fields, pipe))
        for at, low, high in zip(index, value, value[::-1], strict=True):
            pipes = slice(None) if pipe == ALL_PIPES else pipe
            assert (memory.registers["steps"]["mn"][pipes, at] == low).all()
            assert (memory.registers["steps"]["mx"][pipes, at] == high).all()
        if pipe == 1:
            assert memory.registers["steps"]["mn"][0, 3] == 0


@pytest.mark.parametrize("junk", [b"\xff" * 20, b"\x0a\x05ab", b"\x0a\x02\x08\x01", b"\x0a\x04\x0a\x02\x08\x01"])
def test_bulk_refuses_what_is_no_read_answer(junk: bytes) -> None:
    """Truncated or foreign bytes are an error with words, not an IndexError."""
    with pytest.raises(CodecError, match="answer"):
        decode_blocks(junk)


async def test_a_held_lock_is_waited_out(server: BfRtServer, client: Client, schema: Schema) -> None:
    """UNAVAILABLE because of the driver's lock is repeated until the lock is gone."""
    server.faults.locked = True
    reading = asyncio.create_task(client.usage([schema.table("job_params")], from_hw=False))
    await asyncio.sleep(0)
    done, _ = await asyncio.wait([reading], timeout=0.05)
    assert not done
    server.faults.locked = False
    assert await reading == [0]


async def test_a_lock_that_stays_is_reported_as_busy(server: BfRtServer, client: Client, schema: Schema) -> None:
    """Patience ends; the error says busy, not dead."""
    server.faults.locked = True
    client.timeout = 0.1
    with pytest.raises(SwitchBusyError):
        await client.usage([schema.table("job_params")], from_hw=False)


async def test_every_call_has_a_deadline(server: BfRtServer, client: Client, schema: Schema) -> None:
    """A switch that answers too slowly is as good as none."""
    server.faults.read_delay_s = 5.0
    client.timeout = 0.05
    with pytest.raises(SwitchUnavailableError, match="DEADLINE_EXCEEDED"):
        await client.usage([schema.table("job_params")], from_hw=False)


def test_unknown_names_list_what_there_is(schema: Schema) -> None:
    """Misspelt tables come with near ones, actions and fields with all there are."""
    with pytest.raises(SchemaError, match="near: job_params"):
        schema.table("job_param")
    table = schema.table("job_params")
    with pytest.raises(SchemaError, match="set_params"):
        insert_update(table, Entry(key={"ig_md.job": 1}, action="Ingress.set_parms", data=PARAMS))
    with pytest.raises(SchemaError, match="amax"):
        insert_update(table, Entry(key={"ig_md.job": 1}, action="Ingress.set_params", data=PARAMS | {"x": 1}))


def test_requests_are_checked_before_they_are_sent(schema: Schema) -> None:
    """Missing action data, wrong match kinds, over-wide values and table-wide deletes never leave."""
    table = schema.table("job_params")
    data = {name: value for name, value in PARAMS.items() if name != "amax"}
    with pytest.raises(CodecError, match="amax missing"):
        insert_update(table, Entry(key={"ig_md.job": 1}, action="Ingress.set_params", data=data))
    with pytest.raises(CodecError, match="lg_k"):
        insert_update(table, params(1, lg_k=40000))
    with pytest.raises(CodecError, match="matched as Exact"):
        upsert_update(table, Entry(key={"ig_md.job": Ternary(1, 1)}, action="NoAction"))
    with pytest.raises(CodecError, match="prefix length"):
        delete_update(schema.table("ipv4_lpm"), {"hdr.ipv4.dst": Lpm(0, 33)})
    with pytest.raises(CodecError, match="clear all"):
        delete_update(table, {})


async def test_a_client_that_outlives_its_session_says_so(client: Client, schema: Schema, session: Session) -> None:
    """Whoever is between two requests when the connection is given up gets an error of ours, not gRPC's."""
    session.lose("a test")
    await session.wait_until(lambda: session.state is not SessionState.READY, timeout=10)
    with pytest.raises(SwitchUnavailableError, match="the session ended"):
        await client.read_entries(schema.table("job_params"), from_hw=False)
    with pytest.raises(SwitchUnavailableError, match="the session ended"):
        await client.write([insert_update(schema.table("job_params"), params(1))])
