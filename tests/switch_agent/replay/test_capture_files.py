# SPDX-License-Identifier: Apache-2.0
"""Every form of capture file gives the same packets; damaged and cut files give what can be read of them."""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
import sys
from pathlib import Path

import pytest
from replay_wire import (
    ETHERNET,
    RAW,
    SLL,
    START_NS,
    Record,
    Roce,
    block,
    decoded,
    expected,
    interface,
    packet_block,
    pcap,
    pcapng,
    records,
    section,
    ticks,
    write,
)

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

from switch_agent.replay import capture as capture_module
from switch_agent.replay.capture import Capture, Incomplete
from switch_agent.replay.errors import CaptureError, EmptyCaptureError, NotACaptureError

PACKETS = [Roce(at_ns=1_234_000 * i, sport=0xC400 + i, psn=100 + i, qpn=0x11 + i % 3, ecn=i % 4) for i in range(20)]
WANTED = [expected(packet) for packet in PACKETS]
FILE = pcap(records(PACKETS))


def stop_of(path: str) -> tuple[int, Incomplete | None]:
    """Return the number of records and why reading stopped."""
    with Capture(path) as capture:
        for _ in capture.batches():
            pass
        return capture.records, capture.incomplete


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("nano", [True, False])
def test_pcap_of_both_byte_orders_and_precisions(tmp_path: Path, order: str, nano: bool) -> None:
    """Stamps come out in ns whatever the unit, and the packets are those written."""
    path = write(tmp_path, pcap(records(PACKETS), order="<" if order == "<" else ">", nano=nano))
    assert decoded(path) == WANTED
    assert stop_of(path) == (20, None)


@pytest.mark.parametrize("order", ["<", ">"])
def test_pcapng_of_both_byte_orders(tmp_path: Path, order: str) -> None:
    """pcapng blocks in either byte order."""
    assert decoded(write(tmp_path, pcapng(records(PACKETS), order=order))) == WANTED


@pytest.mark.parametrize("resolution", [None, 3, 6, 8, 9, 10, 12, 15, 0x80 | 20, 0x80 | 33, 0x80 | 40])
def test_time_stamp_resolutions_of_interfaces(tmp_path: Path, resolution: int | None) -> None:
    """if_tsresol: powers of ten and of two, none means microseconds; exact, but for 1 ns at 2^-33 s and finer."""
    row = Record(123_456_789, PACKETS[0].frame())
    base = START_NS // 10**9 if resolution in (12, 15, 0x80 | 40) else 0  # else 64 bits would not hold the time
    file = section() + interface(ETHERNET, resolution=resolution, offset_s=base)
    file += packet_block(row, resolution=resolution, offset_s=base)
    (packet,) = decoded(write(tmp_path, file))
    stamp = ticks(START_NS + row.at_ns - base * 10**9, resolution)
    if resolution is not None and resolution & 0x80:
        wanted = stamp * 10**9 >> (resolution & 0x7F)
    else:
        wanted = stamp * 10**9 // 10 ** (6 if resolution is None else resolution)
    too_fine = resolution is not None and resolution > 0x80 | 32
    assert wanted - too_fine <= packet.at_ns - base * 10**9 + START_NS <= wanted


def test_time_stamp_offset_of_an_interface(tmp_path: Path) -> None:
    """if_tsoffset is added."""
    row = Record(5_000, PACKETS[0].frame())
    file = section() + interface(ETHERNET, offset_s=-3600) + packet_block(row, offset_s=-3600)
    assert [packet.at_ns for packet in decoded(write(tmp_path, file))] == [5_000]


def test_several_interfaces_have_their_own_link_type_and_clock(tmp_path: Path) -> None:
    """Each packet is read as its interface says; the link types are reported."""
    kinds = [(ETHERNET, 9), (SLL, 6), (RAW, 0x80 | 30)]
    file = section() + b"".join(interface(link, resolution=resolution) for link, resolution in kinds)
    for i in range(6):
        link, resolution = kinds[i % 3]
        file += packet_block(Record(1000 * i, PACKETS[i].frame(link), i % 3), resolution=resolution)
    path = write(tmp_path, file)
    rows = decoded(path)
    assert [row.psn for row in rows] == [packet.psn for packet in PACKETS[:6]]
    assert [row.at_ns for row in rows if row.sport != 0xC402 and row.sport != 0xC405] == [0, 1000, 3000, 4000]
    with Capture(path) as capture:
        assert sum(n for _, _, n in capture.batches()) == 6
        assert capture.link_types == {ETHERNET, SLL, RAW}


