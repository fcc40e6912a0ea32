# SPDX-License-Identifier: Apache-2.0
"""Batches: atomicity, nested errors, metadata switches, deadlines (bfrt-facts: Errors)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest

from switch_agent import bfrt_proto as p

if TYPE_CHECKING:
    from conftest import Lab, Raw

DELETE, UPSERT = p.Update.DELETE, p.Update.INSERT_OR_MODIFY
ROLLBACK = p.WriteRequest.ROLLBACK_ON_ERROR


def hop(raw: Raw, member: int, port: int = 1) -> p.TableEntry:
    """A next hop."""
    data = raw.n.data("nexthop", "forward", port=port, port_index=0, smac=1, dmac=2)
    return raw.n.entry("nexthop", raw.n.key("nexthop", S_ACTION_MEMBER_ID=member), data)


def bad(raw: Raw, index: int = 4096) -> p.TableEntry:
    """An update that fails with INVALID_ARGUMENT."""
    return raw.n.index("alpha", index, f1=1)


def members(lab: Lab) -> list[object]:
    """Next hops that the data plane knows."""
    return [entry.key["$ACTION_MEMBER_ID"] for entry in lab.backend.tables["nexthop"].entries]


async def test_a_failing_update_makes_the_write_unknown_with_nested_errors(client: Raw, lab: Lab) -> None:
    """ES4: padding of code OK before the last failure, nothing after it; all updates are tried."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.insert(hop(client, 1), hop(client, 1), hop(client, 2), bad(client), hop(client, 3))
    failed = lab.failure(caught.value)
    assert (failed.code, failed.text) == (grpc.StatusCode.UNKNOWN, "Write Error Status")
    assert failed.codes == [0, 6, 0, 3]
    assert "nexthop" in failed.errors[1].message
    assert failed.errors[0] == p.Error()
    assert members(lab) == [1, 2, 3]


async def test_the_details_are_a_google_rpc_status_of_any_error(client: Raw) -> None:
    """code 2, the message again, and type.googleapis.com/bfrt_proto.Error inside."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.insert(bad(client))
    raw = dict(caught.value.trailing_metadata() or ())["grpc-status-details-bin"]
    status = p.Status.FromString(raw)
    assert (status.code, status.message) == (2, "Write Error Status")
    assert [detail.type_url for detail in status.details] == ["type.googleapis.com/bfrt_proto.Error"]


async def test_a_read_sends_its_data_before_the_error(client: Raw, lab: Lab) -> None:
    """One message with what was found, then UNKNOWN; entity i has detail i."""
    got: list[p.ReadResponse] = []
    entries = [client.n.index("alpha", 1), hop(client, 5), client.n.index("alpha", 2)]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.responses(*entries, into=got)
    failed = lab.failure(caught.value)
    assert (failed.code, failed.text, failed.codes) == (grpc.StatusCode.UNKNOWN, "Read Error Status", [0, 5])
    assert [len(response.entities) for response in got] == [2]


async def test_a_read_is_answered_with_exactly_one_message(client: Raw) -> None:
    """Also without entities."""
    assert len(await client.responses()) == 1
    assert len(await client.responses(client.n.entry("alpha"), client.n.entry("steps"))) == 1


async def test_rollback_stops_at_the_first_error_and_undoes(client: Raw, lab: Lab) -> None:
    """Inserts, modifications, deletions, defaults, registers: all as before; later updates are not tried."""
    await client.insert(hop(client, 1, port=1), hop(client, 2), client.n.index("alpha", 7, f1=70))
    lab.backend.registers["alpha"]["f1"][2, 7] = 71
    default = client.n.entry("ecmp_config", None, client.n.data("ecmp_config", "set_hash_sport", mask=0))
    default.is_default_entry = True
    before = dict(lab.backend.tables)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.write(
            lab.put(hop(client, 3)),
            lab.put(hop(client, 1, port=9), p.Update.MODIFY),
            lab.put(hop(client, 2), DELETE),
            lab.put(default, p.Update.MODIFY),
            lab.put(client.n.index("alpha", 7, f1=5)),
            lab.put(client.n.entry("alpha"), DELETE),
            lab.put(client.n.entry("nexthop"), DELETE),
            lab.put(bad(client)),
            lab.put(bad(client)),
            atomicity=ROLLBACK,
        )
    assert lab.failure(caught.value).codes == [0] * 7 + [3]
    assert lab.backend.tables == before
    assert {e.key["$ACTION_MEMBER_ID"] for e in lab.server.snapshot("nexthop").entries} == {1, 2}
    assert lab.server.snapshot("ecmp_config").default == ("Ingress.set_hash_sport", {"mask": 0xFFFF})
    assert lab.backend.registers["alpha"]["f1"][:, 7].tolist() == [70, 70, 71, 70]
    assert lab.backend.registers["alpha"]["f1"][:, 8].tolist() == [1] * 4
    shown = client.n.show((await client.read(client.n.entry("nexthop", hop(client, 1).key)))[0])
    assert shown["port"] == [1]


async def test_rollback_without_error_keeps_everything(client: Raw, lab: Lab) -> None:
    """It is a batch like any other then."""
    await client.write(lab.put(hop(client, 1)), lab.put(hop(client, 2)), atomicity=ROLLBACK)
    assert members(lab) == [1, 2]


async def test_dataplane_atomic_is_unimplemented(client: Raw, lab: Lab) -> None:
    """The whole call is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.write(lab.put(hop(client, 1)), atomicity=p.WriteRequest.DATAPLANE_ATOMIC)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert members(lab) == []


