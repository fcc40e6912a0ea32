# SPDX-License-Identifier: Apache-2.0
"""Link types of captures (LINKTYPE_ of pcap files): names of those met in practice, and the headers of those read."""

from __future__ import annotations

from switch_agent.replay import outcomes
from switch_agent.replay.jit import inlined
from switch_agent.replay.wire import BY_VERSION, ETHERNET, LRH, Bytes, u8, u16

__all__ = ["ERF", "LINK_TYPES", "link_header", "link_name", "link_remedy"]

_NULL, _ETHERNET, _RAW_BSD, _RAW_OPENBSD, _RAW, _LOOP, _SLL = 0, 1, 12, 14, 101, 108, 113
_IPV4, _IPV6, _INFINIBAND, _SLL2 = 228, 229, 247, 276
ERF = 197
LINK_TYPES = {
    _NULL: "BSD loopback",
    _ETHERNET: "Ethernet",
    _RAW_BSD: "raw IP",
    _RAW_OPENBSD: "raw IP",
    _RAW: "raw IP",
    _LOOP: "OpenBSD loopback",
    _SLL: "Linux cooked capture v1",
    ERF: "ERF (ibdump, Endace)",
    _IPV4: "raw IPv4",
    _IPV6: "raw IPv6",
    _INFINIBAND: "InfiniBand",
    _SLL2: "Linux cooked capture v2",
}
"""Link types that are read."""

_USER0, _USER15 = 147, 162
_ON_AN_INTERFACE = "capture on the network device itself (tcpdump -i eth0), or on all (-i any)"
_NO_NETWORK = "it holds no network packets: capture on the network device (tcpdump -i eth0)"
_WIRELESS = "RoCE is not to be expected on it: capture on the Ethernet device"
_OTHERS = {
    9: ("PPP", _ON_AN_INTERFACE),
    50: ("PPP over HDLC", _ON_AN_INTERFACE),
    51: ("PPPoE", _ON_AN_INTERFACE),
    104: ("Cisco HDLC", _ON_AN_INTERFACE),
    105: ("IEEE 802.11", _WIRELESS),
    107: ("Frame Relay", _ON_AN_INTERFACE),
    117: ("pflog", _ON_AN_INTERFACE),
    127: ("IEEE 802.11 with radiotap", _WIRELESS),
    189: ("USB", _NO_NETWORK),
    192: ("PPI", _ON_AN_INTERFACE),
    195: ("IEEE 802.15.4", _WIRELESS),
    201: ("Bluetooth HCI", _NO_NETWORK),
    220: ("USB of Linux (usbmon)", _NO_NETWORK),
    231: ("D-Bus", _NO_NETWORK),
    239: ("NFLOG (tcpdump -i nflog)", _ON_AN_INTERFACE),
    240: ("netANALYZER", "rewrite it with 4 bytes less (editcap -C 4 -T ether IN OUT)"),
    249: ("USB of Windows (USBPcap)", _NO_NETWORK),
    252: ("exported upper PDUs of Wireshark", "export it as packets, not as PDUs"),
    253: ("netlink (nlmon)", _NO_NETWORK),
    271: ("virtual socket (vsockmon)", _NO_NETWORK),
    274: ("IEEE 802.3 mPackets", "rewrite it with 8 bytes less (editcap -C 8 -T ether IN OUT)"),
}
_ERF_HEADER = 16
_ERF_ETHERNET = (2, 11, 16, 20)
_ERF_INFINIBAND, _ERF_IPV4, _ERF_IPV6 = 21, 22, 23


def link_name(link: int) -> str:
    """Return the name of a link type, with its number if it is not read."""
    if link in LINK_TYPES:
        return LINK_TYPES[link]
    if _USER0 <= link <= _USER15:
        return f"private use USER{link - _USER0} (link type {link})"
    return f"{_OTHERS[link][0]} (link type {link})" if link in _OTHERS else f"link type {link}"


def link_remedy(link: int) -> str:
    """Return what can be done about a link type that is not read."""
    if _USER0 <= link <= _USER15:
        return "its meaning is private: if the frames are Ethernet, say so (editcap -T ether IN OUT)"
    return _OTHERS[link][1] if link in _OTHERS else _ON_AN_INTERFACE


@inlined
def link_header(data: Bytes, at: int, end: int, link: int) -> tuple[int, int, int]:
    """Return (outcome, where the next header starts, which one it is) of a frame's link type."""
    if link == _ETHERNET:
        return outcomes.ROCE, at, ETHERNET
    if link in (_RAW, _RAW_BSD, _RAW_OPENBSD, _IPV4, _IPV6):
        return outcomes.ROCE, at, BY_VERSION
    if link == _INFINIBAND:
        return outcomes.ROCE, at, LRH
    if link == ERF:
        return _erf(data, at, end)
    size = 0
    if link in (_NULL, _LOOP):  # the address family has several numbers and byte orders: the version tells
        size = 4
    elif link == _SLL:
        size = 16
    elif link == _SLL2:
        size = 20
    else:
        return outcomes.LINK_TYPE, at, 0
    if end - at < size:
        return outcomes.CUT_SHORT, at, 0
    if link == _SLL:
        return outcomes.ROCE, at + size, u16(data, at + 14)
    if link == _SLL2:
        return outcomes.ROCE, at + size, u16(data, at)
    return outcomes.ROCE, at + size, BY_VERSION


@inlined
def _erf(data: Bytes, at: int, end: int) -> tuple[int, int, int]:
    """An ERF record: 16 bytes, extension headers of 8 bytes while bit 7 says so, then the packet."""
    if end - at < _ERF_HEADER:
        return outcomes.CUT_SHORT, at, 0
    kind = u8(data, at + 8) & 0x7F
    more = u8(data, at + 8) & 0x80
    at += _ERF_HEADER
    while more:
        if end - at < 8:
            return outcomes.CUT_SHORT, at, 0
        more = u8(data, at) & 0x80
        at += 8
    if kind in _ERF_ETHERNET:
        return outcomes.ROCE, at + 2, ETHERNET  # behind two bytes of padding
    if kind == _ERF_INFINIBAND:
        return outcomes.ROCE, at, LRH
    if kind in (_ERF_IPV4, _ERF_IPV6):
        return outcomes.ROCE, at, BY_VERSION
    return outcomes.ERF_OTHER, at, 0
