# SPDX-License-Identifier: Apache-2.0
"""From one value per pipe to one value per job.

A Tofino keeps a copy of every register in each of its pipes and a packet only sees the copy of the pipe
it came in by (``p4-findings.md`` §10). What "the" value of a register is, is therefore a choice,
declared per register field in :data:`REDUCTIONS`: steps and times wrap, so their extremes are serial
ones (RFC 1982); counts add up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["REDUCTIONS", "Reduction", "reduce_pipes", "reduce_segments"]


class Reduction(StrEnum):
    """How the values of several pipes (and state blocks of one job) become one."""

    SUM = "sum"
    MAX = "max"
    SERIAL_MIN = "serial-min"
    SERIAL_MAX = "serial-max"


REDUCTIONS: Final[Mapping[str, Reduction]] = MappingProxyType(
    {
        "Ingress.steps.mn": Reduction.SERIAL_MIN,
        "Ingress.steps.mx": Reduction.SERIAL_MAX,
        "Ingress.window_start.f1": Reduction.SERIAL_MAX,
        "Ingress.psn_rec.f1": Reduction.MAX,
        "Ingress.score.score": Reduction.SUM,
        "Ingress.score.count": Reduction.SUM,
        "Ingress.alpha.f1": Reduction.MAX,
        "$COUNTER_SPEC_PKTS": Reduction.SUM,
        "$COUNTER_SPEC_BYTES": Reduction.SUM,
    }
)
"""Declared reduction of every field that the agent reads."""


def reduce_pipes(values: Sequence[int], reduction: Reduction) -> int:
    """Reduce unsigned values, one per pipe, to one; serial reductions are over 32 bits.

    Raises ValueError for no values: unknown is not 0.
    """
    if not values:
        raise ValueError("nothing to reduce: no pipe has a value")
    result = reduce_segments(
        np.asarray(values, np.uint64), np.ones(len(values), np.bool_), np.zeros(1, np.intp), reduction
    )
    return int(result[0])


def reduce_segments(
    values: NDArray[np.uint64],
    live: NDArray[np.bool_],
    starts: NDArray[np.intp],
    reduction: Reduction,
) -> NDArray[np.int64]:
    """Reduce consecutive segments of ``values``; segment i runs from ``starts[i]`` to ``starts[i + 1]``.

    Only ``live`` values take part. Segments must not be empty. A segment without any live value gives 0:
    callers know from ``live`` that it means nothing. Serial reductions treat values as 32 bits and are
    right when the live values of a segment lie within half the circle of each other.
    """
    if reduction is Reduction.SUM:
        return np.add.reduceat(np.where(live, values, 0).astype(np.int64), starts)
    if reduction is Reduction.MAX:
        return np.maximum.reduceat(np.where(live, values, 0).astype(np.int64), starts)
    # Distances from each segment's first live value are small signed numbers that do not wrap.
    size = len(values)
    lengths = np.diff(np.append(starts, size))
    first_live = np.minimum.reduceat(np.where(live, np.arange(size), size), starts)
    any_live = first_live < starts + lengths
    low32 = values.astype(np.uint32)
    anchor = low32[np.minimum(first_live, size - 1)]
    distance = (low32 - np.repeat(anchor, lengths)).view(np.int32).astype(np.int64)
    if reduction is Reduction.SERIAL_MIN:
        extreme = np.minimum.reduceat(np.where(live, distance, np.iinfo(np.int64).max), starts)
    else:
        extreme = np.maximum.reduceat(np.where(live, distance, np.iinfo(np.int64).min), starts)
    extreme = np.where(any_live, extreme, 0)
    return np.where(any_live, (anchor.astype(np.int64) + extreme) & 0xFFFFFFFF, 0)
