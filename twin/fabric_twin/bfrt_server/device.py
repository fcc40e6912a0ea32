# SPDX-License-Identifier: Apache-2.0
"""The switch as its driver holds it: one loaded program's tables, and the fixed tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from fabric_twin.bfrt_server.backend import ReloadableBackend, SwitchBackend
from fabric_twin.bfrt_server.dyn_hash import hash_tables
from fabric_twin.bfrt_server.entries import EntryTable
from fabric_twin.bfrt_server.fixed_tables import FixedTables, Port
from fabric_twin.bfrt_server.indexed import CounterTable, RegisterTable
from fabric_twin.bfrt_server.matching import MatchTable
from fabric_twin.bfrt_server.profiles import ActionProfile, Selector
from fabric_twin.bfrt_server.program import P4Program
from fabric_twin.bfrt_server.schema import ActionSpec, Info, TableSpec
from fabric_twin.bfrt_server.status import BfError, BfStatus
from fabric_twin.bfrt_server.tables import Change, Table
from switch_agent import bfrt_proto as p

__all__ = ["Device"]

MATCH_TYPES = ("MatchAction_Direct", "MatchAction_Indirect", "MatchAction_Indirect_Selector")


class _NotEmulated(Table):
    """A table that clients may look up but neither read nor write (snapshots, port metadata...)."""

    def write(self, kind: p.Update.Type, entry: p.TableEntry, target: p.TargetDevice) -> Change:
        """Refused."""
        raise self.unsupported(f"is not emulated (type {self.spec.type})")

    def read(self, entry: p.TableEntry, target: p.TargetDevice) -> bytes:
        """Refused."""
        raise self.unsupported(f"is not emulated (type {self.spec.type})")

    def reset(self) -> None:
        """Nothing is kept."""


class Device:
    """Tables by id, and the operations on single entities that batches are made of."""

    def __init__(
        self,
        backend: SwitchBackend,
        program: P4Program,
        ports: Sequence[Port],
        capacity: Callable[[TableSpec], int],
    ) -> None:
        self.backend = backend
        self.fixed = FixedTables(backend, ports)
        self._capacity = capacity
        self._use(program)

    def _use(self, program: P4Program) -> None:
        self.program = program
        specs = program.info.tables.values()
        hashes = hash_tables(specs, program.hash_algorithms, self.backend)
        self.tables = {spec.id: hashes.get(spec.id) or self._make(spec) for spec in specs}
        for table in self.tables.values():
            table.link(self.tables)

    def _make(self, spec: TableSpec) -> Table:
        pipes = self.backend.num_pipes
        if spec.type in MATCH_TYPES:
            default = self.program.defaults.get(spec.name)
            entries = self.program.const_entries.get(spec.name, ())
            return MatchTable(spec, self._capacity, pipes, default=default, entries=entries)
        if spec.type == "Action":
            return ActionProfile(spec, self._capacity, pipes)
        if spec.type == "Selector":
            return Selector(spec, self._capacity, pipes)
        if spec.type == "Register":
            return RegisterTable(spec, self.backend)
        if spec.type == "Counter":
            return CounterTable(spec, self.backend)
        return _NotEmulated(spec)

    def load(self, program: P4Program) -> None:
        """Run another program, or the same one anew; INVALID_ARG when the backend cannot."""
        if isinstance(self.backend, ReloadableBackend):
            self.backend.load(program)
        elif (program.p4_name, program.info.tables) != (self.program.p4_name, self.program.info.tables):
            raise BfError(
                BfStatus.INVALID_ARG,
                f"Switch {self.backend.name} can run {self.program.p4_name} as it is only, "
                f"not {program.p4_name} with another schema.",
            )
        else:
            program = self.program
        self._use(program)
        self.reset()

    def reset(self) -> None:
        """Everything as after a start: tables, registers, counters, ports."""
        for table in [*self.tables.values(), *self.fixed.tables.values()]:
            table.reset()
        self.publish(self.tables.values())

    def publish(self, tables: Iterable[Table]) -> None:
        """Hand the content of these tables to the data plane."""
        for table in tables:
            if isinstance(table, EntryTable):
                self.backend.table_changed(table.spec.short_name, table.snapshot())

    def table(self, table_id: int) -> Table:
        """A table of the program or a fixed one; TABLE_NOT_FOUND without it."""
        table = self.tables.get(table_id) or self.fixed.tables.get(table_id)
        if table is None:
            raise BfError(BfStatus.TABLE_NOT_FOUND, f"There is no table with id {table_id:#x}.")
        return table

    # ----------------------------------------------------------------------------------------- entities

    def update(self, update: p.Update, request_target: p.TargetDevice, changed: dict[int, Table]) -> Change | None:
        """Apply one update of a batch. P4 tables whose content changed are added to ``changed``."""
        kind, entity = update.type, update.entity
        word = entity.WhichOneof("entity")
        if word == "table_entry":
            entry = entity.table_entry
            if kind == p.Update.UNSPECIFIED:
                raise BfError(BfStatus.INVALID_ARG, "The update has no type.")
            table = self.table(entry.table_id)
            change = table.write(kind, entry, _target(entry, request_target))
            if entry.table_id in self.tables:
                changed[entry.table_id] = table
            return change
        if word not in ("table_operation", "table_attribute"):
            raise BfError(BfStatus.NOT_SUPPORTED, f"A {word or 'missing entity'} cannot be written.")
        if kind != p.Update.INSERT:
            raise BfError(BfStatus.INVALID_ARG, f"A {word} is written with INSERT.")
        if word == "table_operation":
            operation = entity.table_operation
            self.table(operation.table_id).operate(operation.table_operations_type)
        else:
            table = self.table(entity.table_attribute.table_id)
            table.set_attribute(entity.table_attribute)
            if table.spec.id in self.tables:
                changed[table.spec.id] = table
        return None

    def read(self, entity: p.Entity, request_target: p.TargetDevice) -> bytes:
        """The answer to one entity of a Read, as a serialized ReadResponse."""
        word = entity.WhichOneof("entity")
        if word == "table_entry":
            entry = entity.table_entry
            return self.table(entry.table_id).read(entry, _target(entry, request_target))
        answer = p.Entity()
        if word == "table_usage":
            table_id = entity.table_usage.table_id
            count = self.table(table_id).usage(request_target)
            answer.table_usage.table_id, answer.table_usage.usage = table_id, count
        elif word == "table_attribute":
            attribute = entity.table_attribute
            answer.table_attribute.CopyFrom(self.table(attribute.table_id).get_attribute(attribute))
        elif word == "handle":
            answer.handle.table_id = entity.handle.table_id
            table = self.table(entity.handle.table_id)
            answer.handle.handle_id = table.handle_of(entity.handle.key, request_target)
        elif word == "object_id":
            answer.object_id.CopyFrom(entity.object_id)
            answer.object_id.id = self._look_up(entity.object_id)
        else:
            raise BfError(BfStatus.NOT_SUPPORTED, f"A {word or 'missing entity'} cannot be read.")
        return p.ReadResponse(entities=[answer]).SerializeToString()

    def _look_up(self, wanted: p.ObjectId) -> int:
        """The id of a table, action or field by name."""
        if wanted.WhichOneof("object") != "table_object":
            raise BfError(BfStatus.OBJECT_NOT_FOUND, "The program has no learn filters.")
        named = wanted.table_object
        spec = _find(self.program.info, self.fixed.info, named.table_name)
        word = named.WhichOneof("names")
        if word is None:
            return spec.id
        if word == "key_field_name":
            name = named.key_field_name.field
            ids = [field.id for field in spec.key.values() if field.name == name]
        elif word == "action_name":
            name = named.action_name.action
            ids = [action.id for action in spec.actions.values() if action.name == name]
        else:
            name = named.data_field_name.field
            action = _action(spec, named.data_field_name.action)
            fields = [*(action.data.values() if action else ()), *spec.data.values()]
            ids = [field.id for field in fields if field.name == name]
        if not ids:
            raise BfError(BfStatus.OBJECT_NOT_FOUND, f"Table {spec.name} has no {word} {name!r}.")
        return ids[0]


def _target(entry: p.TableEntry, request_target: p.TargetDevice) -> p.TargetDevice:
    return entry.entry_tgt if entry.HasField("entry_tgt") else request_target


def _find(program: Info, fixed: Info, name: str) -> TableSpec:
    spec = program.find(name) or fixed.find(name)
    if spec is None:
        raise BfError(BfStatus.TABLE_NOT_FOUND, f"There is no table named {name!r}.")
    return spec


def _action(spec: TableSpec, name: str) -> ActionSpec | None:
    action = spec.action_named(name)
    if name and action is None:
        raise BfError(BfStatus.OBJECT_NOT_FOUND, f"Table {spec.name} has no action {name!r}.")
    return action