async def test_insert_or_modify_says_which_it_was(client: Raw, lab: Lab) -> None:
    """Modified: an Error with code ALREADY_EXISTS (6) and canonical code 0. Inserted: nothing."""
    assert not (await client.write(lab.put(hop(client, 1), UPSERT))).status
    answer = await client.write(lab.put(hop(client, 2), UPSERT), lab.put(hop(client, 1, port=4), UPSERT))
    assert [(error.code, error.canonical_code) for error in answer.status] == [(6, 0)]
    assert [entry.data["port"] for entry in lab.backend.tables["nexthop"].entries] == [4, 1]


async def test_error_in_resp_gives_one_error_per_update(client: Raw, lab: Lab) -> None:
    """In the response, as well as in the status."""
    flag = (("error_in_resp", "1"),)
    answer = await client.write(lab.put(hop(client, 1)), lab.put(hop(client, 1), UPSERT), metadata=flag)
    assert [(error.canonical_code, error.code) for error in answer.status] == [(0, 0), (0, 6)]
    got: list[p.ReadResponse] = []
    with pytest.raises(grpc.aio.AioRpcError):
        await client.responses(hop(client, 1), hop(client, 9), metadata=flag, into=got)
    assert [error.canonical_code for error in got[0].status] == [0, 5]


async def test_ignore_not_found_forgives_deletes_only(client: Raw, lab: Lab) -> None:
    """DELETE of nothing is fine, MODIFY of nothing is not."""
    flag = (("ignore_not_found", "1"),)
    await client.write(lab.put(hop(client, 9), DELETE), metadata=flag)
    with pytest.raises(grpc.aio.AioRpcError):
        await client.write(lab.put(hop(client, 9), p.Update.MODIFY), metadata=flag)
    with pytest.raises(grpc.aio.AioRpcError):
        await client.write(lab.put(hop(client, 9), DELETE), metadata=(("ignore_not_found", "0"),))


async def test_a_deadline_in_the_metadata(client: Raw, lab: Lab) -> None:
    """Passed: DEADLINE_EXCEEDED. Far away: no effect. Nonsense: INVALID_ARGUMENT."""
    late = (("deadline_sec", "0"), ("deadline_nsec", "0"))
    for call in (
        client.write(lab.put(hop(client, 1)), metadata=late),
        client.read(client.n.index("alpha", 1), metadata=late),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await client.write(lab.put(hop(client, 1)), metadata=(("deadline_sec", "60"),))
    for nonsense in ((("deadline_sec", "x"),), (("deadline_nsec", "1000000000"),)):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.write(lab.put(hop(client, 2)), metadata=nonsense)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_updates_that_make_no_sense(client: Raw, lab: Lab) -> None:
    """No type, no entity, usage in a Write, an operation with MODIFY, RESET and MODIFY_INC of match entries."""
    usage = p.Entity(table_usage=p.TableUsage(table_id=client.n.id("nexthop")))
    sync = p.Entity(table_operation=p.TableOperation(table_id=client.n.id("alpha"), table_operations_type="Sync"))
    await client.insert(hop(client, 1))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.write(
            lab.put(hop(client, 1), p.Update.UNSPECIFIED),
            p.Update(type=p.Update.INSERT),
            p.Update(type=p.Update.INSERT, entity=usage),
            p.Update(type=p.Update.MODIFY, entity=sync),
            lab.put(hop(client, 1), p.Update.RESET),
            lab.put(hop(client, 1), p.Update.MODIFY_INC),
        )
    assert lab.failure(caught.value).codes == [3, 12, 12, 3, 12, 12]


async def test_a_big_batch_and_its_errors_fit(client: Raw, lab: Lab) -> None:
    """Field-notes 53: 100 failures are more than gRPC's default 8 KiB of metadata."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.insert(*(bad(client, 5000 + i) for i in range(100)))
    assert lab.failure(caught.value).codes == [3] * 100


async def test_messages_may_be_larger_than_grpc_s_default(client: Raw, lab: Lab) -> None:
    """A Write of more than 4 MiB arrives."""
    updates = [lab.put(hop(client, 1), DELETE)] * 90_000
    await client.write(*updates, metadata=(("ignore_not_found", "1"),))


async def test_a_target_on_another_device_is_invalid(client: Raw, lab: Lab) -> None:
    """There is device 0 only."""
    other = p.TargetDevice(device_id=1, pipe_id=0xFFFF)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.insert(hop(client, 1), target=other)
    assert lab.failure(caught.value).codes == [3]
