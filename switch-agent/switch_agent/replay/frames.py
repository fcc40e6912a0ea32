# SPDX-License-Identifier: Apache-2.0
"""Decode captured frames down to the RoCEv2 base transport header; JIT-compiled, every access checked.

Ethernet (also with up to four VLAN tags), Linux cooked capture v1 and v2, BSD loopback and raw IP; IPv4 (RFC 791),
IPv6 (RFC 8200), UDP port 4791 and the BTH (IB spec vol. 1, 9.2 and annex A17). Only the headers need to be there, so
packets cut by a snap length decode.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from switch_agent.replay import outcomes
from switch_agent.replay.jit import inlined, loop
from switch_agent.replay.records import Records

__all__ = ["LINK_TYPES", "Packets", "decode", "new_packets"]

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

_NULL, _ETHERNET, _RAW_BSD, _RAW_OPENBSD, _RAW, _LOOP, _SLL = 0, 1, 12, 14, 101, 108, 113
_IPV4, _IPV6, _SLL2 = 228, 229, 276
LINK_TYPES = {
    _NULL: "BSD loopback",
    _ETHERNET: "Ethernet",
    _RAW_BSD: "raw IP",
    _RAW_OPENBSD: "raw IP",
    _RAW: "raw IP",
    _LOOP: "OpenBSD loopback",
    _SLL: "Linux cooked capture v1",
    _IPV4: "raw IPv4",
    _IPV6: "raw IPv6",
    _SLL2: "Linux cooked capture v2",
}
"""Link types that decode, by their number in capture files (LINKTYPE_...)."""

_ETH_IPV4, _ETH_ARP, _ETH_IPV6, _ETH_ROCE_V1 = 0x0800, 0x0806, 0x86DD, 0x8915
_ETH_VLAN, _ETH_QINQ, _ETH_QINQ_OLD = 0x8100, 0x88A8, 0x9100
_MAX_VLAN_TAGS = 4
_ICMP, _TCP, _UDP, _ICMPV6 = 1, 6, 17, 58
_ROCE_PORT = 4791
_UDP_BYTES, _BTH_BYTES = 8, 12
_ACKNOWLEDGE = 0x11
_READ_FIRST, _READ_LAST, _READ_ONLY, _ATOMIC_ACKNOWLEDGE = 0x0D, 0x0F, 0x10, 0x12


class Packets(NamedTuple):
    """What the frames say, int64[capacity] each; valid where ``outcome`` is 0 (``outcomes.ROCE``).

    IPv4 addresses are the low 32 bits of ``src_low`` and ``dst_low``. ``syndrome`` is that of an acknowledge (AETH),
    -1 elsewhere or when it was not captured.
    """

    outcome: Ints
    version: Ints
    src_high: Ints
    src_low: Ints
    dst_high: Ints
    dst_low: Ints
    ecn: Ints
    sport: Ints
    opcode: Ints
    qpn: Ints
    psn: Ints
    syndrome: Ints


def new_packets(capacity: int) -> Packets:
    """Return room for ``capacity`` packets."""
    return Packets(*(np.zeros(capacity, np.int64) for _ in Packets._fields))


@inlined
def _u8(data: Bytes, at: int) -> int:
    return int(np.int64(data[at]))


@inlined
def _u16(data: Bytes, at: int) -> int:
    return int(np.int64(data[at]) << 8 | np.int64(data[at + 1]))


@inlined
def _u24(data: Bytes, at: int) -> int:
    return int(np.int64(data[at]) << 16 | np.int64(data[at + 1]) << 8 | np.int64(data[at + 2]))


@inlined
def _u32(data: Bytes, at: int) -> int:
    return _u16(data, at) << 16 | _u16(data, at + 2)


@inlined
def _is_vlan(ethertype: int) -> bool:
    return ethertype in (_ETH_VLAN, _ETH_QINQ, _ETH_QINQ_OLD)


@inlined
def _ip_ethertype(data: Bytes, at: int, end: int) -> int:
    """Return the ethertype for raw IP by the version in the first byte; 0 if there is none or another."""
    if end - at < 1:
        return 0
    version = _u8(data, at) >> 4
    if version == 4:
        return _ETH_IPV4
    return _ETH_IPV6 if version == 6 else 0


@inlined
def _link(data: Bytes, at: int, end: int, link: int) -> tuple[int, int, int]:
    """Return (outcome, start of the network header, ethertype) of a frame's link layer."""
    size = 0
    ethertype = 0
    if link == _ETHERNET:
        size = 14
    elif link == _SLL:
        size = 16
    elif link == _SLL2:
        size = 20
    elif link in (_NULL, _LOOP):
        size = 4
    elif link not in (_RAW, _RAW_BSD, _RAW_OPENBSD, _IPV4, _IPV6):
        return outcomes.LINK_TYPE, at, 0
    if end - at < size:
        return outcomes.CUT_SHORT, at, 0
    if link in (_ETHERNET, _SLL):
        ethertype = _u16(data, at + size - 2)
    elif link == _SLL2:
        ethertype = _u16(data, at)
    at += size
    if size < 14:  # the address family of BSD loopback has several numbers and byte orders: the version tells
        if end - at < 1:
            return outcomes.CUT_SHORT, at, 0
        return outcomes.ROCE, at, _ip_ethertype(data, at, end)
    tags = 0
    while _is_vlan(ethertype):
        if tags == _MAX_VLAN_TAGS:
            return outcomes.VLAN_DEPTH, at, 0
        if end - at < 4:
            return outcomes.CUT_SHORT, at, 0
        ethertype = _u16(data, at + 2)
        at += 4
        tags += 1
    return outcomes.ROCE, at, ethertype


