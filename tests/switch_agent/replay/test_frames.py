# SPDX-License-Identifier: Apache-2.0
"""Frames of every link type decode; what does not decode is counted by reason; tshark sees the same."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import find
from replay_wire import (
    ACK,
    CNP,
    ETHERNET,
    FIRST,
    LAST_IMM,
    MIDDLE,
    NULL,
    ONLY_IMM,
    RAW,
    SLL,
    SLL2,
    Decoded,
    Record,
    Roce,
    decoded,
    expected,
    link_header,
    pcap,
    pcapng,
    records,
    write,
)
from wrapping import CLOSED, NESTED, WRAPPINGS

from switch_agent.replay.frames import Packets, decode, new_packets
from switch_agent.replay.outcomes import OUTCOMES
from switch_agent.replay.records import new_records

V4 = Roce(sport=0xC401, psn=0xABCDEF, qpn=0x123456, ecn=1)
V6 = V4.but(src="2001:db8::1:2", dst="fe80::ffff:1", ecn=3)
LINKS = [ETHERNET, SLL, SLL2, NULL, RAW, 12, 14, 108, 228]


def outcome_of(tmp_path: Path, frame: bytes, link: int = ETHERNET) -> str:
    """Return what one frame is taken for."""
    (row,) = decoded(write(tmp_path, pcap([Record(0, frame)], link=link)))
    return row.outcome


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("packet", [V4, V6], ids=["IPv4", "IPv6"])
def test_link_types(tmp_path: Path, link: int, packet: Roce) -> None:
    """Ethernet, cooked captures, BSD loopback, raw IP."""
    assert decoded(write(tmp_path, pcap(records([packet], link), link=link))) == [expected(packet, link)]


@pytest.mark.parametrize("vlans", [(0x8100,), (0x88A8, 0x8100), (0x9100, 0x8100), (0x8100,) * 4])
@pytest.mark.parametrize("link", [ETHERNET, SLL, SLL2])
@pytest.mark.parametrize("packet", [V4, V6], ids=["IPv4", "IPv6"])
def test_vlan_tags(tmp_path: Path, vlans: tuple[int, ...], link: int, packet: Roce) -> None:
    """802.1Q, QinQ, the old QinQ ethertype, up to four tags."""
    (row,) = decoded(write(tmp_path, pcap([Record(0, packet.frame(link, vlans))], link=link)))
    assert (row.outcome, row.src, row.dst, row.psn) == ("roce", packet.src, packet.dst, packet.psn)


@pytest.mark.parametrize("link", [ETHERNET, SLL, SLL2, NULL, RAW])
@pytest.mark.parametrize("packet", [V4, V6.but(opcode=ACK, syndrome=0x60)], ids=["IPv4", "IPv6 ACK"])
def test_headers_are_enough(tmp_path: Path, link: int, packet: Roce) -> None:
    """Cut right behind the BTH a packet decodes, without the AETH; one byte less and it is cut short."""
    frame = packet.frame(link)
    bth_end = len(link_header(link, 0)) + (40 if ":" in packet.src else 20) + 8 + 12
    rows = [Record(0, frame, snap=size) for size in range(len(frame) + 1)]
    got = decoded(write(tmp_path, pcap(rows, link=link)))
    assert {row.outcome for row in got[:bth_end]} == {"cut_short"}
    want = expected(packet, link)
    assert [row.psn for row in got[bth_end:]] == [want.psn] * (len(frame) + 1 - bth_end)
    assert got[bth_end].syndrome == -1
    assert got[-1] == want


JUNK = {
    "arp": link_header(ETHERNET, 0x0806) + bytes(28),
    "other_ethertype": link_header(ETHERNET, 0x88CC) + bytes(40),
    "tcp": link_header(ETHERNET, 0x0800) + b"\x45" + bytes(8) + b"\x06" + bytes(40),
    "icmp": link_header(ETHERNET, 0x86DD) + b"\x60" + bytes(5) + b"\x3a" + bytes(40),
    "other_ip": link_header(ETHERNET, 0x0800) + b"\x45" + bytes(8) + b"\x59" + bytes(40),
    "other_udp": V4.frame()[:36] + b"\x12\xb8" + V4.frame()[38:],
    "cut_short": V4.frame()[:40],
    "bad_ip": link_header(ETHERNET, 0x0800) + b"\x44" + V4.ip()[1:],
    "ip_fragment": link_header(ETHERNET, 0x0800) + V4.ip(fragment=0x2000),
    "bad_udp": V4.frame()[:38] + b"\x00\x13" + V4.frame()[40:],
}


@pytest.mark.parametrize("reason", JUNK)
def test_each_reason_not_to_be_used(tmp_path: Path, reason: str) -> None:
    """One frame for each outcome of frames."""
    assert outcome_of(tmp_path, JUNK[reason]) == reason


@pytest.mark.parametrize(
    ("ip", "ethertype", "reason"),
    [
        (b"\x65" + V4.ip()[1:], 0x0800, "bad_ip"),
        (V4.ip()[:2] + b"\x00\x1b" + V4.ip()[4:], 0x0800, "bad_ip"),
        (V4.ip(fragment=0x0001), 0x0800, "ip_fragment"),
        (b"\x40" + V6.ip()[1:], 0x86DD, "bad_ip"),
        (V6.ip()[:4] + b"\x00\x07" + V6.ip()[6:], 0x86DD, "bad_ip"),
        (V6.ip()[:6] + b"\x2c" + V6.ip()[7:40] + b"\x11\0\0\x01\0\0\0\x07" + V6.ip()[40:], 0x86DD, "ip_fragment"),
        (V6.ip()[:6] + b"\0" + V6.ip()[7:40] + bytes(400), 0x86DD, "too_deep"),
    ],
)
def test_more_ways_to_be_wrong(tmp_path: Path, ip: bytes, ethertype: int, reason: str) -> None:
    """Versions, lengths, offsets, fragments of IPv6, extension headers without end."""
    assert outcome_of(tmp_path, link_header(ETHERNET, ethertype) + ip) == reason


def test_every_outcome_is_tested() -> None:
    """The list of reasons and the tests go together."""
    elsewhere = {"roce", "bad_record", "unknown_interface", "no_time", "duplicate"}
    wrapped = {"erf_other", "link_type", "too_deep", "bad_tunnel", "no_bth"}  # test_wrapped_frames
    assert {outcome.name for outcome in OUTCOMES} == {*JUNK, *CLOSED, *elsewhere, *wrapped}


# ------------------------------------------------------------------------------ against tshark

FIELDS = (
    *("frame.time_epoch", "frame.len", "ip.src", "ipv6.src", "ip.dst", "ipv6.dst", "udp.srcport"),
    *("infiniband.bth.opcode", "infiniband.bth.destqp", "infiniband.bth.psn", "ip.dsfield.ecn", "ipv6.tclass.ecn"),
    "infiniband.aeth.syndrome",
)


def dissected(path: str) -> list[Decoded]:
    """Return what tshark says of a file's RoCEv2 packets."""
    from replay_wire import START_NS

    command = [find("tshark"), "-r", path, "-Y", "infiniband.bth", "-T", "fields", "-E", "occurrence=f"]
    command += [part for field in FIELDS for part in ("-e", field)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = []
    for line in lines:
        time, length, src4, src6, dst4, dst6, *rest = line.split("\t")
        sport, opcode, qpn, psn, ecn4, ecn6, syndrome = rest
        seconds, _, fraction = time.partition(".")
        stamp = int(seconds) * 10**9 + int(fraction.ljust(9, "0")[:9]) - START_NS
        numbers = (int(text, 0) for text in (sport, opcode, qpn, psn, ecn4 or ecn6, syndrome or "-1"))
        rows.append(Decoded("roce", stamp, int(length), src4 or src6, dst4 or dst6, *numbers))
    return rows


def assorted() -> list[Roce]:
    """Return packets that differ in every field."""
    rng = np.random.default_rng(3)
    opcodes = [FIRST, MIDDLE, 8, LAST_IMM, ONLY_IMM, 10, ACK, CNP, 0, 4, 12]
    return [
        Roce(
            at_ns=int(rng.integers(0, 1000)) + 10_000 * i,
            src=f"10.0.{i % 4}.1" if i % 3 else f"2001:db8::{i + 1:x}",
            dst=f"10.0.{i % 5}.2" if i % 3 else "2001:db8:1::ff",
            sport=0xC000 | int(rng.integers(0, 1 << 14)),
            opcode=opcodes[i % len(opcodes)],
            qpn=int(rng.integers(2, 1 << 24)),
            psn=int(rng.integers(0, 1 << 24)),
            ecn=int(rng.integers(0, 4)),
            syndrome=0x1F if i % 2 else 0x60,
        )
        for i in range(66)
    ]


@pytest.mark.parametrize("link", [ETHERNET, SLL, SLL2, RAW])
@pytest.mark.parametrize("kind", ["pcap", "pcapng"])
def test_tshark_sees_the_same(tmp_path: Path, link: int, kind: str) -> None:
    """Stamps, lengths, addresses, source port, opcode, QP, PSN, ECN and syndrome."""
    rows = records(assorted(), link)
    path = write(tmp_path, pcap(rows, link=link) if kind == "pcap" else pcapng(rows, link=link))
    assert decoded(path) == dissected(path) == [expected(packet, link) for packet in assorted()]


def test_files_that_tshark_writes(tmp_path: Path) -> None:
    """tshark's own pcapng and gzip output reads as its input."""
    path = write(tmp_path, pcap(records(assorted())))
    for options, name in (([], "a.pcapng"), (["-F", "nsecpcap"], "b.pcap"), (["--compress", "gzip"], "c.pcapng.gz")):
        copy = str(tmp_path / name)
        done = subprocess.run(["tshark", "-r", path, *options, "-w", copy], capture_output=True, text=True)
        if done.returncode and "--compress" in options:
            continue  # older versions cannot
        assert decoded(copy) == decoded(path)


# ------------------------------------------------------------------------------------ fuzz

SEEDS = [
    (link, packet.frame(link, vlans))
    for link in (ETHERNET, SLL, SLL2, NULL, RAW)
    for packet in (V4, V6, V4.but(opcode=ACK))
    for vlans in ((), (0x8100,), (0x88A8, 0x8100))
    if not vlans or link in (ETHERNET, SLL, SLL2)
] + [(wrapping.link, wrapping.wrap(V6 if wrapping.only == 6 else V4)) for wrapping in (WRAPPINGS | NESTED).values()]


def decode_with_filler(frames: list[tuple[int, bytes]], filler: bytes) -> Packets:
    """Decode frames that lie in one array with ``filler`` behind each."""
    found, packets = new_records(len(frames)), new_packets(len(frames))
    data = bytearray()
    for i, (link, frame) in enumerate(frames):
        found.start[i], found.captured[i], found.link[i] = len(data), len(frame), link
        data += frame + filler
    decode(np.frombuffer(bytes(data), np.uint8).copy(), found, len(frames), packets)
    return packets


def read_past_the_end(frames: list[tuple[int, bytes]]) -> bool:
    """Say whether what lies behind a frame changes what is decoded."""
    one, other = decode_with_filler(frames, b"\x00" * 64), decode_with_filler(frames, b"\xff" * 64)
    good = one.outcome == 0
    columns = zip(one[1:], other[1:], strict=True)
    return not (
        np.array_equal(one.outcome, other.outcome) and all(np.array_equal(a[good], b[good]) for a, b in columns)
    )


def test_mutated_frames_are_never_read_past_their_end() -> None:
    """50,000 frames with flipped bits, overwritten lengths, missing ends."""
    rng = np.random.default_rng(11)
    frames = []
    for which in rng.integers(0, len(SEEDS), 50_000).tolist():
        link, frame = SEEDS[which]
        data = bytearray(frame)
        for bit in rng.integers(0, 8 * len(data), rng.integers(0, 7)).tolist():
            data[bit // 8] ^= 1 << bit % 8
        at = int(rng.integers(0, 2 * len(data)))
        data[at : at + 2] = b"\xff\xff" if at < len(data) else b""
        frames.append((link, bytes(data[: int(rng.integers(0, 2 * len(data)))])))
    assert not read_past_the_end(frames)
    assert len(set(decode_with_filler(frames, b"").outcome.tolist())) >= 10


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([*LINKS, 197, 229, 247, -1]), st.binary(max_size=120)), min_size=1, max_size=8)
)
def test_arbitrary_bytes_are_never_read_past_their_end(frames: list[tuple[int, bytes]]) -> None:
    """Bytes without any plan."""
    assert not read_past_the_end(frames)


def test_the_check_for_reading_past_the_end_can_fail() -> None:
    """A record that claims a byte more than it has does depend on what follows."""
    found = new_records(1)
    frame = V4.frame()[:53]  # one byte of the PSN is missing
    psns = []
    for filler in (b"\x00", b"\xff"):
        packets = new_packets(1)
        found.start[0], found.captured[0], found.link[0] = 0, 54, ETHERNET
        decode(np.frombuffer(frame + filler, np.uint8).copy(), found, 1, packets)
        psns.append(int(packets.psn[0]))
    assert psns == [0xABCD00, 0xABCDFF]
    assert struct.pack(">I", psns[1])[1:] == b"\xab\xcd\xff"
