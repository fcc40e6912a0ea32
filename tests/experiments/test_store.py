# SPDX-License-Identifier: Apache-2.0
"""A folder of results keeps what finished, whatever happens."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symphony_experiments.errors import ResultsError
from symphony_experiments.store import FORMAT, Finished, Results, run_key


def finished(key="0123456789abcdef", value=1.5):
    row = {"key": key, "variant": "a", "seed": 1, "job": "job", "cct_ms": value, "failure": None}
    return Finished(key, [row], {"overlap": [1.0, 2.0], "overlap.t_ms": [0.0, 1.0]}, "ff" * 32, {"cpu_s": 0.1})


def manifest(**more):
    return {"format": FORMAT, "scenario": {"name": "x"}, "code": "c", "runs": {}, **more}


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), plain, max_size=4))
def test_a_key_depends_on_the_values_of_a_case_and_not_on_their_order(case):
    shuffled = dict(reversed(list(case.items())))
    assert run_key(case, "c") == run_key(shuffled, "c")
    assert run_key(case, "c") != run_key({**case, "seed!": 1}, "c")
    assert run_key(case, "c") != run_key(case, "d")


def test_a_finished_run_reads_back_before_and_after_the_tables_are_written(tmp_path):
    results = Results(tmp_path)
    results.begin(manifest())
    run = finished()
    results.add(run)
    assert Results(tmp_path).finished() == {run.key: run}
    assert Results(tmp_path).rows() == run.rows
    results.complete(manifest(), [run])
    assert Results(tmp_path).rows() == run.rows
    assert Results(tmp_path).series() == {run.key: run.series}


def test_half_a_file_is_no_finished_run(tmp_path):
    results = Results(tmp_path)
    results.begin(manifest())
    results.add(finished())
    path = next((tmp_path / "runs").iterdir())
    path.write_bytes(path.read_bytes()[:-5])
    assert results.finished() == {}


def test_a_file_under_another_runs_name_is_no_finished_run(tmp_path):
    results = Results(tmp_path)
    results.begin(manifest())
    results.add(finished())
    path = next((tmp_path / "runs").iterdir())
    path.rename(path.with_name("fedcba9876543210.json"))
    assert results.finished() == {}


@pytest.mark.parametrize(
    ("change", "said"), [({"scenario": {"name": "y"}}, "another scenario"), ({"code": "d"}, "other code of the twin")]
)
def test_results_of_something_else_are_not_added_to(tmp_path, change, said):
    Results(tmp_path).begin(manifest())
    with pytest.raises(ResultsError, match=said):
        Results(tmp_path).begin(manifest(**change))


def test_the_same_rows_give_the_same_parquet_bytes(tmp_path):
    contents = []
    for name in ("a", "b"):
        results = Results(tmp_path / name)
        results.begin(manifest())
        results.complete(manifest(), [finished()])
        contents.append((tmp_path / name / "rows.parquet").read_bytes())
    assert contents[0] == contents[1]


def test_a_folder_that_holds_no_results_says_so(tmp_path):
    with pytest.raises(ResultsError, match="holds no results"):
        Results(tmp_path).manifest()
    (tmp_path / "manifest.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(ResultsError, match="not a manifest of format 1"):
        Results(tmp_path).manifest()
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(ResultsError, match="cannot read"):
        Results(tmp_path).manifest()


def test_a_folder_that_cannot_be_written_says_that_finished_runs_are_kept(tmp_path):
    results = Results(tmp_path)
    results.begin(manifest())
    (tmp_path / "rows.parquet").mkdir()
    with pytest.raises(ResultsError, match=r"cannot write .*rows\.parquet.*are kept"):
        results.complete(manifest(), [finished()])
