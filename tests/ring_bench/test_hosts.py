# SPDX-License-Identifier: Apache-2.0
"""Lists of hosts, Slurm's short form included."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ring_bench.errors import UsageError
from ring_bench.hosts import expand_hosts, parse_hosts


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n1, n2", ["n1", "n2"]),
        ("node[01,03]", ["node01", "node03"]),
        ("node[08-10,2]", ["node08", "node09", "node10", "node2"]),
        ("gpu[1-2]-ib0,10.0.0.7", ["gpu1-ib0", "gpu2-ib0", "10.0.0.7"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
    ],
)
def test_slurms_short_form_is_written_out(text: str, names: list[str]) -> None:
    assert expand_hosts(text) == names


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "n1,",
        "n1,,n2",
        "node[01",
        "node]",
        "node[]",
        "node[a-b]",
        "node[3-1]",
        "node[²]",
        "n[[1]]",
        "[::1]",
        "n1..lab",
    ],
)
def test_what_is_no_list_is_refused_not_split_somewhere(text: str) -> None:
    with pytest.raises(ValueError, match=r"no list of hosts|in brackets stand|no host name"):
        expand_hosts(text)


def test_a_list_without_end_is_refused_before_it_fills_memory() -> None:
    for text in ("n[0-999999999999]", "n[0-9999]m[0-9999]"):
        with pytest.raises(ValueError, match=r"in brackets stand|more than 65536"):
            expand_hosts(text)


@given(st.lists(st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True), min_size=1, max_size=6))
def test_a_plain_list_stays_as_it_is(names: list[str]) -> None:
    assert expand_hosts(",".join(names)) == names


def test_numbers_count_hosts_and_nothing_else_is_a_number() -> None:
    assert parse_hosts("0,h1,[2-3]") == (0, "h1", 2, 3)
    with pytest.raises(UsageError, match="--hosts: '²' is no host name"):
        parse_hosts("²,1")
