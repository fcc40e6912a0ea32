# SPDX-License-Identifier: Apache-2.0
"""The result file: its schema, its figures, and that it is written whole or not at all."""

from __future__ import annotations

import errno
import json
import os
from array import array
from pathlib import Path
from typing import Any

import pytest

from ring_bench.cli import main
from ring_bench.config import Config
from ring_bench.errors import ResultWriteError
from ring_bench.plan import Plan
from ring_bench.rank import Record
from ring_bench.results import RunResult, json_schema, percentiles, write_result
from ring_bench.summary import rows_of, totals_of

ROOT = Path(__file__).parents[2]


def run(path: Path, *arguments: str) -> dict[str, Any]:
    """Run on the loopback fabric and give the file."""
    with pytest.raises(SystemExit) as left:
        main(["--provider", "loopback", "-J", str(path), *arguments])
    assert left.value.code == 0
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def test_the_published_schema_is_the_one_of_the_models() -> None:
    """Refresh it with ``ring-bench --print-schema > docs/ring-bench.schema.json``."""
    published = json.loads((ROOT / "docs" / "ring-bench.schema.json").read_text())
    assert published == json_schema()
    assert {"schema_version", "provider", "tagging", "results"} <= set(published["required"])


def test_a_result_follows_the_schema_and_has_numbers_as_numbers(tmp_path: Path) -> None:
    data = run(tmp_path / "r.json", "--world", "4", "-b", "1K", "-e", "4K", "-f", "2", "-n", "3")
    RunResult.model_validate(data, strict=True)
    assert data["schema_version"] == 1
    assert data["complete"] is True
    assert data["failure"] is None
    first = data["results"][0]
    assert (first["size_bytes"], first["count"], first["iterations"], first["wrong"]) == (1024, 256, 3, 0)
    assert first["busbw_gbps"] == pytest.approx(first["algbw_gbps"] * 1.5)
    assert first["algbw_gbps"] == pytest.approx(1024 / (first["time_us"] * 1000))
    assert first["step_overlap"]["max"] >= 1
    assert len(first["cct_ns"]) == 1
    assert len(first["cct_ns"][0]) == 3


def test_no_environment_and_no_secret_is_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RING_BENCH_TOKEN", "hunter2-secret")
    monkeypatch.setenv("SYMPHONY_EVENTS_TOKEN", "hunter2-secret")
    path = tmp_path / "r.json"
    run(path, "--world", "2", "-b", "1K", "-n", "1")
    assert "hunter2" not in path.read_text()
    assert os.environ["PATH"] not in path.read_text()


def test_equal_seeds_give_equal_bytes_and_another_seed_differs(tmp_path: Path) -> None:
    def results(seed: str) -> str:
        data = run(tmp_path / "r.json", "--world", "4", "-b", "4K", "-n", "4", "--seed", seed)
        return json.dumps(data["results"], sort_keys=True)

    assert results("5") == results("5")
    assert results("5") != results("6")


def test_a_file_is_replaced_whole_or_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.json"
    data = run(path, "--world", "2", "-b", "1K", "-n", "1")
    result = RunResult.model_validate(data)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    before = path.read_bytes()
    with pytest.raises(ResultWriteError, match=r"r\.json: No space left on device"):
        write_result(result, path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["r.json"]


def test_a_full_disk_keeps_the_table_and_fails_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--provider", "loopback", "--world", "2", "-b", "1K", "-n", "1", "-J", "/dev/full"])
    assert left.value.code == 1
    printed = capsys.readouterr()
    assert "# Avg bus bandwidth    : " in printed.out
    assert "could not be written to /dev/full: No space left on device" in printed.err


def test_percentiles_are_nearest_rank() -> None:
    values = percentiles([float(value) for value in range(1, 101)])
    assert values is not None
    assert (values.p50, values.p95, values.p99, values.max) == (50, 95, 99, 100)
    one = percentiles([3.0])
    assert one is not None
    assert (one.p50, one.p99, one.max) == (3, 3, 3)
    assert percentiles([]) is None


def record(posts: list[int], dones: list[int], wrong: list[int]) -> Record:
    """Build a record of one ring."""
    return Record([array("q", posts)], [array("q", dones)], array("q", wrong))


def test_figures_follow_from_first_posts_and_last_completions() -> None:
    """Two ranks, one warm-up and two timed iterations of two steps, times by hand."""
    config = Config(world=2, minbytes=1000, maxbytes=1000, iters=2, warmup_iters=1)
    plan = Plan(config, mtu=4096, max_message=1 << 30)
    records = {
        0: record([0, 10, 20, 30, 40, 60], [10, 20, 35, 40, 60, 80], [0, 0, 3]),
        1: record([0, 10, 22, 35, 45, 60], [10, 20, 30, 45, 60, 90], [0, 0, 0]),
    }
    (row,) = rows_of(plan, records, complete=3)
    assert row.cct_ns == [[25, 50]]
    assert row.time_us == pytest.approx((90 - 20) / 2 / 1000)
    assert row.algbw_gbps == pytest.approx(1000 / 35)
    assert row.busbw_gbps == row.algbw_gbps
    assert row.wrong == 3
    assert row.step_us is not None
    # Steps sent by rank 1 and received by rank 0: 35-22, 40-35, 60-45, 80-60; the other way 10, 15, 20, 30.
    assert row.step_us.max == 0.030
    assert row.step_us.p50 == 0.015
    assert row.step_overlap is not None
    assert row.step_overlap.max == 2
    assert totals_of([row]).wrong == 3


def test_a_run_that_broke_off_counts_complete_iterations_only() -> None:
    config = Config(world=2, minbytes=1000, maxbytes=1000, iters=2, warmup_iters=1)
    plan = Plan(config, mtu=4096, max_message=1 << 30)
    records = {0: record([0, 10, 20, 30, 40, -1], [10, 20, 35, 40, -1, -1], [0, 0, -1])}
    (row,) = rows_of(plan, records, complete=2)
    assert row.iterations == 1
    assert row.cct_ns == [[20]]
    assert row.wrong == 0
    assert row.step_us is None
    assert row.step_overlap is None
    assert rows_of(plan, records, complete=1) == []
