# SPDX-License-Identifier: Apache-2.0
"""A bf-rt.json, parsed once into typed descriptions that the tables work from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fabric_twin.bfrt_server.errors import SchemaError

__all__ = ["ActionSpec", "DataSpec", "Info", "KeySpec", "TableSpec", "ValueType"]

Json = Mapping[str, Any]
INTEGER_WIDTHS = {"uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64, "int64": 64}


@dataclass(frozen=True, slots=True)
class ValueType:
    """``kind`` is "int", "bool", "float", "string" or "container"; ``width`` in bits, for "int" only."""

    kind: str
    width: int = 0
    choices: tuple[str, ...] = ()
    default: int | bool | float | str | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of the wire form of an int."""
        return (self.width + 7) // 8

    @classmethod
    def parse(cls, where: str, node: Json) -> ValueType:
        """From a ``type`` object of the JSON; SchemaError when its word is unknown."""
        word = node.get("type")
        if word == "bytes":
            return cls("int", int(node["width"]), default=node.get("default_value"))
        if word in INTEGER_WIDTHS:
            return cls("int", INTEGER_WIDTHS[word], default=node.get("default_value"))
        if word in ("bool", "float", "string"):
            return cls(word, choices=tuple(node.get("choices", ())), default=node.get("default_value"))
        raise SchemaError(f"{where}: unknown type {word!r} in the bf-rt.json")


@dataclass(frozen=True, slots=True)
class KeySpec:
    """One key field. ``match`` is the JSON's match_type: Exact, Ternary, LPM, Range, Optional."""

    id: int
    name: str
    match: str
    type: ValueType
    mandatory: bool


@dataclass(frozen=True, slots=True)
class DataSpec:
    """One data field. Of the fields with the same ``choice`` exactly one is given per entry.

    A container is a list of records; ``fields`` are those of a record.
    """

    id: int
    name: str
    type: ValueType
    repeated: bool = False
    mandatory: bool = False
    read_only: bool = False
    choice: int | None = None
    fields: Mapping[int, DataSpec] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """An action of a table: ``scope`` is TableAndDefault, TableOnly or DefaultOnly."""

    id: int
    name: str
    scope: str
    data: Mapping[int, DataSpec]


@dataclass(frozen=True)
class TableSpec:
    """One table of a bf-rt.json. ``short_name`` is the shortest dotted suffix unique in its document."""

    id: int
    name: str
    short_name: str
    type: str
    size: int
    key: Mapping[int, KeySpec]
    data: Mapping[int, DataSpec]
    actions: Mapping[int, ActionSpec]
    depends_on: tuple[int, ...] = ()
    operations: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    const_default: bool = False

    @property
    def const_entries(self) -> bool:
        """Whether the program fixed the entries, so that nobody may change them."""
        return "ConstTable" in self.attributes

    def action_named(self, name: str) -> ActionSpec | None:
        """The action of that full name, if the table has it."""
        return next((action for action in self.actions.values() if action.name == name), None)


def _data_spec(where: str, node: Json, *, outer: Json | None = None, choice: int | None = None) -> DataSpec:
    flags = node if outer is None else outer
    name = str(node["name"])
    container = "container" in node
    kind = ValueType("container") if container else ValueType.parse(f"{where}, field {name}", node["type"])
    return DataSpec(
        id=int(node["id"]),
        name=name,
        type=kind,
        repeated=bool(node.get("repeated", False)),
        mandatory=bool(flags.get("mandatory", False)),
        read_only=bool(flags.get("read_only", False)),
        choice=choice,
        fields=_common_data(f"{where}, field {name}", node["container"]) if container else {},
    )


def _common_data(where: str, nodes: Iterable[Json]) -> dict[int, DataSpec]:
    specs: dict[int, DataSpec] = {}
    for number, node in enumerate(nodes):
        if "oneof" in node:
            choices = [_data_spec(where, alt, outer=node, choice=number) for alt in node["oneof"]]
            specs |= {spec.id: spec for spec in choices}
        else:
            specs[int(node["singleton"]["id"])] = _data_spec(where, node["singleton"], outer=node)
    return specs


def _action_spec(where: str, node: Json) -> ActionSpec:
    data = {int(param["id"]): _data_spec(where, param) for param in node.get("data", ())}
    scope = str(node.get("action_scope", "TableAndDefault"))
    return ActionSpec(int(node["id"]), str(node["name"]), scope, data)


def _key_spec(where: str, node: Json) -> KeySpec:
    name = str(node["name"])
    kind = ValueType.parse(f"{where}, key field {name}", node["type"])
    return KeySpec(int(node["id"]), name, str(node["match_type"]), kind, bool(node.get("mandatory", False)))


def _table_spec(node: Json, short_name: str) -> TableSpec:
    name = str(node["name"])
    where = f"table {name}"
    return TableSpec(
        id=int(node["id"]),
        name=name,
        short_name=short_name,
        type=str(node["table_type"]),
        size=int(node.get("size", 0)),
        key={int(key["id"]): _key_spec(where, key) for key in node.get("key", ())},
        data=_common_data(where, node.get("data", ())),
        actions={int(spec["id"]): _action_spec(where, spec) for spec in node.get("action_specs", ())},
        depends_on=tuple(int(other) for other in node.get("depends_on", ())),
        operations=tuple(node.get("supported_operations", ())),
        attributes=tuple(node.get("attributes", ())),
        const_default=bool(node.get("has_const_default_action", False)),
    )


def _suffixes(name: str) -> list[str]:
    """The name and every part of it after a dot, shortest first: ["c", "b.c", "a.b.c"]."""
    parts = name.split(".")
    return [".".join(parts[i:]) for i in reversed(range(len(parts)))]


@dataclass(frozen=True)
class Info:
    """The tables of one bf-rt.json."""

    document: Json
    tables: Mapping[int, TableSpec] = field(init=False)
    _ids_by_suffix: Mapping[str, list[int]] = field(init=False)

    def __post_init__(self) -> None:
        nodes = self.document.get("tables")
        if not isinstance(nodes, list):
            raise SchemaError("this is no bf-rt.json: it has no list named 'tables'")
        by_suffix: dict[str, list[int]] = {}
        for node in nodes:
            for suffix in _suffixes(str(node["name"])):
                by_suffix.setdefault(suffix, []).append(int(node["id"]))
        tables: dict[int, TableSpec] = {}
        for node in nodes:
            name = str(node["name"])
            short = next(s for s in [*_suffixes(name), name] if len(by_suffix[s]) == 1 or s == name)
            spec = _table_spec(node, short)
            if spec.id in tables:
                raise SchemaError(f"tables {tables[spec.id].name} and {name} share the id {spec.id}")
            tables[spec.id] = spec
        object.__setattr__(self, "tables", tables)
        object.__setattr__(self, "_ids_by_suffix", by_suffix)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Info:
        """Parse JSON text; SchemaError when it is none."""
        try:
            document = json.loads(raw)
        except ValueError as error:
            raise SchemaError(f"bf-rt.json is not JSON: {error}") from error
        if not isinstance(document, dict):
            raise SchemaError("bf-rt.json is not a JSON object")
        return cls(document)

    @cached_property
    def json_bytes(self) -> bytes:
        """The document as a client gets it."""
        return json.dumps(self.document).encode()

    def find(self, name: str) -> TableSpec | None:
        """A table by full name or by a dotted suffix that no other table has."""
        ids = self._ids_by_suffix.get(name, [])
        exact = next((self.tables[i] for i in ids if self.tables[i].name == name), None)
        return exact or (self.tables[ids[0]] if len(ids) == 1 else None)
