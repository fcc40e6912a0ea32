# SPDX-License-Identifier: Apache-2.0
"""RoCE in tunnels, behind options, as InfiniBand: replay sees what tshark sees; what is not opened is named."""

from __future__ import annotations

import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from programs import find
from replay_wire import (
    ACK,
    ETHERNET,
    START_NS,
    Decoded,
    Record,
    Roce,
    decoded,
    expected,
    interface,
    packet_block,
    pcap,
    section,
    write,
)
from test_frames import V4, V6, assorted
from wrapping import (
    CLOSED,
    ERF,
    INFINIBAND,
    NESTED,
    WRAPPINGS,
    Wrapping,
    erf,
    ether,
    global_route,
    ipv4,
    local_route,
    over_gre,
    over_udp,
)
from wrapping import vxlan as in_vxlan

from switch_agent.replay.replayer import ReplayOptions, replay

ALL = WRAPPINGS | NESTED
FIELDS = (
    *("frame.time_epoch", "frame.len", "ip.src", "ipv6.src", "ip.dst", "ipv6.dst", "ip.dsfield.ecn", "ipv6.tclass.ecn"),
    *("infiniband.lrh.slid", "infiniband.lrh.dlid", "infiniband.grh.sgid", "infiniband.grh.dgid", "udp.srcport"),
    *("infiniband.bth.opcode", "infiniband.bth.destqp", "infiniband.bth.psn", "infiniband.aeth.syndrome"),
)


def packets_for(wrapping: Wrapping) -> list[Roce]:
    """Return packets that can be wrapped so."""
    if wrapping.only == 0:
        return [packet for packet in assorted() if ":" not in packet.src]
    if wrapping.only == 6:
        return [packet.but(src=V6.src, dst=V6.dst) for packet in assorted()]
    return [packet for packet in assorted() if not wrapping.only or ":" not in packet.src]


def wrapped(tmp_path: Path, wrapping: Wrapping, packets: list[Roce]) -> str:
    """Write the packets, wrapped, to a capture."""
    rows = [Record(packet.at_ns, wrapping.wrap(packet)) for packet in packets]
    return write(tmp_path, pcap(rows, link=wrapping.link))


def read_by_tshark(lines: list[str], packets: list[Roce]) -> list[Decoded]:
    """Return what tshark says of the innermost headers; the packets tell which IP version these have."""
    rows = []
    for line, packet in zip(lines, packets, strict=True):
        time, length, *middle, sport, opcode, qpn, psn, syndrome = line.split("\t")
        src4, src6, dst4, dst6, ecn4, ecn6, slid, dlid, sgid, dgid = middle
        src, dst, ecn = (src6, dst6, ecn6) if ":" in packet.src else (src4, dst4, ecn4)
        if slid or sgid:
            src, dst, ecn = sgid or slid, dgid or dlid, "-1"
        seconds, _, fraction = time.partition(".")
        stamp = int(seconds) * 10**9 + int(fraction.ljust(9, "0")[:9]) - START_NS
        numbers = (int(text or "-1", 0) for text in (sport, opcode, qpn, psn, ecn, syndrome))
        rows.append(Decoded("roce", stamp, int(length), src, dst, *numbers))
    return rows


