# SPDX-License-Identifier: Apache-2.0
"""What all tables have in common: target, entry scope, attributes, operations; what a table shows of its entries.

A table is the driver's software state. Writes return how to take them back, which is what
ROLLBACK_ON_ERROR uses; reads return the serialized ``ReadResponse`` that holds their entities (protobuf
messages concatenate, so a batch is the join of its parts).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from fabric_twin.bfrt_server.codec import DataValue, KeyValue, invalid
from fabric_twin.bfrt_server.schema import TableSpec
from fabric_twin.bfrt_server.scope import EntryScope
from fabric_twin.bfrt_server.status import BfError, BfStatus
from switch_agent import bfrt_proto as p

__all__ = ["ALL_PIPES", "Change", "InstalledEntry", "Table", "TableSnapshot"]

ALL_PIPES: Final = 0xFFFF


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

    ``default`` is None for tables that have no default entry. ``pipes`` is empty while all pipes share their
    entries. With another entry scope it has the content of each pipe; ``entries`` are then those that every
    pipe has alike, and ``default`` is that of pipe 0.
    """

    entries: Sequence[InstalledEntry]
    default: tuple[str, Mapping[str, DataValue]] | None
    pipes: Sequence[TableSnapshot] = ()


class Change(NamedTuple):
    """What one update did: how to undo it; whether INSERT_OR_MODIFY found the entry there."""

    undo: Callable[[], None]
    modified: bool = False


class Table(ABC):
    """What the service needs from any table; the defaults refuse with NOT_SUPPORTED."""

    def __init__(self, spec: TableSpec, num_pipes: int = 1) -> None:
        self.spec = spec
        self.num_pipes = num_pipes
        self.scope = EntryScope.all_pipes(num_pipes)

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

    def usage(self, target: p.TargetDevice) -> int:
        """Number of entries in the pipes of the target."""
        raise self.unsupported("has no usage")

    def handle_of(self, key: p.TableKey, target: p.TargetDevice) -> int:
        """The handle of the entry with that key."""
        raise self.unsupported("has no entry handles")

    def operate(self, operation: str) -> None:
        """Run a table operation to its end."""
        known = ("Sync", "SyncCounters", "SyncRegisters", "UpdateHitState")
        if operation not in known:
            raise invalid(f"table {self.spec.name}: unknown operation {operation!r};")
        raise self.unsupported(f"does not support the operation {operation}")

    # ---------------------------------------------------------------------------------------- attributes

    def set_attribute(self, attribute: p.TableAttribute) -> None:
        """Set one attribute; of P4 tables that is the entry scope."""
        if attribute.WhichOneof("attribute") != "entry_scope" or not self.scopable:
            raise self.unsupported(f"has no attribute {attribute.WhichOneof('attribute')}")
        scope = EntryScope.parse(f"table {self.spec.name}", attribute.entry_scope, self.num_pipes)
        if scope != self.scope:
            self.set_scope(scope)

    def get_attribute(self, attribute: p.TableAttribute) -> p.TableAttribute:
        """The attribute whose empty sub-message ``attribute`` holds, filled in."""
        if attribute.WhichOneof("attribute") != "entry_scope" or not self.scopable:
            raise self.unsupported(f"has no attribute {attribute.WhichOneof('attribute')}")
        return p.TableAttribute(table_id=self.spec.id, entry_scope=self.scope.message())

    @property
    def scopable(self) -> bool:
        """Whether clients may ask for and set the entry scope."""
        return "EntryScope" in self.spec.attributes

    def set_scope(self, scope: EntryScope) -> None:
        """Take another entry scope."""
        self.scope = scope

    # ------------------------------------------------------------------------------------------- target

    def check_device(self, target: p.TargetDevice) -> None:
        """INVALID_ARG when there is no such device or pipe."""
        where = f"table {self.spec.name}: target"
        if target.device_id != 0:
            raise invalid(f"{where} device {target.device_id} does not exist, there is device 0 only;")
        if target.pipe_id != ALL_PIPES and target.pipe_id >= self.num_pipes:
            raise invalid(f"{where} pipe {target.pipe_id} does not exist, pipes are 0..{self.num_pipes - 1};")

    def check_target(self, target: p.TargetDevice) -> None:
        """INVALID_ARG when device, pipe or scope do not fit."""
        self.check_device(target)
        if target.pipe_id != ALL_PIPES and self.scope.shared:
            raise invalid(
                f"table {self.spec.name}: target pipe {target.pipe_id}: entries are for all pipes, "
                "use pipe_id 0xffff or set the entry scope to SINGLE first;"
            )

    def unsupported(self, what: str) -> BfError:
        """The refusal for what this table (or the emulation) cannot do."""
        return BfError(BfStatus.NOT_SUPPORTED, f"table {self.spec.name} {what};")
