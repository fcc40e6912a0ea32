# SPDX-License-Identifier: Apache-2.0
"""Match tables: keys, data, default entries, usage, handles, snapshots (bfrt-facts: Semantics)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pytest

from fabric_twin.bfrt_server import TableSnapshot
from switch_agent import bfrt_proto as p

if TYPE_CHECKING:
    from conftest import Lab, Raw

INSERT, MODIFY, DELETE = p.Update.INSERT, p.Update.MODIFY, p.Update.DELETE
PARAMS = {
    "scope_mask": 0,
    "gate": 1,
    "lg_k": 0xF95B,
    "lg_floor": 0,
    "d_op": 192,
    "d_oth": 0xFFFFFFC0,
    "n_sample": 8,
    "neg_window": 0xFFFFFE79,
    "warmup": 4096,
    "amax": 128,
}


def params(raw: Raw, job: int, **changes: int) -> p.TableEntry:
    """A job_params entry."""
    return raw.n.entry(
        "job_params",
        raw.n.key("job_params", ig_md__job=job),
        raw.n.data("job_params", "set_params", **{**PARAMS, **changes}),
    )


def classify(raw: Raw, src: int, mask: int, *, priority: int = 1, job: int = 7) -> p.TableEntry:
    """A job_classify entry."""
    key = raw.n.key(
        "job_classify",
        hdr__ipv4__src=("ternary", src, mask),
        hdr__ipv4__dst=("ternary", 0, 0),
        hdr__udp__sport=("ternary", 0xC400, 0xFC00),
        S_MATCH_PRIORITY=priority,
    )
    return raw.n.entry("job_classify", key, raw.n.data("job_classify", "set_job", job=job, state=job))


async def refused(lab: Lab, call: Any) -> list[int]:
    """Canonical codes of a failing batch."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() == grpc.StatusCode.UNKNOWN
    return lab.failure(caught.value).codes


async def test_an_entry_reads_back_as_written(client: Raw) -> None:
    """Key with masks and priority, action, data in order, exact widths."""
    entry = classify(client, 0x0A000001, 0xFFFFFFFF)
    await client.insert(entry)
    got = (await client.read(client.n.entry("job_classify", entry.key)))[0].table_entry
    assert (got.table_id, got.key, got.data) == (entry.table_id, entry.key, entry.data)
    assert not got.is_default_entry
    assert [len(field.stream) for field in got.data.fields] == [2, 2]


async def test_insert_twice_and_modify_or_delete_of_nothing(client: Raw, lab: Lab) -> None:
    """ALREADY_EXISTS, and NOT_FOUND twice."""
    await client.insert(params(client, 1))
    assert await refused(lab, client.insert(params(client, 1))) == [6]
    assert await refused(lab, client.write(lab.put(params(client, 2), MODIFY))) == [5]
    assert await refused(lab, client.write(lab.put(params(client, 2), DELETE))) == [5]


async def test_bits_under_a_zero_mask_do_not_make_another_entry(client: Raw, lab: Lab) -> None:
    """Ternary identity is value & mask, mask and priority."""
    await client.insert(classify(client, 0x0A000001, 0xFFFFFF00))
    assert await refused(lab, client.insert(classify(client, 0x0A0000FF, 0xFFFFFF00))) == [6]
    await client.insert(classify(client, 0x0A0000FF, 0xFFFFFF00, priority=2))
    assert len(lab.backend.tables["job_classify"].entries) == 2


async def test_modify_replaces_the_data(client: Raw, lab: Lab) -> None:
    """All fields of the action come from the request."""
    await client.insert(params(client, 1))
    await client.write(lab.put(params(client, 1, amax=5), MODIFY))
    entry = lab.backend.tables["job_params"].entries[0]
    assert entry.data == {**PARAMS, "amax": 5}
    assert (entry.key, entry.action) == ({"ig_md.job": 1}, "Ingress.set_params")