def test_tshark_sees_the_same_in_every_wrapping(tmp_path: Path) -> None:
    """Every field of every packet. InfiniBand it reads in ERF only, so it is given the same packets in that."""
    blocks, wanted = [section(), interface(ETHERNET, resolution=9), interface(ERF, resolution=9)], []
    for wrapping in ALL.values():
        for packet in packets_for(wrapping):
            frame = wrapping.wrap(packet)
            frame = erf(21, frame, at_ns=packet.at_ns) if wrapping.link == INFINIBAND else frame
            blocks.append(packet_block(Record(packet.at_ns, frame, int(wrapping.link != ETHERNET)), resolution=9))
            wanted.append(packet)
    path = write(tmp_path, b"".join(blocks), "all.pcapng")
    hints = ("udp.port==8472,vxlan", "mpls.label==48,pwethcw", "mpls.label==64,pwethnocw")
    command = [find("tshark"), "-r", path, "-T", "fields", "-E", "occurrence=l"]
    command += [part for hint in hints for part in ("-d", hint)]
    command += [part for field in FIELDS for part in ("-e", field)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    seen = read_by_tshark(lines, wanted)
    for name, wrapping in ALL.items():
        n = len(packets_for(wrapping))
        assert (name, decoded(wrapped(tmp_path, wrapping, packets_for(wrapping)))) == (name, seen[:n])
        del seen[:n]
    assert not seen


@pytest.mark.parametrize("name", ALL)
def test_the_report_names_the_form_and_counts_what_the_plain_capture_counts(tmp_path: Path, name: str) -> None:
    """Opcodes, replies, sequence, ECN and jobs are those of the same packets without wrapping."""
    wrapping = ALL[name]
    packets = packets_for(wrapping)
    report = replay(wrapped(tmp_path, wrapping, packets), ReplayOptions())
    plain = replay(write(tmp_path, pcap([Record(p.at_ns, p.frame()) for p in packets]), "plain.pcap"), ReplayOptions())
    assert report.capture.roce == plain.capture.roce == len(packets)
    assert report.capture.forms == dict.fromkeys(wrapping.forms, len(packets))
    assert report.roce.opcodes == plain.roce.opcodes
    assert report.roce.replies == plain.roce.replies
    if report.roce.portless:
        assert sum(report.roce.ecn.values()) == 0
        assert report.roce.portless == plain.roce.data_packets
    else:
        assert report.roce.ecn == plain.roce.ecn
        assert [job.packets for job in report.jobs] == [job.packets for job in plain.jobs]
    assert report.partial == []


@pytest.mark.parametrize("name", ALL)
def test_cut_at_any_byte_it_is_whole_or_cut_short(tmp_path: Path, name: str) -> None:
    """From the first byte to the last of the headers: never read past the end, never taken for another packet."""
    wrapping = ALL[name]
    packet = {0: V4, 4: V4, 6: V6, None: V4}[wrapping.only]
    frame = wrapping.wrap(packet)
    rows = [Record(0, frame, snap=size) for size in range(len(frame) + 1)]
    got = [row.outcome for row in decoded(write(tmp_path, pcap(rows, link=wrapping.link)))]
    whole = got.index("roce")
    assert set(got[:whole]) == {"cut_short"}
    assert set(got[whole:]) == {"roce"}


@pytest.mark.parametrize("name", CLOSED)
def test_a_tunnel_that_is_not_opened_is_named_and_the_figures_say_so(tmp_path: Path, name: str) -> None:
    """32 of 40 records are inside: the 8 others are counted, and that they are a part."""
    rows = [Record(i, V4.but(psn=i).frame()) for i in range(8)] + [Record(9, CLOSED[name])] * 32
    report = replay(write(tmp_path, pcap(rows)), ReplayOptions())
    assert (report.capture.roce, report.capture.closed) == (8, {name: 32})
    (line,) = report.partial
    assert "32 of 40 records may hold RoCE that was not seen: 32 x " in line


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (in_vxlan(V4.frame())[:42] + bytes(1) + in_vxlan(V4.frame())[43:], "bad_tunnel"),
        (over_udp(8472, bytes(8), bytes(60)), "other_udp"),
        (over_udp(4790, bytes((12, 0, 0, 4, 0, 0, 0, 0)), bytes(60)), "nsh"),
        (over_udp(4790, bytes((12, 0, 0, 9, 0, 0, 0, 0)), bytes(60)), "other_tunnel"),
        (over_udp(6081, b"\x40\0\x65\x58" + bytes(4), V4.frame()), "bad_tunnel"),
        (over_udp(6081, b"\0\0\x88\xcc" + bytes(4), V4.frame()), "other_tunnel"),
        (over_gre(0x22EB, b"\x10" + bytes(80), 0x1000, bytes(4)), "bad_tunnel"),
        (over_gre(0x22EB, b"\x20" + bytes(9) + b"\x1c" + bytes(80), 0x1000, bytes(4)), "other_tunnel"),
        (over_gre(0x88BE, b"\x20" + bytes(80), 0x1000, bytes(4)), "bad_tunnel"),
        (over_udp(4500, bytes(8), bytes(60)), "ipsec"),
        (ether(0x0800, ipv4(115, bytes(60))), "l2tp"),
        (ether(0x0800, ipv4(97, bytes(60))), "other_tunnel"),
        (ether(0x8864, b"\x22" + bytes(60)), "bad_tunnel"),
        (ether(0x8864, b"\x11" + bytes(5) + b"\xc0\x21" + bytes(60)), "other_tunnel"),
        (ether(0x8915, bytes(60)), "bad_ip"),
        (ether(0x8915, global_route(V6)[:6] + b"\x11" + global_route(V6)[7:]), "no_bth"),
        (ether(0x8100, (b"\0\x05\x81\0") * 24 + bytes(60)), "too_deep"),
    ],
)
def test_hostile_and_strange_headers_have_their_reason(tmp_path: Path, frame: bytes, reason: str) -> None:
    """Versions, lengths and payloads that are not what they should be."""
    (row,) = decoded(write(tmp_path, pcap([Record(0, frame)])))
    assert row.outcome == reason


