# SPDX-License-Identifier: Apache-2.0
"""A Symphony switch of the fabric as BF-Runtime sees it: registers, counters, and what the tables make the pipeline do.

Nothing here is a short cut for the control plane: the pipeline runs what was written through BF-Runtime, the
look-up entries included. A switch whose tables nobody has filled forwards packets and tracks nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from fabric_twin.bfrt_server import InstalledEntry, TableSnapshot
from fabric_twin.engine.state import PORT_SHIFT, Port
from fabric_twin.fabric import Fabric
from fabric_twin.red_profile import DEPTHS, Red, red_of
from fabric_twin.topology import NUM_PIPES, Topology
from switch_agent.dataplane.constants import N_JOB
from switch_agent.dataplane.lookup import TernaryEntry, lookup_tables
from switch_agent.dataplane.params import ParamEntry
from switch_agent.dataplane.pipeline import install_lookup, new_registers

__all__ = ["TwinSwitch", "device_ports"]

log = logging.getLogger(__name__)

Values = np.ndarray[Any, np.dtype[Any]]

_REGISTERS = {
    "steps": {"mn": "steps_mn", "mx": "steps_mx"},
    "psn_rec": {"f1": "psn_rec"},
    "window_start": {"f1": "window_start"},
    "score": {"score": "score", "count": "count"},
    "alpha": {"f1": "alpha"},
    "flow_base": {"sig": "flow_sig", "base": "flow_base"},
}
"""Register -> field -> its array in `Registers`."""
_COUNTERS = {"job_all": 0, "job_outpacing": 1, "job_marked_symphony": 2, "job_marked_queue": 3}


def device_ports(topology: Topology, switch: int) -> dict[int, int]:
    """Device port -> index of the port that leaves by it: downward ports are in pipe 0, uplinks in pipe 1.

    More than 128 downward ports fill the next pipes and move the uplinks on; a fabric file can say otherwise.
    """
    return {topology.ports[index].device_port: index for index in topology.switches[switch].ports}


class TwinSwitch:
    """The backend of one switch's BF-Runtime server (`fabric_twin.bfrt_server.SwitchBackend`).

    Args:
        fabric: the fabric.
        switch: index of a switch with Symphony.
    """

    def __init__(self, fabric: Fabric, switch: int) -> None:
        self.name = fabric.topology.switches[switch].name
        self.num_pipes = NUM_PIPES
        self._fabric = fabric
        self._switch = switch
        self._pipeline = fabric.topology.switches[switch].pipeline
        self._rows = slice(self._pipeline * NUM_PIPES, (self._pipeline + 1) * NUM_PIPES)
        self._on_change: dict[str, Callable[[TableSnapshot], None]] = {
            "job_classify": self._classification,
            "job_params": self._params,
            "ecmp_config": self._ecmp,
            "red_profile": self._red,
            **{name: self._lookup(name) for name in lookup_tables()},
        }
        self._ports = device_ports(fabric.topology, switch)
        self._installed: dict[int, InstalledEntry] = {}
        self._uneven: set[str] = set()  # tables that differ between pipes
        for name in lookup_tables():
            install_lookup(fabric.planes.lut, self._pipeline, name, [], 0)  # as on a switch that has just started

    # ---------------------------------------------------------------------------------------- registers

    def _array(self, name: str, field: str) -> Values:
        """One field of a register, [pipe, index], as unsigned words."""
        array: Values = getattr(self._fabric.planes.regs, _REGISTERS[name][field])[self._rows]
        return array.view(array.dtype.str.replace("i", "u"))

    def read_register(self, name: str, index: int) -> dict[str, list[int]]:
        """Field name -> one value per pipe."""
        return {field: self._array(name, field)[:, index].tolist() for field in _REGISTERS[name]}

    def write_register(self, name: str, index: int, field_values: dict[str, int], pipe: int | None) -> None:
        """Set all fields of one index, in one pipe or (None) in all."""
        pipes = slice(None) if pipe is None else pipe
        for field, value in field_values.items():
            self._array(name, field)[pipes, index] = value

    def clear_register(self, name: str) -> None:
        """All indexes of all pipes back to the program's initial value."""
        initial = new_registers(1, 1, 1)
        for field, array in _REGISTERS[name].items():
            self._array(name, field)[:] = getattr(initial, array)[0, 0]

    def read_registers(self, name: str) -> dict[str, Values]:
        """Field name -> unsigned integers of shape [num_pipes, size]."""
        return {field: self._array(name, field) for field in _REGISTERS[name]}

    # ---------------------------------------------------------------------------------------- counters

    def _counter(self, name: str) -> Values:
        counts = self._fabric.view.counts.reshape(-1, N_JOB, 4, 2)
        return counts[self._rows, :, _COUNTERS[name], :]

    def read_counter(self, name: str, index: int) -> list[tuple[int, int]]:
        """(packets, bytes) per pipe."""
        return [(int(packets), int(octets)) for packets, octets in self._counter(name)[:, index]]

    def write_counter(self, name: str, index: int, packets: int, num_bytes: int) -> None:
        """The first pipe holds the value, the others 0."""
        counter = self._counter(name)
        counter[:, index] = 0
        counter[0, index] = packets, num_bytes

    def read_counters(self, name: str) -> Values:
        """Unsigned integers of shape [num_pipes, size, 2]; the last axis is packets, bytes."""
        return self._counter(name).astype(np.uint64)

    # ---------------------------------------------------------------------------------------- tables

    def table_changed(self, table: str, entries: TableSnapshot) -> None:
        """Make the running pipeline do what the table now says."""
        change = self._on_change.get(table)
        if change is not None:
            change(entries)
            self._warn_of_pipes(table, entries)

    def _warn_of_pipes(self, table: str, entries: TableSnapshot) -> None:
        """Say once that pipes have different entries, until they agree again."""
        alike = len(entries.entries), entries.default
        if all((len(pipe.entries), pipe.default) == alike for pipe in entries.pipes):
            self._uneven.discard(table)
        elif table not in self._uneven:
            self._uneven.add(table)
            log.warning(
                "%s: %s differs between pipes: applied is what all have, and pipe 0's default", self.name, table
            )

    def _classification(self, snapshot: TableSnapshot) -> None:
        self._fabric.set_classifier(self._switch, _Classifier(snapshot.entries) if snapshot.entries else None)

    def _params(self, snapshot: TableSnapshot) -> None:
        wanted: dict[int, InstalledEntry] = {}
        for entry in snapshot.entries:
            job = entry.key["ig_md.job"]
            if isinstance(job, int) and job < N_JOB and entry.action.endswith("set_params"):
                wanted[job] = entry
        for job in self._installed.keys() - wanted.keys():
            self._fabric.set_params(self._switch, job, None)
        for job, entry in wanted.items():
            if self._installed.get(job) is not entry:  # entries that a write did not touch are the same objects
                self._fabric.set_params(self._switch, job, ParamEntry.from_data(_ints(entry.data)).values())
        self._installed = wanted

    def _ecmp(self, snapshot: TableSnapshot) -> None:
        assert snapshot.default is not None
        mask = _ints(snapshot.default[1])["mask"] if self._fabric.preset.ecmp_sport else 0
        if self._fabric.topology.switches[self._switch].hash_sport_mask != mask:
            self._fabric.set_hash_sport_mask(self._switch, mask)

    def _red(self, snapshot: TableSnapshot) -> None:
        """RED as the entries have it; without entries that of the preset, where the program would not mark at all."""
        preset = self._fabric.preset
        problems: dict[str, list[int]] = {}
        for dev_port, index in self._ports.items():
            red = Red(preset.kmin, preset.kmax, preset.pmax)
            if snapshot.entries:
                try:
                    red = red_of(snapshot.entries, dev_port)
                except ValueError as error:
                    problems.setdefault(f"not applied: {error}", []).append(dev_port)
                    continue
                if red.busy_min_cells > 1:
                    since = "never" if red.busy_min_cells == DEPTHS else f"from cell {red.busy_min_cells} on"
                    text = f"it calls a queue busy {since}; for the twin's gate it is from the first byte on"
                    problems.setdefault(text, []).append(dev_port)
            row = self._fabric.view.port[index << PORT_SHIFT :]
            row[Port.KMIN], row[Port.KMAX] = red.kmin, red.kmax
            row[Port.PMAX] = round(red.pmax * 2**32)
        for text, ports in problems.items():
            log.error("%s: red_profile of port %s: %s", self.name, ", ".join(map(str, ports)), text)

    def _lookup(self, name: str) -> Callable[[TableSnapshot], None]:
        table = lookup_tables()[name]

        def signed(raw: int) -> int:
            return raw - (1 << table.data_bits) if table.signed and raw >> (table.data_bits - 1) else raw

        def change(snapshot: TableSnapshot) -> None:
            entries = []
            for entry in snapshot.entries:
                value, mask = _pair(next(iter(entry.key.values())))
                (data,) = _ints(entry.data).values()
                entries.append(TernaryEntry(value, mask, entry.priority, signed(data)))
            default = 0
            if snapshot.default is not None:
                default = signed(next(iter(_ints(snapshot.default[1]).values()), 0))
            install_lookup(self._fabric.planes.lut, self._pipeline, name, entries, default)

        return change


