# SPDX-License-Identifier: Apache-2.0
"""The step tag's codec and its serial arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ring_bench.tag import (
    SPORT_BASE,
    StepTag,
    TagLayout,
    flow_label_of_sport,
    serial_diff,
    serial_gt,
    serial_lt,
    serial_max,
    serial_min,
    sport_of_flow_label,
)

layouts = st.integers(2, 14).map(TagLayout)


@st.composite
def tagged(draw: st.DrawFn) -> tuple[TagLayout, int, int]:
    """A layout, a job tag it can carry, and a step of any size."""
    layout = draw(layouts)
    return layout, draw(st.integers(0, (1 << layout.job_tag_bits) - 1)), draw(st.integers(0, 1 << 40))


@given(tagged())
def test_a_port_decodes_to_the_job_tag_and_the_step_modulo_the_layout(
    case: tuple[TagLayout, int, int],
) -> None:
    layout, job_tag, step = case
    sport = layout.encode(job_tag, step)
    assert 0xC000 <= sport <= 0xFFFF
    assert layout.decode(sport) == StepTag(job_tag, step % layout.modulus)


@given(tagged(), st.integers(SPORT_BASE, 0xFFFF))
def test_classify_matches_the_ports_of_the_job_and_no_others(case: tuple[TagLayout, int, int], sport: int) -> None:
    layout, job_tag, step = case
    value, mask = layout.classify(job_tag)
    assert layout.encode(job_tag, step) & mask == value
    assert (sport & mask == value) == (layout.decode(sport).job_tag == job_tag)


@pytest.mark.parametrize("sport", [0, 4791, SPORT_BASE - 1, 0x10000])
def test_a_port_outside_the_entropy_range_has_no_tag(sport: int) -> None:
    with pytest.raises(ValueError, match="49152-65535"):
        TagLayout().decode(sport)


@pytest.mark.parametrize("bits", [1, 0, 15])
def test_step_bits_that_leave_no_arithmetic_or_no_port_are_refused(bits: int) -> None:
    with pytest.raises(ValueError, match="step_bits"):
        TagLayout(bits)


def test_a_job_tag_that_does_not_fit_is_refused_with_its_range() -> None:
    with pytest.raises(ValueError, match="0 to 15 with 10 step bits, not 16"):
        TagLayout().encode(16, 0)
    with pytest.raises(ValueError, match="0 to 0 with 14"):
        TagLayout(14).classify(1)


def test_the_default_layout_is_the_one_in_the_design() -> None:
    assert TagLayout().encode(5, 1024 + 7) == 0xC000 | 5 << 10 | 7


@given(st.integers(SPORT_BASE, 0xFFFF))
def test_every_port_has_a_flow_label_that_is_not_zero_and_folds_back(sport: int) -> None:
    label = flow_label_of_sport(sport)
    assert 0 < label < 1 << 20
    assert sport_of_flow_label(label) == sport


def test_the_fold_is_the_one_of_rdma_core() -> None:
    assert sport_of_flow_label(0xFFFFF) == 0xC000 | 0x3FFF ^ 0x3F
    with pytest.raises(ValueError, match="20 bits"):
        sport_of_flow_label(1 << 20)


@given(st.integers(2, 14), st.integers(0, 1 << 30), st.data())
def test_serial_distance_survives_wrapping(bits: int, base: int, data: st.DataObject) -> None:
    distance = data.draw(st.integers(-(1 << bits - 1) + 1, (1 << bits - 1) - 1))
    a = (base + distance) % (1 << bits)
    assert serial_diff(a, base % (1 << bits), bits) == distance
    assert serial_lt(a, base, bits) == (distance < 0)
    assert serial_gt(a, base, bits) == (distance > 0)


def test_half_the_circle_counts_as_behind_both_ways() -> None:
    assert serial_diff(512, 0) == serial_diff(0, 512) == -512
    assert serial_lt(512, 0)
    assert serial_lt(0, 512)
    assert not serial_gt(512, 0)


@given(st.integers(0, 1 << 20), st.lists(st.integers(0, 511), min_size=1))
def test_serial_min_and_max_find_the_ends_of_a_window_wherever_it_wraps(base: int, lags: list[int]) -> None:
    values = [(base + lag) % 1024 for lag in lags]
    assert serial_min(values) == (base + min(lags)) % 1024
    assert serial_max(values) == (base + max(lags)) % 1024


def test_the_smallest_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no steps"):
        serial_min([])
