# SPDX-License-Identifier: Apache-2.0
"""Sizes, bandwidths, element types and the data that make a wrong sum show."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ring_bench.dtypes import (
    DATATYPES,
    PATTERN_SLACK,
    REDUCTIONS,
    count_wrong,
    datatype_name,
    exact_ranks,
    expected,
    pattern,
    pattern_offset,
    poison,
)
from ring_bench.schedule import Collective
from ring_bench.units import algbw_gbps, busbw_factor, format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("17", 17), ("1K", 1024), ("32M", 1 << 25), ("2g", 2 << 30), ("1GiB", 1 << 30)]
)
def test_sizes_have_binary_suffixes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "1.5M", "M", "1X", "1 2"])
def test_a_size_that_does_not_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="whole number"):
        parse_size(text)


@given(st.integers(0, 1 << 50))
def test_a_written_size_reads_back(size: int) -> None:
    assert parse_size(format_size(size)) == size


def test_bandwidths_are_decimal_gigabytes_with_the_factor_of_nccl_tests() -> None:
    assert algbw_gbps(10**9, 10**9) == 1.0
    assert algbw_gbps(1, 0) is None
    assert busbw_factor(Collective.ALL_REDUCE, 4) == 1.5
    assert busbw_factor(Collective.ALL_REDUCE, 1) == 0.0
    assert busbw_factor(Collective.ALL_GATHER, 4) == busbw_factor(Collective.REDUCE_SCATTER, 4) == 0.75
    assert busbw_factor(Collective.BROADCAST, 4) == 1.0


def test_aliases_name_the_same_types_as_nccl_tests() -> None:
    assert datatype_name("float32") == "float"
    assert datatype_name("double") == "double"
    with pytest.raises(ValueError, match="known: int8"):
        datatype_name("bf17")


@pytest.mark.parametrize("datatype", DATATYPES)
@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions_are_exact_in_every_order(datatype: str, op: str) -> None:
    patterns = [pattern(datatype, op, rank, 500, seed=7) for rank in range(64)]
    assert exact_ranks(datatype) >= 64
    forward = expected(datatype, op, patterns)
    assert np.array_equal(forward, expected(datatype, op, reversed(patterns)))
    if op == "sum" and np.dtype(DATATYPES[datatype]).itemsize > 1:
        assert np.array_equal(forward, np.sum([p.astype(np.float64) for p in patterns], axis=0))


def test_ranks_seeds_and_iterations_have_different_data() -> None:
    base = pattern("float", "sum", 0, 1000, seed=1)
    assert np.count_nonzero(base != pattern("float", "sum", 1, 1000, seed=1)) > 800
    assert np.count_nonzero(base != pattern("float", "sum", 0, 1000, seed=2)) > 800
    assert np.count_nonzero(base[: 1000 - 61] != base[61:]) > 800


def test_offsets_of_all_iterations_stay_within_the_slack_and_differ_between_neighbours() -> None:
    offsets = [pattern_offset(iteration) for iteration in range(1000)]
    assert max(offsets) <= PATTERN_SLACK
    assert all(len(set(offsets[i : i + 200])) == 200 for i in range(800))


@pytest.mark.parametrize("datatype", DATATYPES)
def test_poison_passes_for_no_small_result(datatype: str) -> None:
    buffer = np.zeros(10, dtype=DATATYPES[datatype])
    poison(buffer)
    for value in range(-1, 100):
        assert count_wrong(buffer, np.full(10, value).astype(DATATYPES[datatype])) == 10
