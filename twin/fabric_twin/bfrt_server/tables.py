# SPDX-License-Identifier: Apache-2.0
"""Tables of keyed entries: match tables here, and the base of action profiles and fixed tables.

A table is the driver's software state. Writes return how to take them back, which is what
ROLLBACK_ON_ERROR uses; reads return the serialized ``ReadResponse`` that holds their entities (protobuf
messages concatenate, so a batch is the join of its parts).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from fabric_twin.bfrt_server import codec
from fabric_twin.bfrt_server.codec import PRIORITY, DataValue, Identity, KeyValue, invalid
from fabric_twin.bfrt_server.schema import ActionSpec, DataSpec, TableSpec
from fabric_twin.bfrt_server.status import BfError, BfStatus
from switch_agent import bfrt_proto as p

__all__ = ["ALL_PIPES", "Change", "EntryTable", "InstalledEntry", "MatchTable", "Table", "TableSnapshot"]

ALL_PIPES: Final = 0xFFFF
STATS = ("$COUNTER_SPEC_BYTES", "$COUNTER_SPEC_PKTS")
IDLE = ("$ENTRY_TTL", "$ENTRY_HIT_STATE")


@dataclass(frozen=True, slots=True)
class InstalledEntry:
    """One entry as the control plane wrote it; integers raw and unsigned.

    ``key`` maps field name to int (exact), (value, mask) (ternary), (value, prefix_len) (LPM) or (low, high)
    (range), without ``$MATCH_PRIORITY``, which is ``priority`` (smaller wins; 0 without the field).
    ``action`` is the action's full name, "" in tables without actions. ``data`` maps field name to value:
    int for P4 data; lists in selectors.
    """

    key: Mapping[str, KeyValue]
    priority: int
    action: str
    data: Mapping[str, DataValue]
    handle: int = 0


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """A table's content after a write: entries in order of insertion, and (action, data) of a miss.

    ``default`` is None for tables that have no default entry.
    """

    entries: Sequence[InstalledEntry]
    default: tuple[str, Mapping[str, DataValue]] | None


class Change(NamedTuple):
    """What one update did: how to undo it; whether INSERT_OR_MODIFY found the entry there."""

    undo: Callable[[], None]
    modified: bool = False


class Table(ABC):
    """What the service needs from any table; the defaults refuse with NOT_SUPPORTED."""

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self.single_scope = False

    @abstractmethod
    def write(self, kind: p.Update.Type, entry: p.TableEntry, target: p.TargetDevice) -> Change:
        """Apply one update."""

    @abstractmethod
    def read(self, entry: p.TableEntry, target: p.TargetDevice) -> bytes:
        """The entries asked for, as a serialized ReadResponse."""

    @abstractmethod
    def reset(self) -> None:
        """Back to the state after the program was loaded."""

    def link(self, tables: Mapping[int, Table]) -> None:  # noqa: B027  # most tables refer to no other
        """Called once when all tables of the program exist, for references between them."""

    def usage(self) -> int:
        """Number of entries."""
        raise self.unsupported("has no usage")

    def handle_of(self, key: p.TableKey) -> int:
        """The handle of the entry with that key."""
        raise self.unsupported("has no entry handles")

    def operate(self, operation: str) -> None:
        """Run a table operation to its end."""
        known = ("Sync", "SyncCounters", "SyncRegisters", "UpdateHitState")
        if operation not in known:
            raise invalid(f"table {self.spec.name}: unknown operation {operation!r};")
        raise self.unsupported(f"does not support the operation {operation}")

    def set_attribute(self, attribute: p.TableAttribute) -> None:
        """Set one attribute; of P4 tables that is the entry scope."""
        if attribute.WhichOneof("attribute") != "entry_scope" or not self.scopable:
            raise self.unsupported(f"has no attribute {attribute.WhichOneof('attribute')}")
        mode = attribute.entry_scope.pipe_scope
        if mode.WhichOneof("scope") == "user_defined":
            raise self.unsupported("is emulated with pipe scope ALL or SINGLE only")
        self.set_single_scope(mode.predef == p.Mode.SINGLE)

    def get_attribute(self, attribute: p.TableAttribute) -> p.TableAttribute:
        """The attribute whose empty sub-message ``attribute`` holds, filled in."""
        if attribute.WhichOneof("attribute") != "entry_scope" or not self.scopable:
            raise self.unsupported(f"has no attribute {attribute.WhichOneof('attribute')}")
        answer = p.TableAttribute(table_id=self.spec.id)
        answer.entry_scope.gress_scope.predef = p.Mode.ALL
        answer.entry_scope.pipe_scope.predef = p.Mode.SINGLE if self.single_scope else p.Mode.ALL
        answer.entry_scope.prsr_scope.predef = p.Mode.ALL
        return answer

    @property
    def scopable(self) -> bool:
        """Whether clients may ask for and set the entry scope."""
        return "EntryScope" in self.spec.attributes

    def set_single_scope(self, single: bool) -> None:
        """Choose between one set of entries for all pipes and one per pipe."""
        if single:
            raise self.unsupported("is emulated with one set of entries for all pipes (scope ALL) only")

    def pipes(self, target: p.TargetDevice, num_pipes: int) -> slice:
        """The pipes a request is for; INVALID_ARG when device, pipe or scope do not fit."""
        where = f"table {self.spec.name}: target"
        if target.device_id != 0:
            raise invalid(f"{where} device {target.device_id} does not exist, there is device 0 only;")
        if target.pipe_id == ALL_PIPES:
            return slice(0, num_pipes)
        if target.pipe_id >= num_pipes:
            raise invalid(f"{where} pipe {target.pipe_id} does not exist, pipes are 0..{num_pipes - 1};")
        if not self.single_scope:
            raise invalid(
                f"{where} pipe {target.pipe_id}: entries are for all pipes, use pipe_id 0xffff "
                "or set the entry scope to SINGLE first;"
            )
        return slice(target.pipe_id, target.pipe_id + 1)

    def unsupported(self, what: str) -> BfError:
        """The refusal for what this table (or the emulation) cannot do."""
        return BfError(BfStatus.NOT_SUPPORTED, f"table {self.spec.name} {what};")


class EntryTable(Table):
    """Entries by key, a default entry where the schema knows one, entry handles, a capacity."""

    partial_modify = False  # whether MODIFY may leave out mandatory fields

    def __init__(
        self,
        spec: TableSpec,
        capacity: Callable[[TableSpec], int],
        *,
        default: tuple[str, Mapping[str, DataValue]] | None = None,
        entries: Iterable[InstalledEntry] = (),
    ) -> None:
        super().__init__(spec)
        self._capacity = capacity
        self._initial_default = default
        self._initial_entries = tuple(entries)
        self.default = default
        self._rows: dict[Identity, InstalledEntry] = {}
        self._by_handle: dict[int, Identity] = {}
        self._next_handle = 1
        self.reset()

    @property
    def entries(self) -> Iterable[InstalledEntry]:
        """The entries in order of insertion."""
        return self._rows.values()

    def has(self, number: int) -> bool:
        """Whether a table with one exact integer key has an entry for that integer."""
        return (number,) in self._rows

    def snapshot(self) -> TableSnapshot:
        """The content now, unaffected by later writes."""
        return TableSnapshot(tuple(self._rows.values()), self.default)

    def reset(self) -> None:
        """Back to the program's own default and constant entries."""
        self.default = self._initial_default
        self._rows, self._by_handle = {}, {}
        for entry in self._initial_entries:
            key = codec.encode_key(self.spec, {**entry.key, PRIORITY: entry.priority})
            self._put(codec.decode_key(self.spec, key)[1], entry)

    def usage(self) -> int:
        """Number of entries, the default entry not counted."""
        return len(self._rows)

    # ------------------------------------------------------------------------------------------ writing

    def write(self, kind: p.Update.Type, entry: p.TableEntry, target: p.TargetDevice) -> Change:
        """Apply one update; see bfrt-facts.md, "Semantics worth copying"."""
        self.check_target(target)
        if self.spec.const_entries:
            raise invalid(f"table {self.spec.name} has constant entries, nothing in it can be changed;")
        if entry.is_default_entry:
            return self._write_default(kind, entry)
        if kind == p.Update.DELETE:
            return self._delete(entry) if entry.WhichOneof("value") else self._clear()
        if kind not in (p.Update.INSERT, p.Update.MODIFY, p.Update.MODIFY_INC, p.Update.INSERT_OR_MODIFY):
            raise self.unsupported(f"does not support updates of type {p.Update.Type.Name(kind)}")
        return self._upsert(kind, entry)

    def check_target(self, target: p.TargetDevice) -> None:
        """Refuse targets that name a pipe of their own; fixed tables take any."""

    def check(self, entry: InstalledEntry) -> None:
        """Refuse an entry that refers to what does not exist."""

    def check_unused(self, entry: InstalledEntry) -> None:
        """Refuse to delete an entry that others refer to."""

    def increment(self, old: InstalledEntry, given: Mapping[str, DataValue], *, remove: bool) -> dict[str, DataValue]:
        """The data after MODIFY_INC."""
        raise self.unsupported("does not support MODIFY_INC")

    def _upsert(self, kind: p.Update.Type, entry: p.TableEntry) -> Change:
        if not self.spec.key:
            raise invalid(f"table {self.spec.name} has no key: write its default entry;")
        if not entry.WhichOneof("value") or not entry.HasField("data"):
            raise invalid(f"table {self.spec.name}: {p.Update.Type.Name(kind)} needs key and data;")
        identity, key = self._identify(entry)
        old = self._rows.get(identity)
        if kind == p.Update.INSERT and old is not None:
            raise BfError(BfStatus.ALREADY_EXISTS, f"table {self.spec.name}: this key is there already;")
        if kind in (p.Update.MODIFY, p.Update.MODIFY_INC) and old is None:
            raise BfError(BfStatus.OBJECT_NOT_FOUND, f"table {self.spec.name}: no entry has this key;")
        partial = kind == p.Update.MODIFY_INC or (old is not None and self.partial_modify)
        action, given = codec.decode_data(self.spec, entry.data, partial=partial)
        if action is not None and action.scope == "DefaultOnly":
            raise invalid(f"table {self.spec.name}: action {action.name} is for the default entry only;")
        if kind == p.Update.MODIFY_INC and old is not None:
            deprecated = entry.table_mod_inc_flag.type == p.TableModIncFlag.MOD_INC_DELETE
            data = self.increment(old, given, remove=entry.table_flags.mod_del or deprecated)
        else:
            data = self._merge(old, action, given, entry.table_flags)
        new = InstalledEntry(
            key={name: value for name, value in key.items() if name != PRIORITY},
            priority=int(key.get(PRIORITY, 0)),  # type: ignore[arg-type]  # $MATCH_PRIORITY is exact
            action=action.name if action else "",
            data=data,
            handle=old.handle if old else 0,
        )
        self.check(new)
        if old is None:
            if len(self._rows) >= self._capacity(self.spec):
                raise BfError(BfStatus.NO_SPACE, f"table {self.spec.name} is full ({len(self._rows)});")
            self._put(identity, new)
            return Change(lambda: self._drop(identity))
        self._rows[identity] = new
        modified = kind == p.Update.INSERT_OR_MODIFY
        return Change(lambda: self._rows.__setitem__(identity, old), modified)

    def _merge(
        self,
        old: InstalledEntry | None,
        action: ActionSpec | None,
        given: Mapping[str, DataValue],
        flags: p.TableFlags,
    ) -> dict[str, DataValue]:
        plain = [s for s in codec.specs_of(self.spec, action).values() if s.choice is None]
        data = {s.name: codec.default_value(s) for s in plain if s.type.kind != "container"}
        if old is not None:
            drop = (STATS if flags.reset_stats else ()) + (IDLE if flags.reset_ttl else ())
            common = [s.name for s in self.spec.data.values() if s.choice is None and s.name not in drop]
            data |= {name: old.data[name] for name in common if name in old.data}
        return {**data, **given}

    def _write_default(self, kind: p.Update.Type, entry: p.TableEntry) -> Change:
        if entry.key.fields:
            raise invalid(f"table {self.spec.name}: a default entry has no key;")
        if kind == p.Update.INSERT:
            raise self.unsupported("sets its default entry with MODIFY, not INSERT")
        if kind not in (p.Update.MODIFY, p.Update.INSERT_OR_MODIFY, p.Update.DELETE):
            raise self.unsupported(f"does not support {p.Update.Type.Name(kind)} of its default entry")
        old = self.default
        if kind == p.Update.DELETE:
            self.default = self._initial_default
        else:
            self.default = self._decode_default(entry)
        return Change(lambda: setattr(self, "default", old), modified=kind == p.Update.INSERT_OR_MODIFY)

    def _decode_default(self, entry: p.TableEntry) -> tuple[str, Mapping[str, DataValue]]:
        if self.spec.const_default:
            raise invalid(f"table {self.spec.name} has a constant default action;")
        if not entry.HasField("data"):
            raise invalid(f"table {self.spec.name}: MODIFY of the default entry needs data;")
        action, given = codec.decode_data(self.spec, entry.data)
        if action is not None and action.scope == "TableOnly":
            raise invalid(f"table {self.spec.name}: action {action.name} is not for the default entry;")
        return (action.name if action else "", self._merge(None, action, given, entry.table_flags))

    def _delete(self, entry: p.TableEntry) -> Change:
        identity, _ = self._identify(entry)
        old = self._rows.get(identity)
        if old is None:
            raise BfError(BfStatus.OBJECT_NOT_FOUND, f"table {self.spec.name}: no entry has this key;")
        self.check_unused(old)
        self._drop(identity)
        return Change(lambda: self._put(identity, old))

    def _clear(self) -> Change:
        for old in self.entries:
            self.check_unused(old)
        rows, handles = self._rows, self._by_handle
        self._rows, self._by_handle = {}, {}

        def undo() -> None:
            self._rows, self._by_handle = rows, handles

        return Change(undo)

    def _put(self, identity: Identity, entry: InstalledEntry) -> None:
        if not entry.handle:
            entry = replace(entry, handle=self._next_handle)
            self._next_handle += 1
        self._rows[identity] = entry
        self._by_handle[entry.handle] = identity

    def _drop(self, identity: Identity) -> None:
        del self._by_handle[self._rows.pop(identity).handle]

    def _identify(self, entry: p.TableEntry) -> tuple[Identity, Mapping[str, KeyValue]]:
        """Identity and key values of the entry that a request means, by key or by handle."""
        if entry.WhichOneof("value") == "handle_id":
            identity = self._by_handle.get(entry.handle_id)
            if identity is None:
                raise BfError(BfStatus.OBJECT_NOT_FOUND, f"table {self.spec.name}: unknown handle;")
            return identity, self._key_values(self._rows[identity])
        values, identity = codec.decode_key(self.spec, entry.key)
        return identity, values

    def _key_values(self, row: InstalledEntry) -> Mapping[str, KeyValue]:
        return {**row.key, PRIORITY: row.priority}

    # ------------------------------------------------------------------------------------------ reading

    def handle_of(self, key: p.TableKey) -> int:
        """The handle of the entry with that key; OBJECT_NOT_FOUND without one."""
        return self._find(p.TableEntry(key=key)).handle

    def live(self, entry: InstalledEntry) -> InstalledEntry:
        """The entry as a read shows it; tables with counters of the device put them in here."""
        return entry

    def _find(self, entry: p.TableEntry) -> InstalledEntry:
        row = self._rows.get(self._identify(entry)[0])
        if row is None:
            raise BfError(BfStatus.OBJECT_NOT_FOUND, f"table {self.spec.name}: no entry has this key;")
        return row

    def read(self, entry: p.TableEntry, target: p.TargetDevice) -> bytes:
        """One entry, the default entry, or all entries followed by the default entry."""
        self.check_target(target)
        wanted = entry.data
        if wanted.action_id and wanted.action_id not in self.spec.actions:
            raise invalid(f"table {self.spec.name} has no action with id {wanted.action_id};")
        response = p.ReadResponse()
        if entry.is_default_entry:
            if not self._add_default(response, entry):
                raise BfError(BfStatus.OBJECT_NOT_FOUND, f"table {self.spec.name} has no default entry;")
        elif entry.WhichOneof("value"):
            if not self._add(response, entry, self._find(entry)):
                raise invalid(f"table {self.spec.name}: the entry has another action than the one asked for;")
        else:
            for row in self.entries:
                self._add(response, entry, row)
            self._add_default(response, entry)
        return response.SerializeToString()

    def _add(self, response: p.ReadResponse, request: p.TableEntry, row: InstalledEntry) -> bool:
        row = self.live(row)
        action = self.spec.action_named(row.action)
        if request.data.action_id and (action is None or action.id != request.data.action_id):
            return False
        answer = response.entities.add().table_entry
        answer.table_id = self.spec.id
        answer.key.CopyFrom(codec.encode_key(self.spec, self._key_values(row)))
        if not _key_only(request):
            answer.data.CopyFrom(codec.encode_data(action, self._specs(action, request), row.data))
        return True

    def _add_default(self, response: p.ReadResponse, request: p.TableEntry) -> bool:
        if self.default is None:
            return False
        name, data = self.default
        action = self.spec.action_named(name)
        unknown = bool(name) and action is None  # e.g. an indirect table: its schema lists no actions
        if unknown or (request.data.action_id and (action is None or action.id != request.data.action_id)):
            return False
        answer = response.entities.add().table_entry
        answer.table_id, answer.is_default_entry = self.spec.id, True
        if not _key_only(request):
            answer.data.CopyFrom(codec.encode_data(action, self._specs(action, request), data))
        return True

    def _specs(self, action: ActionSpec | None, request: p.TableEntry) -> Iterable[DataSpec]:
        specs = codec.specs_of(self.spec, action)
        if not request.data.fields:
            return specs.values()
        unknown = [field.field_id for field in request.data.fields if field.field_id not in specs]
        if unknown:
            raise invalid(f"table {self.spec.name} has no data field with id {unknown[0]};")
        return [specs[field.field_id] for field in request.data.fields]


