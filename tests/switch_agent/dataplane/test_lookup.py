# SPDX-License-Identifier: Apache-2.0
"""Look-up tables: they fit their tables, cover their keys once, and keep the probability within 5 %."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switch_agent.dataplane.constants import LOG_FRACTION
from switch_agent.dataplane.errors import LookupTableError
from switch_agent.dataplane.lookup import LookupTable, TernaryEntry, dense_array, log2_fixed, lookup_tables
from switch_agent.dataplane.params import SymphonyParams
from switch_agent.dataplane.pipeline import install_lookup, mark_threshold, new_lookups

SIZES = {"log2_psn": 1024, "log2_psn_rec": 1024, "log2_alpha": 512, "exp2": 1024}
TABLES = [pytest.param(table, id=name) for name, table in lookup_tables().items()]
LOOKUPS = new_lookups(1)


def tcam(table: LookupTable, key: int) -> int:
    """Look a key up as a TCAM does."""
    for entry in table.entries:
        if key & entry.mask == entry.value:
            return entry.data
    return table.default


def dense_index(table: LookupTable, key: int) -> int:
    """Return where the dense array holds a key: a bucket of 1/64 octave base for PSN words, else the key."""
    if table.key_bits == 16:
        return key
    psn = key >> 8
    if psn == 0:
        return 0
    octave = psn.bit_length() - 1
    return 1 + 64 * octave + ((psn << 6 >> octave) - 64)


def test_sizes_are_those_of_the_program() -> None:
    """A size here must change together with the P4 text."""
    assert {name: table.size for name, table in lookup_tables().items()} == SIZES


@pytest.mark.parametrize("table", TABLES)
def test_entries_fit_the_table_and_do_not_overlap(table: LookupTable) -> None:
    """As many as the TCAM takes, data as wide as the action's, and no key matches two entries."""
    assert len(table.entries) <= table.size
    span = 1 << table.data_bits
    low, high = (-span // 2, span // 2) if table.signed else (0, span)
    key_max = (1 << table.key_bits) - 1
    ranges = []
    for entry in table.entries:
        free = key_max & ~entry.mask
        assert free & (free + 1) == 0, "masks are prefixes"
        assert entry.value & free == 0
        assert low <= entry.data < high
        ranges.append((entry.value, entry.value + free))
    ranges.sort()
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(ranges))


@pytest.mark.parametrize("table", TABLES)
def test_dense_array_equals_a_tcam_look_up(table: LookupTable) -> None:
    """The array built from the entries, in any order, gives for each key what the TCAM gives."""
    entries = list(table.entries)
    random.Random(4).shuffle(entries)
    dense = dense_array(table.name, entries, table.default)
    np.testing.assert_array_equal(dense, getattr(LOOKUPS, table.name)[0])
    rng = random.Random(5)
    for _ in range(3000):
        key = rng.getrandbits(rng.randrange(1, table.key_bits + 1))
        key &= ~0xFF if table.key_bits == 32 else ~0
        assert dense[dense_index(table, key)] == tcam(table, key)


def test_raw_words_and_signed_logarithms_give_the_same_array() -> None:
    """BF-Runtime hands a control plane's -1701 back as 63835."""
    table = lookup_tables()["log2_psn_rec"]
    raw = [TernaryEntry(e.value, e.mask, e.priority, e.data & 0xFFFF) for e in table.entries]
    np.testing.assert_array_equal(dense_array(table.name, raw, table.default), getattr(LOOKUPS, table.name)[0])


def test_lower_priority_number_wins_where_entries_overlap() -> None:
    """Also for a mask that is no prefix: all odd alphas."""
    entries = [
        TernaryEntry(0x0001, 0x0001, 5, 11),
        TernaryEntry(0x0000, 0x0000, 9, 22),
        TernaryEntry(0x0003, 0xFFFF, 1, 33),
    ]
    dense = dense_array("log2_alpha", entries, 44)
    assert dense[[1, 2, 3, 65535]].tolist() == [11, 22, 33, 11]