def test_a_new_section_has_its_own_byte_order_and_interfaces(tmp_path: Path) -> None:
    """Concatenated pcapng files: the second section's interface 0 is another one."""
    first, second = PACKETS[:10], PACKETS[10:]
    file = pcapng(records(first)) + pcapng(records(second, SLL), link=SLL, order=">", resolution=6)
    rows = decoded(write(tmp_path, file))
    assert rows[:10] == WANTED[:10]
    assert [row.psn for row in rows[10:]] == [packet.psn for packet in second]


def test_more_interfaces_than_there_was_room_for(tmp_path: Path) -> None:
    """The table of interfaces grows."""
    file = section() + b"".join(interface(SLL if i == 39 else ETHERNET, resolution=9) for i in range(40))
    file += packet_block(Record(7, PACKETS[0].frame(SLL), 39), resolution=9)
    assert decoded(write(tmp_path, file)) == [expected(PACKETS[0].but(at_ns=7), SLL)]


def test_other_blocks_are_skipped_and_old_packet_blocks_are_read(tmp_path: Path) -> None:
    """Name resolution, statistics, custom blocks; packet blocks of before 2009 with a drop count."""
    frame = PACKETS[3].frame()
    stamp = START_NS // 1000
    old = struct.pack("<HHIIII", 0, 9, stamp >> 32, stamp & 0xFFFFFFFF, len(frame), len(frame)) + frame
    file = section() + block(4, bytes(8)) + interface(ETHERNET) + block(5, bytes(16)) + block(2, old)
    file += block(0xBAD, b"custom") + packet_block(Record(1000, PACKETS[4].frame()))
    rows = decoded(write(tmp_path, file))
    assert [(row.psn, row.at_ns) for row in rows] == [(103, 0), (104, 1000)]


def test_records_without_time_or_interface_are_junk(tmp_path: Path) -> None:
    """Simple packet blocks, unknown interfaces and contradicting lengths each have their reason."""
    frame = PACKETS[0].frame()
    good = packet_block(Record(0, frame))
    contradicting = bytearray(good)
    contradicting[20:24] = struct.pack("<I", len(frame) + 400)
    file = section() + interface(ETHERNET) + block(3, struct.pack("<I", len(frame)) + frame)
    file += packet_block(Record(0, frame, interface=1)) + bytes(contradicting) + block(6, bytes(8)) + good
    outcomes = [row.outcome for row in decoded(write(tmp_path, file))]
    assert outcomes == ["no_time", "unknown_interface", "bad_record", "bad_record", "roce"]


COMPRESSIONS = {"gzip": gzip.compress, "zstd": zstd.compress, "xz": lzma.compress, "bzip2": bz2.compress}


@pytest.mark.parametrize("data", [FILE, pcapng(records(PACKETS))], ids=["pcap", "pcapng"])
@pytest.mark.parametrize("name", COMPRESSIONS)
def test_compressed_even_in_several_streams_and_padding(tmp_path: Path, data: bytes, name: str) -> None:
    """Compressed captures, as tools and rotating captures write them."""
    compress = COMPRESSIONS[name]
    path = write(tmp_path, compress(data[:500]) + compress(data[500:]) + bytes(512))
    assert decoded(path) == WANTED
    with Capture(path) as capture:
        assert capture.compression == name


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_a_compressed_file_cut_at_any_byte_is_cut_off_or_refused(tmp_path: Path, name: str) -> None:
    """That the rest is missing is said."""
    packed = COMPRESSIONS[name](FILE)
    for size in range(1, len(packed)):
        path = write(tmp_path, packed[:size])
        try:
            count, stop = stop_of(path)
        except CaptureError:
            continue
        assert count <= 20
        assert stop is not None
        assert "cut off" in stop.reason


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_a_compressed_file_with_any_byte_changed_is_read_or_named(tmp_path: Path, name: str) -> None:
    """Never a traceback; nonsense that decompresses is of the length of the file."""
    packed = COMPRESSIONS[name](FILE)
    for at in range(len(packed)):
        path = write(tmp_path, packed[:at] + bytes((packed[at] ^ 0x55,)) + packed[at + 1 :])
        try:
            count, _ = stop_of(path)
        except CaptureError:
            continue
        assert count <= len(FILE) / 16


