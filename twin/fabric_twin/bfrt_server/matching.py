# SPDX-License-Identifier: Apache-2.0
"""Match tables."""

from __future__ import annotations

from collections.abc import Mapping

from fabric_twin.bfrt_server.entries import EntryTable
from fabric_twin.bfrt_server.scope import EntryScope
from fabric_twin.bfrt_server.status import BfError, BfStatus
from fabric_twin.bfrt_server.tables import InstalledEntry, Table

__all__ = ["MatchTable"]


class MatchTable(EntryTable):
    """A match table, direct or with its data in an action profile or selector.

    In the indirect ones an entry is ``{"$ACTION_MEMBER_ID": n}`` or ``{"$SELECTOR_GROUP_ID": n}``; the member
    or group must exist, in the pipes of the entry. Profile and selector have the entry scope of the table.
    """

    has_default = True
    targets: Mapping[str, EntryTable] = {}

    def link(self, tables: Mapping[int, Table]) -> None:
        """Find the profile and selector that entries may point into."""
        others = [other for i in self.spec.depends_on if isinstance(other := tables.get(i), EntryTable)]
        fields = {"Action": "$ACTION_MEMBER_ID", "Selector": "$SELECTOR_GROUP_ID"}
        self.targets = {fields[other.spec.type]: other for other in others if other.spec.type in fields}

    def check(self, entry: InstalledEntry, pipes: tuple[int, ...]) -> None:
        """The member or group that the entry points to must exist."""
        for field, other in self.targets.items():
            wanted = entry.data.get(field)
            if isinstance(wanted, int) and not other.has(wanted, pipes):
                raise BfError(BfStatus.OBJECT_NOT_FOUND, f"{other.spec.name} has no entry {field} {wanted};")

    def set_scope(self, scope: EntryScope) -> None:
        """Another entry scope, for profile and selector as well; all of them must be empty."""
        tables = [self, *self.targets.values()]
        for table in tables:
            table.check_empty()
        for table in tables:
            EntryTable.set_scope(table, scope)
