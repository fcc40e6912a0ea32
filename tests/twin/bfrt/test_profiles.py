# SPDX-License-Identifier: Apache-2.0
"""ECMP: routes point to a member or to a group, groups to members, and nothing in use can go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pytest

from switch_agent import bfrt_proto as p

if TYPE_CHECKING:
    from conftest import Lab, Raw

DELETE, MODIFY, INC = p.Update.DELETE, p.Update.MODIFY, p.Update.MODIFY_INC


def member(raw: Raw, number: int) -> p.TableEntry:
    """A next hop."""
    data = raw.n.data("nexthop", "forward", port=number, port_index=number, smac=1, dmac=2)
    return raw.n.entry("nexthop", raw.n.key("nexthop", S_ACTION_MEMBER_ID=number), data)


def group(raw: Raw, number: int, members: list[int], **more: Any) -> p.TableEntry:
    """An ECMP group."""
    status = more.pop("status", [True] * len(members))
    data = raw.n.data("Ingress.ecmp", S_ACTION_MEMBER_ID=members, S_ACTION_MEMBER_STATUS=status, **more)
    return raw.n.entry("Ingress.ecmp", raw.n.key("Ingress.ecmp", S_SELECTOR_GROUP_ID=number), data)


def route(raw: Raw, address: int, prefix: int, **to: int) -> p.TableEntry:
    """An IPv4 route."""
    key = raw.n.key("ipv4_lpm", hdr__ipv4__dst=("lpm", address, prefix))
    return raw.n.entry("ipv4_lpm", key, raw.n.data("ipv4_lpm", None, **to))


async def codes(lab: Lab, call: Any) -> list[int]:
    """Canonical codes of a failing batch."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return lab.failure(caught.value).codes


async def test_routes_groups_and_members_reach_the_data_plane(client: Raw, lab: Lab) -> None:
    """The snapshots hold ids and lists; short table names."""
    await client.insert(
        member(client, 1),
        member(client, 2),
        group(client, 5, [1, 2]),
        route(client, 0x0A000000, 24, S_SELECTOR_GROUP_ID=5),
        route(client, 0x0A000001, 32, S_ACTION_MEMBER_ID=1),
    )
    tables = lab.backend.tables
    assert [e.data for e in tables["ipv4_lpm"].entries] == [{"$SELECTOR_GROUP_ID": 5}, {"$ACTION_MEMBER_ID": 1}]
    assert [e.key for e in tables["ipv4_lpm"].entries] == [
        {"hdr.ipv4.dst": (0x0A000000, 24)},
        {"hdr.ipv4.dst": (0x0A000001, 32)},
    ]
    assert tables["ecmp"].entries[0].data["$ACTION_MEMBER_ID"] == [1, 2]
    assert tables["ecmp"].entries[0].data["$MAX_GROUP_SIZE"] == 64
    assert [e.action for e in tables["nexthop"].entries] == ["Ingress.forward"] * 2


async def test_a_route_reads_back(client: Raw) -> None:
    """The chosen alternative only, uint32 in four bytes."""
    entry = route(client, 0x0A000001, 32, S_ACTION_MEMBER_ID=1)
    await client.insert(member(client, 1), entry)
    answer = (await client.read(client.n.entry("ipv4_lpm", entry.key)))[0].table_entry
    assert answer.data == entry.data
    assert answer.data.fields[0].stream == b"\0\0\0\1"


async def test_a_group_reads_back_as_lists(client: Raw) -> None:
    """int_arr_val and bool_arr_val."""
    await client.insert(member(client, 1), member(client, 2), group(client, 5, [2, 1], status=[True, False]))
    shown = client.n.show((await client.read(client.n.entry("Ingress.ecmp")))[0])
    assert shown["$ACTION_MEMBER_ID"] == [2, 1]
    assert shown["$ACTION_MEMBER_STATUS"] == [True, False]


async def test_pointers_to_nothing_are_not_found(client: Raw, lab: Lab) -> None:
    """Members of groups, groups and members of routes."""
    call = client.insert(
        group(client, 5, [1]),
        route(client, 1, 32, S_ACTION_MEMBER_ID=1),
        route(client, 1, 32, S_SELECTOR_GROUP_ID=5),
    )
    assert await codes(lab, call) == [5, 5, 5]


async def test_what_is_in_use_cannot_be_deleted(client: Raw, lab: Lab) -> None:
    """ENTRY_REFERENCES_EXIST is ALREADY_EXISTS on the wire; one by one or the whole table."""
    await client.insert(
        member(client, 1), member(client, 2), group(client, 5, [1]), route(client, 1, 32, S_SELECTOR_GROUP_ID=5)
    )
    await client.insert(route(client, 2, 32, S_ACTION_MEMBER_ID=2))
    for entry in (member(client, 1), member(client, 2), group(client, 5, [1]), client.n.entry("nexthop")):
        assert await codes(lab, client.write(lab.put(entry, DELETE))) == [6]
    await client.write(
        lab.put(client.n.entry("ipv4_lpm"), DELETE),
        lab.put(client.n.entry("Ingress.ecmp"), DELETE),
        lab.put(client.n.entry("nexthop"), DELETE),
    )
    assert lab.backend.tables["nexthop"].entries == ()


async def test_malformed_groups(client: Raw, lab: Lab) -> None:
    """Lists of different length, a member twice; more members than the group takes."""
    await client.insert(member(client, 1), member(client, 2))
    call = client.insert(
        group(client, 5, [1, 2], status=[True]),
        group(client, 5, [1, 1]),
        group(client, 5, [1, 2], S_MAX_GROUP_SIZE=1),
    )
    assert await codes(lab, call) == [3, 3, 8]


async def test_a_route_points_to_one_thing(client: Raw, lab: Lab) -> None:
    """Both or neither of member and group: INVALID_ARGUMENT."""
    await client.insert(member(client, 1), group(client, 5, [1]))
    both = route(client, 1, 32, S_ACTION_MEMBER_ID=1, S_SELECTOR_GROUP_ID=5)
    assert await codes(lab, client.insert(both, route(client, 1, 32))) == [3, 3]


async def test_modify_moves_a_route_from_member_to_group(client: Raw, lab: Lab) -> None:
    """The old pointer is gone, so the member may go."""
    await client.insert(
        member(client, 1), member(client, 2), group(client, 5, [2]), route(client, 1, 32, S_ACTION_MEMBER_ID=1)
    )
    await client.write(lab.put(route(client, 1, 32, S_SELECTOR_GROUP_ID=5), MODIFY))
    await client.write(lab.put(member(client, 1), DELETE))
    assert lab.backend.tables["ipv4_lpm"].entries[0].data == {"$SELECTOR_GROUP_ID": 5}


async def test_members_come_and_go_with_modify_inc(client: Raw, lab: Lab) -> None:
    """Added with status True unless given; mod_del takes out; what is not there is NOT_FOUND."""
    await client.insert(member(client, 1), member(client, 2), group(client, 5, [1]))
    add = group(client, 5, [2])
    await client.write(lab.put(add, INC))
    assert lab.backend.tables["ecmp"].entries[0].data["$ACTION_MEMBER_ID"] == [1, 2]
    remove = group(client, 5, [1])
    remove.table_flags.mod_del = True
    await client.write(lab.put(remove, INC))
    assert lab.backend.tables["ecmp"].entries[0].data["$ACTION_MEMBER_ID"] == [2]
    assert await codes(lab, client.write(lab.put(remove, INC))) == [5]
