# SPDX-License-Identifier: Apache-2.0
"""Registers and counters: one value per pipe, shadow against hardware, scope, clearing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import grpc
import numpy as np
import pytest

from switch_agent import bfrt_proto as p

if TYPE_CHECKING:
    from conftest import Lab, Raw

MODIFY, DELETE = p.Update.MODIFY, p.Update.DELETE


def single_scope(raw: Raw, table: str, mode: p.Mode.PredefinedMode = p.Mode.SINGLE) -> p.Update:
    """Set a table's pipe scope."""
    attribute = p.TableAttribute(table_id=raw.n.id(table))
    attribute.entry_scope.pipe_scope.predef = mode
    return p.Update(type=p.Update.INSERT, entity=p.Entity(table_attribute=attribute))


def operation(raw: Raw, table: str, word: str) -> p.Update:
    """Run a table operation."""
    entity = p.Entity(table_operation=p.TableOperation(table_id=raw.n.id(table), table_operations_type=word))
    return p.Update(type=p.Update.INSERT, entity=entity)


async def test_a_read_shows_all_pipes_of_the_first_field_then_of_the_second(client: Raw, lab: Lab) -> None:
    """One DataField per pipe with the same field_id, big-endian, size = width (ES6)."""
    lab.backend.registers["steps"]["mn"][:, 5] = [1, 2, 3, 4]
    lab.backend.registers["steps"]["mx"][:, 5] = [0xFFFFFFFF, 6, 7, 8]
    entry = client.n.index("steps", 5)
    entry.table_flags.from_hw = True
    answer = (await client.read(entry))[0].table_entry
    assert [field.field_id for field in answer.data.fields] == [1] * 4 + [2] * 4
    assert [field.stream.hex() for field in answer.data.fields[3:5]] == ["00000004", "ffffffff"]
    assert answer.key == entry.key
    assert answer.table_id == entry.table_id
    assert answer.data.action_id == 0


async def test_field_width_sets_the_number_of_bytes(client: Raw) -> None:
    """alpha is 16 bits: two bytes per pipe."""
    answer = (await client.read(client.n.index("alpha", 0)))[0].table_entry
    assert [field.stream for field in answer.data.fields] == [b"\x00\x01"] * 4


@pytest.mark.parametrize("kind", [p.Update.INSERT, MODIFY])
async def test_insert_and_modify_both_set_all_pipes(client: Raw, lab: Lab, kind: p.Update.Type) -> None:
    """Registers know no difference between the two; pipe 0xffff means all."""
    await client.write(lab.put(client.n.index("steps", 5, mn=7, mx=9), kind))
    assert lab.backend.registers["steps"]["mn"][:, 5].tolist() == [7] * 4
    assert lab.backend.registers["steps"]["mx"][:, 5].tolist() == [9] * 4


async def test_without_from_hw_a_read_answers_from_the_shadow(client: Raw, lab: Lab) -> None:
    """Field-notes 57: stale until somebody reads from hardware."""
    await client.insert(client.n.index("alpha", 4, f1=10))
    lab.backend.registers["alpha"]["f1"][:, 4] = [11, 12, 13, 14]
    name = "Ingress.alpha.f1"
    assert (await client.register("alpha", 4, from_hw=False))[name] == [10] * 4
    assert (await client.register("alpha", 4))[name] == [11, 12, 13, 14]
    assert (await client.register("alpha", 4, from_hw=False))[name] == [11, 12, 13, 14]


async def test_the_deprecated_read_flag_still_counts(client: Raw, lab: Lab) -> None:
    """table_read_flag is ORed in."""
    lab.backend.registers["alpha"]["f1"][:, 4] = 20
    entry = client.n.index("alpha", 4)
    entry.table_read_flag.from_hw = True
    assert client.n.show((await client.read(entry))[0])["Ingress.alpha.f1"] == [20] * 4


@pytest.mark.parametrize("word", ["Sync", "SyncRegisters"])
async def test_sync_refreshes_the_whole_shadow(client: Raw, lab: Lab, word: str) -> None:
    """After the operation, shadow reads are current."""
    lab.backend.registers["alpha"]["f1"][:] = 30
    await client.write(operation(client, "alpha", word))
    assert (await client.register("alpha", 1023, from_hw=False))["Ingress.alpha.f1"] == [30] * 4


