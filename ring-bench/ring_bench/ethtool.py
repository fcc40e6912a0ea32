# SPDX-License-Identifier: Apache-2.0
"""What a network driver says through the kernel's ethtool interface, without the program of that name.

An ioctl, not a process: a process must not be forked once RDMA memory is registered, and reading needs no rights.
Numbers and layouts are those of <linux/ethtool.h>.
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct

__all__ = ["fec_modes", "pause_frames", "statistics"]

_SIOCETHTOOL = 0x8946
_GPAUSEPARAM = 0x12
_GSTRINGS = 0x1B
_GSTATS = 0x1D
_GSSET_INFO = 0x37
_GFECPARAM = 0x50
_SS_STATS = 1
_NAME_LENGTH = 32
_FEC_MODES = {1 << 0: "none", 1 << 1: "auto", 1 << 2: "off", 1 << 3: "RS", 1 << 4: "BaseR", 1 << 5: "LLRS"}


def statistics(netdev: str) -> dict[str, int]:
    """Give the driver's counters (``ethtool -S``).

    Raises:
        OSError: No such device, or its driver has none.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        answer = _ask(channel, netdev, struct.pack("=IIQI", _GSSET_INFO, 0, 1 << _SS_STATS, 0))
        _, _, mask, count = struct.unpack("=IIQI", answer)
        if not mask or not count:
            return {}
        names = _ask(channel, netdev, struct.pack("=III", _GSTRINGS, _SS_STATS, count) + bytes(count * _NAME_LENGTH))
        values = _ask(channel, netdev, struct.pack("=II", _GSTATS, count) + bytes(count * 8))
    texts = (names[12 + i * _NAME_LENGTH : 12 + (i + 1) * _NAME_LENGTH] for i in range(count))
    return {
        text.split(b"\0")[0].decode("ascii", "replace"): value
        for text, value in zip(texts, struct.unpack(f"={count}Q", values[8:]), strict=True)
    }


def fec_modes(netdev: str) -> list[str]:
    """Give the forward error correction that is active (``ethtool --show-fec``): "RS", "BaseR", "off" and so on.

    Raises:
        OSError: No such device, or its driver does not say.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        answer = _ask(channel, netdev, struct.pack("=IIII", _GFECPARAM, 0, 0, 0))
    active = struct.unpack("=IIII", answer)[1]
    return [name for bit, name in _FEC_MODES.items() if active & bit]


def pause_frames(netdev: str) -> tuple[bool, bool]:
    """Tell whether global pause frames are obeyed and sent (``ethtool -a``: RX, TX).

    Raises:
        OSError: No such device, or its driver does not say.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        answer = _ask(channel, netdev, struct.pack("=IIII", _GPAUSEPARAM, 0, 0, 0))
    _, _, receives, sends = struct.unpack("=IIII", answer)
    return bool(receives), bool(sends)


def _ask(channel: socket.socket, netdev: str, command: bytes) -> bytes:
    buffer = array.array("B", command)
    address, _ = buffer.buffer_info()
    fcntl.ioctl(channel, _SIOCETHTOOL, struct.pack("@16sP16x", netdev.encode()[:15], address))
    return buffer.tobytes()
