# SPDX-License-Identifier: Apache-2.0
"""Element types, reductions, and the data that makes a wrong sum show.

Every rank contributes a pattern of small whole numbers, so that every sum is exact in every type and in every
order of additions. A rank's pattern is one array; iteration i uses it from another offset, so that what an
earlier iteration left behind is wrong in the next one without anything being rewritten. Receive buffers are
poisoned before each iteration.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = [
    "DATATYPES",
    "PATTERN_SLACK",
    "REDUCTIONS",
    "Array",
    "count_wrong",
    "datatype_name",
    "exact_ranks",
    "expected",
    "pattern",
    "pattern_offset",
    "poison",
]

Array = npt.NDArray[Any]

DATATYPES: Final[dict[str, np.dtype[Any]]] = {
    "int8": np.dtype(np.int8),
    "uint8": np.dtype(np.uint8),
    "int32": np.dtype(np.int32),
    "uint32": np.dtype(np.uint32),
    "int64": np.dtype(np.int64),
    "uint64": np.dtype(np.uint64),
    "half": np.dtype(np.float16),
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
}
"""Types under nccl-tests' names (little-endian hosts, native order)."""

_ALIASES = {"float16": "half", "float32": "float", "float64": "double", "char": "int8", "int": "int32"}

REDUCTIONS: Final[dict[str, np.ufunc]] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}

PATTERN_SLACK = 256
"""Elements a pattern is longer than the largest AllReduce: room for the offsets of the iterations."""

_LARGEST_VALUE = 7
_POISON_BYTE = 0xA5
_NAN_BYTE = 0xFF


def datatype_name(text: str) -> str:
    """Give the name used in tables for a type's name or alias (``float32`` is ``float``).

    Raises:
        ValueError: An unknown type; the message lists the known ones.
    """
    name = _ALIASES.get(text, text)
    if name not in DATATYPES:
        raise ValueError(f"unknown datatype {text!r}; known: {', '.join(DATATYPES)}")
    return name


def exact_ranks(datatype: str) -> int:
    """Give the most ranks whose sums are exact in a type in every order of additions."""
    dtype = DATATYPES[datatype]
    if dtype.kind in "iu":
        return 1 << 31  # whole numbers wrap, in every order alike
    return int(2 ** (np.finfo(dtype).nmant + 1)) // _LARGEST_VALUE


def pattern_offset(iteration: int) -> int:
    """Give the element at which an iteration's data begin in the pattern."""
    return iteration * 61 % (PATTERN_SLACK + 1)


def pattern(datatype: str, op: str, rank: int, length: int, seed: int) -> Array:
    """Give a rank's pattern: values 0-7 mixed from (element, rank, seed); for prod 1 and -1 (unsigned: 3)."""
    mixed = np.arange(length, dtype=np.uint32)
    mixed *= np.uint32(2654435761)
    mixed += np.uint32((rank * 0x9E3779B1 + seed * 0x85EBCA6B) & 0xFFFFFFFF)
    mixed ^= mixed >> np.uint32(15)
    mixed *= np.uint32(0x2C1B3C6D)
    mixed ^= mixed >> np.uint32(12)
    mixed *= np.uint32(0x297A2D39)
    mixed >>= np.uint32(29)
    values = mixed.astype(DATATYPES[datatype])
    if op != "prod":
        return values
    odd = (mixed & np.uint32(1)).astype(bool)
    return np.where(odd, 3 if DATATYPES[datatype].kind == "u" else -1, 1).astype(DATATYPES[datatype])


def expected(datatype: str, op: str, patterns: Iterable[Array]) -> Array:
    """Reduce the patterns of a group's ranks: what every rank must hold, at the iteration's offset.

    Raises:
        ValueError: No patterns.
    """
    total: Array | None = None
    for values in patterns:
        if total is None:
            total = values.copy()
        else:
            REDUCTIONS[op](total, values, out=total)
    if total is None:
        raise ValueError("the reduction of no ranks is undefined")
    return total


def poison(buffer: Array) -> None:
    """Fill a receive buffer with what no reduction gives: NaN for floats, 0xA5 bytes for whole numbers."""
    buffer.view(np.uint8).fill(_NAN_BYTE if buffer.dtype.kind == "f" else _POISON_BYTE)


def count_wrong(buffer: Array, wanted: Array) -> int:
    """Count the elements that differ; NaN differs from everything."""
    return int(np.count_nonzero(buffer != wanted))
