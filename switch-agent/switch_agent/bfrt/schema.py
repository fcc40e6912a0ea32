# SPDX-License-Identifier: Apache-2.0
"""The tables of a switch, as the live server describes them (bf-rt.json).

Names become ids here and nowhere else, and only from what the server sent: ids change from one
compilation to the next, names do not. Tables answer to their full name (``pipe.Ingress.steps``) and
to every suffix that only one table has (``Ingress.steps``, ``steps``).
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from switch_agent.errors import SchemaError

__all__ = ["Action", "DataField", "FieldType", "KeyField", "Schema", "Table"]

T = TypeVar("T")

_INT_WIDTHS = {"uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64, "int32": 32, "int64": 64}


@dataclass(frozen=True, slots=True)
class FieldType:
    """How a field travels: ``int`` as big-endian bytes of ``width`` bits, the others as they are."""

    kind: Literal["int", "bool", "float", "string"]
    width: int = 0
    signed: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyField:
    """A key field: numeric id, P4 name, match kind as bf-rt.json writes it."""

    id: int
    name: str
    match: str
    type: FieldType


@dataclass(frozen=True, slots=True)
class DataField:
    """A data field of an action, or common to the table."""

    id: int
    name: str
    type: FieldType
    repeated: bool = False
    mandatory: bool = True
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Action:
    """An action of a match table with its data fields by name."""

    id: int
    name: str
    data: Mapping[str, DataField] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A table of any kind (match table, register, counter, fixed table). ``size`` is in entries."""

    id: int
    name: str
    kind: str
    size: int
    keys: Mapping[str, KeyField]
    data: Mapping[str, DataField]
    actions: Mapping[str, Action]
    operations: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    keys_by_id: Mapping[int, KeyField] = field(init=False)
    _actions_by_id: Mapping[int, Action] = field(init=False)
    _data_by_id: Mapping[int, Mapping[int, DataField]] = field(init=False)

    def __post_init__(self) -> None:
        common = {spec.id: spec for spec in self.data.values()}
        by_action = {0: common}
        for action in self.actions.values():
            by_action[action.id] = common | {spec.id: spec for spec in action.data.values()}
        object.__setattr__(self, "keys_by_id", {key.id: key for key in self.keys.values()})
        object.__setattr__(self, "_actions_by_id", {action.id: action for action in self.actions.values()})
        object.__setattr__(self, "_data_by_id", by_action)

    @property
    def short_name(self) -> str:
        """The last part of the name, for messages and metrics: ``job_classify``."""
        return self.name.rpartition(".")[2]

    def key(self, name: str) -> KeyField:
        """Return a key field by name; SchemaError lists those there are."""
        return _pick(self.keys, name, f"table {self.name}", "key field")

    def action(self, name: str) -> Action:
        """Return an action by name; SchemaError lists those there are."""
        return _pick(self.actions, name, f"table {self.name}", "action")

    def action_of_id(self, action_id: int) -> Action | None:
        """Return the action with that id, None for 0 or an id that the schema does not have."""
        return self._actions_by_id.get(action_id)

    def data_field(self, name: str, action: str | None = None) -> DataField:
        """Return a data field of ``action`` or common to the table; SchemaError lists what there is."""
        fields = dict(self.data)
        if action is not None:
            fields |= self.action(action).data
        where = f"table {self.name}" + (f", action {action}" if action else "")
        return _pick(fields, name, where, "data field")

    def data_field_of_id(self, field_id: int, action_id: int = 0) -> DataField | None:
        """Return the data field with that id within the given action (0: none), None when unknown."""
        return self._data_by_id.get(action_id, self._data_by_id[0]).get(field_id)


