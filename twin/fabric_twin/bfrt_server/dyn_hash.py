# SPDX-License-Identifier: Apache-2.0
"""Dynamic hashing: three keyless tables for each Hash of the program.

``.configure``: which bits of which inputs enter, in which order. ``.algorithm``: CRC and seed. ``.compute``: the
hash of given inputs. The first two have a default entry only. A data plane that cannot change its hashes refuses
what differs from the program's.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, cast

from fabric_twin.bfrt_server import codec
from fabric_twin.bfrt_server.backend import HashBackend, HashSettings, Slice, SwitchBackend
from fabric_twin.bfrt_server.codec import DataValue, Record, invalid
from fabric_twin.bfrt_server.crc import PREDEFINED, Crc
from fabric_twin.bfrt_server.schema import TableSpec
from fabric_twin.bfrt_server.status import BfError, BfStatus
from fabric_twin.bfrt_server.tables import Change, Table
from switch_agent import bfrt_proto as p

__all__ = ["hash_tables"]

COMPUTE: Final = "DynHashCompute"
UNKNOWN: Final = "RANDOM"  # the schema's default where the P4 text is not known


class DynamicHash:
    """One Hash of the program, shared by its three tables."""

    def __init__(self, name: str, compute: TableSpec, algorithm: str, backend: object) -> None:
        """Inputs and width come from the schema of the ``.compute`` table."""
        self.name = name
        self._backend = backend
        self.width = next(iter(compute.data.values())).type.width
        self.inputs = {key.name: key.type.width for key in compute.key.values()}  # bits, in the program's order
        whole = tuple(Slice(name, 0, width, order) for order, (name, width) in enumerate(self.inputs.items(), 1))
        plain: dict[str, DataValue] = {"rotate": 0, "msb": False, "extend": False, "algorithm_name": algorithm}
        self.initial = self.settings = HashSettings(whole, "pre_defined", plain)

    def use(self, settings: HashSettings) -> Callable[[], None]:
        """Calculate like this from now on; returns the undo. NOT_SUPPORTED when the data plane cannot."""
        old = self.settings
        if settings != old:
            if not isinstance(self._backend, HashBackend):
                raise BfError(BfStatus.NOT_SUPPORTED, f"This switch cannot change its hash {self.name}.")
            self._backend.hash_changed(self.name, settings)
            self.settings = settings

        def undo() -> None:
            self.use(old)

        return undo

    @property
    def seed(self) -> int:
        """What is XORed to the linear part: the hash of zeros, unless a client chose another."""
        settings = self.settings
        return self._crc(bytes(self._num_bytes(settings))) if settings.seed is None else settings.seed

    def of(self, values: Mapping[str, int]) -> int:
        """The hash of these inputs (0 where absent)."""
        settings = self.settings
        slices = sorted((s for s in settings.slices if s.order), key=lambda s: s.order)
        if len({s.order for s in slices}) != len(slices):
            raise self._not_emulated("inputs of the same order")
        bits = 0
        for part in slices:
            bits = bits << part.length | (values.get(part.field, 0) >> part.start & ((1 << part.length) - 1))
        size = self._num_bytes(settings)
        zeros = self._crc(bytes(size))
        return self._crc(bits.to_bytes(size, "big")) ^ zeros ^ (self.seed & ((1 << self.width) - 1))

    def _num_bytes(self, settings: HashSettings) -> int:
        return (sum(part.length for part in settings.slices if part.order) + 7) // 8

    def _crc(self, data: bytes) -> int:
        settings = self.settings
        crc = _crc_of(settings)
        if crc is None:
            raise self._not_emulated(str(settings.algorithm.get("algorithm_name")))
        if settings.algorithm["rotate"] or settings.algorithm["extend"]:
            raise self._not_emulated("rotate and extend")
        value = crc.of(data)
        if settings.algorithm["msb"]:
            value >>= max(crc.width - self.width, 0)
        return value & ((1 << self.width) - 1)

    def _not_emulated(self, what: str) -> BfError:
        return BfError(BfStatus.NOT_SUPPORTED, f"Hash {self.name}: {what} cannot be calculated in this emulation.")


def _crc_of(settings: HashSettings) -> Crc | None:
    data = settings.algorithm
    if settings.action == "pre_defined":
        return PREDEFINED.get(str(data["algorithm_name"]))
    names = ("hash_bit_width", "polynomial", "init", "final_xor")
    width, polynomial, init, final_xor = (int(cast("int", data[name])) for name in names)
    return Crc(width, polynomial, bool(data["reverse"]), init, final_xor)


class _Keyless(Table):
    """A table with a default entry and nothing else."""

    def __init__(self, spec: TableSpec, num_pipes: int, hash_: DynamicHash) -> None:
        super().__init__(spec, num_pipes)
        self.hash = hash_

    def write(self, kind: p.Update.Type, entry: p.TableEntry, target: p.TargetDevice) -> Change:
        """MODIFY sets the default entry; DELETE, of it or of the table, goes back to the program's."""
        self.check_device(target)
        if kind == p.Update.DELETE and not entry.WhichOneof("value"):
            return Change(self.hash.use(self.original()))
        if not entry.is_default_entry or kind != p.Update.MODIFY:
            raise self.unsupported("has a default entry only, to MODIFY or DELETE")
        return Change(self.hash.use(self.changed(entry.data)))

    def read(self, entry: p.TableEntry, target: p.TargetDevice) -> bytes:
        """The default entry."""
        self.check_device(target)
        if not entry.is_default_entry:
            raise self.unsupported("has a default entry only")
        answer = p.TableEntry(table_id=self.spec.id, is_default_entry=True, data=self.shown())
        return p.ReadResponse(entities=[p.Entity(table_entry=answer)]).SerializeToString()

    def reset(self) -> None:
        """The program's hash."""
        self.hash.use(self.hash.initial)

    @abstractmethod
    def original(self) -> HashSettings:
        """The settings with this table's part as the program has it."""

    @abstractmethod
    def changed(self, data: p.TableData) -> HashSettings:
        """The settings with this table's part from a client."""

    @abstractmethod
    def shown(self) -> p.TableData:
        """This table's part of the settings."""


