# SPDX-License-Identifier: Apache-2.0
"""What the server needs from the device behind it, and a device that is plain memory.

The server keeps match tables itself and tells the backend about every change; registers and counters
belong to the running data plane and are read and written through the backend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fabric_twin.bfrt_server.codec import DataValue
from fabric_twin.bfrt_server.program import P4Program
from fabric_twin.bfrt_server.tables import TableSnapshot

__all__ = [
    "FixedTableSource",
    "HashBackend",
    "HashSettings",
    "MemoryBackend",
    "ReloadableBackend",
    "Slice",
    "SwitchBackend",
]

Values = NDArray[Any]


class SwitchBackend(Protocol):
    """One switch's data plane.

    Names are the short ones: the shortest unique suffix of the table's name ("steps", "job_all") and the
    last part of a register field's name ("mn", "f1"). Values are raw and unsigned. The server asks
    for indexes within the sizes of the bf-rt.json only.
    """

    name: str
    num_pipes: int

    def read_register(self, name: str, index: int, /) -> dict[str, list[int]]:
        """Field name -> one value per pipe."""

    def write_register(self, name: str, index: int, field_values: dict[str, int], pipe: int | None, /) -> None:
        """Set all fields of one index, in one pipe or (None) in all."""

    def clear_register(self, name: str, /) -> None:
        """All indexes of all pipes back to the program's initial value."""

    def read_registers(self, name: str, /) -> dict[str, Values]:
        """Field name -> unsigned integers of shape [num_pipes, size]."""

    def read_counter(self, name: str, index: int, /) -> list[tuple[int, int]]:
        """(packets, bytes) per pipe."""

    def write_counter(self, name: str, index: int, packets: int, num_bytes: int, /) -> None:
        """Make the sum over all pipes (packets, num_bytes)."""

    def read_counters(self, name: str, /) -> Values:
        """Unsigned integers of shape [num_pipes, size, 2]; the last axis is packets, bytes."""

    def table_changed(self, table: str, entries: TableSnapshot, /) -> None:
        """The content of a match table, action profile or selector after a Write that changed it."""


@runtime_checkable
class ReloadableBackend(Protocol):
    """A backend that can run another program, for pushes with SetForwardingPipelineConfig."""

    def load(self, program: P4Program, /) -> None:
        """Forget everything and run that program."""


@dataclass(frozen=True, slots=True)
class Slice:
    """``length`` bits of an input from ``start`` (0 = lowest) on; ``order`` 0 leaves them out of the hash."""

    field: str
    start: int
    length: int
    order: int


@dataclass(frozen=True, slots=True)
class HashSettings:
    """How a hash is calculated.

    ``action`` is pre_defined or user_defined, ``algorithm`` its data with rotate, msb and extend; ``seed`` None
    is the algorithm's own.
    """

    slices: tuple[Slice, ...]
    action: str
    algorithm: Mapping[str, DataValue]
    seed: int | None = None


@runtime_checkable
class HashBackend(Protocol):
    """A backend whose hashes can change while it runs."""

    def hash_changed(self, name: str, settings: HashSettings, /) -> None:
        """From now on the hash of that short name ("sig_hash") is calculated like this."""


@runtime_checkable
class FixedTableSource(Protocol):
    """A backend that knows live values of fixed tables (port statistics, queue counters)."""

    def read_fixed(self, table: str, key: Mapping[str, int], /) -> Mapping[str, int]:
        """Data fields to show for that key of a table by its full name, e.g. "$PORT_STAT".

        Fields left out keep their stored value.
        """


class MemoryBackend:
    """A switch that keeps what it is told, for tests of control planes.

    ``registers[name][field]`` is an array [num_pipes, size], ``counters[name]`` one of [num_pipes, size, 2]:
    poke values in, as packets would. ``tables[name]`` is the last snapshot of a table, ``hashes[name]`` the last
    change of a hash.
    """

    def __init__(self, program: P4Program, *, name: str = "memory", num_pipes: int = 4) -> None:
        self.name = name
        self.num_pipes = num_pipes
        self.load(program)

    def load(self, program: P4Program) -> None:
        """Registers, counters and tables of that program, all as after a start."""
        self.registers: dict[str, dict[str, Values]] = {}
        self.counters: dict[str, Values] = {}
        self.tables: dict[str, TableSnapshot] = {}
        self.hashes: dict[str, HashSettings] = {}
        self._initial = program.register_initial
        for spec in program.info.tables.values():
            if spec.type == "Register":
                widths = {field.name.rpartition(".")[2]: field.type.width for field in spec.data.values()}
                self.registers[spec.short_name] = {
                    field: np.zeros((self.num_pipes, spec.size), dtype=np.uint64 if width <= 64 else object)
                    for field, width in widths.items()
                }
                self.clear_register(spec.short_name)
            elif spec.type == "Counter":
                self.counters[spec.short_name] = np.zeros((self.num_pipes, spec.size, 2), dtype=np.uint64)

    def read_register(self, name: str, index: int) -> dict[str, list[int]]:
        """Field name -> one value per pipe."""
        return {field: values[:, index].tolist() for field, values in self.registers[name].items()}

    def write_register(self, name: str, index: int, field_values: dict[str, int], pipe: int | None) -> None:
        """Set the fields of one index, in one pipe or (None) in all."""
        pipes = slice(None) if pipe is None else pipe
        for field, value in field_values.items():
            self.registers[name][field][pipes, index] = value

    def clear_register(self, name: str) -> None:
        """All indexes of all pipes back to the program's initial value."""
        for values in self.registers[name].values():
            values[:] = self._initial.get(name, 0)

    def read_registers(self, name: str) -> dict[str, Values]:
        """Field name -> array [num_pipes, size]."""
        return self.registers[name]

    def read_counter(self, name: str, index: int) -> list[tuple[int, int]]:
        """(packets, bytes) per pipe."""
        return [(int(packets), int(octets)) for packets, octets in self.counters[name][:, index]]

    def write_counter(self, name: str, index: int, packets: int, num_bytes: int) -> None:
        """The first pipe holds the value, the others 0, as the driver does it."""
        self.counters[name][:, index] = 0
        self.counters[name][0, index] = (packets, num_bytes)

    def read_counters(self, name: str) -> Values:
        """Array [num_pipes, size, 2] of packets, bytes."""
        return self.counters[name]

    def table_changed(self, table: str, entries: TableSnapshot) -> None:
        """Keep the snapshot."""
        self.tables[table] = entries

    def hash_changed(self, name: str, settings: HashSettings) -> None:
        """Keep the settings."""
        self.hashes[name] = settings
