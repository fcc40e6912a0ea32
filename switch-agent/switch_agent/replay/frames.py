# SPDX-License-Identifier: Apache-2.0
"""Decode captured frames down to the base transport header of IB; JIT-compiled, every access checked.

IPv4 (RFC 791), IPv6 and its extension headers (RFC 8200), UDP port 4791 and the BTH (IB spec vol. 1, 9.2 and annexes
A16, A17); InfiniBand's local and global route headers (7.7, 8.3). ``links`` has what lies ahead of them, ``tunnels``
what may lie between. Only the headers need to be there, so packets cut by a snap length decode.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from switch_agent.replay import forms, outcomes
from switch_agent.replay.jit import inlined, loop
from switch_agent.replay.links import ERF, link_header
from switch_agent.replay.records import Records
from switch_agent.replay.tunnels import UDP_TUNNELS, VLANS, gre, mpls, pppoe, udp_tunnel, vlan
from switch_agent.replay.wire import (
    BTH,
    BY_VERSION,
    ETH_ARP,
    ETH_IPV4,
    ETH_IPV6,
    ETH_MPLS,
    ETH_MPLS_MULTICAST,
    ETH_ROCE_V1,
    ETHERNET,
    GRE,
    GRH,
    LRH,
    UDP,
    Bytes,
    u8,
    u16,
    u24,
    u32,
)

__all__ = ["Packets", "decode", "new_packets"]

Ints = npt.NDArray[np.int64]

_MAX_HEADERS = 24
_ETH_PPPOE, _ETH_MACSEC, _ETH_NSH = 0x8864, 0x88E5, 0x894F
_IP_ICMP, _IP_IPV4, _IP_TCP, _IP_UDP, _IP_IBA = 1, 4, 6, 17, 27
_IP_IPV6, _IP_FRAGMENT, _IP_GRE, _IP_ESP, _IP_AH, _IP_ICMPV6 = 41, 44, 47, 50, 51, 58
_IP_ETHERNET, _IP_L2TP, _IP_MPLS = 97, 115, 137
_IP_OPTIONS = (0, 43, 60, 135, 139, 140)  # hop-by-hop, routing, destination, mobility, HIP, shim6
_ROCE_PORT = 4791
_UDP_BYTES, _BTH_BYTES, _LRH_BYTES, _GRH_BYTES = 8, 12, 8, 40
_LNH_LOCAL, _LNH_GLOBAL = 2, 3
_NO_ECN, _CE = -1, 3
_ACKNOWLEDGE = 0x11
_READ_FIRST, _READ_LAST, _READ_ONLY, _ATOMIC_ACKNOWLEDGE = 0x0D, 0x0F, 0x10, 0x12
_WRITE_FIRST, _WRITE_ONLY, _WRITE_ONLY_IMM, _READ_REQUEST = 6, 10, 11, 12


class Packets(NamedTuple):
    """What the frames say, int64[capacity] each; valid where ``outcome`` is 0 (``outcomes.ROCE``).

    Addresses are those of the innermost IP header, the GIDs of a global route header (``version`` 6), or LIDs
    (``version`` 0); IPv4 addresses are the low 32 bits of ``src_low`` and ``dst_low``. ``ecn`` and ``sport`` are -1
    where there is no such field, ``syndrome`` where the packet is no acknowledge or its AETH was not captured,
    ``dma_length`` (RETH, bytes) where the packet has none or it was not captured. ``form`` has bits of ``forms``.
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
    dma_length: Ints
    form: Ints


def new_packets(capacity: int) -> Packets:
    """Return room for ``capacity`` packets."""
    return Packets(*(np.zeros(capacity, np.int64) for _ in Packets._fields))