@pytest.mark.parametrize(
    ("table", "word", "code"),
    [
        ("alpha", "SyncCounters", 12),
        ("job_all", "SyncRegisters", 12),
        ("job_params", "UpdateHitState", 12),
        ("alpha", "Explode", 3),
    ],
)
async def test_operations_a_table_lacks(client: Raw, lab: Lab, table: str, word: str, code: int) -> None:
    """UNIMPLEMENTED for known words on the wrong table, INVALID_ARGUMENT for unknown words."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.write(operation(client, table, word))
    assert lab.failure(caught.value).codes == [code]


async def test_reading_an_operation_is_unimplemented(client: Raw, lab: Lab) -> None:
    """TableOperation is for Write only."""
    entity = p.Entity(table_operation=p.TableOperation(table_id=client.n.id("alpha")))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.read(entity)
    assert lab.failure(caught.value).codes == [12]


@pytest.mark.parametrize("index", [1024, 0xFFFFFFFF])
async def test_an_index_beyond_the_size_is_invalid(client: Raw, lab: Lab, index: int) -> None:
    """For reads and for writes."""
    for call in (
        client.read(client.n.index("alpha", index)),
        client.insert(client.n.index("alpha", index, f1=1)),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert lab.failure(caught.value).codes == [3]
        assert "0..1023" in lab.failure(caught.value).errors[0].message


async def test_a_pipe_of_its_own_needs_single_scope(client: Raw, lab: Lab) -> None:
    """Scope ALL refuses one pipe; after SINGLE, reads show one value and writes touch one pipe."""
    entry = client.n.index("steps", 2, mn=5, mx=6)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.insert(entry, target=lab.pipe(1))
    assert lab.failure(caught.value).codes == [3]
    await client.write(single_scope(client, "steps"))
    await client.insert(entry, target=lab.pipe(1))
    assert lab.backend.registers["steps"]["mn"][:, 2].tolist() == [0, 5, 0, 0]
    one = client.n.show((await client.read(client.n.index("steps", 2), target=lab.pipe(1)))[0])
    assert one == {"Ingress.steps.mn": [5], "Ingress.steps.mx": [6]}
    every = client.n.show((await client.read(client.n.index("steps", 2)))[0])
    assert every == {"Ingress.steps.mn": [0, 5, 0, 0], "Ingress.steps.mx": [0, 6, 0, 0]}


async def test_a_pipe_that_does_not_exist_is_invalid(client: Raw, lab: Lab) -> None:
    """There are four."""
    await client.write(single_scope(client, "steps"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.read(client.n.index("steps", 2), target=lab.pipe(4))
    assert lab.failure(caught.value).codes == [3]


async def test_entry_tgt_replaces_the_target_of_the_request(client: Raw, lab: Lab) -> None:
    """All four fields of it."""
    await client.write(single_scope(client, "alpha"))
    entry = client.n.index("alpha", 2, f1=77)
    entry.entry_tgt.CopyFrom(lab.pipe(3))
    await client.insert(entry)
    assert lab.backend.registers["alpha"]["f1"][:, 2].tolist() == [1, 1, 1, 77]


async def test_the_scope_reads_back(client: Raw) -> None:
    """Read of TableAttribute with an empty entry_scope."""
    ask = p.Entity(table_attribute=p.TableAttribute(table_id=client.n.id("steps"), entry_scope=p.EntryScope()))
    before = (await client.read(ask))[0].table_attribute.entry_scope.pipe_scope.predef
    await client.write(single_scope(client, "steps"))
    after = (await client.read(ask))[0].table_attribute.entry_scope.pipe_scope.predef
    assert (before, after) == (p.Mode.ALL, p.Mode.SINGLE)


async def test_delete_without_key_goes_back_to_the_initial_value(client: Raw, lab: Lab) -> None:
    """alpha starts at 1 (constructor argument), the shadow with it."""
    await client.insert(client.n.index("alpha", 4, f1=10))
    await client.write(lab.put(client.n.entry("alpha"), DELETE))
    assert set(np.unique(lab.backend.registers["alpha"]["f1"]).tolist()) == {1}
    assert (await client.register("alpha", 4, from_hw=False))["Ingress.alpha.f1"] == [1] * 4


async def test_deleting_one_index_is_unimplemented(client: Raw, lab: Lab) -> None:
    """Registers have no entries that could go."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.write(lab.put(client.n.index("alpha", 4), DELETE))
    assert lab.failure(caught.value).codes == [12]


async def test_reading_without_key_gives_every_index(client: Raw, lab: Lab) -> None:
    """In order, as many as the table's size, equal to keyed reads, without a default entry."""
    values = np.arange(4 * 1024, dtype=np.uint64).reshape(4, 1024) * 1_000_003 % 2**32
    lab.backend.registers["steps"]["mn"][:] = values
    lab.backend.registers["steps"]["mx"][:] = values[::-1]
    entry = client.n.entry("steps")
    entry.table_flags.from_hw = True
    entities = await client.read(entry)
    assert len(entities) == 1024
    assert [e.table_entry.key for e in entities] == [client.n.index("steps", i).key for i in range(1024)]
    assert [client.n.show(e)["Ingress.steps.mn"] for e in entities] == values.T.tolist()
    assert [client.n.show(e)["Ingress.steps.mx"] for e in entities] == values[::-1].T.tolist()
    assert entities[17] == (await client.read(client.n.index("steps", 17)))[0]


