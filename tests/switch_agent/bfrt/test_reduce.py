# SPDX-License-Identifier: Apache-2.0
"""One value out of one per pipe."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switch_agent.bfrt.reduce import Reduction, reduce_pipes, reduce_segments


def word(step: int) -> int:
    """A step register's value."""
    return (step % 1024) << 22 | 1


def test_serial_extremes_see_through_the_wrap() -> None:
    """Step 1 comes after step 1020: the smallest of both is 1020, the largest 1."""
    values = [word(1020), word(1), word(1023)]
    assert reduce_pipes(values, Reduction.SERIAL_MIN) == word(1020)
    assert reduce_pipes(values, Reduction.SERIAL_MAX) == word(1)


def test_sum_and_max_are_plain() -> None:
    """Counts add up; psn_rec and alpha take the largest."""
    assert reduce_pipes([1, 2, 3, 4], Reduction.SUM) == 10
    assert reduce_pipes([7, 9, 0, 8], Reduction.MAX) == 9


def test_no_values_are_no_zero() -> None:
    """Unknown is not 0."""
    with pytest.raises(ValueError, match="no pipe"):
        reduce_pipes([], Reduction.SUM)


def test_dead_cells_take_no_part() -> None:
    """A pipe that saw no packet must not pull step_min to its start value."""
    values = np.array([word(0), word(700), word(702), word(0)], np.uint64)
    live = np.array([False, True, True, False])
    low = reduce_segments(values, live, np.array([0]), Reduction.SERIAL_MIN)
    assert int(low[0]) == word(700)


@given(
    st.integers(0, (1 << 32) - 1),
    st.lists(st.lists(st.tuples(st.integers(0, 1 << 30), st.booleans()), min_size=1, max_size=8), min_size=1),
)
def test_segments_reduce_like_integers_that_do_not_wrap(base: int, segments: list[list[tuple[int, bool]]]) -> None:
    """Values within half the circle, anywhere on it, reduce as the unwrapped ones would."""
    flat = [item for segment in segments for item in segment]
    values = np.array([(base + offset) & 0xFFFFFFFF for offset, _ in flat], np.uint64)
    live = np.array([alive for _, alive in flat])
    starts = np.cumsum([0, *(len(segment) for segment in segments)])[:-1].astype(np.intp)
    low = reduce_segments(values, live, starts, Reduction.SERIAL_MIN)
    high = reduce_segments(values, live, starts, Reduction.SERIAL_MAX)
    for segment, found_low, found_high in zip(segments, low, high, strict=True):
        alive = [offset for offset, is_live in segment if is_live]
        if alive:
            assert int(found_low) == (base + min(alive)) & 0xFFFFFFFF
            assert int(found_high) == (base + max(alive)) & 0xFFFFFFFF
        else:
            assert int(found_low) == int(found_high) == 0