async def test_a_missing_action_field_is_invalid_also_in_modify(client: Raw, lab: Lab) -> None:
    """Patching k alone means sending all values (p4-findings 13)."""
    await client.insert(params(client, 1))
    entry = params(client, 1)
    del entry.data.fields[3]
    assert await refused(lab, client.write(lab.put(entry, MODIFY))) == [3]


@pytest.mark.parametrize(
    ("stream", "word"),
    [(b"\x01", "1 bytes given"), (b"\x00\x00\x01", "3 bytes given"), (b"", "0 bytes given")],
)
async def test_integers_have_the_exact_width(client: Raw, lab: Lab, stream: bytes, word: str) -> None:
    """Not shorter, not longer (ES6); the message says what was expected."""
    entry = params(client, 1)
    entry.key.fields[0].exact.value = stream
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.insert(entry)
    error = lab.failure(caught.value).errors[0]
    assert error.canonical_code == 3
    assert word in error.message
    assert "ig_md.job" in error.message


async def test_bits_beyond_the_width_are_invalid(client: Raw, lab: Lab) -> None:
    """9-bit port in two bytes: 0x1ff is the end; 1-bit flag in one byte."""
    key = client.n.key(
        "red_profile",
        eg_intr_md__egress_port=("ternary", 0x1FF, 0x1FF),
        eg_intr_md__deq_qdepth=("range", 1, 0x7FFFF),
        S_MATCH_PRIORITY=1,
    )
    entry = client.n.entry("red_profile", key, client.n.data("red_profile", "set_red", prob=1, busy=1))
    await client.insert(entry)
    entry.key.fields[0].ternary.value = b"\x02\x00"
    assert await refused(lab, client.insert(entry)) == [3]
    entry.key.fields[0].ternary.value = b"\x00\x01"
    entry.data.fields[1].stream = b"\x02"
    assert await refused(lab, client.insert(entry)) == [3]
    stored = lab.backend.tables["red_profile"].entries[0]
    assert stored.key["eg_intr_md.deq_qdepth"] == (1, 0x7FFFF)
    assert stored.priority == 1


async def test_128_bit_keys(client: Raw, lab: Lab) -> None:
    """IPv6 addresses travel whole."""
    address = 0x20010DB8_00000000_00000000_00000001
    await client.insert(
        client.n.entry("nexthop6", client.n.key("nexthop6", S_ACTION_MEMBER_ID=1), client.n.data("nexthop6", "drop")),
        client.n.entry(
            "ipv6_lpm",
            client.n.key("ipv6_lpm", hdr__ipv6__dst=("lpm", address, 64)),
            client.n.data("ipv6_lpm", S_ACTION_MEMBER_ID=1),
        ),
    )
    assert lab.backend.tables["ipv6_lpm"].entries[0].key == {"hdr.ipv6.dst": (address, 64)}


async def test_malformed_keys(client: Raw, lab: Lab) -> None:
    """Wrong match type, unknown field, absent exact field, prefix too long, empty range."""
    wrong = params(client, 1)
    wrong.key.fields[0].ternary.value = b"\x00\x01"
    unknown = params(client, 1)
    unknown.key.fields[0].field_id = 99
    absent = classify(client, 1, 1)
    del absent.key.fields[3]
    prefix = client.n.entry(
        "ipv4_lpm",
        client.n.key("ipv4_lpm", hdr__ipv4__dst=("lpm", 1, 33)),
        client.n.data("ipv4_lpm", S_ACTION_MEMBER_ID=1),
    )
    empty = client.n.entry(
        "red_profile",
        client.n.key("red_profile", eg_intr_md__deq_qdepth=("range", 2, 1), S_MATCH_PRIORITY=1),
        client.n.data("red_profile", "set_red", prob=1, busy=1),
    )
    assert await refused(lab, client.insert(wrong, unknown, absent, prefix, empty)) == [3] * 5


async def test_absent_ternary_and_range_fields_match_anything(client: Raw, lab: Lab) -> None:
    """Only exact fields must be there."""
    key = client.n.key("red_profile", S_MATCH_PRIORITY=3)
    await client.insert(client.n.entry("red_profile", key, client.n.data("red_profile", "set_red", prob=1, busy=0)))
    assert lab.backend.tables["red_profile"].entries[0].key == {
        "eg_intr_md.egress_port": (0, 0),
        "eg_intr_md.deq_qdepth": (0, 0x7FFFF),
    }


