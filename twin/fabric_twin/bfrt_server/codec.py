# SPDX-License-Identifier: Apache-2.0
"""Wire fields to Python values and back, checked against the schema.

Integers are raw and unsigned whatever the P4 type (signed fields are two's complement), on the wire
big-endian and exactly ceil(width / 8) bytes long. Everything that does not fit is a :class:`BfError` with
INVALID_ARG that names table and field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from fabric_twin.bfrt_server.schema import ActionSpec, DataSpec, KeySpec, TableSpec, ValueType
from fabric_twin.bfrt_server.status import BfError, BfStatus
from switch_agent import bfrt_proto as p

__all__ = [
    "PRIORITY",
    "DataValue",
    "Identity",
    "KeyValue",
    "decode_data",
    "decode_key",
    "default_value",
    "encode_data",
    "encode_key",
    "int_from_stream",
]

PRIORITY: Final = "$MATCH_PRIORITY"

KeyValue = int | str | tuple[int, int] | tuple[int, bool]
"""Exact: int (str in some fixed tables). Ternary: (value, mask). LPM: (value, prefix_len).
Range: (low, high). Optional: (value, is_valid)."""

Record = Mapping[str, int | bool | float | str]
"""One element of a container: field name -> value."""

DataValue = int | bool | float | str | list[int] | list[bool] | list[str] | list[Record]

Identity = tuple[KeyValue, ...]
"""What makes two keys the same entry: don't-care bits cleared, priority included."""


def invalid(message: str) -> BfError:
    """The refusal that every malformed field gets."""
    return BfError(BfStatus.INVALID_ARG, message)


def int_from_stream(where: str, stream: bytes, kind: ValueType) -> int:
    """Decode one integer; INVALID_ARG unless it has the field's exact size and bit range."""
    if len(stream) != kind.num_bytes:
        raise invalid(f"{where}: {len(stream)} bytes given, {kind.width} bits take {kind.num_bytes};")
    value = int.from_bytes(stream, "big")
    if value >> kind.width:
        raise invalid(f"{where}: {value:#x} does not fit in {kind.width} bits;")
    return value


# ------------------------------------------------------------------------------------------------- keys


def _decode_key_field(where: str, spec: KeySpec, given: p.KeyField) -> KeyValue:
    word = given.WhichOneof("match_type")
    if word != spec.match.lower():
        raise invalid(f"{where} is matched {spec.match}, the request says {word or 'nothing'};")
    if word == "exact":
        if spec.type.kind == "string":
            return given.exact.value.decode(errors="replace")
        return int_from_stream(where, given.exact.value, spec.type)
    if word == "ternary":
        value = int_from_stream(where, given.ternary.value, spec.type)
        return value, int_from_stream(f"{where} (mask)", given.ternary.mask, spec.type)
    if word == "lpm":
        if not 0 <= given.lpm.prefix_len <= spec.type.width:
            raise invalid(f"{where}: prefix length {given.lpm.prefix_len} is not in 0..{spec.type.width};")
        return int_from_stream(where, given.lpm.value, spec.type), given.lpm.prefix_len
    if word == "range":
        low = int_from_stream(f"{where} (low)", given.range.low, spec.type)
        high = int_from_stream(f"{where} (high)", given.range.high, spec.type)
        if low > high:
            raise invalid(f"{where}: range {low}..{high} is empty;")
        return low, high
    return int_from_stream(where, given.optional.value, spec.type), given.optional.is_valid


def _wildcard(spec: KeySpec) -> KeyValue | None:
    """What an absent field of a key means; None: it must be given."""
    if spec.match == "Range":
        return 0, (1 << spec.type.width) - 1
    if spec.match == "Optional":
        return 0, False
    return (0, 0) if spec.match in ("Ternary", "LPM") else None


def _identify(spec: KeySpec, value: KeyValue) -> KeyValue:
    if spec.match == "Ternary" and isinstance(value, tuple):
        return value[0] & value[1], value[1]
    if spec.match == "LPM" and isinstance(value, tuple):
        host_bits = spec.type.width - value[1]
        return value[0] >> host_bits << host_bits, value[1]
    if spec.match == "Optional" and isinstance(value, tuple):
        return (value[0] if value[1] else 0), value[1]
    return value


def decode_key(table: TableSpec, key: p.TableKey) -> tuple[dict[str, KeyValue], Identity]:
    """Field name -> value of a whole key (priority included), and its identity.

    Absent ternary, LPM, range and optional fields match anything; absent exact fields are refused.
    """
    given: dict[int, p.KeyField] = {}
    for field in key.fields:
        if field.field_id not in table.key:
            raise invalid(f"table {table.name} has no key field with id {field.field_id};")
        given[field.field_id] = field
    values: dict[str, KeyValue] = {}
    identity: list[KeyValue] = []
    for spec in table.key.values():
        where = f"table {table.name}, key field {spec.name}"
        value = _decode_key_field(where, spec, given[spec.id]) if spec.id in given else _wildcard(spec)
        if value is None:
            raise invalid(f"{where} is missing from the key;")
        values[spec.name] = value
        identity.append(_identify(spec, value))
    return values, tuple(identity)


