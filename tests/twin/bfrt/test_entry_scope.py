# SPDX-License-Identifier: Apache-2.0
"""Entry scope of match tables: entries of their own for each pipe, or for sets of pipes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pytest

from switch_agent import bfrt_proto as p

if TYPE_CHECKING:
    from conftest import Lab, Raw

HALVES = 0xC03  # pipes {0, 1} and {2, 3}


async def refused(lab: Lab, call: Any) -> list[int]:
    """Canonical codes of a failing batch."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return lab.failure(caught.value).codes


def scope(raw: Raw, table: str, mode: p.Mode) -> p.Update:
    """The update that sets the pipe scope."""
    attribute = p.TableAttribute(table_id=raw.n.id(table), entry_scope=p.EntryScope(pipe_scope=mode))
    return p.Update(type=p.Update.INSERT, entity=p.Entity(table_attribute=attribute))


SINGLE = p.Mode(predef=p.Mode.SINGLE)


def params(raw: Raw, job: int, warmup: int = 0) -> p.TableEntry:
    """A job_params entry."""
    names = [node["name"] for node in raw.n.action("job_params", "set_params")["data"]]
    data = raw.n.data("job_params", "set_params", **{**dict.fromkeys(names, 0), "warmup": warmup})
    return raw.n.entry("job_params", raw.n.key("job_params", ig_md__job=job), data)


async def jobs(raw: Raw, target: p.TargetDevice) -> list[int]:
    """Job_IDs of the entries that a read of all shows."""
    entities = await raw.read(raw.n.entry("job_params"), target=target)
    keys = [e.table_entry.key for e in entities if not e.table_entry.is_default_entry]
    return [int.from_bytes(key.fields[0].exact.value, "big") for key in keys]


async def test_without_a_scope_entries_are_written_for_all_pipes_and_read_through_any(client: Raw, lab: Lab) -> None:
    """INVALID_ARGUMENT for a write of one pipe; a keyed read of one pipe shows what all have."""
    assert await refused(lab, client.insert(params(client, 1), target=lab.pipe(0))) == [3]
    await client.insert(params(client, 1))
    key = client.n.entry("job_params", params(client, 1).key)
    assert len(await client.read(key, target=lab.pipe(2))) == 1
    assert await refused(lab, client.read(key, target=lab.pipe(4))) == [3]


async def test_single_scope_keeps_the_pipes_apart(client: Raw, lab: Lab) -> None:
    """Same key in two pipes, with other data; usage counts the pipes asked for; deleting one leaves the other."""
    await client.write(scope(client, "job_params", SINGLE))
    for pipe, warmup in ((0, 10), (1, 11)):
        await client.insert(params(client, 1, warmup), target=lab.pipe(pipe))
    await client.insert(params(client, 2), target=lab.pipe(1))
    assert [await jobs(client, lab.pipe(pipe)) for pipe in range(4)] == [[1], [1, 2], [], []]
    assert await jobs(client, p.TargetDevice(pipe_id=0xFFFF)) == [1, 1, 2]
    usage = p.Entity(table_usage=p.TableUsage(table_id=client.n.id("job_params")))
    counts = [(await client.read(usage, target=t))[0].table_usage.usage for t in (lab.pipe(1), lab.pipe(2))]
    assert counts == [2, 0]
    found = (await client.read(client.n.entry("job_params", params(client, 1).key), target=lab.pipe(1)))[0]
    assert client.n.show(found)["warmup"] == [11]
    await client.write(
        lab.put(client.n.entry("job_params", params(client, 1).key), p.Update.DELETE), target=lab.pipe(0)
    )
    assert [await jobs(client, lab.pipe(pipe)) for pipe in range(2)] == [[], [1, 2]]
    await client.write(lab.put(client.n.entry("job_params"), p.Update.DELETE))
    assert await jobs(client, p.TargetDevice(pipe_id=0xFFFF)) == []