async def test_insert_and_modify_need_key_and_data(client: Raw, lab: Lab) -> None:
    """INVALID_ARGUMENT each; unknown actions and fields too."""
    full = params(client, 1)
    no_data = p.TableEntry(table_id=full.table_id, key=full.key)
    no_key = p.TableEntry(table_id=full.table_id, data=full.data)
    no_action, no_field, twice = params(client, 1), params(client, 1), params(client, 1)
    no_action.data.action_id = 1
    no_field.data.fields[0].field_id = 99
    twice.data.fields.append(twice.data.fields[0])
    assert await refused(lab, client.insert(no_data, no_key, no_action, no_field, twice)) == [3] * 5


async def test_an_unknown_table_is_not_found(client: Raw, lab: Lab) -> None:
    """As a nested error of that update."""
    assert await refused(lab, client.insert(p.TableEntry(table_id=12345))) == [5]
    assert await refused(lab, client.read(p.TableEntry(table_id=12345))) == [5]


async def test_constant_tables_cannot_be_written_but_read(client: Raw, lab: Lab) -> None:
    """alpha_update has three constant entries and a default of the program."""
    table = client.n.id("alpha_update")
    assert await refused(lab, client.write(lab.put(p.TableEntry(table_id=table), DELETE))) == [3]
    entities = await client.read(p.TableEntry(table_id=table))
    assert [e.table_entry.is_default_entry for e in entities] == [False] * 3 + [True]


# -------------------------------------------------------------------------------------- default entries


async def test_read_all_ends_with_the_default_entry(client: Raw) -> None:
    """An empty table is no error."""
    entities = await client.read(client.n.entry("job_params"))
    assert [e.table_entry.is_default_entry for e in entities] == [True]
    await client.insert(params(client, 1), params(client, 2))
    entities = await client.read(client.n.entry("job_params"))
    assert [e.table_entry.is_default_entry for e in entities] == [False, False, True]


async def test_the_default_entry_is_set_with_modify_and_reset_with_delete(client: Raw, lab: Lab) -> None:
    """ecmp_config hashes with the source port (mask 0xffff) unless told otherwise."""

    async def mask() -> int:
        entry = p.TableEntry(table_id=client.n.id("ecmp_config"), is_default_entry=True)
        return int(client.n.show((await client.read(entry))[0])["mask"][0])

    assert await mask() == 0xFFFF
    entry = client.n.entry("ecmp_config", None, client.n.data("ecmp_config", "set_hash_sport", mask=0))
    entry.is_default_entry = True
    await client.write(lab.put(entry, MODIFY))
    assert await mask() == 0
    assert lab.backend.tables["ecmp_config"].default == ("Ingress.set_hash_sport", {"mask": 0})
    await client.write(lab.put(p.TableEntry(table_id=entry.table_id, is_default_entry=True), DELETE))
    assert await mask() == 0xFFFF


async def test_bad_writes_of_default_entries(client: Raw, lab: Lab) -> None:
    """INSERT is UNIMPLEMENTED, a key is INVALID_ARGUMENT, constant defaults cannot be changed."""
    entry = client.n.entry("ecmp_config", None, client.n.data("ecmp_config", "set_hash_sport", mask=0))
    entry.is_default_entry = True
    assert await refused(lab, client.insert(entry)) == [12]
    keyed = params(client, 1)
    keyed.is_default_entry = True
    assert await refused(lab, client.write(lab.put(keyed, MODIFY))) == [3]
    keyed.ClearField("key")
    assert await refused(lab, client.write(lab.put(keyed, MODIFY))) == [3]


async def test_a_table_without_key_takes_no_entries(client: Raw, lab: Lab) -> None:
    """ecmp_config has a default entry only."""
    entry = client.n.entry("ecmp_config", p.TableKey(), client.n.data("ecmp_config", "set_hash_sport", mask=0))
    assert await refused(lab, client.insert(entry)) == [3]


