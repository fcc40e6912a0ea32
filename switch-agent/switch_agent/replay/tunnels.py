# SPDX-License-Identifier: Apache-2.0
"""Headers that carry another packet: each function takes one off and says what comes next.

VLAN tags (IEEE 802.1Q), MPLS (RFC 3032, with Ethernet inside: RFC 4448), PPPoE (RFC 2516), GRE (RFC 2784, 2890; NVGRE:
RFC 7637), ERSPAN I to III (draft-foschiano-erspan), VXLAN (RFC 7348), VXLAN-GPE, GENEVE (RFC 8926). All return
(outcome, where the next header starts, which one it is); those of GRE and UDP also the bits of ``forms``.
"""

from __future__ import annotations

from switch_agent.replay import forms, outcomes
from switch_agent.replay.jit import inlined
from switch_agent.replay.wire import (
    BY_VERSION,
    ETH_BRIDGED,
    ETH_IPV4,
    ETH_IPV6,
    ETH_MPLS,
    ETH_MPLS_MULTICAST,
    ETH_ROCE_V1,
    ETHERNET,
    Bytes,
    u8,
    u16,
)

__all__ = ["UDP_TUNNELS", "VLANS", "gre", "mpls", "pppoe", "udp_tunnel", "vlan"]

_ERSPAN_2, _ERSPAN_3 = 0x88BE, 0x22EB
_PPP_IPV4, _PPP_IPV6 = 0x0021, 0x0057
_GRE_CHECKSUM, _GRE_ROUTING, _GRE_KEY, _GRE_SEQUENCE = 0x8000, 0x4000, 0x2000, 0x1000
_GPE_IPV4, _GPE_IPV6, _GPE_ETHERNET, _GPE_NSH = 1, 2, 3, 4

_L2TP, _GTP_U, _IPSEC, _VXLAN, _VXLAN_GPE = 1701, 2152, 4500, 4789, 4790
_GENEVE, _MPLS_IN_UDP, _VXLAN_OF_LINUX, _WIREGUARD = 6081, 6635, 8472, 51820
VLANS = (0x8100, 0x88A8, 0x9100)
"""Ethertypes of tags: 802.1Q, QinQ, QinQ before it was a standard."""
UDP_TUNNELS = (_L2TP, _GTP_U, _IPSEC, _VXLAN, _VXLAN_GPE, _GENEVE, _MPLS_IN_UDP, _VXLAN_OF_LINUX, _WIREGUARD)
"""Destination ports behind which a tunnel is looked for."""


@inlined
def vlan(data: Bytes, at: int, end: int) -> tuple[int, int, int]:
    """Take off what follows the ethertype of a tag: two bytes of tag, the next ethertype."""
    if end - at < 4:
        return outcomes.CUT_SHORT, at, 0
    return outcomes.ROCE, at + 4, u16(data, at + 2)


@inlined
def mpls(data: Bytes, at: int, end: int) -> tuple[int, int, int]:
    """Take off a label stack. Nothing says what is below it: IP starts with 4 or 6; else it is Ethernet.

    A control word ahead of Ethernet starts with 0 as many addresses do: it is there if an ethertype then fits.
    """
    bottom = 0
    while not bottom:
        if end - at < 4:
            return outcomes.CUT_SHORT, at, 0
        bottom = u8(data, at + 2) & 1
        at += 4
    if end - at < 1:
        return outcomes.CUT_SHORT, at, 0
    first = u8(data, at) >> 4
    if first in (4, 6):
        return outcomes.ROCE, at, BY_VERSION
    if first:
        return outcomes.ROCE, at, ETHERNET
    if end - at < 18:
        return outcomes.CUT_SHORT, at, 0
    return outcomes.ROCE, at if _fits(u16(data, at + 12)) and not _fits(u16(data, at + 16)) else at + 4, ETHERNET


@inlined
def _fits(ethertype: int) -> bool:
    return ethertype in (ETH_IPV4, ETH_IPV6, ETH_ROCE_V1, ETH_MPLS) or ethertype in VLANS


@inlined
def pppoe(data: Bytes, at: int, end: int) -> tuple[int, int, int]:
    """Take off a PPPoE session header and PPP's protocol number."""
    if end - at < 8:
        return outcomes.CUT_SHORT, at, 0
    if u8(data, at) != 0x11:
        return outcomes.BAD_TUNNEL, at, 0
    protocol = u16(data, at + 6)
    if protocol in (_PPP_IPV4, _PPP_IPV6):
        return outcomes.ROCE, at + 8, BY_VERSION
    return outcomes.OTHER_TUNNEL, at, 0


