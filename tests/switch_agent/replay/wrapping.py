# SPDX-License-Identifier: Apache-2.0
"""Everything a RoCE packet can be wrapped in, built by hand from the formats' definitions."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable
from typing import NamedTuple

from replay_wire import ETHERNET, START_NS, Roce, link_header

ERF, INFINIBAND = 197, 247
GRE, UDP, IPV4, IPV6 = 47, 17, 4, 41


def ipv4(protocol: int, payload: bytes, *, ecn: int = 0, options: bytes = b"") -> bytes:
    """Return an outer IPv4 packet, 192.0.2.1 to 192.0.2.2."""
    words = 5 + len(options) // 4
    head = struct.pack(">BBHHHBBH", 0x40 | words, ecn, 4 * words + len(payload), 9, 0x4000, 64, protocol, 0)
    return head + bytes((192, 0, 2, 1, 192, 0, 2, 2)) + options + payload


def ipv6(protocol: int, payload: bytes) -> bytes:
    """Return an outer IPv6 packet."""
    head = struct.pack(">IHBB", 6 << 28, len(payload), protocol, 64)
    return head + ipaddress.ip_address("2001:db8::e").packed + ipaddress.ip_address("2001:db8::f").packed + payload


def udp(port: int, payload: bytes) -> bytes:
    """Return UDP to ``port``."""
    return struct.pack(">HHHH", 50000, port, 8 + len(payload), 0) + payload


def ether(ethertype: int, payload: bytes) -> bytes:
    """Return an Ethernet frame."""
    return link_header(ETHERNET, ethertype) + payload


def over_udp(port: int, head: bytes, frame: bytes, ecn: int = 0) -> bytes:
    """Return a tunnel over UDP and IPv4."""
    return ether(0x0800, ipv4(UDP, udp(port, head + frame), ecn=ecn))


def vxlan(frame: bytes, port: int = 4789, ecn: int = 0) -> bytes:
    """Return a frame in VXLAN."""
    return over_udp(port, bytes((8, 0, 0, 0, 0, 0, 42, 0)), frame, ecn)


def over_gre(protocol: int, payload: bytes, flags: int = 0, more: bytes = b"") -> bytes:
    """Return a payload in GRE."""
    return ether(0x0800, ipv4(GRE, struct.pack(">HH", flags, protocol) + more + payload))


def erspan_3(payload: bytes, kind: int = 0, subheader: bytes = b"") -> bytes:
    """Return a payload mirrored by ERSPAN III."""
    head = struct.pack(">HHIHBB", 2 << 12 | 7, 5, 12345, 0, kind << 2, 1 if subheader else 0)
    return over_gre(0x22EB, head + subheader + payload, 0x1000, bytes(4))


def ethertype(packet: Roce) -> int:
    """Return the ethertype of a packet."""
    return 0x86DD if ":" in packet.src else 0x0800


def with_extension(packet: Roce, *headers: tuple[int, bytes]) -> bytes:
    """Return an IPv6 packet with extension headers (number, bytes behind the next-header field)."""
    ip, following = packet.ip(), 17
    chain = b""
    for number, body in reversed(headers):
        chain = bytes((following,)) + body + chain
        following = number
    return ip[:4] + struct.pack(">H", len(ip) - 40 + len(chain)) + bytes((following,)) + ip[7:40] + chain + ip[40:]


def local_route(payload: bytes, *, link_next: int = 2) -> bytes:
    """Return InfiniBand with a local route header, LID 7 to LID 9."""
    words = (8 + len(payload)) // 4
    return struct.pack(">BBHHH", 0, link_next, 9, words, 7) + payload + bytes(2)


def global_route(packet: Roce) -> bytes:
    """Return a global route header and what follows; the addresses must be of IPv6."""
    body = packet.transport()[8:]
    head = struct.pack(">IHBB", 6 << 28, len(body), 27, 64)
    return head + ipaddress.ip_address(packet.src).packed + ipaddress.ip_address(packet.dst).packed + body


def erf(kind: int, payload: bytes, extensions: int = 0, at_ns: int = 0) -> bytes:
    """Return an ERF record; its stamp is in units of 2^-32 s."""
    seconds, ns = divmod(START_NS + at_ns, 10**9)
    more = b"".join(bytes((0x80 if i + 1 < extensions else 0,)) + bytes(7) for i in range(extensions))
    pad = bytes(2) if kind == 2 else b""
    size = 16 + len(more) + len(pad) + len(payload)
    head = struct.pack(">BBHHH", kind | (0x80 if extensions else 0), 4, size, 0, len(payload))
    return struct.pack("<II", -(-(ns << 32) // 10**9), seconds) + head + more + pad + payload


class Wrapping(NamedTuple):
    """One way to wrap a packet: link type, what it makes of it, the forms reported.

    ``only`` is the IP version of packets that it can wrap; 0 are those that lose their addresses for LIDs.
    """

    link: int
    wrap: Callable[[Roce], bytes]
    forms: set[str]
    only: int | None = None


_PPP = {0x0800: 0x0021, 0x86DD: 0x0057}
WRAPPINGS = {
    "vxlan": Wrapping(ETHERNET, lambda p: vxlan(p.frame()), {"vxlan"}),
    "vxlan over IPv6": Wrapping(
        ETHERNET, lambda p: ether(0x86DD, ipv6(UDP, udp(4789, bytes((8,)) + bytes(7) + p.frame()))), {"vxlan"}
    ),
    "vxlan on Linux's port": Wrapping(ETHERNET, lambda p: vxlan(p.frame(), 8472), {"vxlan"}),
    "vxlan-gpe": Wrapping(ETHERNET, lambda p: over_udp(4790, bytes((12, 0, 0, 3, 0, 0, 1, 0)), p.frame()), {"vxlan"}),
    "vxlan-gpe with IP": Wrapping(
        ETHERNET,
        lambda p: over_udp(4790, bytes((12, 0, 0, 2 if ":" in p.src else 1, 0, 0, 1, 0)), p.ip()),
        {"vxlan"},
    ),
    "geneve": Wrapping(ETHERNET, lambda p: over_udp(6081, b"\0\0\x65\x58\0\0\1\0", p.frame()), {"geneve"}),
    "geneve with options and IP": Wrapping(
        ETHERNET,
        lambda p: over_udp(
            6081, struct.pack(">BBHI", 2, 0, ethertype(p), 256) + bytes((1, 2, 3, 1)) + bytes(4), p.ip()
        ),
        {"geneve"},
    ),
    "gre": Wrapping(ETHERNET, lambda p: over_gre(ethertype(p), p.ip()), {"gre"}),
    "gre with all fields": Wrapping(ETHERNET, lambda p: over_gre(ethertype(p), p.ip(), 0xB000, bytes(12)), {"gre"}),
    "nvgre": Wrapping(ETHERNET, lambda p: over_gre(0x6558, p.frame(), 0x2000, b"\0\0\1\0"), {"gre"}),
    "gre over IPv6": Wrapping(
        ETHERNET, lambda p: ether(0x86DD, ipv6(GRE, struct.pack(">HH", 0, ethertype(p)) + p.ip())), {"gre"}
    ),
    "erspan 1": Wrapping(ETHERNET, lambda p: over_gre(0x88BE, p.frame()), {"erspan_1"}),
    "erspan 2": Wrapping(
        ETHERNET,
        lambda p: over_gre(0x88BE, struct.pack(">HHI", 1 << 12 | 7, 5, 3) + p.frame(), 0x1000, bytes(4)),
        {"erspan_2"},
    ),
    "erspan 3": Wrapping(ETHERNET, lambda p: erspan_3(p.frame()), {"erspan_3"}),
    "erspan 3 with a subheader": Wrapping(
        ETHERNET, lambda p: erspan_3(p.frame(), subheader=b"\x0c" + bytes(7)), {"erspan_3"}
    ),
    "erspan 2 of a tagged frame": Wrapping(
        ETHERNET,
        lambda p: over_gre(0x88BE, struct.pack(">HHI", 1 << 12 | 7, 5, 3) + p.frame(vlans=(0x8100,)), 0x1000, bytes(4)),
        {"erspan_2", "vlan"},
    ),
    "mpls": Wrapping(ETHERNET, lambda p: ether(0x8847, b"\0\x01\0\x40\0\x02\x01\x40" + p.ip()), {"mpls"}),
    "ethernet in mpls": Wrapping(ETHERNET, lambda p: ether(0x8847, b"\0\x03\x01\x40" + bytes(4) + p.frame()), {"mpls"}),
    "ethernet in mpls without control word": Wrapping(
        ETHERNET, lambda p: ether(0x8847, b"\0\x04\x01\x40" + p.frame()), {"mpls"}
    ),
    "mpls in udp": Wrapping(ETHERNET, lambda p: over_udp(6635, b"\0\x02\x01\x40", p.ip()), {"mpls"}),
    "mpls in gre": Wrapping(ETHERNET, lambda p: over_gre(0x8847, b"\0\x02\x01\x40" + p.ip()), {"mpls", "gre"}),
    "pppoe": Wrapping(
        ETHERNET,
        lambda p: ether(0x8864, struct.pack(">BBHHH", 0x11, 0, 1, 2 + len(p.ip()), _PPP[ethertype(p)]) + p.ip()),
        {"pppoe"},
    ),
    "ip in ip": Wrapping(ETHERNET, lambda p: ether(0x0800, ipv4(IPV6 if ":" in p.src else IPV4, p.ip())), {"ip_in_ip"}),
    "ip in ip6": Wrapping(
        ETHERNET, lambda p: ether(0x86DD, ipv6(IPV6 if ":" in p.src else IPV4, p.ip())), {"ip_in_ip"}
    ),
    "ipv4 options": Wrapping(
        ETHERNET, lambda p: ether(0x0800, p.ip(options=b"\x94\x04\0\0\x01\x01\x01\0")), {"ip_options"}, only=4
    ),
    "ipv6 hop by hop and destination": Wrapping(
        ETHERNET,
        lambda p: ether(0x86DD, with_extension(p, (0, b"\0\x01\x04" + bytes(4)), (60, b"\x01\x01\x0c" + bytes(12)))),
        {"ipv6_extension"},
        only=6,
    ),
    "ipv6 routing and whole fragment": Wrapping(
        ETHERNET,
        lambda p: ether(0x86DD, with_extension(p, (43, b"\0\xfd\0" + bytes(4)), (44, bytes(3) + b"\0\0\0\x07"))),
        {"ipv6_extension"},
        only=6,
    ),
    "ipv6 authentication": Wrapping(
        ETHERNET, lambda p: ether(0x86DD, with_extension(p, (51, b"\x04" + bytes(22)))), {"ipv6_extension"}, only=6
    ),
    "roce v1": Wrapping(ETHERNET, lambda p: ether(0x8915, global_route(p)), {"roce_v1"}, only=6),
    "infiniband": Wrapping(INFINIBAND, lambda p: local_route(p.transport()[8:]), {"infiniband"}, only=0),
    "infiniband with a global route": Wrapping(
        INFINIBAND, lambda p: local_route(global_route(p), link_next=3), {"infiniband"}, only=6
    ),
    "erf of infiniband": Wrapping(
        ERF, lambda p: erf(21, local_route(p.transport()[8:]), at_ns=p.at_ns), {"infiniband"}, only=0
    ),
    "erf of ethernet": Wrapping(ERF, lambda p: erf(2, p.frame(), at_ns=p.at_ns), set()),
    "erf with extensions": Wrapping(ERF, lambda p: erf(2, p.frame(), 2, p.at_ns), set()),
    "erf of ip": Wrapping(ERF, lambda p: erf(23 if ":" in p.src else 22, p.ip(), at_ns=p.at_ns), set()),
}
"""Each wrapping there is, alone."""
NESTED = {
    "vxlan in vxlan": Wrapping(ETHERNET, lambda p: vxlan(vxlan(p.frame())), {"vxlan"}),
    "vxlan mirrored by erspan": Wrapping(
        ETHERNET,
        lambda p: over_gre(0x88BE, struct.pack(">HHI", 1 << 12, 0, 0) + vxlan(p.frame()), 0x1000, bytes(4)),
        {"erspan_2", "vxlan"},
    ),
    "four deep": Wrapping(
        ETHERNET,
        lambda p: erspan_3(vxlan(over_gre(0x6558, over_udp(6081, b"\0\0\x65\x58\0\0\1\0", p.frame())))),
        {"erspan_3", "vxlan", "gre", "geneve"},
    ),
}
CLOSED = {
    "ipsec": ether(0x0800, ipv4(50, bytes(60))),
    "macsec": ether(0x88E5, bytes(60)),
    "wireguard": over_udp(51820, bytes(4), bytes(60)),
    "l2tp": over_udp(1701, bytes(8), bytes(60)),
    "gtp": over_udp(2152, bytes(8), bytes(60)),
    "nsh": ether(0x894F, bytes(60)),
    "other_tunnel": over_gre(0x880B, bytes(60), 0x2001, bytes(4)),
}
"""Frames with something that replay does not open, by the name that it has for it."""
