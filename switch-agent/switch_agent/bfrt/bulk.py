# SPDX-License-Identifier: Apache-2.0
"""Register and counter blocks straight between wire bytes and numpy arrays.

A wildcard read of a register answers thousands of entries that differ in nothing but the bytes of index and
values: field ids, lengths and nesting repeat. So the first entry is walked in the protobuf wire format, which
tells where its values lie; the following ones are compared with it (everything but the values must be
equal) and their values are taken out as array columns. Entries with another layout just start a new
run. Writing works the other way round: one encoded update is the stencil for all.

A thousand jobs are sampled twenty times a second this way; message objects would cost a core.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from switch_agent import bfrt_proto as proto
from switch_agent.bfrt.requests import Entry, insert_update, read_keyed
from switch_agent.bfrt.schema import Table
from switch_agent.errors import CodecError

__all__ = ["Block", "decode_blocks", "encode_keyed_reads", "encode_register_updates"]

_VARINT, _LENGTH_DELIMITED = 0, 2
_ENTITIES = 1  # ReadResponse.entities
_FIRST_LOOK = 64


@dataclass(frozen=True, slots=True)
class Block:
    """Entries of one register or counter table.

    ``index`` has shape (n,); ``fields`` maps a data field id to its values, shape (n, pipes of the request).
    """

    table_id: int
    index: NDArray[np.uint64]
    fields: Mapping[int, NDArray[np.uint64]]


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the values of one encoded entry lie: (offset, length), relative to the entry's first byte."""

    table_id: int
    key: tuple[int, int]
    data: tuple[tuple[int, int, int], ...]  # field id, offset, length

    def spans(self) -> Iterator[tuple[int, int]]:
        yield self.key
        for _, offset, length in self.data:
            yield offset, length


