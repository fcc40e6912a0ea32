# SPDX-License-Identifier: Apache-2.0
"""Times of several hosts on one axis: that of rank 0's clock.

Each host's CLOCK_MONOTONIC has an origin and a rate of its own. Every process asks rank 0's for the time, over the
rendezvous, many times before the run and again after it. The exchange with the shortest round trip bounds the offset
best: the answer was written at some moment of it, so its middle is wrong by half the round trip at most (Cristian
1989; NTP's clock filter, RFC 5905 section 10). Between the two measurements the rate is taken as constant.

Nothing is ever clamped: a time between hosts may come out negative, and is then as uncertain as any other.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Alignment", "Ask", "Offset", "clock_identity", "estimate", "pair_uncertainty"]

_Times = npt.NDArray[np.int64]


class Ask(NamedTuple):
    """One question for the time: ns, two on each clock."""

    asked: int
    """Here."""
    heard: int
    """There."""
    answered: int
    """There."""
    received: int
    """Here."""

    @property
    def round_trip(self) -> int:
        """Time on the way, there and back."""
        return (self.received - self.asked) - (self.answered - self.heard)


@dataclass(frozen=True)
class Offset:
    """How far rank 0's clock was ahead of this host's at one moment."""

    offset_ns: int
    """Add it to a time of this host."""
    uncertainty_ns: int
    """The true offset differs by no more than this."""
    at_ns: int
    """When, on this host's clock."""

    def as_data(self) -> dict[str, int]:
        """Give it as messages hold it."""
        return vars(self).copy()


@dataclass(frozen=True)
class Alignment:
    """How the times of one rank's host come onto rank 0's clock."""

    before: Offset
    after: Offset | None = None
    """None: the run broke before it could be measured again; then the rate is taken as equal."""

    @property
    def uncertainty_ns(self) -> int:
        """How far an aligned time may be off."""
        return max(self.before.uncertainty_ns, self.after.uncertainty_ns if self.after else 0)

    @property
    def drift(self) -> float:
        """How much faster rank 0's clock runs, as a fraction; 0 where that is not known."""
        if self.after is None or self.after.at_ns <= self.before.at_ns:
            return 0.0
        return (self.after.offset_ns - self.before.offset_ns) / (self.after.at_ns - self.before.at_ns)

    def apply(self, times: _Times) -> _Times:
        """Bring times (ns) onto rank 0's clock; negative ones mean "did not happen" and stay."""
        since = (times - self.before.at_ns).astype(np.float64)
        shifted = times + self.before.offset_ns + np.rint(since * self.drift).astype(np.int64)
        return np.where(times < 0, times, shifted)

    @classmethod
    def from_data(cls, before: Mapping[str, Any], after: Mapping[str, Any] | None) -> Alignment:
        """Read what `Offset.as_data` gave."""
        return cls(Offset(**before), Offset(**after) if after else None)


def estimate(asks: Sequence[Ask]) -> Offset:
    """Take the offset from the exchange with the shortest round trip.

    Args:
        asks: At least one.
    """
    best = min(asks, key=lambda ask: ask.round_trip)
    middle_here, middle_there = (best.asked + best.received) // 2, (best.heard + best.answered) // 2
    return Offset(middle_there - middle_here, best.round_trip // 2 + 1, middle_here)


def pair_uncertainty(alignments: Iterable[Alignment | None]) -> int:
    """Give how far a time between two of these hosts may be off, ns; None stands for rank 0's own clock."""
    worst = sorted(alignment.uncertainty_ns if alignment is not None else 0 for alignment in alignments)
    return sum(worst[-2:])


def clock_identity() -> str:
    """Name this host's CLOCK_MONOTONIC: equal for all processes that read the same one, in containers too."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    except OSError:
        return os.urandom(16).hex()  # no clock is taken for this one
