# SPDX-License-Identifier: Apache-2.0
"""Table entries in our words, and as BF-Runtime messages; no I/O here.

Everything is checked against the live schema and encoded before anything is sent, so a wrong
name or an over-wide value never reaches a switch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from google.protobuf.message import DecodeError

from switch_agent import bfrt_proto as proto
from switch_agent.bfrt.codec import decode_int, encode_int
from switch_agent.bfrt.schema import DataField, FieldType, Table
from switch_agent.errors import CodecError

__all__ = [
    "ALL_PIPES",
    "Entry",
    "KeyValue",
    "Lpm",
    "Range",
    "Ternary",
    "Value",
    "decode_entry",
    "decode_tables",
    "default_update",
    "delete_update",
    "describe",
    "entry_message",
    "insert_update",
    "modify_update",
    "operation_update",
    "read_all",
    "read_default",
    "read_keyed",
    "read_usage",
    "single_pipe_scope_update",
    "target",
    "upsert_update",
]

ALL_PIPES = 0xFFFF
_ALL_GRESSES = 0xFF
_ALL_PARSERS = 0xFF


@dataclass(frozen=True, slots=True)
class Ternary:
    """Match where ``packet & mask == value & mask``; mask 0 matches anything."""

    value: int
    mask: int


@dataclass(frozen=True, slots=True)
class Lpm:
    """Match the first ``prefix_len`` bits of ``value``."""

    value: int
    prefix_len: int


@dataclass(frozen=True, slots=True)
class Range:
    """Match ``low`` to ``high``, both included."""

    low: int
    high: int


KeyValue: TypeAlias = "int | bool | str | Ternary | Lpm | Range"
Value: TypeAlias = "int | bool | float | str | list[int] | list[bool] | list[str]"


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a table.

    Registers and counters have ``action`` None, and their data fields are **lists, one value per pipe**
    of the request: which reduction makes one number of them is declared in :mod:`switch_agent.bfrt.reduce`.
    """

    key: Mapping[str, KeyValue] = field(default_factory=lambda: MappingProxyType({}))
    action: str | None = None
    data: Mapping[str, Value] = field(default_factory=lambda: MappingProxyType({}))
    is_default: bool = False

    def pipes(self, name: str) -> list[int]:
        """Return the values of an integer field, one per pipe."""
        value = self.data[name]
        if isinstance(value, list):
            return [int(item) for item in value]
        raise CodecError(f"{name} is a single value, not one per pipe")


def target(pipe: int = ALL_PIPES, device: int = 0) -> proto.TargetDevice:
    """Return a target: one pipe or all, both gresses, all parsers."""
    return proto.TargetDevice(device_id=device, pipe_id=pipe, direction=_ALL_GRESSES, prsr_id=_ALL_PARSERS)


def describe(table: Table, key: Mapping[str, KeyValue]) -> str:
    """Return table and key in short, for messages: ``job_params[ig_md.job=3]``."""
    parts = []
    for name, value in key.items():
        match value:
            case Ternary(v, m):
                text = f"{v:#x}&{m:#x}"
            case Lpm(v, length):
                text = f"{v:#x}/{length}"
            case Range(low, high):
                text = f"{low}..{high}"
            case _:
                text = str(value)
        parts.append(f"{name}={text}")
    return f"{table.short_name}[{', '.join(parts)}]"


def _key_field(table: Table, name: str, value: KeyValue) -> proto.KeyField:
    spec = table.key(name)
    where = f"{table.name} key {name}"
    width = spec.type.width
    message = proto.KeyField(field_id=spec.id)
    match value:
        case Ternary(v, mask):
            wanted = "Ternary"
            message.ternary.value = encode_int(v, width, name=where)
            message.ternary.mask = encode_int(mask, width, name=f"{where} mask")
        case Lpm(v, length):
            wanted = "LPM"
            if not 0 <= length <= width:
                raise CodecError(f"{where}: prefix length {length} is not within 0 to {width}")
            message.lpm.value = encode_int(v, width, name=where)
            message.lpm.prefix_len = length
        case Range(low, high):
            wanted = "Range"
            if low > high:
                raise CodecError(f"{where}: range {low}..{high} is empty")
            message.range.low = encode_int(low, width, name=where)
            message.range.high = encode_int(high, width, name=where)
        case str():
            wanted = "Exact"
            message.exact.value = value.encode()
        case _:
            wanted = "Exact"
            if spec.type.kind == "bool":
                message.exact.value = bytes([bool(value)])
            else:
                message.exact.value = encode_int(value, width, name=where)
    if spec.match not in (wanted, "ATCAM"):
        raise CodecError(f"{where} is matched as {spec.match}, got a value for {wanted}")
    return message


