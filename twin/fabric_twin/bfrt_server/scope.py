# SPDX-License-Identifier: Apache-2.0
"""Entry scope: which pipes share a set of entries.

ALL: one set for all pipes. SINGLE: one per pipe. User-defined: each byte of a 64-bit number that is not 0 is
a set of pipes (bit i = pipe i) with entries of its own; 0xc03 makes {0, 1} and {2, 3}.
"""

from __future__ import annotations

from dataclasses import dataclass

from fabric_twin.bfrt_server.codec import invalid
from switch_agent import bfrt_proto as p

__all__ = ["EntryScope"]

BYTES = 8
NO_ARGUMENT, ALL_GRESSES = 0, 0xFF


@dataclass(frozen=True, slots=True)
class EntryScope:
    """``groups``: pipes that share entries, in ascending order. ``user_defined``: 0 when it is ALL or SINGLE."""

    groups: tuple[tuple[int, ...], ...]
    single: bool = False
    user_defined: int = 0

    @classmethod
    def all_pipes(cls, num_pipes: int) -> EntryScope:
        """One set of entries, as after a start."""
        return cls((tuple(range(num_pipes)),))

    @classmethod
    def parse(cls, where: str, message: p.EntryScope, num_pipes: int) -> EntryScope:
        """From a request; INVALID_ARG as the driver has it."""
        others = (message.HasField("gress_scope"), message.HasField("prsr_scope"))
        if not message.HasField("pipe_scope") or any(others) != all(others):
            raise invalid(f"{where}: an entry scope has a pipe_scope alone or all three scopes;")
        mode = message.pipe_scope
        word = mode.WhichOneof("scope")
        if word == "user_defined":
            return cls(_groups(where, mode.user_defined, num_pipes), user_defined=mode.user_defined)
        if word is None:
            raise invalid(f"{where}: the pipe_scope is neither predefined nor user-defined;")
        if mode.predef == p.Mode.SINGLE:
            return cls(tuple((pipe,) for pipe in range(num_pipes)), single=True)
        return cls.all_pipes(num_pipes)

    @property
    def shared(self) -> bool:
        """Whether all pipes have the same entries (ALL)."""
        return not (self.single or self.user_defined)

    def group_of(self, pipe: int) -> int | None:
        """The index of the group that a pipe is in."""
        return next((number for number, group in enumerate(self.groups) if pipe in group), None)

    def message(self) -> p.EntryScope:
        """What a read of the attribute shows."""
        answer = p.EntryScope()
        answer.gress_scope.predef = p.Mode.ALL
        if self.user_defined:
            answer.pipe_scope.user_defined = self.user_defined
        else:
            answer.pipe_scope.predef = p.Mode.SINGLE if self.single else p.Mode.ALL
            answer.pipe_scope.args = NO_ARGUMENT
        answer.prsr_scope.predef = p.Mode.ALL
        answer.prsr_scope.args = ALL_GRESSES
        return answer


def _groups(where: str, user_defined: int, num_pipes: int) -> tuple[tuple[int, ...], ...]:
    groups: list[tuple[int, ...]] = []
    for octet in user_defined.to_bytes(BYTES, "little"):
        if octet >> num_pipes:
            raise invalid(f"{where}: scope {octet:#x} names pipes beyond 0..{num_pipes - 1};")
        if octet:
            groups.append(tuple(pipe for pipe in range(num_pipes) if octet >> pipe & 1))
    named = [pipe for group in groups for pipe in group]
    if not groups or len(named) != len(set(named)):
        raise invalid(f"{where}: the scopes of {user_defined:#x} are none, or share a pipe;")
    return tuple(groups)
