# SPDX-License-Identifier: Apache-2.0
"""Find the packet records in a piece of a pcap or pcapng file; JIT-compiled.

Formats: draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng. Both scanners stop before anything they do not see
whole, so no access leaves the piece; what a stop means at the end of the file is for ``capture`` to say.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from switch_agent.replay.jit import inlined, loop
from switch_agent.replay.outcomes import BAD_RECORD, NO_TIME, ROCE, UNKNOWN_INTERFACE

__all__ = [
    "BLOCK_INTERFACE",
    "BLOCK_SECTION",
    "DAMAGED",
    "FULL",
    "INTERFACE",
    "MAX_BLOCK",
    "MORE",
    "SECTION",
    "Records",
    "new_records",
    "scan_pcap",
    "scan_pcapng",
]

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

FULL, MORE, DAMAGED, SECTION, INTERFACE = range(5)
"""Why a scanner stopped: no room for more records; needs more bytes; nonsense; a section header or an interface
description is next (both are read in Python)."""

BLOCK_SECTION = 0x0A0D0D0A
BLOCK_INTERFACE = 1
_BLOCK_OLD_PACKET, _BLOCK_SIMPLE, _BLOCK_PACKET = 2, 3, 6
_PACKET_OVERHEAD = 32  # header and trailer of a packet block, obsolete or enhanced
_NS = 1_000_000_000

MAX_BLOCK = 1 << 26
"""Longest record or block in bytes that is taken for one: 64 MiB."""


class Records(NamedTuple):
    """Packet records of one piece, int64[capacity] each.

    ``start`` is an index into the piece; ``captured`` bytes are there, ``length`` were on the wire. ``defect`` is 0
    (``outcomes.ROCE``) or the outcome that is already certain.
    """

    start: Ints
    captured: Ints
    length: Ints
    link: Ints
    time_ns: Ints
    defect: Ints


def new_records(capacity: int) -> Records:
    """Return room for ``capacity`` records."""
    return Records(*(np.zeros(capacity, np.int64) for _ in Records._fields))


@inlined
def _u32(data: Bytes, at: int, big: bool) -> int:
    a, b = np.int64(data[at]), np.int64(data[at + 1])
    c, d = np.int64(data[at + 2]), np.int64(data[at + 3])
    return int(a << 24 | b << 16 | c << 8 | d) if big else int(d << 24 | c << 16 | b << 8 | a)


@loop
def scan_pcap(
    data: Bytes, at: int, end: int, big: bool, tick_ns: int, link: int, max_captured: int, records: Records
) -> tuple[int, int, int]:
    """Scan pcap records in ``data[at:end]``; return (where it stopped, records found, why it stopped).

    Args:
        data: a piece of the file.
        at: where the first record starts.
        end: end of what is there.
        big: the file is big-endian.
        tick_ns: unit of the time stamps' fractions: 1000 or 1.
        link: link type of the file.
        max_captured: a record that claims more bytes is nonsense.
        records: filled from its start.
    """
    n = 0
    while n < records.start.shape[0]:
        if end - at < 16:
            return at, n, MORE
        captured = _u32(data, at + 8, big)
        if captured > max_captured:
            return at, n, DAMAGED
        if end - at - 16 < captured:
            return at, n, MORE
        length = _u32(data, at + 12, big)
        records.start[n] = at + 16
        records.captured[n] = captured
        records.length[n] = length
        records.link[n] = link
        records.time_ns[n] = _u32(data, at, big) * _NS + _u32(data, at + 4, big) * tick_ns
        records.defect[n] = ROCE if captured <= length else BAD_RECORD
        at += 16 + captured
        n += 1
    return at, n, FULL


@inlined
def _pcapng_time(stamp: int, interfaces: Ints, row: int) -> int:
    """Return a stamp of interface ``row`` in ns; 0 if it is beyond 63 bits."""
    shift = interfaces[row, 3]
    if shift < 0:
        units = np.int64(np.uint64(stamp) // np.uint64(interfaces[row, 2]))  # all 64 bits count
        return max(0, int(units * interfaces[row, 1] + interfaces[row, 4]))
    fraction = stamp & ((np.int64(1) << shift) - 1)
    seconds = np.int64(np.uint64(stamp) >> np.uint64(shift))
    if shift > 32:
        fraction >>= shift - 32
        shift = 32
    return max(0, int(seconds * _NS + (fraction * _NS >> shift) + interfaces[row, 4]))


@loop
def scan_pcapng(
    data: Bytes, at: int, end: int, big: bool, interfaces: Ints, n_interfaces: int, records: Records
) -> tuple[int, int, int]:
    """Scan pcapng blocks in ``data[at:end]``; return (where it stopped, records found, why it stopped).

    Enhanced, simple and (obsolete) packet blocks give records; other blocks are skipped.

    Args:
        data: a piece of the file.
        at: where the first block starts.
        end: end of what is there.
        big: the section is big-endian.
        interfaces: int64[>= n_interfaces, 5]: link type, then the time stamp's multiplier, divisor, binary shift (-1:
            decimal), offset in ns.
        n_interfaces: interfaces described so far in this section.
        records: filled from its start.
    """
    n = 0
    while n < records.start.shape[0]:
        if end - at < 12:
            return at, n, MORE
        kind = _u32(data, at, big)
        if kind == BLOCK_SECTION:
            return at, n, SECTION
        length = _u32(data, at + 4, big)
        if length < 12 or length & 3 or length > MAX_BLOCK:
            return at, n, DAMAGED
        if end - at < length:
            return at, n, MORE
        if _u32(data, at + length - 4, big) != length:
            return at, n, DAMAGED
        if kind == BLOCK_INTERFACE:
            return at, n, INTERFACE
        if kind in (_BLOCK_PACKET, _BLOCK_OLD_PACKET):
            _packet_block(data, at, length, big, kind, interfaces, n_interfaces, records, n)
            n += 1
        elif kind == _BLOCK_SIMPLE:
            records.defect[n] = NO_TIME
            n += 1
        at += length
    return at, n, FULL


@inlined
def _packet_block(
    data: Bytes,
    at: int,
    length: int,
    big: bool,
    kind: int,
    interfaces: Ints,
    n_interfaces: int,
    records: Records,
    n: int,
) -> None:
    records.defect[n] = BAD_RECORD
    if length < _PACKET_OVERHEAD:
        return
    captured = _u32(data, at + 20, big)
    on_the_wire = _u32(data, at + 24, big)
    if captured > length - _PACKET_OVERHEAD or captured > on_the_wire:
        return
    interface = _u32(data, at + 8, big)
    if kind == _BLOCK_OLD_PACKET:  # 16 bits of interface, then 16 bits of a drop count
        interface = interface >> 16 if big else interface & 0xFFFF
    if interface >= n_interfaces:
        records.defect[n] = UNKNOWN_INTERFACE
        return
    stamp = _u32(data, at + 12, big) << 32 | _u32(data, at + 16, big)
    records.start[n] = at + 28
    records.captured[n] = captured
    records.length[n] = on_the_wire
    records.link[n] = interfaces[interface, 0]
    records.time_ns[n] = _pcapng_time(stamp, interfaces, interface)
    records.defect[n] = ROCE
