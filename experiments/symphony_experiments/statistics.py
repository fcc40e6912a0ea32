# SPDX-License-Identifier: Apache-2.0
"""Medians over seeds, their confidence intervals and paired differences.

Intervals are percentile bootstrap intervals (Efron & Tibshirani 1993, chapter 13) of 2,000 resamples of the seeds,
drawn from a generator with a fixed seed: the same rows give the same interval, digit for digit. Runs of two algorithms
with the same seed see the same fabric and the same dice (common random numbers), so their difference is resampled in
pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["LEVEL", "Estimate", "cdf", "median", "relative_change"]

LEVEL = 0.95
_RESAMPLES = 2000
_SEED = 20260418
Floats = npt.NDArray[np.float64]


class Estimate(NamedTuple):
    """A median with its bootstrap interval; `low` and `high` are None for fewer than three values."""

    value: float
    low: float | None
    high: float | None
    n: int


def median(values: Sequence[float]) -> Estimate:
    """Median of the values and its interval at `LEVEL`.

    Raises:
        ValueError: there are no values.
    """
    data = np.asarray(values, dtype=np.float64)
    if len(data) == 0:
        raise ValueError("a median of nothing")
    if len(data) < 3:
        return Estimate(float(np.median(data)), None, None, len(data))
    low, high = _interval(np.median(_resample(data), axis=1))
    return Estimate(float(np.median(data)), low, high, len(data))


def relative_change(values: Sequence[float], baseline: Sequence[float]) -> Estimate:
    """Change of the median against a baseline, (median(values) - median(baseline)) / median(baseline).

    Args:
        values: one per seed.
        baseline: one per seed, in the same order of seeds.

    Raises:
        ValueError: they are not paired, or the baseline's median is 0.
    """
    ours, base = np.asarray(values, dtype=np.float64), np.asarray(baseline, dtype=np.float64)
    if len(ours) != len(base) or len(ours) == 0:
        raise ValueError(f"{len(ours)} values against {len(base)}: pairs are wanted, one per seed")
    if np.median(base) == 0:
        raise ValueError("the baseline's median is 0: no relative change")
    change = float(np.median(ours) / np.median(base) - 1)
    if len(ours) < 3:
        return Estimate(change, None, None, len(ours))
    rows = _rows(len(ours))
    low, high = _interval(np.median(ours[rows], axis=1) / np.median(base[rows], axis=1) - 1)
    return Estimate(change, low, high, len(ours))


def cdf(values: Sequence[float]) -> tuple[Floats, Floats]:
    """The empirical distribution function: sorted values, and the share of values up to each (1/n .. 1)."""
    data = np.sort(np.asarray(values, dtype=np.float64))
    return data, np.arange(1, len(data) + 1) / len(data)


def _rows(n: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(_SEED).integers(0, n, size=(_RESAMPLES, n))


def _resample(data: Floats) -> Floats:
    return data[_rows(len(data))]


def _interval(resampled: Floats) -> tuple[float, float]:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return float(low), float(high)
