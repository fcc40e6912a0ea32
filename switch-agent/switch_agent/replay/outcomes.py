# SPDX-License-Identifier: Apache-2.0
"""What a captured record can turn out to be: RoCEv2, other traffic, or junk for one reason."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["OUTCOMES", "Outcome"]


class Outcome(NamedTuple):
    """One way a record can end: its name in the report, and what it means."""

    name: str
    kind: Literal["roce", "other", "junk"]
    text: str


OUTCOMES = (
    Outcome("roce", "roce", "RoCEv2: UDP port 4791 with a base transport header"),
    Outcome("arp", "other", "ARP"),
    Outcome("roce_v1", "other", "RoCE v1 (ethertype 0x8915): it has no UDP source port, so no step tag"),
    Outcome("other_ethertype", "other", "neither IP, ARP nor RoCE v1"),
    Outcome("tcp", "other", "TCP"),
    Outcome("icmp", "other", "ICMP or ICMPv6"),
    Outcome("other_ip", "other", "another IP protocol, tunnels included"),
    Outcome("other_udp", "other", "UDP to another port than 4791"),
    Outcome("cut_short", "junk", "captured bytes end before the base transport header does"),
    Outcome("bad_record", "junk", "lengths of the record contradict each other"),
    Outcome("unknown_interface", "junk", "the record names an interface that the file does not describe"),
    Outcome("no_time", "junk", "a simple packet block: it has no time stamp"),
    Outcome("link_type", "junk", "link type not supported"),
    Outcome("vlan_depth", "junk", "more than four VLAN tags"),
    Outcome("bad_ip", "junk", "IP version or header length wrong, or no room for UDP and BTH"),
    Outcome("ip_options", "junk", "IPv4 options: the switch does not parse such packets"),
    Outcome("ip_fragment", "junk", "IPv4 fragment"),
    Outcome("ipv6_extension", "junk", "IPv6 extension header: the switch does not parse such packets"),
    Outcome("bad_udp", "junk", "UDP length leaves no room for the BTH"),
)
"""All outcomes; a record's outcome is an index into this tuple."""

(
    ROCE,
    ARP,
    ROCE_V1,
    OTHER_ETHERTYPE,
    TCP,
    ICMP,
    OTHER_IP,
    OTHER_UDP,
    CUT_SHORT,
    BAD_RECORD,
    UNKNOWN_INTERFACE,
    NO_TIME,
    LINK_TYPE,
    VLAN_DEPTH,
    BAD_IP,
    IP_OPTIONS,
    IP_FRAGMENT,
    IPV6_EXTENSION,
    BAD_UDP,
) = range(len(OUTCOMES))