async def test_a_read_may_ask_for_some_fields_only(client: Raw) -> None:
    """data.fields acts as a filter; an id that is none is INVALID_ARGUMENT."""
    entry = client.n.index("steps", 5)
    entry.data.fields.add(field_id=2)
    assert set(client.n.show((await client.read(entry))[0])) == {"Ingress.steps.mx"}
    entry.data.fields.add(field_id=9)
    with pytest.raises(grpc.aio.AioRpcError):
        await client.read(entry)


async def test_key_only_leaves_the_values_out(client: Raw) -> None:
    """table_flags.key_only."""
    entry = client.n.index("steps", 5)
    entry.table_flags.key_only = True
    assert not (await client.read(entry))[0].table_entry.data.fields


async def test_registers_have_no_usage(client: Raw, lab: Lab) -> None:
    """UNIMPLEMENTED, as for counters."""
    for table in ("alpha", "job_all"):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.read(p.Entity(table_usage=p.TableUsage(table_id=client.n.id(table))))
        assert lab.failure(caught.value).codes == [12]


async def test_a_wildcard_read_takes_milliseconds(client: Raw) -> None:
    """1024 indexes x 4 pipes x 2 fields, client and network included: far below a sampling interval."""
    entry = client.n.entry("steps")
    entry.table_flags.from_hw = True
    await client.responses(entry)
    best = 1.0
    for _ in range(5):
        start = time.perf_counter()
        await client.responses(entry)
        best = min(best, time.perf_counter() - start)
    assert best < 0.1


# --------------------------------------------------------------------------------------------- counters


async def test_counters_add_up_the_pipes(client: Raw, lab: Lab) -> None:
    """64 bits each; one value although four pipes count."""
    lab.backend.counters["job_all"][:, 3] = [(1, 100), (2, 200), (3, 300), (4, 2**40)]
    entry = client.n.index("job_all", 3)
    entry.table_flags.from_hw = True
    shown = client.n.show((await client.read(entry))[0])
    assert shown == {"$COUNTER_SPEC_BYTES": [600 + 2**40], "$COUNTER_SPEC_PKTS": [10]}


async def test_counter_reads_are_stale_until_synced(client: Raw, lab: Lab) -> None:
    """The same shadow as for registers."""
    lab.backend.counters["job_all"][0, 3] = (5, 50)
    entry = client.n.index("job_all", 3)
    assert client.n.show((await client.read(entry))[0])["$COUNTER_SPEC_PKTS"] == [0]
    await client.write(operation(client, "job_all", "SyncCounters"))
    assert client.n.show((await client.read(entry))[0])["$COUNTER_SPEC_PKTS"] == [5]


async def test_a_counter_can_be_set_and_read_back(client: Raw, lab: Lab) -> None:
    """What was written is what a read says, not four times as much."""
    await client.insert(client.n.index("job_all", 3, S_COUNTER_SPEC_PKTS=7, S_COUNTER_SPEC_BYTES=70))
    entry = client.n.index("job_all", 3)
    entry.table_flags.from_hw = True
    assert client.n.show((await client.read(entry))[0]) == {
        "$COUNTER_SPEC_BYTES": [70],
        "$COUNTER_SPEC_PKTS": [7],
    }


async def test_clearing_a_counter_table(client: Raw, lab: Lab) -> None:
    """DELETE without key."""
    lab.backend.counters["job_all"][:, 3:7] = 5
    await client.write(lab.put(client.n.entry("job_all"), DELETE))
    assert not lab.backend.counters["job_all"].any()


async def test_a_batch_of_keyed_reads_keeps_its_order(client: Raw, lab: Lab) -> None:
    """The common case of an agent: some indexes of several registers in one Read."""
    lab.backend.registers["alpha"]["f1"][:, 9] = 9
    entries = [client.n.index("steps", 1), client.n.index("alpha", 9), client.n.index("job_all", 1)]
    for entry in entries:
        entry.table_flags.from_hw = True
    answers = await client.read(*entries)
    assert [a.table_entry.table_id for a in answers] == [e.table_id for e in entries]
    assert client.n.show(answers[1])["Ingress.alpha.f1"] == [9] * 4