class Schema:
    """All tables of one program and of the switch itself.

    ``digest`` is the SHA-256 of the program's bf-rt.json: equal digest, equal ids.
    """

    def __init__(self, p4_name: str, tables: Iterable[Table], digest: str) -> None:
        self.p4_name = p4_name
        self.digest = digest
        self.tables: dict[str, Table] = {table.name: table for table in tables}
        self._by_id = {table.id: table for table in self.tables.values()}
        self._by_suffix: dict[str, Table | None] = {}
        for table in self.tables.values():
            parts = table.name.split(".")
            for start in range(len(parts)):
                suffix = ".".join(parts[start:])
                self._by_suffix[suffix] = None if suffix in self._by_suffix else table

    @classmethod
    def parse(
        cls, p4_name: str, p4_info: bytes, fixed_info: bytes = b"", signed: frozenset[str] = frozenset()
    ) -> Schema:
        """Parse the JSON that the server sent for the program and for its fixed tables.

        ``signed`` names the fields that hold two's complement, which bf-rt.json does not tell apart:
        ``<action>.<parameter>`` or the register field's own name. Raises SchemaError for JSON that is none.
        """
        tables: list[Table] = []
        for text in (p4_info, fixed_info):
            if not text:
                continue
            try:
                document = json.loads(text)
                tables.extend(_table(entry, signed) for entry in document.get("tables", []))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise SchemaError(
                    f"the switch's schema for program {p4_name} is no bf-rt.json that we can read: {error!r}"
                ) from error
        return cls(p4_name, tables, hashlib.sha256(p4_info).hexdigest())

    def __contains__(self, name: str) -> bool:
        return name in self.tables or self._by_suffix.get(name) is not None

    def table(self, name: str) -> Table:
        """Return a table by full name or unique suffix; SchemaError names the nearest ones."""
        found = self.tables.get(name) or self._by_suffix.get(name)
        if found is not None:
            return found
        if name in self._by_suffix:
            raise SchemaError(f"several tables of program {self.p4_name} end in {name}; give the full name")
        near = difflib.get_close_matches(name, [*self.tables, *self._by_suffix], n=3, cutoff=0.5)
        hint = f"; near: {', '.join(near)}" if near else ""
        raise SchemaError(f"program {self.p4_name} on the switch has no table {name}{hint}")

    def table_of_id(self, table_id: int) -> Table:
        """Return the table with that id; SchemaError when the switch answered with an unknown one."""
        try:
            return self._by_id[table_id]
        except KeyError:
            raise SchemaError(
                f"the switch answered about table id {table_id:#x}, which its schema does not have"
            ) from None


def _pick(pool: Mapping[str, T], name: str, where: str, what: str) -> T:
    try:
        return pool[name]
    except KeyError:
        raise SchemaError(f"{where} has no {what} {name}; it has {', '.join(pool) or 'none'}") from None


def _type(spec: Mapping[str, Any], signed: bool) -> FieldType:
    kind = spec["type"]
    if kind == "bytes":
        return FieldType("int", int(spec["width"]), signed)
    if kind in _INT_WIDTHS:
        return FieldType("int", _INT_WIDTHS[kind], signed or kind.startswith("int"))
    if kind in ("bool", "float", "string"):
        return FieldType(kind, choices=tuple(spec.get("choices", ())))
    raise ValueError(f"unknown type {kind!r}")


def _data_fields(specs: Iterable[Mapping[str, Any]], signed: frozenset[str], prefix: str) -> dict[str, DataField]:
    fields: dict[str, DataField] = {}
    for spec in specs:
        options = spec.get("oneof") or [spec.get("singleton", spec)]
        for option in options:
            if "type" not in option:  # containers: nothing of ours uses them
                continue
            name = option["name"]
            fields[name] = DataField(
                id=int(option["id"]),
                name=name,
                type=_type(option["type"], name in signed or f"{prefix}{name}" in signed),
                repeated=bool(option.get("repeated", False)),
                mandatory=bool(spec.get("mandatory", False)) and "oneof" not in spec,
                read_only=bool(spec.get("read_only", False)),
            )
    return fields


def _table(spec: Mapping[str, Any], signed: frozenset[str]) -> Table:
    return Table(
        id=int(spec["id"]),
        name=spec["name"],
        kind=spec.get("table_type", ""),
        size=int(spec.get("size", 0)),
        keys={
            key["name"]: KeyField(int(key["id"]), key["name"], key["match_type"], _type(key["type"], False))
            for key in spec.get("key", [])
        },
        data=_data_fields(spec.get("data", []), signed, ""),
        actions={
            action["name"]: Action(
                int(action["id"]),
                action["name"],
                _data_fields(action.get("data", []), signed, f"{action['name']}."),
            )
            for action in spec.get("action_specs", [])
        },
        operations=tuple(spec.get("supported_operations", ())),
        attributes=tuple(spec.get("attributes", ())),
    )
