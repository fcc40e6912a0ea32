# SPDX-License-Identifier: Apache-2.0
"""Read a capture file piece by piece: pcap (us and ns, both byte orders) and pcapng, plain or compressed.

The file is read into one buffer and scanned there by the compiled loops of ``records``; only file, section and
interface headers are read in Python. It is not mapped: a file that is cut while it is mapped (a rotating tcpdump)
would kill the process.
"""

from __future__ import annotations

import os
import select
import stat
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from switch_agent.replay.errors import CaptureError, EmptyCaptureError, NotACaptureError
from switch_agent.replay.records import (
    BLOCK_SECTION,
    DAMAGED,
    INTERFACE,
    MAX_BLOCK,
    MORE,
    SECTION,
    Records,
    new_records,
    scan_pcap,
    scan_pcapng,
)
from switch_agent.replay.streams import MAGIC_BYTES, Compression, Decompressed, Source, compression_of

__all__ = ["BATCH", "Batch", "Capture", "Incomplete"]

BATCH = 1 << 14
"""Records per batch at most."""
_BUFFER = 1 << 22
_PATIENCE_S = 0.5
_PCAP_MAGIC = {
    b"\xa1\xb2\xc3\xd4": (True, 1000),
    b"\xd4\xc3\xb2\xa1": (False, 1000),
    b"\xa1\xb2\x3c\x4d": (True, 1),
    b"\x4d\x3c\xb2\xa1": (False, 1),
}
_PCAP_HEADER = 24
_MAX_SNAPLEN = 1 << 18  # what libpcap writes at most; larger claims need a header that says so
_PCAPNG_MAGIC = b"\x0a\x0d\x0d\x0a"
_BYTE_ORDER = 0x1A2B3C4D
_OPTION_END, _OPTION_TSRESOL, _OPTION_TSOFFSET = 0, 9, 14
_MICROSECONDS = 6
_FAR = 1 << 33  # seconds: 272 years
_NS_DIGITS = 9
_MAX_DIGITS = 27  # 10^18 is the largest power of ten in 63 bits
_OTHER_FILES = {
    b"\x04\x22\x4d\x18": "an lz4 file: decompress it first (lz4 -d)",
    b"\xa1\xb2\xcd\x34": "a pcap file in Kuznetzov's old form: rewrite it (editcap -F pcapng IN OUT)",
    b"\x34\xcd\xb2\xa1": "a pcap file in Kuznetzov's old form: rewrite it (editcap -F pcapng IN OUT)",
}


class Batch(NamedTuple):
    """The first ``n`` of ``records``, with indices into ``data``; valid until the next batch is asked for."""

    data: npt.NDArray[np.uint8]
    records: Records
    n: int


@dataclass(frozen=True)
class Incomplete:
    """Reading stopped before the end: at which byte (of the decompressed file) and why."""

    offset: int
    reason: str


class _QuietError(Exception):
    """Nothing came for a while, and the end is not reached."""


class _Live:
    """A source that is still being written: a pipe, or a file that grows and never ends."""

    def __init__(self, source: Source, descriptor: int) -> None:
        self._source = source
        self._descriptor = descriptor
        self._grows = stat.S_ISREG(os.fstat(descriptor).st_mode)

    def readinto(self, buffer: Any, /) -> int | None:
        """Fill some of the buffer.

        Raises:
            _QuietError: nothing came within half a second.
        """
        if not self._grows:
            if not select.select([self._descriptor], [], [], _PATIENCE_S)[0]:
                raise _QuietError
            return self._source.readinto(buffer)
        got = self._source.readinto(buffer)
        if not got:
            time.sleep(_PATIENCE_S)
            raise _QuietError
        return got