def _data_field(spec: DataField, value: Value, where: str) -> proto.DataField:
    message = proto.DataField(field_id=spec.id)
    kind = spec.type.kind
    if spec.repeated:
        if not isinstance(value, list):
            raise CodecError(f"{where} takes a list, not {value!r}")
        if kind == "bool":
            message.bool_arr_val.val.extend(bool(item) for item in value)
        elif kind == "string":
            message.str_arr_val.val.extend(str(item) for item in value)
        else:
            message.int_arr_val.SetInParent()
            message.int_arr_val.val.extend(int(item) for item in value)
        return message
    if isinstance(value, list):
        raise CodecError(f"{where} takes one value (written to every pipe of the target), not a list")
    if kind == "bool":
        message.bool_val = bool(value)
    elif kind == "float":
        message.float_val = float(value)
    elif kind == "string":
        if spec.type.choices and value not in spec.type.choices:
            raise CodecError(f"{where} = {value!r} is none of {', '.join(spec.type.choices)}")
        message.str_val = str(value)
    else:
        if not isinstance(value, int):
            raise CodecError(f"{where} takes an integer, not {value!r}")
        message.stream = encode_int(value, spec.type.width, signed=spec.type.signed, name=where)
    return message


def entry_message(table: Table, entry: Entry, *, pipe: int | None = None) -> proto.TableEntry:
    """Encode an entry. ``pipe`` overrides the request's target (None: leave it to the request).

    Raises SchemaError for unknown names and CodecError for values that do not fit, or mandatory
    fields of the action that are missing (BF-Runtime takes all of them or none).
    """
    message = proto.TableEntry(table_id=table.id, is_default_entry=entry.is_default)
    if entry.key:
        message.key.fields.extend(_key_field(table, name, value) for name, value in entry.key.items())
    if entry.action is not None:
        action = table.action(entry.action)
        message.data.action_id = action.id
        missing = [name for name, spec in action.data.items() if spec.mandatory and name not in entry.data]
        if missing and entry.data:
            raise CodecError(f"{table.name}, action {entry.action}: {', '.join(missing)} missing")
    for name, value in entry.data.items():
        spec = table.data_field(name, entry.action)
        message.data.fields.append(_data_field(spec, value, f"{table.name} {name}"))
    if pipe is not None:
        message.entry_tgt.CopyFrom(target(pipe))
    return message


def _update(kind: proto.Update.Type, entry: proto.TableEntry) -> proto.Update:
    return proto.Update(type=kind, entity=proto.Entity(table_entry=entry))


def insert_update(table: Table, entry: Entry, *, pipe: int | None = None) -> proto.Update:
    """Add an entry (ALREADY_EXISTS when it is there), or set a register entry."""
    return _update(proto.Update.INSERT, entry_message(table, entry, pipe=pipe))


def modify_update(table: Table, entry: Entry, *, pipe: int | None = None) -> proto.Update:
    """Replace the action and data of an entry (NOT_FOUND when it is missing), or set a register entry."""
    return _update(proto.Update.MODIFY, entry_message(table, entry, pipe=pipe))


def upsert_update(table: Table, entry: Entry) -> proto.Update:
    """Add an entry or replace the one with that key."""
    return _update(proto.Update.INSERT_OR_MODIFY, entry_message(table, entry))


def delete_update(table: Table, key: Mapping[str, KeyValue]) -> proto.Update:
    """Delete the entry with that key; an empty key is refused, since it would clear the whole table."""
    if not key:
        raise CodecError(f"refusing to clear all of table {table.name}: give the key of one entry")
    return _update(proto.Update.DELETE, entry_message(table, Entry(key=key)))


def default_update(table: Table, action: str, data: Mapping[str, Value]) -> proto.Update:
    """Set the default entry (what a miss does)."""
    return modify_update(table, Entry(action=action, data=data, is_default=True))


def operation_update(table: Table, operation: str) -> proto.Update:
    """Run a table operation such as ``Sync``, which copies hardware values to the driver's shadow."""
    return proto.Update(
        type=proto.Update.INSERT,
        entity=proto.Entity(table_operation=proto.TableOperation(table_id=table.id, table_operations_type=operation)),
    )


def single_pipe_scope_update(table: Table) -> proto.Update:
    """Make every pipe's copy of a table addressable on its own (attribute EntryScope)."""
    single = proto.Mode(predef=proto.Mode.SINGLE)
    return proto.Update(
        type=proto.Update.INSERT,
        entity=proto.Entity(
            table_attribute=proto.TableAttribute(table_id=table.id, entry_scope=proto.EntryScope(pipe_scope=single))
        ),
    )


def read_all(table: Table, *, from_hw: bool) -> proto.Entity:
    """Ask for all entries of a table; the default entry comes last where there is one."""
    return proto.Entity(table_entry=proto.TableEntry(table_id=table.id, table_flags=proto.TableFlags(from_hw=from_hw)))


