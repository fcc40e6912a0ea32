# SPDX-License-Identifier: Apache-2.0
"""Frames and capture files for the tests, built from the formats' definitions and nothing of the code under test.

Only ``decoded`` at the end uses it: the rows that replay's decoder makes of a file.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

ETHERNET, RAW, SLL, SLL2, NULL = 1, 101, 113, 276, 0
FIRST, MIDDLE, LAST_IMM, ONLY_IMM, ACK, CNP = 6, 7, 9, 11, 0x11, 0x81
START_NS = 1_700_000_000_000_000_000


@dataclass(frozen=True)
class Roce:
    """One RoCEv2 packet. ``at_ns`` counts from ``START_NS``."""

    at_ns: int = 0
    src: str = "10.0.0.1"
    dst: str = "10.0.0.2"
    sport: int = 0xC000
    opcode: int = MIDDLE
    qpn: int = 17
    psn: int = 0
    ecn: int = 2
    syndrome: int = 0

    def but(self, **changes: object) -> Roce:
        """Return the packet with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def transport(self) -> bytes:
        """Return UDP and what follows: BTH, AETH of an ACK, 8 bytes of payload, ICRC."""
        after = bytes((self.syndrome, 0, 0, 1)) if self.opcode == ACK else bytes(8)
        if self.opcode == FIRST:
            after = bytes(16)  # RETH
        bth = struct.pack(">BBHI", self.opcode, 0x40, 0xFFFF, self.qpn) + struct.pack(">I", self.psn)
        body = bth + after + b"ICRC"
        return struct.pack(">HHHH", self.sport, 4791, 8 + len(body), 0) + body

    def ip(self, *, options: bytes = b"", fragment: int = 0x4000) -> bytes:
        """Return the IP packet; IPv4 or IPv6 as the addresses say."""
        src, dst = ipaddress.ip_address(self.src), ipaddress.ip_address(self.dst)
        udp = self.transport()
        if src.version == 6:
            first = 6 << 28 | self.ecn << 20 | 0x12345
            return struct.pack(">IHBB", first, len(udp), 17, 64) + src.packed + dst.packed + udp
        words = 5 + len(options) // 4
        length = 4 * words + len(udp)
        head = struct.pack(">BBHHHBBH", 0x40 | words, 0x68 | self.ecn, length, 7, fragment, 64, 17, 0)
        head += src.packed + dst.packed + options
        total = sum(struct.unpack(f">{len(head) // 2}H", head))
        total = (total & 0xFFFF) + (total >> 16)
        checksum = ~(total + (total >> 16)) & 0xFFFF
        return head[:10] + struct.pack(">H", checksum) + head[12:] + udp

    def frame(self, link: int = ETHERNET, vlans: tuple[int, ...] = ()) -> bytes:
        """Return the frame on a link type; ``vlans`` are the ethertypes of the tags."""
        return link_header(link, 0x86DD if ":" in self.src else 0x0800, vlans) + self.ip()


def link_header(link: int, ethertype: int, vlans: tuple[int, ...] = ()) -> bytes:
    """Return a link-layer header; ``ethertype`` is that of the payload."""
    types = [*vlans, ethertype]
    first = struct.pack(">H", types[0])
    tags = b"".join(struct.pack(">HH", 0x0005, inner) for inner in types[1:])
    if link == ETHERNET:
        return bytes.fromhex("020000000002020000000001") + first + tags
    if link == SLL:
        return struct.pack(">HHH8s", 0, 1, 6, b"\x02\0\0\0\0\x01") + first + tags
    if link == SLL2:
        return first + struct.pack(">HIHBB8s", 0, 3, 1, 0, 6, b"\x02\0\0\0\0\x01") + tags
    if link in (NULL, 108):
        return struct.pack("<I", 30 if ethertype == 0x86DD else 2)
    return b""


@dataclass(frozen=True)
class Record:
    """One record of a capture: a frame, perhaps cut by a snap length."""

    at_ns: int
    frame: bytes
    interface: int = 0
    snap: int | None = None

    @property
    def captured(self) -> bytes:
        """Return the bytes that were kept."""
        return self.frame if self.snap is None else self.frame[: self.snap]


def records(packets: list[Roce], link: int = ETHERNET, snap: int | None = None) -> list[Record]:
    """Return the packets as records."""
    return [Record(packet.at_ns, packet.frame(link), snap=snap) for packet in packets]