class Capture:
    """An open capture file. Use it as a context manager and go once through ``batches()``.

    Args:
        path: the file; ``-`` reads standard input.
        live: it is still being written: give what is there at once, and wait for more at the end of a file.

    Attributes:
        format: "pcap" or "pcapng".
        compression: "gzip", "zstd", "xz", "bzip2" or None.
        records: packet records found so far.
        link_types: link types of the file or of its interfaces, as numbers.
        incomplete: why reading stopped before the file's end, if it did; known after the last batch.

    Raises:
        CaptureError: the file cannot be opened or read.
        EmptyCaptureError: the file is empty.
        NotACaptureError: it is no capture, says what it looks like.
    """

    def __init__(self, path: str, live: bool = False) -> None:
        self.name = path
        self._live = live
        self._quiet = False
        self.records = 0
        self.incomplete: Incomplete | None = None
        self.link_types: set[int] = set()
        self._buffer = np.empty(_BUFFER, np.uint8)
        self._at = self._end = 0
        self._base = 0  # bytes of the file before the buffer
        self._file = self._open(path)
        self._source = cast("Source", self._file)  # both kinds of open files have readinto
        if live:
            self._source = _Live(self._source, self._file.fileno())
        try:
            self.compression = self._sniff_compression()
            self.format = self._read_header()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Capture:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self.name != "-":
            self._file.close()

    @staticmethod
    def _open(path: str) -> BinaryIO:
        if path == "-":
            return cast("BinaryIO", getattr(sys.stdin.buffer, "raw", sys.stdin.buffer))
        try:
            return cast("BinaryIO", Path(path).open("rb", buffering=0))
        except OSError as error:
            raise _unreadable(path, error) from error
        except ValueError as error:  # a null character in the name
            raise CaptureError(f"cannot open capture {path!r}: {error}") from error

    # ------------------------------------------------------------------------------ reading

    def _fill(self) -> bool:
        """Move what is left to the buffer's start and read on; False at the end of the file, or if it is quiet."""
        left = self._end - self._at
        if left == len(self._buffer):
            larger = np.empty(2 * left, np.uint8)
            larger[:left] = self._buffer[self._at : self._end]
            self._buffer = larger
        elif self._at:
            self._buffer[:left] = self._buffer[self._at : self._end].copy()
        self._base += self._at
        self._at, self._end = 0, left
        room = memoryview(self._buffer.data)
        self._quiet = False
        while self._end < len(room):
            try:
                got = self._source.readinto(room[self._end :])
            except OSError as error:
                raise _unreadable(self.name, error) from error
            except _QuietError:
                self._quiet = True
                break
            if not got:
                break
            self._end += got
            if self._live:
                break
        return self._end > left

    def _peek(self, size: int) -> bytes:
        """Return up to ``size`` bytes from here on."""
        while self._end - self._at < size and (self._fill() or self._quiet):
            pass
        return self._buffer[self._at : min(self._end, self._at + size)].tobytes()

    def _sniff_compression(self) -> Compression | None:
        compression = compression_of(self._peek(MAGIC_BYTES))
        if compression:
            head = self._buffer[: self._end].tobytes()
            self._source = Decompressed(self._source, head, compression)
            self._at = self._end = self._base = 0
        return compression

    def _trouble(self) -> str | None:
        return self._source.trouble if isinstance(self._source, Decompressed) else None

    def _read_header(self) -> Literal["pcap", "pcapng"]:
        head = self._peek(_PCAP_HEADER)
        if not head:
            if trouble := self._trouble():
                raise NotACaptureError(f"{self.name} holds nothing that can be read: {trouble}")
            raise EmptyCaptureError(f"{self.name} is empty (0 bytes): was anything captured?")
        magic = head[:4]
        if magic == _PCAPNG_MAGIC:
            self._big = False
            self._interfaces = np.zeros((16, 5), np.int64)
            self._n_interfaces = 0
            if not self._start_section():
                raise NotACaptureError(f"{self.name} starts like pcapng, but its section header is not whole or sound")
            return "pcapng"
        if magic not in _PCAP_MAGIC:
            looks = _OTHER_FILES.get(magic, f"something else (first bytes {head[:8].hex(' ')})")
            raise NotACaptureError(f"{self.name} is no pcap or pcapng file but {looks}")
        if len(head) < _PCAP_HEADER:
            raise NotACaptureError(f"{self.name} ends inside its pcap header, after {len(head)} bytes")
        self._big, self._tick_ns = _PCAP_MAGIC[magic]
        snaplen, network = struct.unpack(">II" if self._big else "<II", head[16:])
        self._max_captured = min(max(snaplen, _MAX_SNAPLEN), MAX_BLOCK)
        self._link = network & 0xFFFF  # the upper half tells about frame check sequences
        self.link_types.add(self._link)
        self._at += _PCAP_HEADER
        return "pcap"

    def batches(self) -> Iterator[Batch]:
        """Yield the packet records in the order of the file; a live one gives empty batches while it is quiet."""
        records = new_records(BATCH)
        while True:
            self._at, n, stop = self._scan(records)
            if n:
                self.records += n
                yield Batch(self._buffer, records, n)
            if stop == DAMAGED:
                self._stop("the lengths in the file are nonsense from here on")
                return
            if stop == SECTION and not self._start_section():
                self._stop("a section header that is not whole or sound")
                return
            if stop == INTERFACE:
                self._add_interface()
            if stop == MORE and not self._fill():
                if self._quiet:
                    yield Batch(self._buffer, records, 0)
                    continue
                if self._trouble() or self._at < self._end:
                    self._stop(self._trouble() or "the file is cut off inside a record")
                return

    def _scan(self, records: Records) -> tuple[int, int, int]:
        if self.format == "pcap":
            return scan_pcap(
                self._buffer,
                self._at,
                self._end,
                self._big,
                self._tick_ns,
                self._link,
                self._max_captured,
                records,
            )
        return scan_pcapng(self._buffer, self._at, self._end, self._big, self._interfaces, self._n_interfaces, records)

    def _stop(self, reason: str) -> None:
        self.incomplete = Incomplete(self._base + self._at, reason)

    # ------------------------------------------------------------------------------ pcapng

    def _start_section(self) -> bool:
        """Read the section header block that is next; False if it is not whole or not one."""
        head = self._peek(12)
        if len(head) < 12:
            return False
        for order in ("<", ">"):
            kind, length, magic = struct.unpack(f"{order}III", head)
            if kind == BLOCK_SECTION and magic == _BYTE_ORDER:
                break
        else:
            return False
        if length < 28 or length & 3 or length > MAX_BLOCK:
            return False
        block = self._peek(length)
        if len(block) < length or block[-4:] != block[4:8]:
            return False
        self._big = order == ">"
        self._n_interfaces = 0
        self._at += length
        return True

    def _add_interface(self) -> None:
        """Read the interface description block that is next; the scanner has seen that it is whole."""
        order = ">" if self._big else "<"
        length = struct.unpack(f"{order}I", self._peek(8)[4:])[0]
        block = self._peek(length)[8:-4]
        self._at += length
        link, digits, binary, offset_s = 0xFFFF, _MICROSECONDS, False, 0
        if len(block) >= 8:
            link = struct.unpack(f"{order}H", block[:2])[0]
            self.link_types.add(link)
        at = 8
        while at + 4 <= len(block):
            code, size = struct.unpack(f"{order}HH", block[at : at + 4])
            value = block[at + 4 : at + 4 + size]
            if code == _OPTION_END:
                break
            if code == _OPTION_TSRESOL and len(value) == 1:
                digits, binary = value[0] & 0x7F, value[0] >= 0x80
            elif code == _OPTION_TSOFFSET and len(value) == 8:
                offset_s = struct.unpack(f"{order}q", value)[0]
            at += 4 + (size + 3 & ~3)
        if self._n_interfaces == len(self._interfaces):
            self._interfaces = np.concatenate([self._interfaces, np.zeros_like(self._interfaces)])
        self._interfaces[self._n_interfaces] = (link, *_resolution(digits, binary), _clip(offset_s) * 1_000_000_000)
        self._n_interfaces += 1


def _unreadable(path: str, error: OSError) -> CaptureError:
    if isinstance(error, FileNotFoundError):
        return CaptureError(f"no such capture file: {path}")
    return CaptureError(f"cannot read capture {path}: {error.strerror or error}")


def _resolution(digits: int, binary: bool) -> tuple[int, int, int]:
    """Return multiplier, divisor and binary shift (-1: decimal) that turn an interface's stamps into ns."""
    if binary:
        return 0, 1, min(digits, 63)
    if digits <= _NS_DIGITS:
        return 10 ** (_NS_DIGITS - digits), 1, -1
    return 1, 10 ** (min(digits, _MAX_DIGITS) - _NS_DIGITS), -1


def _clip(seconds: int) -> int:
    return max(-_FAR, min(_FAR, seconds))