@pytest.mark.parametrize(
    ("frame", "link", "reason"),
    [
        (local_route(V4.transport()[8:], link_next=0), 247, "no_bth"),
        (local_route(b""), 247, "no_bth"),
        (erf(27, bytes(60)), 197, "erf_other"),
        (bytes(60), 147, "link_type"),
    ],
)
def test_strange_frames_of_other_link_types(tmp_path: Path, frame: bytes, link: int, reason: str) -> None:
    """Raw InfiniBand, no room for a BTH, metadata of a capture card, private link types."""
    (row,) = decoded(write(tmp_path, pcap([Record(0, frame)], link=link)))
    assert row.outcome == reason


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_lengths_in_nested_tunnels_are_not_believed(tmp_path: Path, depth: int) -> None:
    """Every 16 bits of the headers of up to four tunnels set to 0, 19, 0x7fff and 0xffff: all records are counted."""
    frame = V4.frame()
    for _ in range(depth):
        frame = in_vxlan(frame)
    rows = []
    for at in range(0, len(frame) - 1, 2):
        hostile = (struct.pack(">H", value) for value in (0, 19, 0x7FFF, 0xFFFF))
        rows += [Record(0, frame[:at] + value + frame[at + 2 :]) for value in hostile]
    capture = replay(write(tmp_path, pcap(rows)), ReplayOptions()).capture
    assert capture.records == len(rows)
    assert capture.roce + sum((capture.other | capture.closed | capture.junk).values()) == len(rows)


def test_congestion_seen_outside_only_is_counted_apart(tmp_path: Path) -> None:
    """A switch marks the outer header of a tunnel: the inner ECN is reported, and that the outer one is CE."""
    rows = [Record(0, in_vxlan(V4.but(ecn=ecn).frame(), ecn=3)) for ecn in (0, 1, 2, 3)]
    report = replay(write(tmp_path, pcap(rows)), ReplayOptions())
    assert report.roce.ecn == {"not_ect": 1, "ect1": 1, "ect0": 1, "ce": 1}
    assert report.capture.forms == {"vxlan": 4, "outer_ce": 3}


def test_congestion_bits_of_infiniband_are_counted(tmp_path: Path) -> None:
    """FECN and BECN of the base transport header."""
    body = bytearray(V4.transport()[8:])
    rows = []
    for bits in (0x00, 0x80, 0x40, 0xC0):
        body[4] = bits
        rows.append(Record(0, local_route(bytes(body))))
    report = replay(write(tmp_path, pcap(rows, link=247)), ReplayOptions())
    assert report.capture.forms == {"infiniband": 4, "fecn": 2, "becn": 2}


def test_lengths_of_erf_are_those_on_the_wire(tmp_path: Path) -> None:
    """The record's own header is none of the packet's bytes."""
    rows = [Record(0, erf(2, V4.but(opcode=ACK).frame()))]
    (row,) = decoded(write(tmp_path, pcap(rows, link=197)))
    assert replace(row, syndrome=0) == expected(V4.but(opcode=ACK))
    assert row.length == len(V4.but(opcode=ACK).frame(ETHERNET))
