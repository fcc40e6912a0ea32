# SPDX-License-Identifier: Apache-2.0
"""A small reader of Ethernet captures of RoCEv2, written apart from the product's, to check both against packets."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["FIRST", "LAST", "WRITES", "Packet", "packets"]

FIRST = {0x06, 0x0A, 0x0B}
"""Opcodes that begin a write: FIRST, ONLY, ONLY WITH IMMEDIATE."""
LAST = {0x08, 0x09, 0x0A, 0x0B}
"""Opcodes that end one."""
WRITES = {0x06, 0x07, 0x08, 0x09, 0x0A, 0x0B}
_WITH_IMMEDIATE = {0x09: 0, 0x0B: 16}  # bytes of RETH before it
_ETHERNET, _IP, _UDP, _BTH = 14, 20, 8, 12


class Packet(NamedTuple):
    """A RoCEv2 packet over IPv4."""

    source: str
    destination: str
    tos: int
    sport: int
    opcode: int
    qp: int
    """Destination QP."""
    psn: int
    immediate: int | None


def packets(path: Path) -> Iterator[Packet]:
    """Read the RoCEv2 packets of a pcap file in this machine's byte order."""
    data = path.read_bytes()
    magic, link = struct.unpack_from("=I16xI", data)
    assert magic in (0xA1B2C3D4, 0xA1B23C4D)
    assert link == 1, "Ethernet"
    at = 24
    while at < len(data):
        (length,) = struct.unpack_from("=8xI", data, at)
        frame = data[at + 16 : at + 16 + length]
        at += 16 + length
        ip = frame[_ETHERNET : _ETHERNET + _IP]
        sport, dport = struct.unpack_from("!HH", frame, _ETHERNET + _IP)
        assert frame[12:14] == b"\x08\x00"
        if dport != 4791:
            continue
        bth = _ETHERNET + _IP + _UDP
        opcode, qp, psn = struct.unpack_from("!B3xII", frame, bth)
        immediate = None
        if opcode in _WITH_IMMEDIATE:
            (immediate,) = struct.unpack_from("!I", frame, bth + _BTH + _WITH_IMMEDIATE[opcode])
        source, destination = (".".join(map(str, ip[i : i + 4])) for i in (12, 16))
        yield Packet(source, destination, ip[1], sport, opcode, qp & 0xFFFFFF, psn & 0xFFFFFF, immediate)