# -------------------------------------------------------------- whole table, filters, usage and handles


async def test_delete_without_key_clears_the_table(client: Raw, lab: Lab) -> None:
    """All entries, not the default."""
    await client.insert(*(params(client, job) for job in range(5)))
    await client.write(lab.put(client.n.entry("job_params"), DELETE))
    assert lab.backend.tables["job_params"].entries == ()
    assert len(await client.read(client.n.entry("job_params"))) == 1


async def test_usage_counts_entries(client: Raw) -> None:
    """The default entry is none."""
    await client.insert(*(params(client, job) for job in range(5)))
    ask = p.Entity(table_usage=p.TableUsage(table_id=client.n.id("job_params")))
    assert (await client.read(ask))[0].table_usage.usage == 5


async def test_read_filters(client: Raw) -> None:
    """data.action_id keeps entries with that action, data.fields those fields, key_only none."""
    await client.insert(classify(client, 1, 0xFF), classify(client, 2, 0xFF))
    nothing = client.n.entry(
        "job_classify", data=p.TableData(action_id=client.n.action("job_classify", "NoAction")["id"])
    )
    entities = await client.read(nothing)
    assert [e.table_entry.is_default_entry for e in entities] == [True]
    action = client.n.action("job_classify", "set_job")["id"]
    some = client.n.entry("job_classify", data=p.TableData(action_id=action, fields=[p.DataField(field_id=2)]))
    assert [client.n.show(e) for e in await client.read(some)] == [{"state": [7]}] * 2
    keys = client.n.entry("job_classify")
    keys.table_flags.key_only = True
    answers = await client.read(keys)
    assert len(answers) == 3
    assert not any(e.table_entry.HasField("data") for e in answers)


async def test_entries_have_handles(client: Raw, lab: Lab) -> None:
    """A handle reads, modifies and deletes like the key."""
    await client.insert(params(client, 1), params(client, 2))
    key = params(client, 2).key
    ask = p.Entity(handle=p.HandleId(table_id=client.n.id("job_params"), key=key))
    handle = (await client.read(ask))[0].handle.handle_id
    by_handle = p.TableEntry(table_id=client.n.id("job_params"), handle_id=handle)
    assert (await client.read(by_handle))[0].table_entry.key == key
    await client.write(lab.put(by_handle, DELETE))
    assert [e.key["ig_md.job"] for e in lab.backend.tables["job_params"].entries] == [1]
    assert await refused(lab, client.read(by_handle)) == [5]


async def test_object_ids_by_name(client: Raw, lab: Lab) -> None:
    """Tables (also by suffix), actions, key and data fields."""

    async def look_up(table: str, **names: Any) -> int:
        ask = p.Entity(object_id=p.ObjectId(table_object=p.ObjectId.TableObject(table_name=table, **names)))
        return (await client.read(ask))[0].object_id.id

    full, o = "pipe.Ingress.job_params", p.ObjectId
    assert await look_up(full) == await look_up("job_params") == client.n.id("job_params")
    action = await look_up(full, action_name=o.ActionName(action="Ingress.set_params"))
    assert action == client.n.action("job_params", "set_params")["id"]
    assert await look_up(full, key_field_name=o.KeyFieldName(field="ig_md.job")) == 1
    named = o.DataFieldName(action="Ingress.set_params", field="amax")
    assert await look_up(full, data_field_name=named) == 10
    assert await look_up("$PORT", data_field_name=o.DataFieldName(field="$SPEED")) == 1
    for wrong in (look_up("nope"), look_up(full, key_field_name=o.KeyFieldName(field="nope"))):
        assert await refused(lab, wrong) == [5]


