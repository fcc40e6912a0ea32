# SPDX-License-Identifier: Apache-2.0
"""The words in which ``program.py`` describes a switch program: tables, keys, actions, registers, headers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol, TypeVar

__all__ = [
    "Action",
    "ActionProfile",
    "ActionSelector",
    "ConstEntry",
    "Counter",
    "Field",
    "Hash",
    "Header",
    "Key",
    "MatchKind",
    "Program",
    "Register",
    "Table",
]


class MatchKind(StrEnum):
    """How a key field matches; the values are the words of bf-rt.json."""

    EXACT = "Exact"
    TERNARY = "Ternary"
    LPM = "LPM"
    RANGE = "Range"


@dataclass(frozen=True, slots=True)
class Field:
    """A named bit field: an action parameter, a register field, a header or metadata field.

    ``width`` is in bits. ``signed`` fields (P4 ``int<W>``) travel as two's complement bytes.
    """

    name: str
    width: int
    signed: bool = False


@dataclass(frozen=True, slots=True)
class Key:
    """One key field of a match table: P4 expression, width in bits, match kind."""

    name: str
    width: int
    match: MatchKind

    @property
    def is_slice(self) -> bool:
        """Whether the key is a slice of a field (``x[hi:lo]``), which bf-rt.json annotates."""
        return self.name.endswith("]")


@dataclass(frozen=True, slots=True)
class Action:
    """An action with its data fields in P4 order. ``NoAction`` belongs to no control."""

    name: str
    params: tuple[Field, ...] = ()


@dataclass(frozen=True, slots=True)
class ConstEntry:
    """A constant entry: per key field a value, or None for "any"; written in order of priority."""

    key: tuple[int | None, ...]
    action: str


@dataclass(frozen=True, slots=True)
class Table:
    """A match table.

    ``default_action`` with ``default_data`` is what a miss does. ``const_default`` forbids the control plane
    to change it. ``selector`` names the ActionSelector of an indirect table; ``const_entries`` make
    the table constant.
    """

    name: str
    size: int
    keys: tuple[Key, ...]
    actions: tuple[Action, ...]
    default_action: str
    default_data: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    const_default: bool = True
    selector: str | None = None
    const_entries: tuple[ConstEntry, ...] = ()

    @property
    def has_priority(self) -> bool:
        """Whether entries carry ``$MATCH_PRIORITY``: any ternary or range key makes it so."""
        return any(key.match in (MatchKind.TERNARY, MatchKind.RANGE) for key in self.keys)

    def action(self, name: str) -> Action:
        """Return the action of that full name; KeyError when the table has none such."""
        for action in self.actions:
            if action.name == name:
                return action
        raise KeyError(f"table {self.name} has no action {name}")


@dataclass(frozen=True, slots=True)
class ActionProfile:
    """The members (next hops) that the selectors choose from."""

    name: str
    size: int
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class ActionSelector:
    """ECMP groups over an action profile: ``groups`` groups of at most ``max_group_size`` members."""

    name: str
    profile: str
    groups: int
    max_group_size: int


@dataclass(frozen=True, slots=True)
class Hash:
    """A hash that the program calls with ``get``: result width in bits, inputs in order, algorithm (as BF-Runtime
    names it: CRC_32)."""

    name: str
    width: int
    inputs: tuple[Field, ...]
    algorithm: str


@dataclass(frozen=True, slots=True)
class Register:
    """A register array: one entry per index and pipe. A scalar register has the one field ``f1``."""

    name: str
    size: int
    fields: tuple[Field, ...]
    initial: int = 0


@dataclass(frozen=True, slots=True)
class Counter:
    """A packet and byte counter (64 bits each) per index and pipe."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Header:
    """A header or metadata struct and its fields, in order."""

    name: str
    fields: tuple[Field, ...]

    @classmethod
    def of(cls, name: str, text: str) -> Header:
        """Build a header from ``field:width`` words; ``field:iN`` is a signed field of N bits."""
        words = (word.split(":") for word in text.split())
        fields = (Field(word, int(bits.removeprefix("i")), bits.startswith("i")) for word, bits in words)
        return cls(name, tuple(fields))


@dataclass(frozen=True, slots=True)
class Program:
    """The whole program. Tuples are in the order of the P4 text."""

    name: str
    tables: tuple[Table, ...]
    profiles: tuple[ActionProfile, ...]
    selectors: tuple[ActionSelector, ...]
    hashes: tuple[Hash, ...]
    registers: tuple[Register, ...]
    counters: tuple[Counter, ...]
    headers: tuple[Header, ...]
    ingress_metadata: Header
    egress_metadata: Header
    pipe: str = "pipe"

    def table(self, name: str) -> Table:
        """Return a match table by its name, with or without ``pipe.`` and control; KeyError otherwise."""
        return _find(self.tables, name, self.pipe)

    def register(self, name: str) -> Register:
        """Return a register by its name, with or without ``pipe.`` and control; KeyError otherwise."""
        return _find(self.registers, name, self.pipe)

    def counter(self, name: str) -> Counter:
        """Return a counter by its name, with or without ``pipe.`` and control; KeyError otherwise."""
        return _find(self.counters, name, self.pipe)

    def profile(self, name: str) -> ActionProfile:
        """Return an action profile by its name, with or without ``pipe.`` and control; KeyError otherwise."""
        return _find(self.profiles, name, self.pipe)

    def selector(self, name: str) -> ActionSelector:
        """Return a selector by its name, with or without ``pipe.`` and control; KeyError otherwise."""
        return _find(self.selectors, name, self.pipe)


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_NamedT = TypeVar("_NamedT", bound=_Named)


def _find(objects: tuple[_NamedT, ...], name: str, pipe: str) -> _NamedT:
    wanted = name.removeprefix(f"{pipe}.")
    for candidate in objects:
        if wanted in (candidate.name, candidate.name.rpartition(".")[2]):
            return candidate
    known = ", ".join(candidate.name for candidate in objects)
    raise KeyError(f"the program has no {name}; it has {known}")
