# SPDX-License-Identifier: Apache-2.0
"""Big-endian numbers in captured bytes, and what may follow a header; for the compiled decoders.

Whoever reads a number has checked that its bytes are there.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from switch_agent.replay.jit import inlined

__all__ = [
    "BTH",
    "BY_VERSION",
    "ETHERNET",
    "ETH_ARP",
    "ETH_BRIDGED",
    "ETH_IPV4",
    "ETH_IPV6",
    "ETH_MPLS",
    "ETH_MPLS_MULTICAST",
    "ETH_ROCE_V1",
    "GRE",
    "GRH",
    "LRH",
    "UDP",
    "Bytes",
    "u8",
    "u16",
    "u24",
    "u32",
]

Bytes = npt.NDArray[np.uint8]

ETH_IPV4, ETH_ARP, ETH_IPV6, ETH_ROCE_V1 = 0x0800, 0x0806, 0x86DD, 0x8915
ETH_MPLS, ETH_MPLS_MULTICAST = 0x8847, 0x8848
ETH_BRIDGED = 0x6558
"""Transparent Ethernet bridging: an Ethernet frame inside a tunnel."""

ETHERNET, BY_VERSION, UDP, GRE, LRH, GRH, BTH = range(0x10000, 0x10007)
"""What follows a header where no ethertype says it: an Ethernet frame, IP of the version in its first bits, UDP, GRE,
InfiniBand's local and global route header, its base transport header."""


@inlined
def u8(data: Bytes, at: int) -> int:
    """Return one byte."""
    return int(np.int64(data[at]))


@inlined
def u16(data: Bytes, at: int) -> int:
    """Return two bytes."""
    return int(np.int64(data[at]) << 8 | np.int64(data[at + 1]))


@inlined
def u24(data: Bytes, at: int) -> int:
    """Return three bytes."""
    return int(np.int64(data[at]) << 16 | np.int64(data[at + 1]) << 8 | np.int64(data[at + 2]))


@inlined
def u32(data: Bytes, at: int) -> int:
    """Return four bytes."""
    return u16(data, at) << 16 | u16(data, at + 2)