def pcap(
    rows: list[Record], *, link: int = ETHERNET, order: Literal["<", ">"] = "<", nano: bool = True, snaplen: int = 65535
) -> bytes:
    """Return a pcap file."""
    magic, unit = (0xA1B23C4D, 1) if nano else (0xA1B2C3D4, 1000)
    parts = [struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, snaplen, link)]
    for row in rows:
        seconds, ns = divmod(START_NS + row.at_ns, 10**9)
        parts.append(struct.pack(f"{order}IIII", seconds, ns // unit, len(row.captured), len(row.frame)) + row.captured)
    return b"".join(parts)


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    """Return a pcapng block."""
    body += bytes(-len(body) % 4)
    length = struct.pack(f"{order}I", 12 + len(body))
    return struct.pack(f"{order}I", kind) + length + body + length


def section(order: str = "<") -> bytes:
    """Return a section header block."""
    return block(0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1), order)


def interface(link: int, order: str = "<", resolution: int | None = None, offset_s: int | None = None) -> bytes:
    """Return an interface description; ``resolution`` is the byte of if_tsresol."""
    options = struct.pack(f"{order}HH4s", 2, 4, b"eth0")
    if resolution is not None:
        options += struct.pack(f"{order}HHB3x", 9, 1, resolution)
    if offset_s is not None:
        options += struct.pack(f"{order}HHq", 14, 8, offset_s)
    return block(1, struct.pack(f"{order}HHI", link, 0, 0) + options + bytes(4), order)


def ticks(ns: int, resolution: int | None) -> int:
    """Return a time in an interface's unit."""
    if resolution is None:
        return ns // 1000
    if resolution & 0x80:
        return (ns << (resolution & 0x7F)) // 10**9
    return ns * int(10**resolution) // 10**9


def packet_block(row: Record, order: str = "<", resolution: int | None = None, offset_s: int = 0) -> bytes:
    """Return an enhanced packet block."""
    stamp = ticks(START_NS + row.at_ns - offset_s * 10**9, resolution)
    head = (row.interface, stamp >> 32, stamp & 0xFFFFFFFF, len(row.captured), len(row.frame))
    return block(6, struct.pack(f"{order}IIIII", *head) + row.captured, order)


def pcapng(rows: list[Record], *, link: int = ETHERNET, order: str = "<", resolution: int | None = 9) -> bytes:
    """Return a pcapng file of one section and one interface."""
    blocks = [packet_block(row, order, resolution) for row in rows]
    return section(order) + interface(link, order, resolution) + b"".join(blocks)


def write(folder: Path, data: bytes, name: str = "test.pcap") -> str:
    """Write a file; return its path as replay takes it."""
    path = folder / name
    path.write_bytes(data)
    return str(path)


@dataclass(frozen=True)
class Decoded:
    """What replay's decoder says of one record; the fields after ``outcome`` only for RoCEv2."""

    outcome: str
    at_ns: int = 0
    length: int = 0
    src: str = ""
    dst: str = ""
    sport: int = 0
    opcode: int = 0
    qpn: int = 0
    psn: int = 0
    ecn: int = 0
    syndrome: int = -1


def decoded(path: str) -> list[Decoded]:
    """Return a row for each record of a file, decoded by the code under test."""
    from switch_agent.replay.capture import BATCH, Capture
    from switch_agent.replay.frames import decode, new_packets
    from switch_agent.replay.outcomes import OUTCOMES

    rows = []
    packets = new_packets(BATCH)
    with Capture(path) as capture:
        for data, found, n in capture.batches():
            decode(data, found, n, packets)
            for i in range(n):
                outcome = OUTCOMES[packets.outcome[i]].name
                if outcome != "roce":
                    rows.append(Decoded(outcome))
                    continue
                halves = [int(column[i]) & (1 << 64) - 1 for column in packets[2:6]]
                family = {4: ipaddress.IPv4Address, 6: ipaddress.IPv6Address, 0: int}[int(packets.version[i])]
                src, dst = (str(family(high << 64 | low)) for high, low in (halves[:2], halves[2:]))
                numbers = (packets.sport, packets.opcode, packets.qpn, packets.psn, packets.ecn, packets.syndrome)
                stamp = int(found.time_ns[i]) - START_NS
                rows.append(
                    Decoded(outcome, stamp, int(found.length[i]), src, dst, *(int(column[i]) for column in numbers))
                )
    return rows


def expected(packet: Roce, link: int = ETHERNET) -> Decoded:
    """Return the row that ``decoded`` should have for a packet."""
    syndrome = packet.syndrome if packet.opcode == ACK else -1
    return Decoded(
        "roce",
        packet.at_ns,
        len(packet.frame(link)),
        packet.src,
        packet.dst,
        packet.sport,
        packet.opcode,
        packet.qpn,
        packet.psn,
        packet.ecn,
        syndrome,
    )
