# SPDX-License-Identifier: Apache-2.0
"""Verdicts and the statistics behind them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from symphony_experiments.claims import Claim, judge
from symphony_experiments.statistics import cdf, median, relative_change

samples = st.lists(st.floats(1, 1e6), min_size=3, max_size=40)


def rows(ours, base=()):
    return [{"variant": "s", "seed": i, "m": value} for i, value in enumerate(ours)] + [
        {"variant": "b", "seed": i, "m": value} for i, value in enumerate(base)
    ]


def claim(**more):
    return Claim(
        **{"id": "c", "text": "t", "source": "s", "metric": "m", "of": {"variant": "s"}, "against": {"variant": "b"}}
        | more
    )


@given(samples)
def test_a_median_lies_in_its_interval_and_within_the_sample(values):
    estimate = median(values)
    assert estimate.low is not None
    assert estimate.high is not None
    assert min(values) <= estimate.low <= estimate.high <= max(values)
    assert estimate.value == np.median(values)


@given(samples)
def test_the_same_values_give_the_same_interval(values):
    assert median(values) == median(list(values))


def test_two_values_have_no_interval():
    assert median([1.0, 3.0]) == (2.0, None, None, 2)


def test_an_interval_covers_the_median_of_the_population_as_often_as_it_says():
    dice = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        estimate = median(list(dice.lognormal(0, 0.5, 25)))
        covered += estimate.low <= 1.0 <= estimate.high
    assert covered >= 180  # 95 % of 200 are 190


@given(samples, st.floats(0.5, 2))
def test_the_change_of_a_scaled_sample_is_its_scale(values, scale):
    change = relative_change([value * scale for value in values], values)
    assert change.value == pytest.approx(scale - 1, abs=1e-9)


def test_a_change_needs_pairs_and_a_baseline_other_than_zero():
    with pytest.raises(ValueError, match="pairs are wanted"):
        relative_change([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="no relative change"):
        relative_change([1.0], [0.0])


def test_a_cdf_ends_at_one():
    x, share = cdf([3.0, 1.0, 2.0])
    assert list(x) == [1, 2, 3]
    assert share[-1] == 1


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        ([78, 79, 80, 77], "reproduced"),
        ([90, 91, 92, 93], "in direction only"),
        ([60, 61, 62, 63], "in direction only"),
        ([110, 111, 109, 108], "not reproduced"),
        ([80, 120, 90, 125], "not reproduced"),  # the interval has both sides of zero
    ],
)
def test_a_change_is_judged_by_number_then_by_direction(ours, verdict):
    judged = judge(claim(paper=-0.22, tolerance=0.05), rows(ours, [100, 100, 100, 100]))
    assert judged.verdict == verdict


def test_a_range_is_reproduced_by_a_median_within_it():
    assert judge(claim(statistic="median", paper=(3, 6)), rows([4, 5, 6], [20, 21, 22])).verdict == "reproduced"
    judged = judge(claim(statistic="median", paper=(3, 6)), rows([8, 8, 8], [20, 21, 22]))
    assert (judged.verdict, judged.difference) == ("in direction only", 2)


def test_a_direction_without_a_number_is_reproduced_by_the_direction():
    assert judge(claim(direction="greater"), rows([5, 6, 7], [1, 2, 3])).verdict == "reproduced"


def test_only_seeds_that_both_have_are_compared():
    judged = judge(claim(paper=-0.5), rows([50, 50, 1], [100, 100]))
    assert judged.ours is not None
    assert (judged.ours.n, judged.ours.value) == (2, -0.5)


def test_a_claim_without_rows_is_not_run_and_a_failed_run_is_no_row():
    assert judge(claim(), []).verdict == "not run"
    assert judge(claim(), rows([None, None], [1, 2])).verdict == "not run"
