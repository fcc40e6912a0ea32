# SPDX-License-Identifier: Apache-2.0
"""Integers as BF-Runtime sends them: big-endian, exactly ceil(width / 8) bytes.

Ranges are checked in bits, not bytes: 512 does not fit a 9-bit port although two bytes could hold it.
Signed fields (P4 ``int<W>``) travel as W-bit two's complement; the unused bits of the first byte
are zero in both cases.
"""

from __future__ import annotations

from switch_agent.errors import CodecError

__all__ = ["byte_length", "decode_int", "encode_int"]


def byte_length(width: int) -> int:
    """Return how many bytes a field of ``width`` bits takes on the wire."""
    return (width + 7) // 8


def encode_int(value: int, width: int, *, signed: bool = False, name: str = "field") -> bytes:
    """Encode ``value`` for a field of ``width`` bits.

    Raises CodecError when the value is out of range: 0 .. 2^width - 1, or -2^(width-1) .. 2^(width-1) - 1
    when ``signed``. ``name`` only serves the message.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise CodecError(f"{name} takes an integer of {width} bits, not {value!r}")
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if signed else (0, (1 << width) - 1)
    if not low <= value <= high:
        kind = "signed" if signed else "unsigned"
        raise CodecError(f"{name} = {value} does not fit {width} {kind} bits: give {low} to {high}")
    return (value & ((1 << width) - 1)).to_bytes(byte_length(width), "big")


def decode_int(data: bytes, width: int, *, signed: bool = False, name: str = "field") -> int:
    """Decode the bytes of a field of ``width`` bits; the inverse of :func:`encode_int`.

    Raises CodecError when the length is not ceil(width / 8) or bits above ``width`` are set.
    """
    if len(data) != byte_length(width):
        raise CodecError(
            f"{name} came with {len(data)} bytes, a field of {width} bits has {byte_length(width)}: "
            "the switch's schema and its answers disagree"
        )
    value = int.from_bytes(data, "big")
    if value >> width:
        raise CodecError(f"{name} came as {value:#x}, which is wider than its {width} bits")
    if signed and value >> (width - 1):
        value -= 1 << width
    return value
