# SPDX-License-Identifier: Apache-2.0
"""Building blocks of ``bf-rt.json``: ids, field types, keys, data fields, tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = [
    "Json",
    "bytes_type",
    "container_json",
    "field_json",
    "key_json",
    "object_hash",
    "object_id",
    "scalar_type",
    "single_json",
    "table_json",
]

Json = dict[str, Any]


def object_hash(name: str) -> int:
    """Return the low 24 bits of Bob Jenkins' one-at-a-time hash of a name, the tail of BF-Runtime ids."""
    value = 0
    for byte in name.encode():
        value = (value + byte) * 1025 & 0xFFFFFFFF  # value += byte; value += value << 10
        value ^= value >> 6
    value = value * 9 & 0xFFFFFFFF
    value ^= value >> 11
    return value * 32769 & 0xFFFFFF


def object_id(prefix: int, name: str) -> int:
    """Return an object's id: its kind in the first byte, the hash of its full name in the others."""
    return prefix << 24 | object_hash(name)


def bytes_type(width: int) -> Json:
    """Return the type of a P4 bit field; on the wire it has ceil(width / 8) bytes."""
    return {"type": "bytes", "width": width}


def scalar_type(kind: str, default: bool | int | str | None = None, choices: Iterable[str] = ()) -> Json:
    """Return a type that P4 does not have: uint32, uint64, bool, string."""
    value: Json = {"type": kind}
    if chosen := list(choices):
        value["choices"] = chosen
    if default is not None:
        value["default_value"] = default
    return value


def table_json(
    name: str,
    id_: int,
    kind: str,
    size: int,
    *,
    key: list[Json],
    data: list[Json],
    depends_on: Iterable[int] = (),
    operations: Iterable[str] = (),
    attributes: Iterable[str] = (),
    annotated: bool = True,
    extra: Mapping[str, Any] | None = None,
) -> Json:
    """Return a table; ``extra`` are the members only its kind has, put before the key."""
    table: Json = {"name": name, "id": id_, "table_type": kind, "size": size}
    if annotated:
        table["annotations"] = []
    table |= {"depends_on": list(depends_on)}
    table |= extra or {}
    table |= {"key": key, "data": data}
    return table | {"supported_operations": list(operations), "attributes": list(attributes)}


def key_json(
    id_: int, name: str, type_: Json, match: str = "Exact", *, mandatory: bool = True, is_slice: bool = False
) -> Json:
    """Return a key field."""
    return {
        "id": id_,
        "name": name,
        "repeated": False,
        "annotations": [{"name": "isFieldSlice", "value": "true"}] if is_slice else [],
        "mandatory": mandatory,
        "match_type": match,
        "type": type_,
    }


def field_json(id_: int, name: str, type_: Json, *, repeated: bool = False) -> Json:
    """Return a data field."""
    return {"id": id_, "name": name, "repeated": repeated, "annotations": [], "type": type_}


def container_json(id_: int, name: str, fields: list[Json]) -> Json:
    """Return a repeated data field that holds fields itself."""
    return {"id": id_, "name": name, "repeated": True, "annotations": [], "container": fields}


def single_json(field: Json, *, mandatory: bool = False, read_only: bool = False) -> Json:
    """Return a data field as an item of a table's data."""
    return {"mandatory": mandatory, "read_only": read_only, "singleton": field}
