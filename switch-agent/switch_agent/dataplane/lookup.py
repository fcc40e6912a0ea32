# SPDX-License-Identifier: Apache-2.0
"""Look-up tables for the marking probability (paper eq. 1 and 4) without multiplication or division.

``P = min(1, k * alpha * psn / psn_rec)`` becomes a sum of fixed-point logarithms (1/256 octave) and one power
of two. Four ternary tables give the logarithms and the power; the logarithm of k is a parameter:

=============  =======================  ========================================  ====  =======
table          key                      data                                      size  entries
=============  =======================  ========================================  ====  =======
log2_psn       relative PSN << 8 (32)   log2 of the PSN (int16)                   1024  927
log2_psn_rec   psn_rec << 8 (32)        minus log2 of the PSN (int16)             1024  927
log2_alpha     alpha (16)               log2 of alpha (int16)                     512   503
exp2           sum of the logs (int16)  threshold of a 32-bit random number       1024  897
=============  =======================  ========================================  ====  =======

Values below 64 have an entry of their own. Above, an octave is cut into buckets of 1/64 octave base where
buckets are widest relative to their values (its lower part) and 1/32 elsewhere. Worst relative errors: PSN
and psn_rec 1.1 % each, alpha 1.2 %, four roundings of logs 0.14 % each, exp2 0.41 %: below 5 % in all.

The integer form (``pipeline``) reads *dense* arrays, one value per bucket of the key. They are built from
whatever entries a control plane has installed, so the twin's switch runs what was written to it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from switch_agent.dataplane.constants import LOG_FRACTION, PSN_BITS, PSN_SHIFT
from switch_agent.dataplane.errors import LookupTableError

__all__ = [
    "BUCKETS_PER_OCTAVE",
    "LookupTable",
    "TernaryEntry",
    "dense_array",
    "log2_fixed",
    "lookup_tables",
]

BUCKETS_PER_OCTAVE = 64
"""Resolution of the dense arrays over a PSN; the entries below are never finer."""
_PSN_FINE_BELOW = 1.5
_ALPHA_FINE_BELOW = 1.375
_EXP2_OCTAVES = 14
_EXP2_STEP = 4
_ALWAYS = 0xFFFFFFFF  # threshold for P = 1: misses one in 2^32


@dataclass(frozen=True, slots=True)
class TernaryEntry:
    """One entry of a look-up table: matches ``key & mask == value``; a lower ``priority`` number wins.

    ``data`` is signed for the logarithms (a control plane sends two's complement) and unsigned for exp2.
    """

    value: int
    mask: int
    priority: int
    data: int


@dataclass(frozen=True, slots=True)
class LookupTable:
    """A look-up table of the program and the entries the control plane installs in it."""

    name: str
    key_bits: int
    data_bits: int
    signed: bool
    size: int
    default: int
    entries: tuple[TernaryEntry, ...]


def log2_fixed(value: float) -> int:
    """Return log2 of ``value`` (> 0) in units of 1/256 octave, rounded to nearest."""
    return round(LOG_FRACTION * math.log2(value))


def _buckets(bits: int, fine_below: float) -> Iterator[tuple[int, int]]:
    """Yield (first value, width) of the aligned power-of-two buckets that cover 1 .. 2^bits - 1."""
    first = 1
    while first < 1 << bits:
        octave = 1 << (first.bit_length() - 1)
        width = max(1, octave // (64 if first < fine_below * octave else 32))
        yield first, width
        first += width


def _log2_entries(bits: int, shift: int, fine_below: float, sign: int) -> tuple[TernaryEntry, ...]:
    key_mask = (1 << (bits + shift)) - 1
    return tuple(
        TernaryEntry(
            value=first << shift,
            mask=key_mask & ~((width << shift) - 1),
            priority=0,
            # the geometric middle of the values in the bucket
            data=sign * log2_fixed(math.sqrt(first * (first + width - 1))),
        )
        for first, width in _buckets(bits, fine_below)
    )


def _exp2_entries() -> tuple[TernaryEntry, ...]:
    below_one = (
        TernaryEntry(
            value=lg & 0xFFFF,
            mask=0xFFFF & ~(_EXP2_STEP - 1),
            priority=0,
            data=round(2.0 ** (32 + (lg + (_EXP2_STEP - 1) / 2) / LOG_FRACTION)),
        )
        for lg in range(-_EXP2_OCTAVES * LOG_FRACTION, 0, _EXP2_STEP)
    )
    return (TernaryEntry(value=0, mask=0x8000, priority=0, data=_ALWAYS), *below_one)


@functools.cache
def lookup_tables() -> Mapping[str, LookupTable]:
    """Return the four tables by name, with the entries to install. No two entries of a table overlap.

    The defaults: a relative PSN of 0 (a flow's first packet) reads as log2(1) = 0; sums below -14 octaves
    (P < 6.1e-5) give threshold 0.
    """
    psn = _log2_entries(PSN_BITS, PSN_SHIFT, _PSN_FINE_BELOW, +1)
    psn_rec = _log2_entries(PSN_BITS, PSN_SHIFT, _PSN_FINE_BELOW, -1)
    alpha = _log2_entries(16, 0, _ALPHA_FINE_BELOW, +1)
    tables = (
        LookupTable("log2_psn", 32, 16, True, 1024, 0, psn),
        LookupTable("log2_psn_rec", 32, 16, True, 1024, 0, psn_rec),
        LookupTable("log2_alpha", 16, 16, True, 512, 0, alpha),
        LookupTable("exp2", 16, 32, False, 1024, 0, _exp2_entries()),
    )
    return MappingProxyType({table.name: table for table in tables})


@functools.cache
def _psn_keys() -> npt.NDArray[np.int64]:
    """Return the key at which each dense bucket over a PSN is evaluated: its first PSN, left-aligned.

    Bucket 0 is PSN 0; bucket 1 + 64 * e + f starts at (1 + f/64) * 2^e. Those without an integer stay unused.
    """
    octave, fraction = np.divmod(np.arange(PSN_BITS * BUCKETS_PER_OCTAVE, dtype=np.int64), BUCKETS_PER_OCTAVE)
    scaled = (BUCKETS_PER_OCTAVE + fraction) << octave
    first = -(-scaled // BUCKETS_PER_OCTAVE)
    return np.concatenate([np.zeros(1, dtype=np.int64), first]) << PSN_SHIFT


def dense_array(name: str, entries: Iterable[TernaryEntry], default: int) -> npt.NDArray[Any]:
    """Return table ``name`` as the integer form reads it, built from installed ``entries`` and ``default``.

    int16[1537] over buckets of the PSN for ``log2_psn`` and ``log2_psn_rec`` (an entry finer than a bucket
    counts when it matches the bucket's first PSN), int16[65536] over the key for ``log2_alpha`` and
    uint32[65536] for ``exp2``. Logarithms may be given signed or as raw 16-bit words.

    Raises:
        LookupTableError: no such table, or a value, mask or datum too wide for it.
    """
    tables = lookup_tables()
    if name not in tables:
        raise LookupTableError(f"look-up table {name!r}: there is no such table; known: {', '.join(tables)}")
    table = tables[name]
    keys = _psn_keys() if table.key_bits == 32 else np.arange(1 << 16, dtype=np.int64)
    key_max = (1 << table.key_bits) - 1
    dense = np.full(len(keys), _datum(table, default), dtype=np.int64)
    # Of several matching entries the one with the lowest priority number counts: write it last.
    for entry in sorted(entries, key=lambda entry: entry.priority, reverse=True):
        if not (0 <= entry.value <= key_max and 0 <= entry.mask <= key_max):
            raise LookupTableError(
                f"look-up table {name}: value {entry.value:#x} with mask {entry.mask:#x} "
                f"does not fit a key of {table.key_bits} bits"
            )
        datum = _datum(table, entry.data)
        value, free = entry.value & entry.mask, key_max & ~entry.mask
        if free & (free + 1) == 0:  # a prefix: one range of the sorted keys
            low, high = np.searchsorted(keys, [value, value + free + 1])
            dense[low:high] = datum
        else:
            dense[(keys & entry.mask) == value] = datum
    return dense.astype(np.int16 if table.signed else np.uint32)


def _datum(table: LookupTable, datum: int) -> int:
    """Return ``datum`` as a number of the table's type; raw words of a signed table are sign-extended."""
    span = 1 << table.data_bits
    if not (-(span // 2) if table.signed else 0) <= datum < span:
        raise LookupTableError(f"look-up table {table.name}: datum {datum} does not fit {table.data_bits} bits")
    return datum - span if table.signed and datum >= span // 2 else datum
