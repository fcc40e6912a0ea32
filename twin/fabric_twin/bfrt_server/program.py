# SPDX-License-Identifier: Apache-2.0
"""A compiled P4 program as the server needs it: its bf-rt.json and what that does not tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fabric_twin.bfrt_server.codec import DataValue, KeyValue
from fabric_twin.bfrt_server.schema import Info
from fabric_twin.bfrt_server.tables import InstalledEntry
from switch_agent.dataplane import program as description
from switch_agent.dataplane.schema import program_json

__all__ = ["P4Program"]


@dataclass(frozen=True)
class P4Program:
    """A program to load.

    ``defaults`` maps a match table's full name to (action, data) of a miss, ``const_entries`` to its constant
    entries, ``register_initial`` a register's short name to its initial value, ``hash_algorithms`` a hash's
    short name to its algorithm (as the ``.algorithm`` tables name it): the P4 text says these, a
    bf-rt.json does not. ``context`` and ``binary`` are what GetForwardingPipelineConfig shows as
    context.json and tofino2.bin; not empty, as clients push them back to clear the switch.
    """

    p4_name: str
    info: Info
    defaults: Mapping[str, tuple[str, Mapping[str, DataValue]]] = field(default_factory=dict)
    const_entries: Mapping[str, Sequence[InstalledEntry]] = field(default_factory=dict)
    register_initial: Mapping[str, int] = field(default_factory=dict)
    hash_algorithms: Mapping[str, str] = field(default_factory=dict)
    context: bytes = b"{}"
    binary: bytes = b"no binary: not a Tofino"

    @classmethod
    def from_description(cls, program: description.Program = description.PROGRAM) -> P4Program:
        """The switch program as ``switch_agent.dataplane.program`` describes it."""
        prefix = f"{program.pipe}."
        return cls(
            p4_name=program.name,
            info=Info(program_json(program)),
            defaults={prefix + t.name: (t.default_action, dict(t.default_data)) for t in program.tables},
            const_entries={prefix + t.name: _const_entries(t) for t in program.tables if t.const_entries},
            register_initial={r.name.rpartition(".")[2]: r.initial for r in program.registers},
            hash_algorithms={h.name.rpartition(".")[2]: h.algorithm for h in program.hashes},
        )


def _const_entries(table: description.Table) -> list[InstalledEntry]:
    def value(key: description.Key, given: int | None) -> KeyValue:
        if key.match is description.MatchKind.EXACT:
            return given or 0
        return (0, 0) if given is None else (given, (1 << key.width) - 1)

    return [
        InstalledEntry(
            key={key.name: value(key, given) for key, given in zip(table.keys, entry.key, strict=True)},
            priority=number,
            action=entry.action,
            data={},
        )
        for number, entry in enumerate(table.const_entries)
    ]