def test_what_claims_more_memory_than_is_sensible_is_refused(tmp_path: Path) -> None:
    """A zstd frame with a window of 2 GiB."""
    compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 31})
    path = write(tmp_path, compressor.compress(FILE) + compressor.flush())
    with pytest.raises(NotACaptureError, match=r"the zstd file is damaged .*memory"):
        Capture(path)


@pytest.mark.parametrize("left_over", [1, 15, 16, 17, 60])
def test_a_cut_pcap_file_gives_the_whole_records_before(tmp_path: Path, left_over: int) -> None:
    """The last record is incomplete: the others are used, the place is reported."""
    start = len(FILE) - 16 - len(PACKETS[-1].frame())
    path = write(tmp_path, FILE[: start + left_over])
    assert decoded(path) == WANTED[:-1]
    assert stop_of(path) == (19, Incomplete(start, "the file is cut off inside a record"))


@pytest.mark.parametrize("left_over", [1, 8, 40])
def test_a_cut_pcapng_file_gives_the_whole_blocks_before(tmp_path: Path, left_over: int) -> None:
    """The same for blocks."""
    file = pcapng(records(PACKETS))
    start = len(file) - len(packet_block(records(PACKETS)[-1]))
    path = write(tmp_path, file[: start + left_over])
    assert decoded(path) == WANTED[:-1]
    assert stop_of(path) == (19, Incomplete(start, "the file is cut off inside a record"))


