# SPDX-License-Identifier: Apache-2.0
"""Registers and counters: arrays of the data plane, seen through the driver's shadow copy.

A read with ``from_hw`` (or a Sync operation) fetches from the device and refreshes the shadow; any other
read answers from the shadow, however old it is.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fabric_twin.bfrt_server import codec
from fabric_twin.bfrt_server.backend import SwitchBackend
from fabric_twin.bfrt_server.codec import invalid
from fabric_twin.bfrt_server.schema import DataSpec, TableSpec
from fabric_twin.bfrt_server.scope import EntryScope
from fabric_twin.bfrt_server.tables import ALL_PIPES, Change, Table
from fabric_twin.bfrt_server.wire import EntryTemplate, big_endian
from switch_agent import bfrt_proto as p

__all__ = ["CounterTable", "RegisterTable"]

Values = NDArray[Any]
REGISTER_WIDTHS = (1, 8, 16, 32, 64, 128)
AXIS = {"$COUNTER_SPEC_PKTS": 0, "$COUNTER_SPEC_BYTES": 1}


class _IndexedTable(Table):
    """What registers and counters share: the index key, the shadow, reading, clearing."""

    sync_words: tuple[str, ...]

    def __init__(self, spec: TableSpec, backend: SwitchBackend) -> None:
        super().__init__(spec, backend.num_pipes)
        self.backend = backend
        self.name = spec.short_name
        self._key = next(iter(spec.key.values()))
        self._templates: dict[tuple[int | bytes, ...], EntryTemplate] = {}
        self._all_fields = tuple(spec.data.values())

    @abstractmethod
    def sync(self, index: int | None = None) -> None:
        """Shadow := device, for one index or for all."""

    @abstractmethod
    def columns(self, spec: DataSpec, pipes: list[int]) -> list[Values]:
        """Shadow values [size] of one field: one array per DataField that a read shows."""

    @abstractmethod
    def row(self, spec: DataSpec, pipes: list[int], index: int) -> list[int]:
        """The same for one index."""

    @abstractmethod
    def write_index(self, index: int, values: dict[str, int], pipes: list[int]) -> Callable[[], None]:
        """Set one index, device and shadow; returns the undo."""

    @abstractmethod
    def clear(self) -> Callable[[], None]:
        """Everything back to the initial value, device and shadow; returns the undo."""

    def pipes(self, target: p.TargetDevice) -> list[int]:
        """The pipes a request is for; INVALID_ARG when device, pipe or scope do not fit."""
        self.check_target(target)
        if target.pipe_id == ALL_PIPES:
            return list(range(self.num_pipes))
        group = self.scope.group_of(target.pipe_id)
        return [target.pipe_id] if group is None else list(self.scope.groups[group])

    def handle_of(self, key: p.TableKey, target: p.TargetDevice) -> int:
        """The index is the handle."""
        return self._index(p.TableEntry(key=key))

    def operate(self, operation: str) -> None:
        """Sync: fetch everything from the device into the shadow."""
        if operation not in self.sync_words:
            super().operate(operation)
        self.sync()

    def write(self, kind: p.Update.Type, entry: p.TableEntry, target: p.TargetDevice) -> Change:
        """INSERT, MODIFY and INSERT_OR_MODIFY all set one index; DELETE without key clears all."""
        pipes = self.pipes(target)
        if entry.is_default_entry:
            raise self.unsupported("has no default entry")
        keyed = entry.WhichOneof("value") is not None
        if kind == p.Update.DELETE and not keyed:
            return Change(self.clear())
        if kind not in (p.Update.INSERT, p.Update.MODIFY, p.Update.INSERT_OR_MODIFY):
            raise self.unsupported(f"does not support {p.Update.Type.Name(kind)} of an index")
        if not keyed or not entry.HasField("data"):
            raise invalid(f"table {self.spec.name}: {p.Update.Type.Name(kind)} needs index and data;")
        _, given = codec.decode_data(self.spec, entry.data)
        values = {name.rpartition(".")[2]: value for name, value in given.items() if isinstance(value, int)}
        modified = kind == p.Update.INSERT_OR_MODIFY
        return Change(self.write_index(self._index(entry), values, pipes), modified=modified)

    def read(self, entry: p.TableEntry, target: p.TargetDevice) -> bytes:
        """One index, or all of them; nothing where the default entry is asked for, as there is none."""
        pipes = self.pipes(target)
        keyed = entry.WhichOneof("value") is not None
        if entry.is_default_entry and not keyed:
            return b""
        shown = target.SerializeToString() if entry.HasField("entry_tgt") else b""
        index = self._index(entry) if keyed else None
        if entry.table_flags.from_hw or entry.table_read_flag.from_hw:
            self.sync(index)
        specs = self._wanted(entry)
        if index is not None:
            values = [value for spec in specs for value in self.row(spec, pipes, index)]
            return self._template(specs, len(values), shown).fill_one([index, *values])
        columns = [(spec, column) for spec in specs for column in self.columns(spec, pipes)]
        streams = [big_endian(np.arange(self.spec.size, dtype=np.uint64), self._key.type.num_bytes)]
        streams += [big_endian(column, spec.type.num_bytes) for spec, column in columns]
        return self._template(specs, len(columns), shown).fill(streams)

    def _index(self, entry: p.TableEntry) -> int:
        if entry.WhichOneof("value") == "handle_id":
            index: object = entry.handle_id
        else:
            index = codec.decode_key(self.spec, entry.key)[0][self._key.name]
        if not isinstance(index, int) or index >= self.spec.size:
            raise invalid(f"table {self.spec.name}: index {index} is not in 0..{self.spec.size - 1};")
        return index

    def _wanted(self, entry: p.TableEntry) -> Sequence[DataSpec]:
        if entry.table_flags.key_only or entry.table_read_flag.key_only:
            return ()
        if not entry.data.fields:
            return self._all_fields
        unknown = [field.field_id for field in entry.data.fields if field.field_id not in self.spec.data]
        if unknown:
            raise invalid(f"table {self.spec.name} has no data field with id {unknown[0]};")
        return [self.spec.data[field.field_id] for field in entry.data.fields]

    def _template(self, specs: Sequence[DataSpec], num_values: int, target: bytes) -> EntryTemplate:
        """The wire form of an entry with that many values, the same number for each of ``specs``.

        ``target``: the serialized target that the entry says it is for, if it says so.
        """
        shape: tuple[int | bytes, ...] = (target, num_values, *(spec.id for spec in specs))
        if shape not in self._templates:
            repeated = [spec for spec in specs for _ in range(num_values // len(specs))]

            def build(parts: Sequence[bytes]) -> p.TableEntry:
                entry = p.TableEntry(table_id=self.spec.id)
                if target:
                    entry.entry_tgt.MergeFromString(target)
                entry.key.fields.add(field_id=self._key.id).exact.value = parts[0]
                entry.data.SetInParent()
                for spec, part in zip(repeated, parts[1:], strict=True):
                    entry.data.fields.add(field_id=spec.id, stream=part)
                return entry

            widths = [self._key.type.num_bytes, *(spec.type.num_bytes for spec in repeated)]
            self._templates[shape] = EntryTemplate(build, widths)
        return self._templates[shape]


class RegisterTable(_IndexedTable):
    """A register array: a read shows each field once per pipe, all pipes of the first field first.

    Values are per pipe whatever the entry scope, which only lets requests name pipes.
    """

    sync_words = ("Sync", "SyncRegisters")
    scopable = True  # although the bf-rt.json does not list it

    def __init__(self, spec: TableSpec, backend: SwitchBackend) -> None:
        super().__init__(spec, backend)
        shape = (backend.num_pipes, spec.size)
        self._shadow: dict[str, Values] = {
            _field(data): np.zeros(shape, dtype=np.uint64 if data.type.width <= 64 else object)
            for data in spec.data.values()
        }
        self.sync()

    def sync(self, index: int | None = None) -> None:
        """Shadow := device."""
        if index is None:
            for field, values in self.backend.read_registers(self.name).items():
                self._shadow[field][:] = values
        else:
            for field, per_pipe in self.backend.read_register(self.name, index).items():
                self._shadow[field][:, index] = per_pipe

    def columns(self, spec: DataSpec, pipes: list[int]) -> list[Values]:
        """One array per pipe."""
        self._check_width(spec)
        return list(self._shadow[_field(spec)][pipes])

    def row(self, spec: DataSpec, pipes: list[int], index: int) -> list[int]:
        """One value per pipe."""
        self._check_width(spec)
        values: list[int] = self._shadow[_field(spec)][pipes, index].tolist()
        return values

    def _check_width(self, spec: DataSpec) -> None:
        if spec.type.width not in REGISTER_WIDTHS:
            raise invalid(f"table {self.spec.name}: fields of {spec.type.width} bits cannot be read;")

    def write_index(self, index: int, values: dict[str, int], pipes: list[int]) -> Callable[[], None]:
        """All fields of one index, in these pipes."""
        old = self.backend.read_register(self.name, index)
        for pipe in pipes if len(pipes) < self.num_pipes else [None]:
            self._set(index, values, pipe)

        def undo() -> None:
            for pipe in pipes:
                self._set(index, {field: per_pipe[pipe] for field, per_pipe in old.items()}, pipe)

        return undo

    def _set(self, index: int, values: dict[str, int], pipe: int | None) -> None:
        self.backend.write_register(self.name, index, values, pipe)
        for field, value in values.items():
            self._shadow[field][slice(None) if pipe is None else pipe, index] = value

    def clear(self) -> Callable[[], None]:
        """All indexes of all pipes back to the program's initial value."""
        old = {field: values.copy() for field, values in self.backend.read_registers(self.name).items()}
        self._clear()

        def undo() -> None:
            now = self.backend.read_registers(self.name)
            changed = np.argwhere(np.any([old[field] != now[field] for field in old], axis=0))
            for pipe, index in changed.tolist():
                self._set(index, {field: int(values[pipe, index]) for field, values in old.items()}, pipe)

        return undo

    def reset(self) -> None:
        """Device and shadow to the initial value, in the entry scope of a start."""
        self.scope = EntryScope.all_pipes(self.num_pipes)
        self._clear()

    def _clear(self) -> None:
        self.backend.clear_register(self.name)
        self.sync()


