# SPDX-License-Identifier: Apache-2.0
"""The fixed tables' behaviour: ports that come up and go down, statistics, the device's make-up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from fabric_twin.bfrt_server import codec
from fabric_twin.bfrt_server.backend import FixedTableSource, SwitchBackend
from fabric_twin.bfrt_server.codec import DataValue
from fabric_twin.bfrt_server.entries import EntrySet, EntryTable
from fabric_twin.bfrt_server.fixed_schema import DEVICE, PORT, PORT_STAT, QUEUE_COUNTER, fixed_document
from fabric_twin.bfrt_server.schema import Info, TableSpec
from fabric_twin.bfrt_server.status import BfError, BfStatus
from fabric_twin.bfrt_server.tables import Change, InstalledEntry, Table
from switch_agent import bfrt_proto as p

__all__ = ["FixedTables", "Port", "PortTable"]

T = TypeVar("T")
DEV_PORT = "$DEV_PORT"
STAGES, QUEUES_PER_GROUP = 20, 128  # of a Tofino2


@dataclass(frozen=True, slots=True)
class Port:
    """A port that is there from the start, enabled: device port, front-panel name, speed in Gbps, lanes."""

    dev_port: int
    name: str
    speed_gbps: int = 100
    lanes: int = 1
    mtu: int = 10240


class _LiveTable(EntryTable):
    """A fixed table; the backend may put live values into what it shows."""

    partial_modify = True

    def check_device(self, target: p.TargetDevice) -> None:
        """Any target will do."""

    check_target = check_device

    def __init__(
        self,
        spec: TableSpec,
        backend: SwitchBackend,
        *,
        default: tuple[str, Mapping[str, DataValue]] | None = None,
        entries: Iterable[InstalledEntry] = (),
    ) -> None:
        self._source = backend if isinstance(backend, FixedTableSource) else None
        super().__init__(spec, lambda table: table.size, default=default, entries=entries)

    def live(self, entry: InstalledEntry) -> InstalledEntry:
        """The stored entry under the backend's values."""
        if self._source is None:
            return entry
        key = {name: value for name, value in entry.key.items() if isinstance(value, int)}
        return replace(entry, data={**entry.data, **self._source.read_fixed(self.spec.name, key)})


class PortTable(_LiveTable):
    """``$PORT``. A port is up while it is enabled and its link has a signal."""

    def __init__(self, spec: TableSpec, backend: SwitchBackend, ports: Sequence[Port]) -> None:
        self._dark: set[int] = set()
        self.on_change: Callable[[int, bool], None] = lambda _dev_port, _up: None
        self.notify = True
        super().__init__(spec, backend, entries=[_port_entry(spec, port) for port in ports])

    def reset(self) -> None:
        """The ports of the start, all with a signal."""
        super().reset()
        self.notify = True
        self._dark.clear()

    def is_up(self, dev_port: int) -> bool:
        """Operational state; False for a port that does not exist."""
        row = self.sets[0].rows.get((dev_port,))
        return row is not None and bool(row.data["$PORT_ENABLE"]) and dev_port not in self._dark

    def set_link(self, dev_port: int, up: bool) -> None:
        """The link gains or loses its signal; KeyError without such a port."""
        if not self.has(dev_port):
            raise KeyError(f"there is no port with $DEV_PORT {dev_port}")
        before = self.is_up(dev_port)
        (self._dark.discard if up else self._dark.add)(dev_port)
        self._tell(dev_port, before)

    def write(self, kind: p.Update.Type, entry: p.TableEntry, target: p.TargetDevice) -> Change:
        """Add, change or remove ports; who comes up or goes down is told to subscribers."""
        change = self._telling(partial(super().write, kind, entry, target))
        return Change(lambda: self._telling(change.undo), change.modified)

    def live(self, entry: InstalledEntry) -> InstalledEntry:
        """The entry with its operational state."""
        entry = super().live(entry)
        dev_port = entry.key[DEV_PORT]
        up = isinstance(dev_port, int) and self.is_up(dev_port)
        return replace(entry, data={**entry.data, "$PORT_UP": up})

    def check(self, entry: InstalledEntry, pipes: tuple[int, ...]) -> None:
        """Device ports are 0..size-1."""
        _check_port(self.spec, entry.key[DEV_PORT])

    def set_attribute(self, attribute: p.TableAttribute) -> None:
        """port_status_notify: whether subscribers are told of changes (they are, at first)."""
        if attribute.WhichOneof("attribute") != "port_status_notify":
            super().set_attribute(attribute)
        self.notify = attribute.port_status_notify.enable

    def get_attribute(self, attribute: p.TableAttribute) -> p.TableAttribute:
        """port_status_notify."""
        if attribute.WhichOneof("attribute") != "port_status_notify":
            return super().get_attribute(attribute)
        return p.TableAttribute(table_id=self.spec.id, port_status_notify=p.PortStatusChg(enable=self.notify))

    def notification(self, dev_port: int, up: bool) -> p.StreamMessageResponse:
        """What subscribers get when a port changes."""
        change = p.PortStatusChgNotification(port_up=up)
        change.table_entry.table_id = self.spec.id
        change.table_entry.key.CopyFrom(codec.encode_key(self.spec, {DEV_PORT: dev_port}))
        return p.StreamMessageResponse(port_status_change_notification=change)

    def _numbers(self) -> list[int]:
        return [identity[0] for identity in self.sets[0].rows if isinstance(identity[0], int)]

    def _telling(self, action: Callable[[], T]) -> T:
        before = {port: self.is_up(port) for port in self._numbers()}
        result = action()
        for port in sorted(before.keys() | set(self._numbers())):
            self._tell(port, before.get(port, False))
        return result

    def _tell(self, dev_port: int, before: bool) -> None:
        now = self.is_up(dev_port)
        if now != before and self.notify:
            self.on_change(dev_port, now)