class HashConfigure(_Keyless):
    """``.configure``: for each input a list of slices; inputs that a client leaves out do not enter."""

    def original(self) -> HashSettings:
        """All inputs."""
        return replace(self.hash.settings, slices=self.hash.initial.slices)

    def changed(self, data: p.TableData) -> HashSettings:
        """The slices given; none at all means all inputs."""
        _, given = codec.decode_data(self.spec, data)
        slices: list[Slice] = []
        for name, records in given.items():
            for record in cast("list[Record]", records):
                self._add(slices, name, cast("Mapping[str, int]", record))
        return replace(self.hash.settings, slices=tuple(slices)) if slices else self.original()

    def _add(self, slices: list[Slice], name: str, record: Mapping[str, int]) -> None:
        where, width = f"table {self.spec.name}, {name}", self.hash.inputs[name]
        start, order = record.get("start_bit", 0), record["order"]
        if start >= width:
            raise invalid(f"{where}: start_bit {start} is not in 0..{width - 1};")
        length = min(record.get("length", width), width - start)
        new = Slice(name, start, length, order if length else 0)
        for other in slices:
            if other.field == name and other.start < start + length and start < other.start + other.length:
                raise invalid(f"{where}: the slices from bit {other.start} and from bit {start} overlap;")
            if order and other.order == order and other.length != length:
                raise invalid(f"{where}: order {order} is that of a slice of another length, of {other.field};")
        if order and sum(other.order == order for other in slices) == 2:
            raise invalid(f"{where}: two slices have order {order} already;")
        slices.append(new)

    def shown(self) -> p.TableData:
        """Every input; one that is left out as a slice of order 0."""
        records: dict[str, list[Record]] = {}
        for part in self.hash.settings.slices:
            record: Record = {"start_bit": part.start, "length": part.length, "order": part.order}
            records.setdefault(part.field, []).append(record)
        for name, width in self.hash.inputs.items():
            records.setdefault(name, [{"start_bit": 0, "length": width, "order": 0}])
        return codec.encode_data(None, self.spec.data.values(), records)


