# SPDX-License-Identifier: Apache-2.0
"""Decompress captures while they are read: gzip, zstd, xz and bzip2, streams one after the other included.

Memory stays bounded whatever the file claims: output is asked for by the buffer, dictionaries above 256 MiB are
refused.
"""

from __future__ import annotations

import bz2
import lzma
import sys
import zlib
from collections.abc import Callable
from typing import Any, Literal, Protocol

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["MAGIC_BYTES", "Compression", "Decompressed", "Source", "compression_of"]

Compression = Literal["gzip", "zstd", "xz", "bzip2"]
MAGIC_BYTES = 6
"""How many first bytes of a file tell its compression."""
_CHUNK = 1 << 14  # bytes of the file at a time: what a damage costs at most
_MAX_MEMORY = 1 << 28
_MAX_WINDOW_LOG = 28


class Source(Protocol):
    """What bytes are read from."""

    def readinto(self, buffer: Any, /) -> int | None:
        """Fill some of the buffer, return how much; 0 at the end."""


class _Decompressor(Protocol):
    """One compressed stream, as ``lzma``, ``bz2`` and ``zstd`` have it."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Gunzip:
    """A gzip member in the same form; of a damaged one, what decompresses before the damage comes out."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)
        self._error: zlib.error | None = None

    @property
    def eof(self) -> bool:
        return self._member.eof

    @property
    def needs_input(self) -> bool:
        return not self._member.unconsumed_tail and self._error is None

    @property
    def unused_data(self) -> bytes:
        return self._member.unused_data

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        if self._error:
            raise self._error
        data = self._member.unconsumed_tail + data
        before = self._member.copy()
        try:
            return self._member.decompress(data, max_length)
        except zlib.error as error:
            self._error = error
            return _salvage(before, data, max_length)


def _salvage(member: zlib._Decompress, data: bytes, limit: int) -> bytes:
    """Return what decompresses of ``data`` before the damage, at most ``limit`` bytes."""
    output = b""
    try:
        for i in range(len(data)):
            if len(output) == limit:
                break
            output += member.decompress(data[i : i + 1], limit - len(output))
    except zlib.error:
        pass
    return output


_FORMS: dict[bytes, tuple[Compression, Callable[[], _Decompressor]]] = {
    b"\x1f\x8b": ("gzip", _Gunzip),
    b"\x28\xb5\x2f\xfd": (
        "zstd",
        lambda: zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _MAX_WINDOW_LOG}),
    ),
    b"\xfd7zXZ\x00": ("xz", lambda: lzma.LZMADecompressor(memlimit=_MAX_MEMORY)),
    b"BZh": ("bzip2", bz2.BZ2Decompressor),
}
_ERRORS = (zlib.error, lzma.LZMAError, OSError, ValueError, EOFError, zstd.ZstdError)


def compression_of(head: bytes) -> Compression | None:
    """Return the name of the compression that a file with these first bytes has; None: none that is known."""
    return next((name for magic, (name, _) in _FORMS.items() if head.startswith(magic)), None)


class Decompressed:
    """A compressed file as its content.

    Args:
        source: the file.
        head: what was read of it already.
        compression: ``compression_of(head)``.

    Attributes:
        trouble: why the content ended early, if it did.
    """

    def __init__(self, source: Source, head: bytes, compression: Compression) -> None:
        self._source = source
        self._input = head
        self._compression = compression
        self._new = next(new for name, new in _FORMS.values() if name == compression)
        self._stream: _Decompressor | None = None
        self._chunk = memoryview(bytearray(_CHUNK))
        self.trouble: str | None = None

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill some of the buffer, return how much; 0 at the end."""
        while self.trouble is None:
            if not self._input and (self._stream is None or self._stream.needs_input):
                got = self._source.readinto(self._chunk) or 0
                self._input = bytes(self._chunk[:got])
                if not got:
                    if self._stream is not None:
                        self.trouble = f"the {self._compression} file is cut off"
                    return 0
            if self._stream is None:
                self._input = self._input.lstrip(b"\0")  # padding between streams is allowed
                if not self._input:
                    continue
                self._stream = self._new()
            output = self._decompress(len(buffer))
            if output:
                buffer[: len(output)] = output
                return len(output)
        return 0

    def _decompress(self, limit: int) -> bytes:
        assert self._stream is not None
        data, self._input = self._input[:_CHUNK], self._input[_CHUNK:]
        try:
            output = self._stream.decompress(data, limit)
        except _ERRORS as error:
            self.trouble = f"the {self._compression} file is damaged ({error})"
            return b""
        if not (data or output or self._stream.eof):
            self.trouble = f"the {self._compression} file is damaged (it goes on without an end)"
        if self._stream.eof:
            self._input = self._stream.unused_data + self._input
            self._stream = None
        return output