class _Classifier:
    """job_classify as a function: (source, destination, UDP source port) -> (Job_ID, state block), or None.

    Rules of one source address, which is most of them, are looked up by it.
    """

    def __init__(self, entries: Iterable[InstalledEntry]) -> None:
        self._any_source: list[_Rule] = []
        self._by_source: dict[int, list[_Rule]] = {}
        for rule in sorted((_Rule(entry) for entry in entries), key=lambda rule: rule.priority):
            if rule.source is None:
                self._any_source.append(rule)
            else:
                self._by_source.setdefault(rule.source, []).append(rule)
        for source, rules in self._by_source.items():
            self._by_source[source] = sorted([*rules, *self._any_source], key=lambda rule: rule.priority)

    def __call__(self, src: int, dst: int, sport: int) -> tuple[int, int] | None:
        for rule in self._by_source.get(src, self._any_source):
            if rule.matches(src, dst, sport):
                return rule.target
        return None


class _Rule:
    """One entry of job_classify; `target` is None when it says: no job. `source` is None for more than one."""

    def __init__(self, entry: InstalledEntry) -> None:
        self.priority = entry.priority
        self._fields = [_pair(entry.key[name]) for name in ("hdr.ipv4.src", "hdr.ipv4.dst", "hdr.udp.sport")]
        address, mask = self._fields[0]
        self.source = address if mask == 0xFFFFFFFF else None
        self.target: tuple[int, int] | None = None
        if entry.action.endswith("set_job"):
            data = _ints(entry.data)
            if data["job"] < N_JOB:
                self.target = data["job"], data["state"]

    def matches(self, *packet: int) -> bool:
        return not any((got ^ value) & mask for got, (value, mask) in zip(packet, self._fields, strict=True))


def _pair(value: Any) -> tuple[int, int]:
    """Value and mask of a ternary key field."""
    first, second = value
    return int(first), int(second)


def _ints(data: Mapping[str, Any]) -> dict[str, int]:
    return {name.rpartition(".")[2]: int(value) for name, value in data.items()}