class HashAlgorithm(_Keyless):
    """``.algorithm``: action pre_defined (a name) or user_defined (a polynomial), with seed, rotate, msb, extend."""

    def original(self) -> HashSettings:
        """The program's algorithm, with its own seed."""
        return replace(self.hash.initial, slices=self.hash.settings.slices)

    def changed(self, data: p.TableData) -> HashSettings:
        """The algorithm given; a seed alone leaves the algorithm."""
        action, given = codec.decode_data(self.spec, data, partial=True)
        assert action is not None  # the schema has actions, so decode_data insists on one
        seed = given.pop("seed", None)
        settings = replace(self.hash.settings, seed=cast("int | None", seed))
        if seed is not None and not given:
            return settings
        values = {spec.name: codec.default_value(spec) for spec in codec.specs_of(self.spec, action).values()}
        values |= {"hash_bit_width": self.hash.width} if action.name == "user_defined" else {}
        values = {name: value for name, value in {**values, **given}.items() if name != "seed"}
        if action.name == "user_defined":
            self._check_polynomial(values)
        return replace(settings, action=action.name, algorithm=values)

    def _check_polynomial(self, values: Mapping[str, DataValue]) -> None:
        width = int(cast("int", values["hash_bit_width"]))
        numbers = [int(cast("int", values[name])) for name in ("polynomial", "init", "final_xor")]
        if not 1 <= width <= 64 or numbers[0] % 2 == 0 or any(number >> width for number in numbers):
            raise invalid(
                f"table {self.spec.name}: a polynomial is odd, and it, init and final_xor have at most "
                f"hash_bit_width ({width}, 1..64) bits;"
            )

    def shown(self) -> p.TableData:
        """The action with its fields; without the seed where the algorithm's own is not known."""
        settings = self.hash.settings
        action = self.spec.action_named(settings.action)
        values = dict(settings.algorithm)
        with contextlib.suppress(BfError):  # an algorithm that cannot be calculated here
            values["seed"] = self.hash.seed & 0xFFFFFFFF
        return codec.encode_data(action, codec.specs_of(self.spec, action).values(), values)


class HashCompute(Table):
    """``.compute``: read with the inputs as key gives ``hash_value``."""

    def __init__(self, spec: TableSpec, num_pipes: int, hash_: DynamicHash) -> None:
        super().__init__(spec, num_pipes)
        self.hash = hash_

    def write(self, kind: p.Update.Type, entry: p.TableEntry, target: p.TargetDevice) -> Change:
        """Refused."""
        raise self.unsupported("can only be read")

    def read(self, entry: p.TableEntry, target: p.TargetDevice) -> bytes:
        """The hash of the inputs in the key."""
        self.check_device(target)
        if entry.WhichOneof("value") != "key":
            raise self.unsupported("is read with a key only")
        key = p.TableKey(fields=entry.key.fields)
        given = {field.field_id for field in key.fields}
        for spec in self.spec.key.values():
            if spec.id not in given:
                key.fields.add(field_id=spec.id).exact.value = bytes(spec.type.num_bytes)
        values, _ = codec.decode_key(self.spec, key)
        result = {spec.name: self.hash.of(cast("Mapping[str, int]", values)) for spec in self.spec.data.values()}
        answer = p.TableEntry(table_id=self.spec.id, key=key)
        answer.data.CopyFrom(codec.encode_data(None, self.spec.data.values(), result))
        return p.ReadResponse(entities=[p.Entity(table_entry=answer)]).SerializeToString()

    def reset(self) -> None:
        """Nothing is kept."""


def hash_tables(specs: Iterable[TableSpec], algorithms: Mapping[str, str], backend: SwitchBackend) -> dict[int, Table]:
    """The tables of all hashes of a program by id; ``algorithms``: short name of a hash -> its CRC in the P4 text."""
    hashes: dict[str, dict[str, TableSpec]] = {}
    for spec in specs:
        if spec.type in KINDS:
            hashes.setdefault(spec.name.rpartition(".")[0], {})[spec.type] = spec
    tables: dict[int, Table] = {}
    for name, kinds in hashes.items():
        if kinds.keys() == KINDS.keys():
            short = name.rpartition(".")[2]
            hash_ = DynamicHash(short, kinds[COMPUTE], algorithms.get(short, UNKNOWN), backend)
            tables |= {spec.id: KINDS[kind](spec, backend.num_pipes, hash_) for kind, spec in kinds.items()}
    return tables


KINDS: Final[Mapping[str, type[HashAlgorithm | HashConfigure | HashCompute]]] = {
    "DynHashAlgorithm": HashAlgorithm,
    "DynHashConfigure": HashConfigure,
    COMPUTE: HashCompute,
}
