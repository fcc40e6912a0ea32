# SPDX-License-Identifier: Apache-2.0
"""Sizes in, bandwidths out: the one place where bytes, nanoseconds and GB/s are converted.

Sizes are given and shown with binary suffixes (1K = 1024 bytes), bandwidths are decimal (1 GB/s = 10^9 bytes
per second), as in nccl-tests. ``algbw`` is size / time. ``busbw`` is algbw times a factor of the collective and its N
ranks (nccl-tests, doc/PERFORMANCE.md): what each link of the ring carries, comparable between rank counts.
"""

from __future__ import annotations

import re

from ring_bench.schedule import Collective

__all__ = ["algbw_gbps", "busbw_factor", "format_size", "parse_size"]

_SIZE = re.compile(r"([0-9]+)\s*([KMGT]?)(I?B)?", re.IGNORECASE)
_SUFFIX = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_size(text: str) -> int:
    """Read a size in bytes: ``"4096"``, ``"8M"``, ``"1GiB"``; suffixes are binary.

    Raises:
        ValueError: Anything else, fractions and negative numbers included.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"a size is a whole number with an optional K, M, G or T (binary), not {text!r}")
    return int(match[1]) * _SUFFIX[match[2].upper()]


def format_size(size: int) -> str:
    """Write a size in bytes with the largest suffix that divides it: 33554432 is ``32M``."""
    for suffix in ("T", "G", "M", "K"):
        if size and size % _SUFFIX[suffix] == 0:
            return f"{size // _SUFFIX[suffix]}{suffix}"
    return str(size)


def algbw_gbps(size_bytes: int, time_ns: float) -> float | None:
    """Give size / time in GB/s (10^9 bytes per second); None when no time passed."""
    return size_bytes / time_ns if time_ns > 0 else None


def busbw_factor(collective: Collective, ranks: int) -> float:
    """Give the factor from algbw to busbw: AllReduce 2(N-1)/N, along any axes; broadcast 1; the others (N-1)/N."""
    if collective is Collective.BROADCAST:
        return 1.0
    return (2 if collective is Collective.ALL_REDUCE else 1) * (ranks - 1) / ranks
