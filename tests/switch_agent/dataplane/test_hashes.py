# SPDX-License-Identifier: Apache-2.0
"""Flow hashes are the CRCs of the switch, over the fields in network byte order."""

from __future__ import annotations

import struct
import zlib

from hypothesis import given, settings
from hypothesis import strategies as st

from switch_agent.dataplane.hashes import flow_signature, flow_signature_ipv6, flow_slot, flow_slot_ipv6

addresses = st.integers(0, (1 << 32) - 1)
qpns = st.integers(0, (1 << 24) - 1)
ports = st.integers(0, (1 << 16) - 1)


def crc16_arc(data: bytes) -> int:
    """CRC-16/ARC, bit by bit."""
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xA001 if crc & 1 else 0)
    return crc


def test_crc16_of_the_check_string() -> None:
    """The published check value of CRC-16/ARC guards the bit-wise form used below."""
    assert crc16_arc(b"123456789") == 0xBB3D


@settings(deadline=None)
@given(addresses, addresses, qpns, ports)
def test_signature_is_ethernet_crc32_of_the_fields(src: int, dst: int, qpn: int, sport: int) -> None:
    """Equal to zlib for any flow."""
    data = struct.pack(">II", src, dst) + qpn.to_bytes(3, "big") + struct.pack(">H", sport)
    assert flow_signature(src, dst, qpn, sport) == zlib.crc32(data)


@settings(deadline=None)
@given(addresses, addresses, qpns)
def test_slot_is_the_low_14_bits_of_crc16(src: int, dst: int, qpn: int) -> None:
    """Equal to the bit-wise CRC for any flow."""
    data = struct.pack(">II", src, dst) + qpn.to_bytes(3, "big")
    assert flow_slot(src, dst, qpn) == crc16_arc(data) & 0x3FFF


def test_signature_changes_with_the_step_and_the_slot_does_not_depend_on_it() -> None:
    """A new step must not pass for the old one."""
    signatures = {flow_signature(0x0A000001, 0x0A000101, 17, 0xC000 | step) for step in range(1024)}
    assert len(signatures) == 1024


def test_ipv6_addresses_enter_with_their_low_32_bits() -> None:
    """As in the P4 program."""
    src, dst = 0xFD00 << 112 | 0x0A000001, 0xFD00 << 112 | 0x0A000101
    assert flow_signature_ipv6(src, dst, 17, 0xC005) == flow_signature(0x0A000001, 0x0A000101, 17, 0xC005)
    assert flow_slot_ipv6(src, dst, 17) == flow_slot(0x0A000001, 0x0A000101, 17)