def test_no_entries_leave_the_default_everywhere() -> None:
    """An emptied exp2 table switches marking off."""
    lookups = new_lookups(2)
    install_lookup(lookups, 1, "exp2", [], 0)
    entry = np.array(SymphonyParams(k=1.0).to_entry().values(), np.int64)
    assert mark_threshold(lookups, 1, entry, 100 << 8, 10 << 8, 1) == 0
    assert mark_threshold(lookups, 0, entry, 100 << 8, 10 << 8, 1) == 0xFFFFFFFF


@pytest.mark.parametrize(
    ("name", "entry", "words"),
    [
        ("log2_beta", TernaryEntry(0, 0, 0, 0), "log2_beta.*no such table.*log2_alpha"),
        ("log2_alpha", TernaryEntry(0x10000, 0xFFFF, 0, 0), "log2_alpha: value 0x10000 .* key of 16 bits"),
        ("log2_psn", TernaryEntry(0, 1 << 32, 0, 0), "log2_psn: .* mask 0x100000000 .* key of 32 bits"),
        ("log2_psn", TernaryEntry(0, 0, 0, 1 << 16), "log2_psn: datum 65536 does not fit 16 bits"),
        ("exp2", TernaryEntry(0, 0, 0, -1), "exp2: datum -1 does not fit 32 bits"),
    ],
)
def test_entries_that_do_not_fit_are_refused_by_name(name: str, entry: TernaryEntry, words: str) -> None:
    """The message names table, value and width."""
    with pytest.raises(LookupTableError, match=words):
        dense_array(name, [entry], 0)


def test_worst_errors_of_all_tables_add_up_to_less_than_5_percent() -> None:
    """A bound for every PSN, psn_rec, alpha and k: errors in octaves add; log2(0.95) < sum < log2(1.05).

    Inside an entry the error is largest at its first or last value, because the logarithm is monotone.
    """
    total = 0.5 / LOG_FRACTION  # rounding of k
    for name in ("log2_psn", "log2_psn_rec", "log2_alpha"):
        table = lookup_tables()[name]
        shift = 8 if table.key_bits == 32 else 0
        total += max(
            abs(abs(entry.data) / LOG_FRACTION - math.log2(value))
            for entry in table.entries
            for first in [entry.value >> shift]
            for value in (first, first + ((1 << table.key_bits) - 1 - entry.mask >> shift))
        )
    lg = np.arange(round(math.log2(1e-4 * 0.95) * LOG_FRACTION), 0)
    thresholds = LOOKUPS.exp2[0, lg & 0xFFFF]
    total += np.abs(np.log2(thresholds / 2**32) - lg / LOG_FRACTION).max()
    assert total < math.log2(1.05)


@settings(max_examples=500)
@given(
    psn=st.integers(0, (1 << 23) - 1),
    rec=st.integers(1, (1 << 23) - 1),
    alpha=st.integers(1, 65535),
    k=st.floats(1e-6, 1.0),
    floor=st.none() | st.floats(1 / 1024, 1024.0),
)
def test_threshold_is_within_5_percent_of_equation_4(
    psn: int, rec: int, alpha: int, k: float, floor: float | None
) -> None:
    """Any values a switch can meet; P from 1e-4 to 1, and never more than 5 % above 1e-4 below that."""
    ratio = max(1, psn) / rec
    exact = min(1.0, k * alpha * (ratio if floor is None else max(floor, ratio)))
    entry = np.array(SymphonyParams(k=k, ratio_floor=floor).to_entry().values(), np.int64)
    probability = mark_threshold(LOOKUPS, 0, entry, psn << 8, rec << 8, alpha) / 2**32
    if exact >= 1e-4:
        assert probability == pytest.approx(exact, rel=0.05)
    else:
        assert 0 <= probability <= 1.05e-4


def test_log2_fixed_rounds_to_the_nearest_1_256_octave() -> None:
    """k = 0.01 is -1701."""
    assert [log2_fixed(value) for value in (1, 2, 0.5, 0.01, 3)] == [0, 256, -256, -1701, 406]
