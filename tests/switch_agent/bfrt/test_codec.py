# SPDX-License-Identifier: Apache-2.0
"""Integers to bytes and back: golden vectors, ranges in bits, round trips."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switch_agent.bfrt.codec import byte_length, decode_int, encode_int
from switch_agent.errors import CodecError


@pytest.mark.parametrize(
    ("value", "width", "signed", "wire"),
    [
        (0, 1, False, "00"),
        (1, 1, False, "01"),
        (0x1FF, 9, False, "01ff"),
        (0, 9, False, "0000"),
        (0x7FFFF, 19, False, "07ffff"),
        (0xC000, 16, False, "c000"),
        ((1 << 128) - 1, 128, False, "ff" * 16),
        (1, 128, False, "00" * 15 + "01"),
        (-391, 32, True, "fffffe79"),
        (-1, 16, True, "ffff"),
        (-32768, 16, True, "8000"),
        (32767, 16, True, "7fff"),
        (-1, 9, True, "01ff"),
        (-256, 9, True, "0100"),
    ],
)
def test_golden_vectors(value: int, width: int, signed: bool, wire: str) -> None:
    """Big-endian, ceil(width / 8) bytes, two's complement of exactly width bits."""
    assert encode_int(value, width, signed=signed).hex() == wire
    assert decode_int(bytes.fromhex(wire), width, signed=signed) == value


@pytest.mark.parametrize(
    ("value", "width", "signed"),
    [(512, 9, False), (-1, 9, False), (256, 9, True), (-257, 9, True), (1 << 16, 16, False), (2, 1, False)],
)
def test_ranges_are_checked_in_bits(value: int, width: int, signed: bool) -> None:
    """A value that fits the bytes but not the bits is refused, and the text gives the range."""
    with pytest.raises(CodecError, match="give"):
        encode_int(value, width, signed=signed, name="port")


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_only_integers_are_encoded(value: object) -> None:
    """Booleans and floats that happen to equal an integer are refused, too."""
    with pytest.raises(CodecError, match="takes an integer"):
        encode_int(value, 8)  # type: ignore[arg-type]


def test_wrong_length_and_stray_bits_are_refused_when_decoding() -> None:
    """The schema says how long a field is; anything else is a mismatch, not a number."""
    with pytest.raises(CodecError, match="1 bytes"):
        decode_int(b"\x01", 9)
    with pytest.raises(CodecError, match="wider"):
        decode_int(b"\x02\x00", 9)


@given(st.data())
def test_round_trip(data: st.DataObject) -> None:
    """Any value of any width comes back, in as many bytes as the width needs."""
    width = data.draw(st.integers(1, 128))
    signed = data.draw(st.booleans())
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if signed else (0, (1 << width) - 1)
    value = data.draw(st.integers(low, high))
    wire = encode_int(value, width, signed=signed)
    assert len(wire) == byte_length(width)
    assert decode_int(wire, width, signed=signed) == value