class CounterTable(_IndexedTable):
    """A packet and byte counter: the driver adds up the pipes that a request is for."""

    sync_words = ("Sync", "SyncCounters")

    def __init__(self, spec: TableSpec, backend: SwitchBackend) -> None:
        super().__init__(spec, backend)
        self._shadow: Values = np.zeros((backend.num_pipes, spec.size, 2), dtype=np.uint64)
        self.sync()

    def sync(self, index: int | None = None) -> None:
        """Shadow := device."""
        if index is None:
            self._shadow[:] = self.backend.read_counters(self.name)
        else:
            self._shadow[:, index] = self.backend.read_counter(self.name, index)

    def columns(self, spec: DataSpec, pipes: list[int]) -> list[Values]:
        """One array: the sum over the pipes."""
        total: Values = self._shadow[pipes, :, AXIS[spec.name]].sum(axis=0, dtype=np.uint64)
        return [total]

    def row(self, spec: DataSpec, pipes: list[int], index: int) -> list[int]:
        """One value: the sum over the pipes."""
        return [sum(self._shadow[pipes, index, AXIS[spec.name]].tolist())]

    def write_index(self, index: int, values: dict[str, int], pipes: list[int]) -> Callable[[], None]:
        """Set both counts (0 unless given), of all pipes together."""
        per_pipe = self.backend.read_counter(self.name, index)
        packets, octets = sum(pair[0] for pair in per_pipe), sum(pair[1] for pair in per_pipe)
        self._set(index, values.get("$COUNTER_SPEC_PKTS", 0), values.get("$COUNTER_SPEC_BYTES", 0))
        return lambda: self._set(index, packets, octets)

    def _set(self, index: int, packets: int, octets: int) -> None:
        self.backend.write_counter(self.name, index, packets, octets)
        self.sync(index)

    def clear(self) -> Callable[[], None]:
        """All counts of all indexes to 0."""
        totals = self.backend.read_counters(self.name).sum(axis=0, dtype=np.uint64)
        used = [(int(index), *totals[index].tolist()) for index in np.flatnonzero(totals.any(axis=1))]
        for index, _, _ in used:
            self._set(index, 0, 0)
        self.sync()

        def undo() -> None:
            for index, packets, octets in used:
                self._set(index, packets, octets)

        return undo

    def reset(self) -> None:
        """Device and shadow to 0."""
        self.clear()


def _field(spec: DataSpec) -> str:
    """The backend's name of a register field: "mn" of "Ingress.steps.mn"."""
    return spec.name.rpartition(".")[2]
