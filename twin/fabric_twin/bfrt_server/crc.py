# SPDX-License-Identifier: Apache-2.0
"""Cyclic redundancy checks by their parameters, for the dynamic hash tables.

Names are those of the bf-rt.json, parameters those of the catalogue of parametrised CRC algorithms
(reveng.sourceforge.io/crc-catalogue).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["PREDEFINED", "Crc"]


@dataclass(frozen=True, slots=True)
class Crc:
    """A CRC of ``width`` bits.

    ``polynomial`` lacks its top bit and is not reversed. ``reverse``: bits enter and leave lowest first; ``init``
    is then the register as it is kept, reversed.
    """

    width: int
    polynomial: int
    reverse: bool = False
    init: int = 0
    final_xor: int = 0

    def of(self, data: bytes) -> int:
        """The checksum of these bytes."""
        top, mask = 1 << (self.width - 1), (1 << self.width) - 1
        value = _reflected(self.init, self.width) if self.reverse else self.init
        for octet in data:
            for bit in range(8) if self.reverse else range(7, -1, -1):
                carry = bool(value & top) ^ bool(octet >> bit & 1)
                value = (value << 1 & mask) ^ (self.polynomial if carry else 0)
        return (_reflected(value, self.width) if self.reverse else value) ^ self.final_xor


def _reflected(value: int, width: int) -> int:
    return int(f"{value:0{width}b}"[::-1], 2)


ALL_16, ALL_32, ALL_64 = 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
ECMA_64 = 0x42F0E1EBA9EA3693

PREDEFINED: Final = {
    "CRC_8": Crc(8, 0x07),
    "CRC_8_DARC": Crc(8, 0x39, True),
    "CRC_8_I_CODE": Crc(8, 0x1D, init=0xFD),
    "CRC_8_ITU": Crc(8, 0x07, init=0x55, final_xor=0x55),
    "CRC_8_MAXIM": Crc(8, 0x31, True),
    "CRC_8_ROHC": Crc(8, 0x07, True, 0xFF),
    "CRC_8_WCDMA": Crc(8, 0x9B, True),
    "CRC_16": Crc(16, 0x8005, True),
    "CRC_16_BYPASS": Crc(16, 0x8005),
    "CRC_16_DDS_110": Crc(16, 0x8005, init=0x800D),
    "CRC_16_DECT_R": Crc(16, 0x0589, final_xor=1),
    "CRC_16_DECT_X": Crc(16, 0x0589),
    "CRC_16_DNP": Crc(16, 0x3D65, True, final_xor=ALL_16),
    "CRC_16_EN_13757": Crc(16, 0x3D65, final_xor=ALL_16),
    "CRC_16_GENIBUS": Crc(16, 0x1021, init=ALL_16, final_xor=ALL_16),
    "CRC_16_MAXIM": Crc(16, 0x8005, True, final_xor=ALL_16),
    "CRC_16_MCRF4XX": Crc(16, 0x1021, True, ALL_16),
    "CRC_16_T10_DIF": Crc(16, 0x8BB7),
    "CRC_16_TELEDISK": Crc(16, 0xA097),
    "CRC_16_USB": Crc(16, 0x8005, True, ALL_16, ALL_16),
    "X_25": Crc(16, 0x1021, True, ALL_16, ALL_16),
    "XMODEM": Crc(16, 0x1021),
    "MODBUS": Crc(16, 0x8005, True, ALL_16),
    "KERMIT": Crc(16, 0x1021, True),
    "CRC_CCITT_FALSE": Crc(16, 0x1021, init=ALL_16),
    "CRC_AUG_CCITT": Crc(16, 0x1021, init=0x1D0F),
    "CRC_32": Crc(32, 0x04C11DB7, True, ALL_32, ALL_32),
    "CRC_32_BZIP2": Crc(32, 0x04C11DB7, init=ALL_32, final_xor=ALL_32),
    "CRC_32C": Crc(32, 0x1EDC6F41, True, ALL_32, ALL_32),
    "CRC_32D": Crc(32, 0xA833982B, True, ALL_32, ALL_32),
    "CRC_32_MPEG": Crc(32, 0x04C11DB7, init=ALL_32),
    "POSIX": Crc(32, 0x04C11DB7, final_xor=ALL_32),
    "CRC_32Q": Crc(32, 0x814141AB),
    "JAMCRC": Crc(32, 0x04C11DB7, True, ALL_32),
    "XFER": Crc(32, 0x000000AF),
    "CRC_64": Crc(64, ECMA_64),
    "CRC_64_GO_ISO": Crc(64, 0x1B, True, ALL_64, ALL_64),
    "CRC_64_WE": Crc(64, ECMA_64, init=ALL_64, final_xor=ALL_64),
}