@inlined
def _by_version(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return (outcome, ethertype) of raw IP."""
    if end - at < 1:
        return outcomes.CUT_SHORT, 0
    version = u8(data, at) >> 4
    if version == 4:
        return outcomes.ROCE, ETH_IPV4
    return (outcomes.ROCE, ETH_IPV6) if version == 6 else (outcomes.OTHER_ETHERTYPE, 0)


@inlined
def _ip_payload(protocol: int) -> tuple[int, int, int]:
    """Return (outcome, next header, form) for an IP protocol number."""
    if protocol == _IP_UDP:
        return outcomes.ROCE, UDP, 0
    if protocol == _IP_TCP:
        return outcomes.TCP, 0, 0
    if protocol in (_IP_ICMP, _IP_ICMPV6):
        return outcomes.ICMP, 0, 0
    if protocol == _IP_GRE:
        return outcomes.ROCE, GRE, 0
    if protocol in (_IP_IPV4, _IP_IPV6):
        return outcomes.ROCE, BY_VERSION, forms.IP_IN_IP
    if protocol == _IP_MPLS:
        return outcomes.ROCE, ETH_MPLS, 0
    if protocol == _IP_ESP:
        return outcomes.IPSEC, 0, 0
    if protocol == _IP_L2TP:
        return outcomes.L2TP, 0, 0
    return outcomes.OTHER_TUNNEL if protocol == _IP_ETHERNET else outcomes.OTHER_IP, 0, 0


@inlined
def _ipv4(data: Bytes, at: int, end: int, packets: Packets, i: int) -> tuple[int, int, int]:
    """Return (outcome, start of the payload, IP protocol)."""
    if end - at < 20:
        return outcomes.CUT_SHORT, at, 0
    size = 4 * (u8(data, at) & 15)
    if u8(data, at) >> 4 != 4 or size < 20:
        return outcomes.BAD_IP, at, 0
    protocol = u8(data, at + 9)
    if u16(data, at + 6) & 0x3FFF and protocol not in (_IP_TCP, _IP_ICMP):  # more fragments, or an offset
        return outcomes.IP_FRAGMENT, at, 0
    if u16(data, at + 2) < size + _UDP_BYTES and protocol == _IP_UDP:
        return outcomes.BAD_IP, at, 0
    packets.version[i] = 4
    packets.ecn[i] = u8(data, at + 1) & 3
    packets.src_high[i] = 0
    packets.src_low[i] = u32(data, at + 12)
    packets.dst_high[i] = 0
    packets.dst_low[i] = u32(data, at + 16)
    return outcomes.ROCE, at + size, protocol


@inlined
def _addresses_128(data: Bytes, at: int, packets: Packets, i: int) -> None:
    packets.version[i] = 6
    packets.src_high[i] = u32(data, at) << 32 | u32(data, at + 4)
    packets.src_low[i] = u32(data, at + 8) << 32 | u32(data, at + 12)
    packets.dst_high[i] = u32(data, at + 16) << 32 | u32(data, at + 20)
    packets.dst_low[i] = u32(data, at + 24) << 32 | u32(data, at + 28)


@inlined
def _ipv6(data: Bytes, at: int, end: int, packets: Packets, i: int) -> tuple[int, int, int]:
    """Return (outcome, start of what follows the fixed header, IP protocol)."""
    if end - at < 40:
        return outcomes.CUT_SHORT, at, 0
    if u8(data, at) >> 4 != 6:
        return outcomes.BAD_IP, at, 0
    protocol = u8(data, at + 6)
    if protocol == _IP_UDP and u16(data, at + 4) < _UDP_BYTES:
        return outcomes.BAD_IP, at, 0
    packets.ecn[i] = u8(data, at + 1) >> 4 & 3
    _addresses_128(data, at + 8, packets, i)
    return outcomes.ROCE, at + 40, protocol


@inlined
def _is_extension(protocol: int) -> bool:
    return protocol in (_IP_AH, _IP_FRAGMENT) or protocol in _IP_OPTIONS


@inlined
def _extensions(data: Bytes, at: int, end: int, protocol: int) -> tuple[int, int, int]:
    """Take off extension headers (and IPv4's authentication header); return as ``_ipv6`` does."""
    for _ in range(_MAX_HEADERS):
        if not _is_extension(protocol):
            return outcomes.ROCE, at, protocol
        if end - at < 8:
            return outcomes.CUT_SHORT, at, 0
        size = 8 * (u8(data, at + 1) + 1)
        if protocol == _IP_AH:
            size = 4 * (u8(data, at + 1) + 2)
        elif protocol == _IP_FRAGMENT:
            size = 8
            if u16(data, at + 2) & 0xFFF9:
                return outcomes.IP_FRAGMENT, at, 0
        protocol = u8(data, at)
        at += size
    return outcomes.TOO_DEEP, at, 0


@inlined
def _local_route(data: Bytes, at: int, end: int, packets: Packets, i: int) -> tuple[int, int, int]:
    """InfiniBand's local route header; return (outcome, start of what follows, which it is)."""
    if end - at < _LRH_BYTES:
        return outcomes.CUT_SHORT, at, 0
    link_next = u8(data, at + 1) & 3
    words = u16(data, at + 4) & 0x7FF
    if link_next not in (_LNH_LOCAL, _LNH_GLOBAL) or 4 * words < _LRH_BYTES + _BTH_BYTES:
        return outcomes.NO_BTH, at, 0
    packets.version[i] = packets.src_high[i] = packets.dst_high[i] = 0
    packets.dst_low[i] = u16(data, at + 2)
    packets.src_low[i] = u16(data, at + 6)
    packets.ecn[i] = _NO_ECN
    return outcomes.ROCE, at + _LRH_BYTES, BTH if link_next == _LNH_LOCAL else GRH


@inlined
def _global_route(data: Bytes, at: int, end: int, packets: Packets, i: int) -> tuple[int, int]:
    """The global route header of InfiniBand and RoCE v1; return (outcome, start of what follows)."""
    if end - at < _GRH_BYTES:
        return outcomes.CUT_SHORT, at
    if u8(data, at) >> 4 != 6:
        return outcomes.BAD_IP, at
    if u8(data, at + 6) != _IP_IBA or u16(data, at + 4) < _BTH_BYTES:
        return outcomes.NO_BTH, at
    packets.ecn[i] = _NO_ECN
    _addresses_128(data, at + 8, packets, i)
    return outcomes.ROCE, at + _GRH_BYTES


@inlined
def _has_aeth(opcode: int) -> bool:
    return opcode in (_ACKNOWLEDGE, _READ_FIRST, _READ_LAST, _READ_ONLY, _ATOMIC_ACKNOWLEDGE)


@inlined
def _transport(data: Bytes, bth: int, end: int, packets: Packets, i: int) -> int:
    """Decode the BTH, syndrome and DMA length; return bits of ``forms``."""
    opcode = u8(data, bth)
    packets.opcode[i] = opcode
    packets.qpn[i] = u24(data, bth + 5)
    packets.psn[i] = u24(data, bth + 9)
    packets.syndrome[i] = -1
    packets.dma_length[i] = -1
    if _has_aeth(opcode):
        if end - bth > _BTH_BYTES:
            packets.syndrome[i] = u8(data, bth + _BTH_BYTES)
    elif opcode in (_WRITE_FIRST, _WRITE_ONLY, _WRITE_ONLY_IMM, _READ_REQUEST) and end - bth >= _BTH_BYTES + 16:
        packets.dma_length[i] = u32(data, bth + _BTH_BYTES + 12)
    congestion = u8(data, bth + 4)
    return (forms.FECN if congestion & 0x80 else 0) | (forms.BECN if congestion & 0x40 else 0)


@inlined
def _frame(data: Bytes, at: int, end: int, link: int, packets: Packets, i: int) -> int:
    """Take header after header off; return the outcome."""
    outcome, at, header = link_header(data, at, end, link)
    form = 0
    packets.ecn[i] = packets.sport[i] = -1
    for _ in range(_MAX_HEADERS):
        bits = 0
        if outcome != outcomes.ROCE:
            return outcome
        if header == BY_VERSION:
            outcome, header = _by_version(data, at, end)
            continue
        if header == ETHERNET:
            if end - at < 14:
                return outcomes.CUT_SHORT
            header = u16(data, at + 12)
            at += 14
        if header in (ETH_IPV4, ETH_IPV6):
            if packets.ecn[i] == _CE:
                form |= forms.OUTER_CE
            if header == ETH_IPV4:
                start = at
                outcome, at, protocol = _ipv4(data, at, end, packets, i)
                if at - start > 20:
                    form |= forms.IP_OPTIONS
            else:
                outcome, at, protocol = _ipv6(data, at, end, packets, i)
            if outcome == outcomes.ROCE and _is_extension(protocol):
                form |= forms.IPV6_EXTENSION
                outcome, at, protocol = _extensions(data, at, end, protocol)
            if outcome != outcomes.ROCE:
                return outcome
            outcome, header, bits = _ip_payload(protocol)
            form |= bits
            if header != UDP:
                continue
        if header == UDP:
            if end - at < _UDP_BYTES:
                return outcomes.CUT_SHORT
            port = u16(data, at + 2)
            if port == _ROCE_PORT:
                if u16(data, at + 4) < _UDP_BYTES + _BTH_BYTES:
                    return outcomes.BAD_UDP
                packets.sport[i] = u16(data, at)
                header = BTH
                at += _UDP_BYTES
            elif port in UDP_TUNNELS:
                outcome, at, header, bits = udp_tunnel(data, at + _UDP_BYTES, end, port)
                form |= bits
                continue
            else:
                return outcomes.OTHER_UDP
        if header == BTH:
            if end - at < _BTH_BYTES:
                return outcomes.CUT_SHORT
            if packets.ecn[i] == _CE:
                form &= ~forms.OUTER_CE
            packets.form[i] = form | _transport(data, at, end, packets, i)
            return outcomes.ROCE
        if header in VLANS:
            outcome, at, header = vlan(data, at, end)
            form |= forms.VLAN
        elif header == GRE:
            outcome, at, header, bits = gre(data, at, end)
            form |= bits
        elif header in (ETH_MPLS, ETH_MPLS_MULTICAST):
            outcome, at, header = mpls(data, at, end)
            form |= forms.MPLS
        elif header == _ETH_PPPOE:
            outcome, at, header = pppoe(data, at, end)
            form |= forms.PPPOE
        elif header == LRH:
            outcome, at, header = _local_route(data, at, end, packets, i)
            form |= forms.INFINIBAND
        elif header in (GRH, ETH_ROCE_V1):
            if header == ETH_ROCE_V1:
                form |= forms.ROCE_V1
            outcome, at = _global_route(data, at, end, packets, i)
            header = BTH
        else:
            return _other(header)
    return outcomes.TOO_DEEP


@inlined
def _other(ethertype: int) -> int:
    """Return the outcome of an ethertype with nothing to read."""
    if ethertype == ETH_ARP:
        return outcomes.ARP
    if ethertype == _ETH_MACSEC:
        return outcomes.MACSEC
    return outcomes.NSH if ethertype == _ETH_NSH else outcomes.OTHER_ETHERTYPE


@inlined
def _erf_record(data: Bytes, at: int, records: Records, i: int) -> None:
    """Take length and time from an ERF header; the capture's length counts that header too, its time is coarser."""
    records.length[i] = u16(data, at + 14)
    fraction = u8(data, at + 3) << 24 | u8(data, at + 2) << 16 | u8(data, at + 1) << 8 | u8(data, at)
    seconds = u8(data, at + 7) << 24 | u8(data, at + 6) << 16 | u8(data, at + 5) << 8 | u8(data, at + 4)
    if seconds:
        records.time_ns[i] = seconds * 1_000_000_000 + ((fraction * 1_000_000_000 + (1 << 31)) >> 32)


@loop
def decode(data: Bytes, records: Records, n: int, packets: Packets) -> None:
    """Decode the first ``n`` records of a piece; ``packets.outcome`` says what became of each.

    Length and time of an ERF record are set to what its header says.
    """
    for i in range(n):
        outcome = records.defect[i]
        if outcome == outcomes.ROCE:
            start = records.start[i]
            captured = records.captured[i]
            outcome = _frame(data, start, start + captured, records.link[i], packets, i)
            if records.link[i] == ERF and captured >= 16:
                _erf_record(data, start, records, i)
        packets.outcome[i] = outcome