def test_a_cut_gzip_file_gives_what_decompresses(tmp_path: Path) -> None:
    """The compressed stream ends early."""
    many = [PACKETS[0].but(at_ns=i, psn=i * 7919 % 2**24) for i in range(3000)]
    packed = gzip.compress(pcap(records(many)))
    path = write(tmp_path, packed[: len(packed) // 2])
    count, stop = stop_of(path)
    assert 1000 < count < 2500
    assert stop is not None
    assert stop.reason == "the gzip file is cut off"
    assert [row.psn for row in decoded(path)] == [packet.psn for packet in many[:count]]


def test_a_damaged_gzip_file_is_reported(tmp_path: Path) -> None:
    """A wrong checksum at the end: all was read, and the damage is named."""
    packed = bytearray(gzip.compress(FILE))
    packed[-6] ^= 0xFF
    count, stop = stop_of(write(tmp_path, bytes(packed)))
    assert stop is not None
    assert "damaged" in stop.reason
    assert count == 20


def test_nonsense_lengths_stop_the_reading(tmp_path: Path) -> None:
    """A record of 3 GB, a block of 13 bytes, a trailer that differs: read up to there, say where."""
    at = 24 + 5 * (16 + len(PACKETS[0].frame()))
    broken = bytearray(FILE)
    broken[at + 8 : at + 12] = b"\xff\xff\xff\xbf"
    assert stop_of(write(tmp_path, bytes(broken))) == (
        5,
        Incomplete(at, "the lengths in the file are nonsense from here on"),
    )

    size = len(packet_block(records(PACKETS)[0]))
    file = pcapng(records(PACKETS))
    at = len(file) - 4 * size
    for where, value in ((at + 4, 13), (at + size - 4, size + 4)):
        broken = bytearray(file)
        broken[where : where + 4] = struct.pack("<I", value)
        count, stop = stop_of(write(tmp_path, bytes(broken)))
        assert (count, stop and stop.offset) == (16, at)


def test_a_broken_section_header_inside_the_file_stops_the_reading(tmp_path: Path) -> None:
    """The first section is used."""
    file = pcapng(records(PACKETS))
    path = write(tmp_path, file + b"\x0a\x0d\x0d\x0a" + bytes(40))
    assert stop_of(path) == (20, Incomplete(len(file), "a section header that is not whole or sound"))


def test_records_larger_than_the_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffer grows for one and moves on over the others."""
    monkeypatch.setattr(capture_module, "_BUFFER", 256)
    rows = [Record(packet.at_ns, packet.frame() + bytes(900 * (i % 4 == 1))) for i, packet in enumerate(PACKETS)]
    for file in (pcap(rows), pcapng(rows), gzip.compress(pcap(rows))):
        assert [row.psn for row in decoded(write(tmp_path, file))] == [packet.psn for packet in PACKETS]


@pytest.mark.parametrize("form", ["pcap", "pcapng"])
def test_more_bytes_captured_than_were_on_the_wire_is_a_bad_record(tmp_path: Path, form: str) -> None:
    """In both formats."""
    file = bytearray(FILE if form == "pcap" else pcapng(records(PACKETS)))
    frame = PACKETS[0].frame()
    at = 24 + 12 if form == "pcap" else len(file) - 20 * len(packet_block(records(PACKETS)[0])) + 24
    assert file[at : at + 4] == struct.pack("<I", len(frame))
    file[at : at + 4] = struct.pack("<I", len(frame) - 1)
    assert [row.outcome for row in decoded(write(tmp_path, bytes(file)))] == ["bad_record"] + ["roce"] * 19


def test_many_batches(tmp_path: Path) -> None:
    """More records than a batch holds, and a piece that ends inside a record."""
    frame = PACKETS[0].frame()
    n = 3 * capture_module.BATCH + 5
    path = write(tmp_path, pcap([Record(i, frame) for i in range(n)]))
    assert stop_of(path) == (n, None)
    assert [row.at_ns for row in decoded(path)] == list(range(n))


@pytest.mark.parametrize(
    ("data", "kind", "words"),
    [
        (b"", EmptyCaptureError, "is empty"),
        (b"#!/bin/sh\necho hello, this is a script\n", NotACaptureError, "no pcap or pcapng file"),
        (b"\x04\x22\x4d\x18" + bytes(40), NotACaptureError, "lz4 -d"),
        (b"\x28\xb5\x2f\xfd" + b"\xff" * 40, NotACaptureError, "the zstd file is damaged"),
        (b"\xfd7zXZ\x00" + bytes(40), NotACaptureError, "the xz file is damaged"),
        (b"BZh9" + bytes(40), NotACaptureError, "the bzip2 file is damaged"),
        (zstd.compress(b"hello"), NotACaptureError, "no pcap or pcapng file"),
        (FILE[:20], NotACaptureError, "ends inside its pcap header, after 20 bytes"),
        (b"\x0a\x0d\x0d\x0a" + bytes(40), NotACaptureError, "section header"),
        (section()[:20], NotACaptureError, "section header"),
        (gzip.compress(b""), EmptyCaptureError, "is empty"),
        (gzip.compress(b"hello world, no capture"), NotACaptureError, "no pcap or pcapng file"),
        (b"\x1f\x8b\x08\x00", NotACaptureError, "cut off"),
        (b"\x1f\x8b" + bytes(30), NotACaptureError, "damaged"),
    ],
)
def test_what_is_no_capture_is_refused(tmp_path: Path, data: bytes, kind: type[CaptureError], words: str) -> None:
    """The message names the file and says what it is instead."""
    path = write(tmp_path, data)
    with pytest.raises(kind, match=words) as caught:
        Capture(path)
    assert path in str(caught.value)


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    """No such file; a folder."""
    with pytest.raises(CaptureError, match=r"no such capture file: .*missing"):
        Capture(str(tmp_path / "missing"))
    with pytest.raises(CaptureError, match=r"cannot read capture .*[Dd]irectory"):
        Capture(str(tmp_path))