@inlined
def _protocol(protocol: int) -> int:
    """Return the outcome of an IP payload that is not UDP."""
    if protocol == _TCP:
        return outcomes.TCP
    if protocol in (_ICMP, _ICMPV6):
        return outcomes.ICMP
    return outcomes.OTHER_IP


@inlined
def _is_extension(protocol: int) -> bool:
    """Hop-by-hop, routing, fragment, authentication, destination options, mobility, HIP, shim6."""
    return protocol in (0, 43, 44, 51, 60, 135, 139, 140)


@inlined
def _ipv4(data: Bytes, at: int, end: int, packets: Packets, i: int) -> tuple[int, int]:
    """Return (outcome, start of UDP)."""
    if end - at < 20:
        return outcomes.CUT_SHORT, at
    words = _u8(data, at) & 15
    if _u8(data, at) >> 4 != 4 or words < 5:
        return outcomes.BAD_IP, at
    protocol = _u8(data, at + 9)
    if protocol != _UDP:
        return _protocol(protocol), at
    if _u16(data, at + 6) & 0x3FFF:  # more fragments, or an offset
        return outcomes.IP_FRAGMENT, at
    if words > 5:
        return outcomes.IP_OPTIONS, at
    if _u16(data, at + 2) < 20 + _UDP_BYTES:
        return outcomes.BAD_IP, at
    packets.version[i] = 4
    packets.ecn[i] = _u8(data, at + 1) & 3
    packets.src_high[i] = 0
    packets.src_low[i] = _u32(data, at + 12)
    packets.dst_high[i] = 0
    packets.dst_low[i] = _u32(data, at + 16)
    return outcomes.ROCE, at + 20


@inlined
def _ipv6(data: Bytes, at: int, end: int, packets: Packets, i: int) -> tuple[int, int]:
    """Return (outcome, start of UDP)."""
    if end - at < 40:
        return outcomes.CUT_SHORT, at
    if _u8(data, at) >> 4 != 6:
        return outcomes.BAD_IP, at
    protocol = _u8(data, at + 6)
    if _is_extension(protocol):
        return outcomes.IPV6_EXTENSION, at
    if protocol != _UDP:
        return _protocol(protocol), at
    if _u16(data, at + 4) < _UDP_BYTES:
        return outcomes.BAD_IP, at
    packets.version[i] = 6
    packets.ecn[i] = _u8(data, at + 1) >> 4 & 3
    packets.src_high[i] = _u32(data, at + 8) << 32 | _u32(data, at + 12)
    packets.src_low[i] = _u32(data, at + 16) << 32 | _u32(data, at + 20)
    packets.dst_high[i] = _u32(data, at + 24) << 32 | _u32(data, at + 28)
    packets.dst_low[i] = _u32(data, at + 32) << 32 | _u32(data, at + 36)
    return outcomes.ROCE, at + 40


@inlined
def _has_aeth(opcode: int) -> bool:
    return opcode in (_ACKNOWLEDGE, _READ_FIRST, _READ_LAST, _READ_ONLY, _ATOMIC_ACKNOWLEDGE)


@inlined
def _transport(data: Bytes, at: int, end: int, packets: Packets, i: int) -> int:
    """Decode UDP and BTH; return the outcome."""
    if end - at < _UDP_BYTES:
        return outcomes.CUT_SHORT
    if _u16(data, at + 2) != _ROCE_PORT:
        return outcomes.OTHER_UDP
    if _u16(data, at + 4) < _UDP_BYTES + _BTH_BYTES:
        return outcomes.BAD_UDP
    bth = at + _UDP_BYTES
    if end - bth < _BTH_BYTES:
        return outcomes.CUT_SHORT
    opcode = _u8(data, bth)
    packets.sport[i] = _u16(data, at)
    packets.opcode[i] = opcode
    packets.qpn[i] = _u24(data, bth + 5)
    packets.psn[i] = _u24(data, bth + 9)
    packets.syndrome[i] = -1
    if _has_aeth(opcode) and end - bth > _BTH_BYTES:
        packets.syndrome[i] = _u8(data, bth + _BTH_BYTES)
    return outcomes.ROCE


@inlined
def _frame(data: Bytes, at: int, end: int, link: int, packets: Packets, i: int) -> int:
    outcome, at, ethertype = _link(data, at, end, link)
    if outcome != outcomes.ROCE:
        return outcome
    if ethertype == _ETH_IPV4:
        outcome, at = _ipv4(data, at, end, packets, i)
    elif ethertype == _ETH_IPV6:
        outcome, at = _ipv6(data, at, end, packets, i)
    elif ethertype == _ETH_ARP:
        outcome = outcomes.ARP
    elif ethertype == _ETH_ROCE_V1:
        outcome = outcomes.ROCE_V1
    else:
        outcome = outcomes.OTHER_ETHERTYPE
    if outcome != outcomes.ROCE:
        return outcome
    return _transport(data, at, end, packets, i)


@loop
def decode(data: Bytes, records: Records, n: int, packets: Packets) -> None:
    """Decode the first ``n`` records of a piece; ``packets.outcome`` says what became of each."""
    for i in range(n):
        outcome = records.defect[i]
        if outcome == outcomes.ROCE:
            start = records.start[i]
            outcome = _frame(data, start, start + records.captured[i], records.link[i], packets, i)
        packets.outcome[i] = outcome
