# SPDX-License-Identifier: Apache-2.0
"""Flow hashes of the P4 program: which slot holds a flow's first PSN, and whose PSN the slot holds.

The signature is CRC32 over (source, destination, destination QP, UDP source port): it names a flow *and* its
step. The slot is CRC16 without the port, so a flow keeps its slot from step to step. Both are the reflected
CRCs that Tofino calls CRC32 (polynomial 0x04C11DB7, initial and final value all ones: the one of Ethernet and
zlib) and CRC16 (polynomial 0x8005, zero: CRC-16/ARC), over the fields in network byte order. IPv6 addresses
enter with their low 32 bits, as the P4 program's hash has them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from switch_agent.dataplane.constants import N_FLOW
from switch_agent.dataplane.jit import inlined

__all__ = ["flow_signature", "flow_signature_ipv6", "flow_slot", "flow_slot_ipv6"]

_SLOT_MASK = N_FLOW - 1
_LOW_32 = 0xFFFFFFFF


def _crc_table(reflected_polynomial: int) -> npt.NDArray[np.int64]:
    table = np.arange(256, dtype=np.int64)
    for _ in range(8):
        table = (table >> 1) ^ np.where(table & 1, reflected_polynomial, 0)
    return table


_CRC32 = _crc_table(0xEDB88320)
_CRC16 = _crc_table(0xA001)


@inlined
def _crc(table: npt.NDArray[np.int64], crc: int, value: int, n_bytes: int) -> int:
    """Continue ``crc`` over the ``n_bytes`` low bytes of ``value``, most significant first."""
    for byte in range(n_bytes - 1, -1, -1):
        crc = (crc >> 8) ^ table[(crc ^ (value >> (8 * byte))) & 0xFF]
    return crc


@inlined
def flow_signature(src: int, dst: int, qpn: int, sport: int) -> int:
    """Return the unsigned 32-bit signature of a flow's step.

    Args:
        src: IPv4 source address as a 32-bit integer.
        dst: IPv4 destination address.
        qpn: destination QP number (24 bits).
        sport: UDP source port (16 bits).
    """
    crc = _crc(_CRC32, _LOW_32, src, 4)
    crc = _crc(_CRC32, crc, dst, 4)
    crc = _crc(_CRC32, crc, qpn, 3)
    return _crc(_CRC32, crc, sport, 2) ^ _LOW_32


@inlined
def flow_slot(src: int, dst: int, qpn: int) -> int:
    """Return the slot (14 bits) of a flow; arguments as in ``flow_signature``."""
    crc = _crc(_CRC16, 0, src, 4)
    crc = _crc(_CRC16, crc, dst, 4)
    return _crc(_CRC16, crc, qpn, 3) & _SLOT_MASK


def flow_signature_ipv6(src: int, dst: int, qpn: int, sport: int) -> int:
    """Return the signature of a flow's step between IPv6 addresses given as 128-bit integers."""
    return flow_signature(src & _LOW_32, dst & _LOW_32, qpn, sport)


def flow_slot_ipv6(src: int, dst: int, qpn: int) -> int:
    """Return the slot of a flow between IPv6 addresses given as 128-bit integers."""
    return flow_slot(src & _LOW_32, dst & _LOW_32, qpn)
