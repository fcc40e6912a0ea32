# SPDX-License-Identifier: Apache-2.0
"""What the entries of `red_profile` mean for one port: the Kmin, Kmax and Pmax that its ranges describe.

The switch program looks the marking probability up by ranges of queue depth; the twin's engine calculates it from
Kmin, Kmax and Pmax. So the ranges must form what RED is: nothing up to Kmin, a straight ramp in steps, 1 from Kmax.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from fabric_twin.bfrt_server import InstalledEntry

__all__ = ["CELL_BYTES", "DEPTHS", "NO_RED", "Red", "red_of"]

CELL_BYTES = 176
"""A cell of a Tofino2's packet buffer."""
DEPTHS = 1 << 19
"""Cells that a queue depth can count; busy from there on means never."""
ALWAYS = 0xFFFF
ROUNDING = 1.5
"""Probabilities are multiples of 1/65536, and middles of pieces."""


class Red(NamedTuple):
    """RED at dequeue: bytes and probability, and the depth in cells from which a queue counts as busy."""

    kmin: int
    kmax: int
    pmax: float
    busy_min_cells: int = 1


NO_RED = Red(1 << 40, (1 << 40) + 1, 0.0)
"""No queue is that long."""


def red_of(entries: Iterable[InstalledEntry], dev_port: int) -> Red:
    """The RED of one egress port; `NO_RED` when no entry is for it, as on the switch.

    Raises:
        ValueError: the ranges are no RED ramp; the text says why.
    """
    mine = sorted((entry for entry in entries if _matches(entry, dev_port)), key=lambda entry: entry.priority)
    busy = _pieces(mine, "busy")
    if len(busy) > 2 or busy[-1][1] < busy[0][1]:
        raise ValueError("a queue counts as busy at some depth, but not at a larger one")
    busy_from = next((low for low, is_busy in busy if is_busy), DEPTHS)
    pieces = _pieces(mine, "prob")
    marking = [piece for piece in pieces if piece[1] > 0]
    if not marking:
        return NO_RED._replace(busy_min_cells=busy_from)
    if any(after < before for (_, before), (_, after) in pairwise(pieces)):
        raise ValueError("the marking probability falls with the depth of the queue")
    if marking[-1][1] < ALWAYS:
        raise ValueError(f"the marking probability ends at {marking[-1][1] / 65536:.3f}, not at 1")
    kmin, kmax = marking[0][0], marking[-1][0]
    if kmin == kmax:
        return Red(kmax * CELL_BYTES - 1, kmax * CELL_BYTES, 0.0, busy_from)
    middles = [(low + beyond) / 2 - kmin for (low, _), (beyond, _) in pairwise(marking)]
    slope = marking[-2][1] / middles[-1]
    for middle, (low, prob) in zip(middles, marking, strict=False):
        if abs(slope * middle - prob) > ROUNDING + slope:
            raise ValueError(
                f"at {low} cells the marking probability is {prob / 65536:.4f}; on the straight line from "
                f"{kmin} cells through the last step it would be {slope * middle / 65536:.4f}"
            )
    return Red(kmin * CELL_BYTES, kmax * CELL_BYTES, min(1.0, slope * (kmax - kmin) / 65536), busy_from)


def _matches(entry: InstalledEntry, dev_port: int) -> bool:
    value, mask = _pair(entry.key["eg_intr_md.egress_port"])
    return not (value ^ dev_port) & mask


def _pieces(entries: Sequence[InstalledEntry], field: str) -> list[tuple[int, int]]:
    """(depth in cells, value of the field from there on), from 0 on; where ranges overlap the first entry wins."""
    ranges = [(*_pair(entry.key["eg_intr_md.deq_qdepth"]), _int(entry.data[field])) for entry in entries]
    bounds = {0, *(low for low, _, _ in ranges), *(high + 1 for _, high, _ in ranges if high + 1 < DEPTHS)}
    pieces: list[tuple[int, int]] = []
    for depth in sorted(bounds):
        value = next((value for low, high, value in ranges if low <= depth <= high), 0)
        if not pieces or value != pieces[-1][1]:
            pieces.append((depth, value))
    return pieces


def _int(value: Any) -> int:
    return int(value)


def _pair(value: Any) -> tuple[int, int]:
    first, second = value
    return int(first), int(second)