def _check_port(spec: TableSpec, dev_port: object) -> None:
    if not isinstance(dev_port, int) or not 0 <= dev_port < spec.size:
        raise codec.invalid(f"table {spec.name}: {DEV_PORT} {dev_port} is not in 0..{spec.size - 1};")


def _port_entry(spec: TableSpec, port: Port) -> InstalledEntry:
    data = {field.name: codec.default_value(field) for field in spec.data.values()}
    data |= {
        "$SPEED": f"BF_SPEED_{port.speed_gbps}G",
        "$FEC": "BF_FEC_TYP_NONE",
        "$N_LANES": port.lanes,
        "$PORT_ENABLE": True,
        "$PORT_NAME": port.name,
        "$TX_MTU": port.mtu,
        "$RX_MTU": port.mtu,
    }
    return InstalledEntry({DEV_PORT: port.dev_port}, 0, "", data)


class _ReadOnlyTable(_LiveTable):
    """Counters of the device: read only; rows exist where ``row`` says so."""

    def write(self, kind: p.Update.Type, entry: p.TableEntry, target: p.TargetDevice) -> Change:
        """Refused."""
        raise self.unsupported("is read-only in this emulation")

    def zeros(self, key: Mapping[str, int]) -> InstalledEntry:
        """An entry with nothing counted."""
        return InstalledEntry(key, 0, "", {f.name: codec.default_value(f) for f in self.spec.data.values()})


class PortStatTable(_ReadOnlyTable):
    """``$PORT_STAT``: one row for each port of ``$PORT``."""

    def __init__(self, spec: TableSpec, backend: SwitchBackend, ports: PortTable) -> None:
        self._ports = ports
        super().__init__(spec, backend)

    def _listed(self, part: EntrySet) -> Iterable[InstalledEntry]:
        numbers = [row.key[DEV_PORT] for row in self._ports.entries]
        return [self.zeros({DEV_PORT: number}) for number in numbers if isinstance(number, int)]

    def usage(self, target: p.TargetDevice) -> int:
        """Number of ports."""
        return self._ports.usage(target)

    def _find(self, part: EntrySet, entry: p.TableEntry) -> InstalledEntry:
        values, _ = codec.decode_key(self.spec, entry.key)
        dev_port = values[DEV_PORT]
        if not isinstance(dev_port, int) or not self._ports.has(dev_port):
            raise BfError(BfStatus.OBJECT_NOT_FOUND, f"table {self.spec.name}: no port {dev_port};")
        return self.zeros({DEV_PORT: dev_port})


class QueueCounterTable(_ReadOnlyTable):
    """``tf2.tm.counter.queue``: read by key (port group, queue of the group) only."""

    def _find(self, part: EntrySet, entry: p.TableEntry) -> InstalledEntry:
        values, _ = codec.decode_key(self.spec, entry.key)
        key = {name: value for name, value in values.items() if isinstance(value, int)}
        if key["pg_queue"] >= QUEUES_PER_GROUP or key["pg_id"] * QUEUES_PER_GROUP >= self.spec.size:
            raise codec.invalid(f"table {self.spec.name}: there is no queue {key};")
        return self.zeros(key)

    def read(self, entry: p.TableEntry, target: p.TargetDevice) -> bytes:
        """One queue."""
        if not entry.WhichOneof("value"):
            raise self.unsupported("can be read by key only")
        return super().read(entry, target)


class FixedTables:
    """All fixed tables of one switch: ``info`` is their schema, ``ports`` the $PORT table."""

    def __init__(self, backend: SwitchBackend, ports: Sequence[Port]) -> None:
        self.info = Info(fixed_document())
        specs = {spec.name: spec for spec in self.info.tables.values()}
        self.ports = PortTable(specs[PORT], backend, ports)
        device: dict[str, DataValue] = {
            "sku": "TOFINO2",
            "num_pipes": backend.num_pipes,
            "num_stages": STAGES,
            "num_ports": specs[PORT].size,
        }
        self.tables: dict[int, Table] = {
            table.spec.id: table
            for table in (
                self.ports,
                PortStatTable(specs[PORT_STAT], backend, self.ports),
                QueueCounterTable(specs[QUEUE_COUNTER], backend),
                _ReadOnlyTable(specs[DEVICE], backend, default=("", device)),
            )
        }

    def reset(self) -> None:
        """As after a start of the driver."""
        for table in self.tables.values():
            table.reset()