async def test_tables_that_are_not_emulated_say_so(client: Raw, lab: Lab) -> None:
    """Snapshots, port metadata and the like: UNIMPLEMENTED with the table's name."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.read(client.n.entry("snapshot.cfg"))
    error = lab.failure(caught.value).errors[0]
    assert error.canonical_code == 12
    assert "snapshot.cfg" in error.message


async def test_deleting_all_entries_resets_the_default_entry(client: Raw, lab: Lab) -> None:
    """As the driver does it; a roll-back brings both back."""
    default = client.n.entry("ecmp_config", None, client.n.data("ecmp_config", "set_hash_sport", mask=0))
    default.is_default_entry = True
    await client.write(lab.put(default, p.Update.MODIFY))
    clear = lab.put(client.n.entry("ecmp_config"), p.Update.DELETE)
    wrong = lab.put(params(client, 1), p.Update.MODIFY)
    assert await refused(lab, client.write(clear, wrong, atomicity=p.WriteRequest.ROLLBACK_ON_ERROR)) == [0, 5]
    assert lab.server.snapshot("ecmp_config").default == ("Ingress.set_hash_sport", {"mask": 0})
    await client.write(clear)
    assert lab.backend.tables["ecmp_config"].default == ("Ingress.set_hash_sport", {"mask": 0xFFFF})


@pytest.mark.parametrize("table", ["nexthop", "ecmp", "steps", "job_all", "$PORT"])
async def test_tables_without_a_default_entry_show_none_and_cannot_reset_it(client: Raw, lab: Lab, table: str) -> None:
    """An empty answer, not a failure; DELETE of it: UNIMPLEMENTED."""
    entry = client.n.entry(table)
    entry.is_default_entry = True
    assert await client.read(entry) == []
    assert await refused(lab, client.write(lab.put(entry, p.Update.DELETE))) == [12]


async def test_the_default_entry_of_a_table_with_constant_entries_can_be_reset(client: Raw, lab: Lab) -> None:
    """Its entries cannot be deleted: INVALID_ARGUMENT."""
    entry = client.n.entry("alpha_update")
    assert await refused(lab, client.write(lab.put(entry, p.Update.DELETE))) == [3]
    entry.is_default_entry = True
    await client.write(lab.put(entry, p.Update.DELETE))


async def test_answers_name_the_target_when_the_entry_asked_for_does(client: Raw, lab: Lab) -> None:
    """entry_tgt comes back on each entry, of match tables, registers and counters."""
    await client.insert(params(client, 1))
    target = p.TargetDevice(pipe_id=0xFFFF, direction=0xFF, prsr_id=0xFF)
    for table in ("job_params", "steps", "job_all"):
        entry = client.n.entry(table)
        assert not any(e.table_entry.HasField("entry_tgt") for e in await client.read(entry))
        entry.entry_tgt.CopyFrom(target)
        assert all(e.table_entry.entry_tgt == target for e in await client.read(entry))


@pytest.mark.parametrize("table", ["steps", "job_all"])
async def test_registers_and_counters_have_no_usage_but_handles(client: Raw, lab: Lab, table: str) -> None:
    """Usage: UNIMPLEMENTED. The handle of an index is the index."""
    assert await refused(lab, client.read(p.Entity(table_usage=p.TableUsage(table_id=client.n.id(table))))) == [12]
    key = client.n.index(table, 9).key
    answer = await client.read(p.Entity(handle=p.HandleId(table_id=client.n.id(table), key=key)))
    assert answer[0].handle.handle_id == 9
    by_handle = p.TableEntry(table_id=client.n.id(table), handle_id=9)
    assert await client.read(by_handle) == await client.read(client.n.index(table, 9))


async def test_the_data_plane_hears_of_each_changed_table_once_per_write(
    client: Raw, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And gets every table once at the start."""
    assert lab.backend.tables["job_params"].default == ("NoAction", {})
    told: list[tuple[str, int]] = []

    def listen(table: str, entries: TableSnapshot) -> None:
        told.append((table, len(entries.entries)))

    monkeypatch.setattr(lab.backend, "table_changed", listen)
    await client.insert(params(client, 1), params(client, 2), classify(client, 1, 1))
    assert told == [("job_params", 2), ("job_classify", 1)]
    await client.read(params(client, 1))
    assert len(told) == 2
    assert len(lab.server.snapshot("job_params").entries) == 2
