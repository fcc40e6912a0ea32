# SPDX-License-Identifier: Apache-2.0
"""What Symphony's program does not have: direct counters, idle time, optional keys, odd register widths."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import pytest_asyncio

from fabric_twin.bfrt_server import BfRtServer, Info, MemoryBackend, P4Program
from switch_agent import bfrt_proto as p

if TYPE_CHECKING:
    from conftest import Lab, Raw


def _bits(width: int) -> dict[str, Any]:
    return {"type": "bytes", "width": width}


def _data(number: int, name: str, kind: dict[str, Any], *, mandatory: bool = False) -> dict[str, Any]:
    return {"mandatory": mandatory, "singleton": {"id": number, "name": name, "repeated": False, "type": kind}}


def _register(number: int, width: int) -> dict[str, Any]:
    name = f"Ingress.r{width}"
    return {
        "name": f"pipe.{name}",
        "id": 0x8B000000 + number,
        "table_type": "Register",
        "size": 8,
        "key": [{"id": 65557, "name": "$REGISTER_INDEX", "match_type": "Exact", "type": {"type": "uint32"}}],
        "data": [_data(1, f"{name}.f1", _bits(width), mandatory=True)],
    }


WIDTHS = (1, 8, 12, 16, 32, 64, 128)
ACL = {
    "name": "pipe.Ingress.acl",
    "id": 0x02000001,
    "table_type": "MatchAction_Direct",
    "size": 16,
    "key": [
        {"id": 1, "name": "hdr.tag", "match_type": "Optional", "type": _bits(12)},
        {"id": 2, "name": "hdr.proto", "match_type": "Exact", "mandatory": True, "type": _bits(8)},
    ],
    "data": [
        _data(65553, "$COUNTER_SPEC_BYTES", {"type": "uint64", "default_value": 0}),
        _data(65554, "$COUNTER_SPEC_PKTS", {"type": "uint64", "default_value": 0}),
        _data(65540, "$ENTRY_TTL", {"type": "uint32", "default_value": 0}),
    ],
    "action_specs": [
        {
            "id": 16777217 + n,
            "name": f"Ingress.{name}",
            "action_scope": scope,
            "data": [{"id": 1, "name": "v", "repeated": False, "mandatory": True, "type": _bits(8)}],
        }
        for n, (name, scope) in enumerate((("any", "TableAndDefault"), ("entry", "TableOnly"), ("miss", "DefaultOnly")))
    ],
}


@pytest_asyncio.fixture
async def other(lab: Lab) -> AsyncIterator[Raw]:
    """An independent client of another program; ``lab`` is the new server's."""
    document = {"tables": [ACL, *(_register(n, width) for n, width in enumerate(WIDTHS))]}
    program = P4Program("other", Info(document))
    lab.backend = MemoryBackend(program)
    async with BfRtServer(lab.backend, program, port=0) as server:
        lab.server = server
        yield await lab.client(p4_name="other")


def acl(raw: Raw, action: str = "any", *, valid: bool = True, **values: int) -> p.TableEntry:
    """An acl entry with the tag 0xabc, or with any tag."""
    key = raw.n.fields("acl", {"hdr.proto": 17})
    field = key.fields.add(field_id=1)
    field.optional.value, field.optional.is_valid = b"\x0a\xbc", valid
    return raw.n.entry("acl", key, raw.n.data("acl", action, v=1, **values))


async def stats(raw: Raw) -> tuple[int, int]:
    """Packets and TTL of the only entry."""
    shown = raw.n.show((await raw.read(raw.n.entry("acl")))[0])
    return shown["$COUNTER_SPEC_PKTS"][0], shown["$ENTRY_TTL"][0]


async def refused(lab: Lab, call: Any) -> list[int]:
    """Canonical codes of a failing batch."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return lab.failure(caught.value).codes


@pytest.mark.parametrize(
    ("flags", "left"),
    [
        (p.TableFlags(), (5, 90)),
        (p.TableFlags(reset_stats=True), (0, 90)),
        (p.TableFlags(reset_ttl=True), (5, 0)),
        (p.TableFlags(reset_stats=True, reset_ttl=True), (0, 0)),
    ],
)
async def test_modify_keeps_counters_and_ttl_unless_told(
    other: Raw, lab: Lab, flags: p.TableFlags, left: tuple[int, int]
) -> None:
    """table_flags.reset_stats and reset_ttl."""
    await other.insert(acl(other, S_COUNTER_SPEC_PKTS=5, S_ENTRY_TTL=90))
    assert await stats(other) == (5, 90)
    entry = acl(other)
    entry.table_flags.CopyFrom(flags)
    await other.write(lab.put(entry, p.Update.MODIFY))
    assert await stats(other) == left


async def test_optional_keys(other: Raw, lab: Lab) -> None:
    """With is_valid false the value does not count; absent means the same."""
    await other.insert(acl(other), acl(other, valid=False))
    absent = acl(other, valid=False)
    del absent.key.fields[1]
    assert await refused(lab, other.insert(absent)) == [6]
    keys = [entry.key["hdr.tag"] for entry in lab.backend.tables["acl"].entries]
    assert keys == [(0xABC, True), (0xABC, False)]
    back = (await other.read(other.n.entry("acl", acl(other).key)))[0].table_entry
    assert sorted(back.key.fields, key=lambda f: f.field_id)[0].optional.is_valid


async def test_mandatory_key_fields_must_be_there(other: Raw, lab: Lab) -> None:
    """INVALID_ARGUMENT."""
    entry = acl(other)
    del entry.key.fields[0]
    assert await refused(lab, other.insert(entry)) == [3]


async def test_actions_are_for_entries_or_for_the_default(other: Raw, lab: Lab) -> None:
    """action_scope DefaultOnly and TableOnly; a default never set is in no answer."""
    missing = p.TableEntry(table_id=other.n.id("acl"), is_default_entry=True)
    assert await other.read(missing) == []
    assert await other.read(other.n.entry("acl")) == []
    assert await refused(lab, other.insert(acl(other, "miss"))) == [3]
    await other.insert(acl(other, "entry"))

    def default(action: str) -> p.Update:
        entry = other.n.entry("acl", None, other.n.data("acl", action, v=1))
        entry.is_default_entry = True
        return lab.put(entry, p.Update.MODIFY)

    assert await refused(lab, other.write(default("entry"))) == [3]
    await other.write(default("miss"))
    assert [e.table_entry.is_default_entry for e in await other.read(other.n.entry("acl"))] == [False, True]


@pytest.mark.parametrize("width", [1, 8, 16, 32, 64, 128])
async def test_registers_of_every_width_the_driver_can_read(other: Raw, width: int) -> None:
    """Big-endian in ceil(width / 8) bytes, by key and all at once."""
    top = (1 << width) - 1
    await other.insert(other.n.index(f"r{width}", 3, f1=top))
    one = (await other.read(other.n.index(f"r{width}", 3)))[0]
    assert [field.stream for field in one.table_entry.data.fields] == [top.to_bytes((width + 7) // 8, "big")] * 4
    every = await other.read(other.n.entry(f"r{width}"))
    assert every[3] == one
    assert other.n.show(every[2]) == {f"Ingress.r{width}.f1": [0] * 4}


async def test_registers_of_other_widths_cannot_be_read(other: Raw, lab: Lab) -> None:
    """Field-notes 59: INVALID_ARGUMENT for e.g. 12 bits, by key and all at once."""
    assert await refused(lab, other.read(other.n.index("r12", 3), other.n.entry("r12"))) == [3, 3]