@inlined
def _carried(ethertype: int) -> int:
    """Return which header comes next for a tunnel's protocol field, 0 if it is none that is read."""
    if ethertype == ETH_BRIDGED:
        return ETHERNET
    return ethertype if ethertype in (ETH_IPV4, ETH_IPV6, ETH_MPLS, ETH_MPLS_MULTICAST) else 0


@inlined
def gre(data: Bytes, at: int, end: int) -> tuple[int, int, int, int]:
    """Take off GRE, and ERSPAN inside it."""
    if end - at < 4:
        return outcomes.CUT_SHORT, at, 0, 0
    flags = u16(data, at)
    protocol = u16(data, at + 2)
    if flags & (_GRE_ROUTING | 7):  # source routes; version 1 is PPTP's
        return outcomes.OTHER_TUNNEL, at, 0, 0
    at += 4
    for bit in (_GRE_CHECKSUM, _GRE_KEY, _GRE_SEQUENCE):
        if flags & bit:
            at += 4
    if protocol == _ERSPAN_2:
        if not flags & _GRE_SEQUENCE:
            return outcomes.ROCE, at, ETHERNET, forms.ERSPAN_1
        if end - at < 8:
            return outcomes.CUT_SHORT, at, 0, 0
        outcome = outcomes.ROCE if u8(data, at) >> 4 == 1 else outcomes.BAD_TUNNEL
        return outcome, at + 8, ETHERNET, forms.ERSPAN_2
    if protocol == _ERSPAN_3:
        return _erspan_3(data, at, end)
    following = _carried(protocol)
    return outcomes.ROCE if following else outcomes.OTHER_TUNNEL, at, following, forms.GRE


@inlined
def _erspan_3(data: Bytes, at: int, end: int) -> tuple[int, int, int, int]:
    if end - at < 12:
        return outcomes.CUT_SHORT, at, 0, 0
    if u8(data, at) >> 4 != 2:
        return outcomes.BAD_TUNNEL, at, 0, 0
    kind = u8(data, at + 10) >> 2 & 0x1F
    at += 20 if u8(data, at + 11) & 1 else 12  # with a subheader of the platform
    if kind == 0:
        return outcomes.ROCE, at, ETHERNET, forms.ERSPAN_3
    outcome = outcomes.ROCE if kind == 2 else outcomes.OTHER_TUNNEL
    return outcome, at, BY_VERSION, forms.ERSPAN_3


@inlined
def udp_tunnel(data: Bytes, at: int, end: int, port: int) -> tuple[int, int, int, int]:
    """Take off a tunnel header behind UDP with this destination port, one of ``UDP_TUNNELS``."""
    if port in (_VXLAN, _VXLAN_GPE, _VXLAN_OF_LINUX, _GENEVE):
        if end - at < 8:
            return outcomes.CUT_SHORT, at, 0, 0
        if port == _GENEVE:
            return _geneve(data, at, end)
        return _vxlan(data, at, port)
    if port == _MPLS_IN_UDP:
        return outcomes.ROCE, at, ETH_MPLS, 0
    if port == _WIREGUARD:
        return outcomes.WIREGUARD, at, 0, 0
    if port == _IPSEC:
        return outcomes.IPSEC, at, 0, 0
    return outcomes.GTP if port == _GTP_U else outcomes.L2TP, at, 0, 0


@inlined
def _vxlan(data: Bytes, at: int, port: int) -> tuple[int, int, int, int]:
    flags = u8(data, at)
    if not flags & 0x08:  # no network identifier: on the port that Linux took, it is something else
        return outcomes.OTHER_UDP if port == _VXLAN_OF_LINUX else outcomes.BAD_TUNNEL, at, 0, 0
    following = ETHERNET
    if port == _VXLAN_GPE and flags & 0x04:
        protocol = u8(data, at + 3)
        if protocol == _GPE_NSH:
            return outcomes.NSH, at, 0, 0
        if protocol in (_GPE_IPV4, _GPE_IPV6):
            following = BY_VERSION
        elif protocol != _GPE_ETHERNET:
            return outcomes.OTHER_TUNNEL, at, 0, 0
    return outcomes.ROCE, at + 8, following, forms.VXLAN


@inlined
def _geneve(data: Bytes, at: int, end: int) -> tuple[int, int, int, int]:
    first = u8(data, at)
    if first >> 6:
        return outcomes.BAD_TUNNEL, at, 0, 0
    following = _carried(u16(data, at + 2))
    outcome = outcomes.ROCE if following else outcomes.OTHER_TUNNEL
    return outcome, at + 8 + 4 * (first & 0x3F), following, forms.GENEVE
