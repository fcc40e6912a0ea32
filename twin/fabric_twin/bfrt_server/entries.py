# SPDX-License-Identifier: Apache-2.0
"""Tables of keyed entries: the base of match tables, action profiles, selectors and fixed tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from fabric_twin.bfrt_server import codec
from fabric_twin.bfrt_server.codec import PRIORITY, DataValue, Identity, KeyValue, invalid
from fabric_twin.bfrt_server.schema import ActionSpec, DataSpec, TableSpec
from fabric_twin.bfrt_server.scope import EntryScope
from fabric_twin.bfrt_server.status import BfError, BfStatus
from fabric_twin.bfrt_server.tables import ALL_PIPES, Change, InstalledEntry, Table, TableSnapshot
from switch_agent import bfrt_proto as p

__all__ = ["EntrySet", "EntryTable"]

STATS = ("$COUNTER_SPEC_BYTES", "$COUNTER_SPEC_PKTS")
IDLE = ("$ENTRY_TTL", "$ENTRY_HIT_STATE")
UPSERTS = (p.Update.INSERT, p.Update.MODIFY, p.Update.MODIFY_INC, p.Update.INSERT_OR_MODIFY)

Default = tuple[str, Mapping[str, DataValue]] | None


@dataclass(eq=False, slots=True)
class EntrySet:
    """The entries and the default entry that these pipes share, by identity of the key."""

    pipes: tuple[int, ...]
    default: Default
    rows: dict[Identity, InstalledEntry] = field(default_factory=dict)

    def snapshot(self) -> TableSnapshot:
        """The content now, unaffected by later writes."""
        return TableSnapshot(tuple(self.rows.values()), self.default)


class EntryTable(Table):
    """Entries by key, a default entry where the schema knows one, entry handles, a capacity.

    There is one set of entries per group of pipes of the entry scope, as a rule one in all.
    """

    partial_modify = False  # whether MODIFY may leave out mandatory fields
    has_default = False  # whether there is a default entry for clients to set and read

    def __init__(
        self,
        spec: TableSpec,
        capacity: Callable[[TableSpec], int],
        num_pipes: int = 1,
        *,
        default: Default = None,
        entries: Iterable[InstalledEntry] = (),
    ) -> None:
        super().__init__(spec, num_pipes)
        self._capacity = capacity
        self._initial_default = default
        self._initial_entries = tuple(entries)
        self._next_handle = 1
        self.reset()

    @property
    def entries(self) -> Iterable[InstalledEntry]:
        """All entries, in order of insertion."""
        return [row for part in self.sets for row in part.rows.values()]

    def has(self, number: int, pipes: tuple[int, ...] = (0,)) -> bool:
        """Whether a table with one exact integer key has an entry for that integer in these pipes."""
        return any((number,) in part.rows for part in self.sets if pipes[0] in part.pipes)

    def snapshot(self) -> TableSnapshot:
        """The content now, unaffected by later writes."""
        if self.scope.shared:
            return self.sets[0].snapshot()
        pipes = [self._snapshot_of(pipe) for pipe in range(self.num_pipes)]
        first, *others = [{(_frozen(row.key), row.priority): row for row in pipe.entries} for pipe in pipes]
        alike = [row for key, row in first.items() if all(_same(row, other.get(key)) for other in others)]
        return TableSnapshot(tuple(alike), pipes[0].default, tuple(pipes))

    def _snapshot_of(self, pipe: int) -> TableSnapshot:
        group = self.scope.group_of(pipe)
        return TableSnapshot((), self._initial_default) if group is None else self.sets[group].snapshot()

    def reset(self) -> None:
        """Back to the program's own default and constant entries, the same in all pipes."""
        self.scope = EntryScope.all_pipes(self.num_pipes)
        self._by_handle: dict[int, tuple[EntrySet, Identity]] = {}
        self._use_scope(self._initial_default)

    def _use_scope(self, default: Default) -> None:
        self.sets = [EntrySet(group, default) for group in self.scope.groups]
        for part in self.sets:
            for entry in self._initial_entries:
                key = codec.encode_key(self.spec, {**entry.key, PRIORITY: entry.priority})
                self._put(part, codec.decode_key(self.spec, key)[1], entry)

    def set_scope(self, scope: EntryScope) -> None:
        """Another entry scope, while there are no entries (but the program's constant ones)."""
        self.check_empty()
        self.scope = scope
        self._by_handle = {}
        self._use_scope(self.sets[0].default)

    def check_empty(self) -> None:
        """NOT_SUPPORTED while there are entries of clients."""
        if not self.spec.const_entries and any(part.rows for part in self.sets):
            raise self.unsupported("has entries, its entry scope cannot be changed")

    # ------------------------------------------------------------------------------------------- target

    def addressed(self, target: p.TargetDevice) -> list[EntrySet]:
        """The sets that a request is for."""
        self.check_target(target)
        if target.pipe_id == ALL_PIPES or self.scope.shared:
            return self.sets
        group = self.scope.group_of(target.pipe_id)
        if group is None:
            raise invalid(f"table {self.spec.name}: pipe {target.pipe_id} is in none of its entry scopes;")
        return [self.sets[group]]

    def keyed(self, target: p.TargetDevice) -> EntrySet:
        """The one set in which a request looks for a key; OBJECT_NOT_FOUND for all pipes of a scoped table."""
        parts = self.addressed(target)
        if len(parts) != 1 or (not self.scope.shared and target.pipe_id == ALL_PIPES):
            raise BfError(BfStatus.OBJECT_NOT_FOUND, f"table {self.spec.name} has entries per pipe: name a pipe;")
        return parts[0]

    def usage(self, target: p.TargetDevice) -> int:
        """Number of entries in the target's pipes, default entries not counted."""
        return sum(len(part.rows) for part in self.addressed(target))

    # ------------------------------------------------------------------------------------------ writing

    def write(self, kind: p.Update.Type, entry: p.TableEntry, target: p.TargetDevice) -> Change:
        """Apply one update, in the sets of the pipes it names."""
        parts = self.addressed(target)
        if entry.is_default_entry:
            return self._write_default(kind, entry, parts)
        if self.spec.const_entries:
            raise invalid(f"table {self.spec.name} has constant entries, nothing in it can be changed;")
        if kind == p.Update.DELETE:
            return self._delete(self.keyed(target), entry) if entry.WhichOneof("value") else self._clear(parts)
        if kind not in UPSERTS:
            raise self.unsupported(f"does not support updates of type {p.Update.Type.Name(kind)}")
        if kind != p.Update.MODIFY and not self.scope.shared and target.pipe_id != parts[0].pipes[0]:
            raise invalid(f"table {self.spec.name}: the target is the lowest pipe of an entry scope, not all pipes;")
        return self._upsert(self.keyed(target), kind, entry)

    def check(self, entry: InstalledEntry, pipes: tuple[int, ...]) -> None:
        """Refuse an entry that refers to what does not exist in these pipes."""

    def check_unused(self, entry: InstalledEntry, pipes: tuple[int, ...]) -> None:
        """Refuse to delete an entry that others refer to."""

    def increment(self, old: InstalledEntry, given: Mapping[str, DataValue], *, remove: bool) -> dict[str, DataValue]:
        """The data after MODIFY_INC."""
        raise self.unsupported("does not support MODIFY_INC")

    def _upsert(self, part: EntrySet, kind: p.Update.Type, entry: p.TableEntry) -> Change:
        if not self.spec.key:
            raise invalid(f"table {self.spec.name} has no key: write its default entry;")
        if not entry.WhichOneof("value") or not entry.HasField("data"):
            raise invalid(f"table {self.spec.name}: {p.Update.Type.Name(kind)} needs key and data;")
        identity, key = self._identify(part, entry)
        old = part.rows.get(identity)
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
        self.check(new, part.pipes)
        if old is None:
            if len(part.rows) >= self._capacity(self.spec):
                raise BfError(BfStatus.NO_SPACE, f"table {self.spec.name} is full ({len(part.rows)});")
            self._put(part, identity, new)
            return Change(lambda: self._drop(part, identity))
        part.rows[identity] = new
        modified = kind == p.Update.INSERT_OR_MODIFY
        return Change(lambda: part.rows.__setitem__(identity, old), modified)

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

    def _write_default(self, kind: p.Update.Type, entry: p.TableEntry, parts: list[EntrySet]) -> Change:
        if entry.key.fields:
            raise invalid(f"table {self.spec.name}: a default entry has no key;")
        if kind == p.Update.INSERT:
            raise self.unsupported("sets its default entry with MODIFY, not INSERT")
        if not self.has_default:
            raise self.unsupported("has no default entry")
        if kind not in (p.Update.MODIFY, p.Update.INSERT_OR_MODIFY, p.Update.DELETE):
            raise self.unsupported(f"does not support {p.Update.Type.Name(kind)} of its default entry")
        new = self._initial_default if kind == p.Update.DELETE else self._decode_default(entry)
        return Change(self._set_default(parts, new), modified=kind == p.Update.INSERT_OR_MODIFY)

    def _set_default(self, parts: list[EntrySet], new: Default) -> Callable[[], None]:
        """Set it in these sets; returns the undo."""
        old = [part.default for part in parts]
        for part in parts:
            part.default = new

        def undo() -> None:
            for part, default in zip(parts, old, strict=True):
                part.default = default

        return undo

    def _decode_default(self, entry: p.TableEntry) -> Default:
        if self.spec.const_default:
            raise invalid(f"table {self.spec.name} has a constant default action;")
        if not entry.HasField("data"):
            raise invalid(f"table {self.spec.name}: MODIFY of the default entry needs data;")
        action, given = codec.decode_data(self.spec, entry.data)
        if action is not None and action.scope == "TableOnly":
            raise invalid(f"table {self.spec.name}: action {action.name} is not for the default entry;")
        return (action.name if action else "", self._merge(None, action, given, entry.table_flags))

    def _delete(self, part: EntrySet, entry: p.TableEntry) -> Change:
        identity, _ = self._identify(part, entry)
        old = part.rows.get(identity)
        if old is None:
            raise BfError(BfStatus.OBJECT_NOT_FOUND, f"table {self.spec.name}: no entry has this key;")
        self.check_unused(old, part.pipes)
        self._drop(part, identity)
        return Change(lambda: self._put(part, identity, old))

    def _clear(self, parts: list[EntrySet]) -> Change:
        """Delete all entries; the driver resets the default entry with them."""
        for part in parts:
            for old in part.rows.values():
                self.check_unused(old, part.pipes)
        undo_default = self._set_default(parts, self._initial_default)
        rows, handles = [part.rows for part in parts], self._by_handle
        self._by_handle = {number: place for number, place in handles.items() if place[0] not in parts}
        for part in parts:
            part.rows = {}

        def undo() -> None:
            undo_default()
            self._by_handle = handles
            for part, old in zip(parts, rows, strict=True):
                part.rows = old

        return Change(undo)

    def _put(self, part: EntrySet, identity: Identity, entry: InstalledEntry) -> None:
        if not entry.handle:
            entry = replace(entry, handle=self._next_handle)
            self._next_handle += 1
        part.rows[identity] = entry
        self._by_handle[entry.handle] = part, identity

    def _drop(self, part: EntrySet, identity: Identity) -> None:
        del self._by_handle[part.rows.pop(identity).handle]

    def _identify(self, part: EntrySet, entry: p.TableEntry) -> tuple[Identity, Mapping[str, KeyValue]]:
        """Identity and key values of the entry that a request means, by key or by handle."""
        if entry.WhichOneof("value") == "handle_id":
            found, identity = self._by_handle.get(entry.handle_id, (None, ()))
            if found is not part:
                raise BfError(BfStatus.OBJECT_NOT_FOUND, f"table {self.spec.name}: unknown handle;")
            return identity, self._key_values(part.rows[identity])
        values, identity = codec.decode_key(self.spec, entry.key)
        return identity, values

    def _key_values(self, row: InstalledEntry) -> Mapping[str, KeyValue]:
        return {**row.key, PRIORITY: row.priority}

    # ------------------------------------------------------------------------------------------ reading

    def handle_of(self, key: p.TableKey, target: p.TargetDevice) -> int:
        """The handle of the entry with that key; OBJECT_NOT_FOUND without one."""
        return self._find(self.keyed(target), p.TableEntry(key=key)).handle

    def live(self, entry: InstalledEntry) -> InstalledEntry:
        """The entry as a read shows it; tables with counters of the device put them in here."""
        return entry

    def _find(self, part: EntrySet, entry: p.TableEntry) -> InstalledEntry:
        row = part.rows.get(self._identify(part, entry)[0])
        if row is None:
            raise BfError(BfStatus.OBJECT_NOT_FOUND, f"table {self.spec.name}: no entry has this key;")
        return row

    def read(self, entry: p.TableEntry, target: p.TargetDevice) -> bytes:
        """One entry, the default entry, or all entries followed by the default entry."""
        wanted = entry.data
        if wanted.action_id and wanted.action_id not in self.spec.actions:
            raise invalid(f"table {self.spec.name} has no action with id {wanted.action_id};")
        answer = _Answer(entry, target)
        if entry.WhichOneof("value"):
            part = self._part_to_read(entry, target)
            if not self._add(answer, self._find(part, entry)):
                raise invalid(f"table {self.spec.name}: the entry has another action than the one asked for;")
            if entry.WhichOneof("value") == "handle_id" and answer.key_only:
                answer.show_target(ALL_PIPES if self.scope.shared else part.pipes[0])
        elif entry.is_default_entry:
            self._add_default(answer, self._part_of_default(target))
        else:
            parts = self.addressed(target)
            for part in parts:
                for row in self._listed(part):
                    self._add(answer, row)
            if self.scope.shared or target.pipe_id != ALL_PIPES:
                self._add_default(answer, parts[0])
        return answer.response.SerializeToString()

    def _part_to_read(self, entry: p.TableEntry, target: p.TargetDevice) -> EntrySet:
        if entry.WhichOneof("value") == "handle_id" and entry.handle_id in self._by_handle:
            return self._by_handle[entry.handle_id][0]
        if self.scope.shared:  # a read may name a pipe, it has what all have
            self.check_device(target)
            return self.sets[0]
        return self.keyed(target)

    def _part_of_default(self, target: p.TargetDevice) -> EntrySet:
        if self.scope.shared:
            self.check_device(target)
            return self.sets[0]
        if target.pipe_id == ALL_PIPES:
            raise invalid(f"table {self.spec.name} has a default entry per pipe: name a pipe;")
        return self.addressed(target)[0]

    def _listed(self, part: EntrySet) -> Iterable[InstalledEntry]:
        """The rows that a read of all entries shows."""
        return part.rows.values()

    def _add(self, answer: _Answer, row: InstalledEntry) -> bool:
        row = self.live(row)
        action = self.spec.action_named(row.action)
        if not answer.wants(action):
            return False
        entry = answer.add(self.spec.id)
        entry.key.CopyFrom(codec.encode_key(self.spec, self._key_values(row)))
        if not answer.key_only:
            entry.data.CopyFrom(codec.encode_data(action, self._specs(action, answer.request), row.data))
        return True

    def _add_default(self, answer: _Answer, part: EntrySet) -> None:
        """Add the default entry, if there is one that the request wants; without one the answer stays empty."""
        if part.default is None:
            return
        name, data = part.default
        action = self.spec.action_named(name)
        unknown = bool(name) and action is None  # e.g. an indirect table: its schema lists no actions
        if unknown or not answer.wants(action):
            return
        entry = answer.add(self.spec.id)
        entry.is_default_entry = True
        if not answer.key_only:
            entry.data.CopyFrom(codec.encode_data(action, self._specs(action, answer.request), data))

    def _specs(self, action: ActionSpec | None, request: p.TableEntry) -> Iterable[DataSpec]:
        specs = codec.specs_of(self.spec, action)
        if not request.data.fields:
            return specs.values()
        unknown = [field.field_id for field in request.data.fields if field.field_id not in specs]
        if unknown:
            raise invalid(f"table {self.spec.name} has no data field with id {unknown[0]};")
        return [specs[field.field_id] for field in request.data.fields]