def _varint(buffer: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(buffer) or shift > 63:
            raise CodecError("the switch's answer ends inside a number: truncated or no BF-Runtime message")
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(buffer: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (field number, start, end) of a message's fields; varints come as (number, value, -1)."""
    at = start
    while at < end:
        tag, at = _varint(buffer, at)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            value, at = _varint(buffer, at)
            yield number, value, -1
        elif wire_type == _LENGTH_DELIMITED:
            length, at = _varint(buffer, at)
            if at + length > end:
                raise CodecError("the switch's answer has a field longer than its message")
            yield number, at, at + length
            at += length
        else:
            raise CodecError(f"the switch's answer has wire type {wire_type}, which no table entry uses")


def _entry_layout(buffer: bytes, start: int, end: int, origin: int) -> _Layout:
    """Walk one TableEntry and find its key value and data values."""
    table_id = 0
    key: tuple[int, int] | None = None
    data: list[tuple[int, int, int]] = []
    for number, first, last in _fields(buffer, start, end):
        if number == 1 and last < 0:
            table_id = first
        elif number == 2:  # key.fields.exact.value
            for _, field_start, field_end in _fields(buffer, first, last):
                for part, exact_start, exact_end in _fields(buffer, field_start, field_end):
                    if part == 2 and exact_end >= 0:
                        for _, value_start, value_end in _fields(buffer, exact_start, exact_end):
                            key = (value_start - origin, value_end - value_start)
        elif number == 3:  # data.fields.stream
            for part, field_start, field_end in _fields(buffer, first, last):
                if part != 2 or field_end < 0:
                    continue
                field_id = 0
                for inner, value, value_end in _fields(buffer, field_start, field_end):
                    if inner == 1 and value_end < 0:
                        field_id = value
                    elif inner == 2 and value_end >= 0:
                        data.append((field_id, value - origin, value_end - value))
    if key is None or any(length > 8 for _, _, length in data) or key[1] > 8:
        raise CodecError("the switch's answer has an entry that is no register or counter entry")
    return _Layout(table_id, key, tuple(data))


def _columns(rows: NDArray[np.uint8], offset: int, length: int) -> NDArray[np.uint64]:
    wide = np.zeros((len(rows), 8), np.uint8)
    wide[:, 8 - length :] = rows[:, offset : offset + length]
    return wide.view(">u8")[:, 0].astype(np.uint64)


def _runs(raw: bytes) -> Iterator[tuple[_Layout, NDArray[np.uint8]]]:
    """Yield runs of equally laid out entities as (layout, rows of bytes)."""
    data = np.frombuffer(raw, np.uint8)
    at, size = 0, len(raw)
    while at < size:
        tag, body = _varint(raw, at)
        length, body = _varint(raw, body)
        end = body + length
        if tag & 7 != _LENGTH_DELIMITED or end > size:
            raise CodecError("the switch's answer is no BF-Runtime read answer")
        if tag >> 3 != _ENTITIES:  # per-entity status, when asked for
            at = end
            continue
        step = end - at
        layout = None
        for number, first, last in _fields(raw, body, end):
            if number == 1 and last >= 0:
                layout = _entry_layout(raw, first, last, at)
        if layout is None:
            raise CodecError("the switch's answer has an entity that is no table entry")
        fixed = np.full(step, 0xFF, np.uint8)
        for offset, width in layout.spans():
            fixed[offset : offset + width] = 0
        rows = data[at : at + (size - at) // step * step].reshape(-1, step)
        rows = rows[: _alike(rows, fixed)]
        yield layout, rows
        at += rows.size


def _alike(rows: NDArray[np.uint8], fixed: NDArray[np.uint8]) -> int:
    """Give how many rows equal the first one in the bits of ``fixed``, before one does not.

    Looks twice as far each time, so that a short run does not cost a comparison with all that follows it.
    """
    count = 1
    while count < len(rows):
        differs = (rows[count : 2 * count + _FIRST_LOOK] ^ rows[0]) & fixed
        if differs.any():
            return count + int(differs.any(axis=1).argmax())
        count += len(differs)
    return count


def decode_blocks(raw: bytes) -> dict[int, Block]:
    """Decode a serialised ReadResponse of register and counter entries, one block per table id.

    Raises CodecError when the bytes are not such an answer.
    """
    parts: dict[int, list[tuple[_Layout, NDArray[np.uint8]]]] = {}
    for layout, rows in _runs(raw):
        parts.setdefault(layout.table_id, []).append((layout, rows))
    blocks: dict[int, Block] = {}
    for table_id, runs in parts.items():
        index = [_columns(rows, *layout.key) for layout, rows in runs]
        fields: dict[int, list[NDArray[np.uint64]]] = {}
        for layout, rows in runs:
            per_field: dict[int, list[NDArray[np.uint64]]] = {}
            for field_id, offset, length in layout.data:
                per_field.setdefault(field_id, []).append(_columns(rows, offset, length))
            for field_id, columns in per_field.items():
                fields.setdefault(field_id, []).append(np.stack(columns, axis=1))
        try:
            joined = {field_id: np.concatenate(values) for field_id, values in fields.items()}
        except ValueError as error:
            raise CodecError("the switch answered with differing numbers of pipes per entry") from error
        blocks[table_id] = Block(table_id, np.concatenate(index), joined)
    return blocks


def encode_register_updates(
    table: Table, index: NDArray[np.uint32], fields: Mapping[str, NDArray[np.uint32]], pipe: int
) -> bytes:
    """Encode "set register entry" updates as a piece of a serialised WriteRequest.

    ``fields`` must name all data fields of the register, each with one value per index, at most 32 bits wide.
    ``pipe`` is the pipe to write, 0xffff for all. Protobuf messages may be concatenated: append this to a
    WriteRequest that has target and client.
    """
    stencil_entry = Entry(key={"$REGISTER_INDEX": 0}, data=dict.fromkeys(fields, 0))
    message = proto.WriteRequest(updates=[insert_update(table, stencil_entry, pipe=pipe)])
    by_id = {table.data_field(name).id: values for name, values in fields.items()}
    return _stencil(message.SerializeToString(), (2, 1), index, by_id)  # Update.entity, Entity.table_entry


def encode_keyed_reads(table: Table, index: NDArray[np.uint32] | NDArray[np.int32]) -> bytes:
    """Encode reads from hardware of these entries of a register or counter, as a piece of a ReadRequest."""
    (key,) = table.keys
    message = proto.ReadRequest(entities=[read_keyed(table, {key: 0}, from_hw=True)])
    return _stencil(message.SerializeToString(), (1,), index.astype(np.uint32), {})  # Entity.table_entry


def _stencil(
    message: bytes, path: tuple[int, ...], index: NDArray[np.uint32], fields: Mapping[int, NDArray[np.uint32]]
) -> bytes:
    """Repeat ``message``, which holds one repeated field, with the key and data values of each index.

    ``path`` are the numbers of the fields that lead from the repeated one to the TableEntry.
    """
    _, at = _varint(message, 0)
    _, at = _varint(message, at)
    end = len(message)
    for number in path:
        at, end = next((start, stop) for field, start, stop in _fields(message, at, end) if field == number)
    layout = _entry_layout(message, at, end, 0)
    rows = np.tile(np.frombuffer(message, np.uint8), (len(index), 1))

    def fill(offset: int, length: int, values: NDArray[np.uint32]) -> None:
        rows[:, offset : offset + length] = values.astype(">u4").view(np.uint8).reshape(len(values), 4)[:, 4 - length :]

    fill(*layout.key, index)
    for field_id, offset, length in layout.data:
        fill(offset, length, fields[field_id])
    return rows.tobytes()