def read_keyed(table: Table, key: Mapping[str, KeyValue], *, from_hw: bool) -> proto.Entity:
    """Ask for one entry; NOT_FOUND when a match table does not have it."""
    message = entry_message(table, Entry(key=key))
    message.table_flags.from_hw = from_hw
    return proto.Entity(table_entry=message)


def read_default(table: Table, *, from_hw: bool) -> proto.Entity:
    """Ask for the default entry."""
    return proto.Entity(
        table_entry=proto.TableEntry(
            table_id=table.id, is_default_entry=True, table_flags=proto.TableFlags(from_hw=from_hw)
        )
    )


def read_usage(table: Table, *, from_hw: bool) -> proto.Entity:
    """Ask how many entries a match table holds."""
    return proto.Entity(table_usage=proto.TableUsage(table_id=table.id, table_flags=proto.TableFlags(from_hw=from_hw)))


def _decode_key(table: Table, message: proto.KeyField) -> tuple[str, KeyValue]:
    spec = table.keys_by_id.get(message.field_id)
    if spec is None:
        raise CodecError(f"{table.name} came with key field id {message.field_id}, unknown to its schema")
    width = spec.type.width
    where = f"{table.name} key {spec.name}"
    match message.WhichOneof("match_type"):
        case "ternary":
            return spec.name, Ternary(
                decode_int(message.ternary.value, width, name=where),
                decode_int(message.ternary.mask, width, name=where),
            )
        case "lpm":
            return spec.name, Lpm(decode_int(message.lpm.value, width, name=where), message.lpm.prefix_len)
        case "range":
            return spec.name, Range(
                decode_int(message.range.low, width, name=where),
                decode_int(message.range.high, width, name=where),
            )
        case "exact" if spec.type.kind == "string":
            return spec.name, message.exact.value.decode()
        case "exact" if spec.type.kind == "bool":
            return spec.name, any(message.exact.value)
        case "exact":
            return spec.name, decode_int(message.exact.value, width, name=where)
        case other:
            raise CodecError(f"{where} came with match type {other}, which we do not know")


def _decode_value(message: proto.DataField, kind: FieldType, where: str) -> Value:
    match message.WhichOneof("value"):
        case "stream":
            return decode_int(message.stream, kind.width, signed=kind.signed, name=where)
        case "float_val":
            return message.float_val
        case "str_val":
            return message.str_val
        case "bool_val":
            return message.bool_val
        case "int_arr_val":
            return list(message.int_arr_val.val)
        case "bool_arr_val":
            return list(message.bool_arr_val.val)
        case "str_arr_val":
            return list(message.str_arr_val.val)
        case other:
            raise CodecError(f"{where} came as {other}, which we do not know")


def decode_entry(table: Table, message: proto.TableEntry) -> Entry:
    """Decode an entry of a read answer. Register and counter fields become lists, one value per pipe.

    Raises CodecError when field ids or lengths contradict the schema.
    """
    action = table.action_of_id(message.data.action_id)
    per_pipe = table.kind in ("Register", "Counter")
    data: dict[str, Value] = {}
    for item in message.data.fields:
        spec = table.data_field_of_id(item.field_id, message.data.action_id)
        if spec is None:
            raise CodecError(f"{table.name} came with data field id {item.field_id}, unknown to its schema")
        value = _decode_value(item, spec.type, f"{table.name} {spec.name}")
        if per_pipe and isinstance(value, int):
            values = data.setdefault(spec.name, [])
            assert isinstance(values, list)
            values.append(value)  # type: ignore[arg-type]
        else:
            data[spec.name] = value
    return Entry(
        key=dict(_decode_key(table, item) for item in message.key.fields),
        action=action.name if action else None,
        data=data,
        is_default=message.is_default_entry,
    )


def decode_tables(tables: Sequence[Table], raw: bytes) -> list[list[Entry]]:
    """Decode a serialised ReadResponse with entries of these tables: one list per table, in their order.

    Raises CodecError when the answer has entries of another table, or is none.
    """
    try:
        entities = proto.ReadResponse.FromString(raw).entities
    except DecodeError as error:
        raise CodecError("the switch's answer is no BF-Runtime read answer") from error
    found: dict[int, list[Entry]] = {table.id: [] for table in tables}
    by_id = {table.id: table for table in tables}
    for entity in entities:
        table = by_id.get(entity.table_entry.table_id)
        if table is None:
            raise CodecError(
                f"the switch answered about table id {entity.table_entry.table_id:#x}, nobody asked for it"
            )
        found[table.id].append(decode_entry(table, entity.table_entry))
    return [found[table.id] for table in tables]
