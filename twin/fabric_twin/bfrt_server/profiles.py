# SPDX-License-Identifier: Apache-2.0
"""Action profiles and selectors: the next hops, and the ECMP groups over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fabric_twin.bfrt_server.codec import DataValue, invalid
from fabric_twin.bfrt_server.entries import EntryTable
from fabric_twin.bfrt_server.status import BfError, BfStatus
from fabric_twin.bfrt_server.tables import InstalledEntry, Table

__all__ = ["GROUP", "MEMBER", "STATUS", "ActionProfile", "Selector"]

MEMBER: Final = "$ACTION_MEMBER_ID"
STATUS: Final = "$ACTION_MEMBER_STATUS"
GROUP: Final = "$SELECTOR_GROUP_ID"
MAX_SIZE: Final = "$MAX_GROUP_SIZE"


class _Referenced(EntryTable):
    """A table whose entries others point to by id; such an entry cannot be deleted."""

    field: str
    _users: Sequence[EntryTable] = ()

    def link(self, tables: Mapping[int, Table]) -> None:
        """Find the tables that point into this one."""
        self._users = [
            other
            for other in tables.values()
            if isinstance(other, EntryTable) and self.spec.id in other.spec.depends_on
        ]

    def check_unused(self, entry: InstalledEntry, pipes: tuple[int, ...]) -> None:
        """ENTRY_REFERENCES_EXIST while a match entry or group of these pipes points here."""
        number = entry.key[self.field]
        for user in self._users:
            for row in (row for part in user.sets if part.pipes == pipes for row in part.rows.values()):
                pointed = row.data.get(self.field)
                if pointed == number or (isinstance(pointed, list) and number in pointed):
                    raise BfError(
                        BfStatus.ENTRY_REFERENCES_EXIST,
                        f"table {self.spec.name}: {self.field} {number} is used by {user.spec.name};",
                    )


class ActionProfile(_Referenced):
    """Members: ``$ACTION_MEMBER_ID`` -> action and its data."""

    field = MEMBER


class Selector(_Referenced):
    """Groups: ``$SELECTOR_GROUP_ID`` -> lists of members and of their status (True = in use)."""

    field = GROUP
    partial_modify = True
    _profile: ActionProfile | None = None

    def link(self, tables: Mapping[int, Table]) -> None:
        """Find the profile that the members live in."""
        super().link(tables)
        self._profile = next((t for i in self.spec.depends_on if isinstance(t := tables.get(i), ActionProfile)), None)

    def check(self, entry: InstalledEntry, pipes: tuple[int, ...]) -> None:
        """Members exist, are distinct, have a status each, and are not too many."""
        where = f"table {self.spec.name}, group {entry.key[GROUP]}"
        members, status = entry.data[MEMBER], entry.data[STATUS]
        if not isinstance(members, list) or not isinstance(status, list) or len(members) != len(status):
            raise invalid(f"{where}: {MEMBER} and {STATUS} must be lists of the same length;")
        if len(set(members)) != len(members):
            raise invalid(f"{where}: a member is listed twice;")
        limit = entry.data[MAX_SIZE]
        if isinstance(limit, int) and len(members) > limit:
            raise BfError(BfStatus.NO_SPACE, f"{where}: {len(members)} members, {MAX_SIZE} is {limit};")
        for member in _ints(members):
            if self._profile is not None and not self._profile.has(member, pipes):
                raise BfError(BfStatus.OBJECT_NOT_FOUND, f"{where}: there is no member {member};")

    def increment(self, old: InstalledEntry, given: Mapping[str, DataValue], *, remove: bool) -> dict[str, DataValue]:
        """Add members to a group (status True unless given), or take them out."""
        now: dict[int, bool] = dict(zip(_ints(old.data[MEMBER]), _bools(old.data[STATUS]), strict=True))
        members = _ints(given.get(MEMBER, []))
        if remove:
            for member in members:
                if now.pop(member, None) is None:
                    raise BfError(BfStatus.OBJECT_NOT_FOUND, f"table {self.spec.name}: no member {member};")
        else:
            status = _bools(given.get(STATUS, [])) or [True] * len(members)
            if len(status) != len(members) or now.keys() & set(members):
                raise invalid(f"table {self.spec.name}: a member is listed twice or lacks its status;")
            now |= dict(zip(members, status, strict=True))
        return {**old.data, MEMBER: list(now), STATUS: list(now.values())}


def _ints(value: DataValue) -> list[int]:
    return [int(item) for item in value if isinstance(item, int)] if isinstance(value, list) else []


def _bools(value: DataValue) -> list[bool]:
    return [bool(item) for item in value] if isinstance(value, list) else []