def encode_key(table: TableSpec, values: Mapping[str, KeyValue]) -> p.TableKey:
    """The wire form of a stored key."""
    key = p.TableKey()
    for spec in table.key.values():
        value, field, size = values[spec.name], key.fields.add(field_id=spec.id), spec.type.num_bytes
        if not isinstance(value, tuple):
            field.exact.value = value.encode() if isinstance(value, str) else value.to_bytes(size, "big")
            continue
        first, second = value
        stream = first.to_bytes(size, "big")
        if spec.match == "Ternary":
            field.ternary.value, field.ternary.mask = stream, second.to_bytes(size, "big")
        elif spec.match == "LPM":
            field.lpm.value, field.lpm.prefix_len = stream, second
        elif spec.match == "Range":
            field.range.low, field.range.high = stream, second.to_bytes(size, "big")
        else:
            field.optional.value, field.optional.is_valid = stream, bool(second)
    return key


# ------------------------------------------------------------------------------------------------- data


def default_value(spec: DataSpec) -> DataValue:
    """The value of a field that was never given."""
    if spec.repeated:
        return []
    if spec.type.default is not None:
        return spec.type.default
    zeros: dict[str, DataValue] = {"int": 0, "bool": False, "float": 0.0, "string": ""}
    return zeros[spec.type.kind]


def _wire_member(spec: DataSpec) -> str:
    if spec.repeated:
        return {"int": "int_arr_val", "bool": "bool_arr_val", "string": "str_arr_val"}.get(
            spec.type.kind, "container_arr_val"
        )
    return {"int": "stream", "bool": "bool_val", "float": "float_val"}.get(spec.type.kind, "str_val")


def _decode_data_field(where: str, spec: DataSpec, given: p.DataField) -> DataValue:
    word, wanted = given.WhichOneof("value"), _wire_member(spec)
    if word != wanted:
        raise invalid(f"{where} takes {wanted}, the request has {word or 'no value'};")
    if spec.type.kind == "container":
        return [_decode_record(where, spec, container) for container in given.container_arr_val.container]
    if spec.repeated:
        return list(getattr(given, wanted).val)
    if wanted == "stream":
        return int_from_stream(where, given.stream, spec.type)
    if spec.type.choices and given.str_val not in spec.type.choices:
        raise invalid(f"{where}: {given.str_val!r} is none of {', '.join(spec.type.choices)};")
    value: DataValue = getattr(given, wanted)
    return value


def _decode_record(where: str, spec: DataSpec, given: p.DataField.ContainerArray.Container) -> Record:
    record: dict[str, DataValue] = {}
    for field in given.val:
        inner = spec.fields.get(field.field_id)
        if inner is None or inner.name in record:
            raise invalid(f"{where}: field id {field.field_id} is unknown or given twice;")
        record[inner.name] = _decode_data_field(f"{where}, field {inner.name}", inner, field)
    missing = [inner.name for inner in spec.fields.values() if inner.mandatory and inner.name not in record]
    if missing:
        raise invalid(f"{where}: field {missing[0]} is missing;")
    return cast("Record", record)


def specs_of(table: TableSpec, action: ActionSpec | None) -> dict[int, DataSpec]:
    """The data fields of an entry with that action: the action's own, then the common ones."""
    return {**(action.data if action else {}), **table.data}


def decode_data(
    table: TableSpec, data: p.TableData, *, partial: bool = False
) -> tuple[ActionSpec | None, dict[str, DataValue]]:
    """Action and the given fields, by name.

    INVALID_ARG for unknown or repeated ids, read-only fields, and, unless ``partial``, for missing mandatory
    fields and choices of which not exactly one is given.
    """
    action = None
    if data.action_id or table.actions:
        action = table.actions.get(data.action_id)
        if action is None:
            raise invalid(f"table {table.name} has no action with id {data.action_id};")
    specs = specs_of(table, action)
    values: dict[str, DataValue] = {}
    chosen: dict[int | None, str] = {}
    for field in data.fields:
        spec = specs.get(field.field_id)
        inside = f"action {action.name}" if action else "the data"
        if spec is None:
            raise invalid(f"table {table.name}: {inside} has no field with id {field.field_id};")
        where = f"table {table.name}, data field {spec.name}"
        if spec.name in values:
            raise invalid(f"{where} is given twice;")
        if spec.read_only:
            raise invalid(f"{where} is read-only;")
        if spec.choice is not None and spec.choice in chosen:
            raise invalid(f"{where} excludes {chosen[spec.choice]}: give one of them;")
        chosen[spec.choice] = spec.name
        values[spec.name] = _decode_data_field(where, spec, field)
    for spec in () if partial else specs.values():
        if spec.mandatory and spec.name not in values and (spec.choice is None or spec.choice not in chosen):
            raise invalid(f"table {table.name}, data field {spec.name} is missing;")
    return action, values


def encode_data(action: ActionSpec | None, specs: Iterable[DataSpec], values: Mapping[str, Any]) -> p.TableData:
    """The wire form of stored data: those of ``specs`` that have a value, in order."""
    data = p.TableData(action_id=action.id if action else 0)
    _encode_fields(data.fields, specs, values)
    return data


def _encode_fields(fields: Any, specs: Iterable[DataSpec], values: Mapping[str, Any]) -> None:
    for spec in specs:
        if spec.name not in values:
            continue
        field, value, member = fields.add(field_id=spec.id), values[spec.name], _wire_member(spec)
        if spec.repeated:
            target = getattr(field, member)
            target.SetInParent()
            if spec.type.kind != "container":
                target.val.extend(value)
                continue
            for record in value:
                _encode_fields(target.container.add().val, spec.fields.values(), record)
        elif member == "stream":
            field.stream = value.to_bytes(spec.type.num_bytes, "big")
        else:
            setattr(field, member, value)