async def test_all_pipes_at_once_is_no_target_for_a_key_of_a_scoped_table(client: Raw, lab: Lab) -> None:
    """INSERT: INVALID_ARGUMENT; what looks for a key: NOT_FOUND; the default entry: INVALID_ARGUMENT."""
    await client.write(scope(client, "job_params", SINGLE))
    await client.insert(params(client, 1), target=lab.pipe(0))
    key = client.n.entry("job_params", params(client, 1).key)
    assert await refused(lab, client.insert(params(client, 2))) == [3]
    for call in (
        client.read(key),
        client.write(lab.put(key, p.Update.DELETE)),
        client.write(lab.put(params(client, 1), p.Update.MODIFY)),
    ):
        assert await refused(lab, call) == [5]
    default = p.TableEntry(table_id=client.n.id("job_params"), is_default_entry=True)
    assert await refused(lab, client.read(default)) == [3]
    assert len(await client.read(default, target=lab.pipe(3))) == 1


async def test_pipes_have_default_entries_of_their_own(client: Raw, lab: Lab) -> None:
    """Set in one pipe, or in all with 0xffff; the data plane gets the default of each pipe."""
    await client.write(scope(client, "ecmp_config", SINGLE))
    entry = client.n.entry("ecmp_config", None, client.n.data("ecmp_config", "set_hash_sport", mask=0))
    entry.is_default_entry = True
    await client.write(lab.put(entry, p.Update.MODIFY), target=lab.pipe(2))
    snapshot = lab.backend.tables["ecmp_config"]
    assert [pipe.default[1]["mask"] for pipe in snapshot.pipes if pipe.default] == [0xFFFF, 0xFFFF, 0, 0xFFFF]
    await client.write(lab.put(entry, p.Update.MODIFY))
    assert [pipe.default[1]["mask"] for pipe in lab.backend.tables["ecmp_config"].pipes if pipe.default] == [0] * 4


async def test_the_data_plane_gets_each_pipe_s_entries_and_those_that_all_have_alike(client: Raw, lab: Lab) -> None:
    """An entry with other data in one pipe is not alike."""
    await client.write(scope(client, "job_params", SINGLE))
    for pipe in range(4):
        await client.insert(params(client, 1), params(client, 2, pipe), target=lab.pipe(pipe))
    await client.insert(params(client, 3), target=lab.pipe(3))
    snapshot = lab.backend.tables["job_params"]
    assert [entry.key["ig_md.job"] for entry in snapshot.entries] == [1]
    assert [len(pipe.entries) for pipe in snapshot.pipes] == [2, 2, 2, 3]


async def test_user_defined_scopes_share_entries_between_their_pipes(client: Raw, lab: Lab) -> None:
    """Written with the lowest pipe of a scope only, read with any of them; read back as it was given."""
    await client.write(scope(client, "job_params", p.Mode(user_defined=HALVES)))
    await client.insert(params(client, 1), target=lab.pipe(2))
    assert await refused(lab, client.insert(params(client, 2), target=lab.pipe(3))) == [3]
    assert [await jobs(client, lab.pipe(pipe)) for pipe in range(4)] == [[], [], [1], [1]]
    ask = p.TableAttribute(table_id=client.n.id("job_params"), entry_scope=p.EntryScope())
    shown = (await client.read(p.Entity(table_attribute=ask)))[0].table_attribute.entry_scope
    assert (shown.pipe_scope.user_defined, shown.prsr_scope.args) == (HALVES, 0xFF)


@pytest.mark.parametrize(
    "wrong",
    [
        p.EntryScope(),
        p.EntryScope(pipe_scope=p.Mode()),
        p.EntryScope(pipe_scope=SINGLE, gress_scope=SINGLE),
        p.EntryScope(pipe_scope=p.Mode(user_defined=0)),
        p.EntryScope(pipe_scope=p.Mode(user_defined=0x0303)),
        p.EntryScope(pipe_scope=p.Mode(user_defined=0x10)),
    ],
    ids=["nothing", "no-mode", "two-of-three", "no-pipe", "pipe-in-two-scopes", "pipe-4"],
)
async def test_a_scope_that_makes_no_sense_is_refused(client: Raw, lab: Lab, wrong: p.EntryScope) -> None:
    """INVALID_ARGUMENT."""
    attribute = p.TableAttribute(table_id=client.n.id("job_params"), entry_scope=wrong)
    update = p.Update(type=p.Update.INSERT, entity=p.Entity(table_attribute=attribute))
    assert await refused(lab, client.write(update)) == [3]