def _key_only(request: p.TableEntry) -> bool:
    return request.table_flags.key_only or request.table_read_flag.key_only


class MatchTable(EntryTable):
    """A match table, direct or with its data in an action profile or selector.

    In the indirect ones an entry is ``{"$ACTION_MEMBER_ID": n}`` or ``{"$SELECTOR_GROUP_ID": n}``; the member
    or group must exist.
    """

    def __init__(
        self,
        spec: TableSpec,
        capacity: Callable[[TableSpec], int],
        num_pipes: int,
        *,
        default: tuple[str, Mapping[str, DataValue]] | None = None,
        entries: Iterable[InstalledEntry] = (),
    ) -> None:
        self._num_pipes = num_pipes
        self._targets: dict[str, EntryTable] = {}
        super().__init__(spec, capacity, default=default, entries=entries)

    def link(self, tables: Mapping[int, Table]) -> None:
        """Find the profile and selector that entries may point into."""
        for field, kind in (("$ACTION_MEMBER_ID", "Action"), ("$SELECTOR_GROUP_ID", "Selector")):
            for other in (tables.get(i) for i in self.spec.depends_on):
                if isinstance(other, EntryTable) and other.spec.type == kind:
                    self._targets[field] = other

    def check_target(self, target: p.TargetDevice) -> None:
        """P4 tables have one set of entries for all pipes."""
        self.pipes(target, self._num_pipes)

    def check(self, entry: InstalledEntry) -> None:
        """The member or group that the entry points to must exist."""
        for field, other in self._targets.items():
            wanted = entry.data.get(field)
            if isinstance(wanted, int) and not other.has(wanted):
                raise BfError(BfStatus.OBJECT_NOT_FOUND, f"{other.spec.name} has no entry {field} {wanted};")
