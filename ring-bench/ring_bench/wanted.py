# SPDX-License-Identifier: Apache-2.0
"""What a rank must hold after each operation, from the patterns of the ranks that take part in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ring_bench.dtypes import PATTERN_SLACK, Array, expected
from ring_bench.plan import Plan
from ring_bench.schedule import Collective, Schedule, Span, part

__all__ = ["Wanted", "wanted_by"]


class Wanted(NamedTuple):
    """The result of a shape of operation at a rank, wherever in the pattern the operation's data begin."""

    pieces: tuple[Array, ...]
    """One after the other; each is `PATTERN_SLACK` elements longer than its part of the result."""

    def at(self, begin: int) -> Array:
        """Give the result of an operation whose data begin at element ``begin`` of the pattern."""
        cut = [piece[begin : begin + piece.size - PATTERN_SLACK] for piece in self.pieces]
        return cut[0] if len(cut) == 1 else np.concatenate(cut)


def wanted_by(
    plan: Plan, group: Sequence[int], local: Iterable[int], pattern: Callable[[int], Array]
) -> dict[int, list[Wanted]]:
    """Give what the local ranks of a group must arrive at, for each shape of operation.

    Args:
        plan: The run.
        group: World ranks in ring order.
        local: Those of interest.
        pattern: Gives the pattern of a world rank, `Plan.pattern_length` elements.
    """
    patterns: dict[int, Array] = {}
    reduced: dict[tuple[int, ...], Array] = {}
    gathered: dict[tuple[int, tuple[int, ...]], Wanted] = {}

    def of(rank: int) -> Array:
        if rank not in patterns:
            patterns[rank] = pattern(rank)
        return patterns[rank]

    def want(shape: int, schedule: Schedule, position: int) -> Wanted:
        peers = tuple(group[peer] for peer in schedule.peers(position))
        whole = Span(0, schedule.count)
        if schedule.collective.reduces:
            if peers not in reduced:
                reduced[peers] = expected(plan.config.datatype, plan.config.op, map(of, peers))
            return Wanted((_cut(reduced[peers], schedule.result(position)),))
        if schedule.collective is Collective.BROADCAST:
            return Wanted((_cut(of(peers[schedule.root]), whole),))
        if (shape, peers) not in gathered:
            spans = [part(schedule.count, len(peers), i) for i in range(len(peers))]
            pieces = [_cut(of(peer), span).copy() for peer, span in zip(peers, spans, strict=True)]
            gathered[shape, peers] = Wanted(tuple(pieces))
        return gathered[shape, peers]

    return {
        rank: [want(shape, schedule, group.index(rank)) for shape, schedule in enumerate(plan.schedules)]
        for rank in local
    }


def _cut(array: Array, span: Span) -> Array:
    return array[span.offset : span.end + PATTERN_SLACK]
