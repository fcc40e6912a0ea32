# SPDX-License-Identifier: Apache-2.0
"""What a captured record can turn out to be: a packet with IB transport headers, other traffic, or nothing to read."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["OUTCOMES", "Outcome"]


class Outcome(NamedTuple):
    """One way a record can end: its name in the report, and what it means.

    ``other`` is traffic that is known not to be RoCE. ``closed`` and ``junk`` may hold RoCE that replay does not see:
    the former is inside something that replay does not open, the latter is damaged or not whole.
    """

    name: str
    kind: Literal["roce", "other", "closed", "junk"]
    text: str


OUTCOMES = (
    Outcome("roce", "roce", "RoCEv2, RoCE v1 or InfiniBand with a base transport header"),
    Outcome("arp", "other", "ARP"),
    Outcome("other_ethertype", "other", "an ethertype that is neither IP nor RoCE v1 nor a tunnel"),
    Outcome("tcp", "other", "TCP"),
    Outcome("icmp", "other", "ICMP or ICMPv6"),
    Outcome("other_ip", "other", "an IP protocol that is neither UDP nor a tunnel"),
    Outcome("other_udp", "other", "UDP to a port that is neither RoCEv2's (4791) nor a tunnel's"),
    Outcome("erf_other", "other", "an ERF record that holds neither Ethernet, IP nor InfiniBand"),
    Outcome("duplicate", "other", "a packet that another of the captures has too: counted once"),
    Outcome("ipsec", "closed", "IPsec ESP, also in UDP port 4500: encrypted"),
    Outcome("macsec", "closed", "MACsec (ethertype 0x88e5)"),
    Outcome("wireguard", "closed", "WireGuard (UDP port 51820): encrypted"),
    Outcome("l2tp", "closed", "L2TP (UDP port 1701 or IP protocol 115)"),
    Outcome("gtp", "closed", "GTP-U (UDP port 2152)"),
    Outcome("nsh", "closed", "a network service header (ethertype 0x894f)"),
    Outcome("other_tunnel", "closed", "a tunnel (GRE, GENEVE, PPPoE...) with another payload than IP or Ethernet"),
    Outcome("link_type", "closed", "a link type that replay does not read"),
    Outcome("cut_short", "junk", "captured bytes end before the base transport header does"),
    Outcome("bad_record", "junk", "lengths of the record contradict each other"),
    Outcome("unknown_interface", "junk", "the record names an interface that the file does not describe"),
    Outcome("no_time", "junk", "a simple packet block: it has no time stamp"),
    Outcome("too_deep", "junk", "more than 24 headers ahead of the base transport header"),
    Outcome("bad_ip", "junk", "IP version or header length wrong, or no room for what follows"),
    Outcome("ip_fragment", "junk", "a fragment of an IP packet"),
    Outcome("bad_udp", "junk", "UDP length leaves no room for the BTH"),
    Outcome("bad_tunnel", "junk", "a tunnel's header is of an unknown version or contradicts itself"),
    Outcome("no_bth", "junk", "InfiniBand or RoCE v1 without room for a base transport header (raw packets too)"),
)
"""All outcomes; a record's outcome is an index into this tuple."""

(
    ROCE,
    ARP,
    OTHER_ETHERTYPE,
    TCP,
    ICMP,
    OTHER_IP,
    OTHER_UDP,
    ERF_OTHER,
    DUPLICATE,
    IPSEC,
    MACSEC,
    WIREGUARD,
    L2TP,
    GTP,
    NSH,
    OTHER_TUNNEL,
    LINK_TYPE,
    CUT_SHORT,
    BAD_RECORD,
    UNKNOWN_INTERFACE,
    NO_TIME,
    TOO_DEEP,
    BAD_IP,
    IP_FRAGMENT,
    BAD_UDP,
    BAD_TUNNEL,
    NO_BTH,
) = range(len(OUTCOMES))