async def test_the_scope_changes_in_an_empty_table_only(client: Raw, lab: Lab) -> None:
    """UNIMPLEMENTED while there are entries, unless it is the scope that the table has."""
    await client.insert(params(client, 1))
    await client.write(scope(client, "job_params", p.Mode(predef=p.Mode.ALL)))
    assert await refused(lab, client.write(scope(client, "job_params", SINGLE))) == [12]


async def test_counters_profiles_and_selectors_have_no_scope_attribute(client: Raw, lab: Lab) -> None:
    """UNIMPLEMENTED; profile and selector follow their match table instead."""
    for table in ("job_all", "nexthop", "ecmp"):
        assert await refused(lab, client.write(scope(client, table, SINGLE))) == [12]


async def test_members_and_groups_are_per_pipe_with_their_match_table(client: Raw, lab: Lab) -> None:
    """A route of pipe 1 cannot use a member of pipe 0; a member is in use in its own pipe only."""
    await client.write(scope(client, "ipv4_lpm", SINGLE))
    forward = dict.fromkeys(("port", "smac", "dmac", "port_index"), 1)
    member = client.n.entry(
        "nexthop", client.n.key("nexthop", S_ACTION_MEMBER_ID=1), client.n.data("nexthop", "forward", **forward)
    )
    route = client.n.entry(
        "ipv4_lpm",
        client.n.key("ipv4_lpm", hdr__ipv4__dst=("lpm", 0x0A000000, 8)),
        client.n.data("ipv4_lpm", S_ACTION_MEMBER_ID=1),
    )
    await client.insert(member, target=lab.pipe(0))
    assert await refused(lab, client.insert(route, target=lab.pipe(1))) == [5]
    await client.insert(member, route, target=lab.pipe(1))
    clear = lab.put(client.n.entry("nexthop"), p.Update.DELETE)
    assert await refused(lab, client.write(clear, target=lab.pipe(1))) == [6]
    await client.write(clear, target=lab.pipe(0))


async def test_handles_name_entries_of_any_pipe(client: Raw, lab: Lab) -> None:
    """A key-only read by handle says in entry_tgt which pipe it is."""
    await client.write(scope(client, "job_params", SINGLE))
    for pipe in (0, 3):
        await client.insert(params(client, 1), target=lab.pipe(pipe))
    ask = p.Entity(handle=p.HandleId(table_id=client.n.id("job_params"), key=params(client, 1).key))
    handle = (await client.read(ask, target=lab.pipe(3)))[0].handle.handle_id
    entry = p.TableEntry(table_id=client.n.id("job_params"), handle_id=handle)
    entry.table_flags.key_only = True
    assert (await client.read(entry))[0].table_entry.entry_tgt.pipe_id == 3


async def test_a_rolled_back_batch_leaves_the_pipes_as_they_were(client: Raw, lab: Lab) -> None:
    """Entries, cleared pipes and defaults."""
    await client.write(scope(client, "job_params", SINGLE))
    await client.insert(params(client, 1), target=lab.pipe(0))
    await client.insert(params(client, 2), target=lab.pipe(1))
    clear = lab.put(client.n.entry("job_params"), p.Update.DELETE)
    wrong = lab.put(params(client, 9), p.Update.MODIFY)
    batch = client.write(clear, wrong, atomicity=p.WriteRequest.ROLLBACK_ON_ERROR)
    assert await refused(lab, batch) == [0, 5]
    assert [await jobs(client, lab.pipe(pipe)) for pipe in range(2)] == [[1], [2]]