class _Answer:
    """A ReadResponse being made; entries carry the target when the request's entry did."""

    def __init__(self, request: p.TableEntry, target: p.TargetDevice) -> None:
        self.request = request
        self.response = p.ReadResponse()
        self.key_only = request.table_flags.key_only or request.table_read_flag.key_only
        self._target = target

    def wants(self, action: ActionSpec | None) -> bool:
        """Whether the request's action filter lets that action through."""
        wanted = self.request.data.action_id
        return not wanted or (action is not None and action.id == wanted)

    def add(self, table_id: int) -> p.TableEntry:
        """One more entry."""
        entry = self.response.entities.add().table_entry
        entry.table_id = table_id
        if self.request.HasField("entry_tgt"):
            entry.entry_tgt.CopyFrom(self._target)
        return entry

    def show_target(self, pipe: int) -> None:
        """Say of the entry just added which pipe it is for."""
        target = self.response.entities[-1].table_entry.entry_tgt
        target.CopyFrom(self._target)
        target.pipe_id = pipe


def _frozen(key: Mapping[str, KeyValue]) -> tuple[tuple[str, KeyValue], ...]:
    return tuple(sorted(key.items()))


def _same(one: InstalledEntry, other: InstalledEntry | None) -> bool:
    return other is not None and (one.action, one.data) == (other.action, other.data)
