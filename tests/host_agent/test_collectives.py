# SPDX-License-Identifier: Apache-2.0
"""Live figures against ring-bench's: the same run, the same names, the same numbers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from host_agent.collectives import CollectiveLog
from ring_bench.cli import main


class _Listener(BaseHTTPRequestHandler):
    """Keeps the body of each report."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.reports.append(json.loads(body))  # type: ignore[attr-defined]
        self.send_response(202)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@contextmanager
def listening() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Where to report to, and the reports so far."""
    with HTTPServer(("127.0.0.1", 0), _Listener) as server:
        reports: list[dict[str, Any]] = []
        server.reports = reports  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/api/v1/jobs/1/events", reports
        finally:
            server.shutdown()
            thread.join()


def reported_run(folder: Path, *options: str) -> tuple[list[list[Any]], dict[str, Any]]:
    """A run of ring-bench on the loopback fabric: its collectives as reported, and its result."""
    path = folder / "result.json"
    with listening() as (url, reports):
        with pytest.raises(SystemExit) as left:
            main(["--provider", "loopback", "--events", url, "-J", str(path), *options])
        assert left.value.code == 0
    return [row for report in reports for row in report["collectives"]], json.loads(path.read_text())


def filled(collectives: list[list[Any]], **options: Any) -> CollectiveLog:
    """A log of these reports."""
    log = CollectiveLog(**options)
    for row in collectives:
        log.add(*row)
    return log


def agree(figures: dict[str, Any], result: dict[str, Any]) -> None:
    """The figures are those of the result's only row."""
    (row,) = result["results"]
    assert figures["collectives"] == sum(map(len, row["cct_ns"]))
    for name in ("p50", "p95", "p99", "max"):
        assert figures[f"{name}_s"] == pytest.approx(row["cct_us"][name] / 1e6, rel=1e-12), name
    assert figures["busbw_gbps"] == pytest.approx(row["busbw_gbps"], rel=1e-9)


SPLIT = ("--world", "8", "--split", "MOD 2", "-b", "64K", "-e", "64K", "-n", "10")


@pytest.mark.parametrize("warmup", [0, 3])
def test_live_figures_are_ring_benchs(tmp_path: Path, warmup: int) -> None:
    """From the reports alone, without the result: nearest rank, pipelined iterations, warm-up left out."""
    collectives, result = reported_run(tmp_path, *SPLIT, "-w", str(warmup))
    log = filled(collectives, warmup=warmup)
    assert not log.summary()["final"]
    agree(log.summary(), result)
    log.settle()
    assert sum(log.durations.counts) == 20
    assert log.durations.total_s == pytest.approx(sum(map(sum, result["results"][0]["cct_ns"])) / 1e9)


def test_iterations_overlap_so_that_a_collective_by_itself_is_slower(tmp_path: Path) -> None:
    """Why there are two figures, and why they have two names."""
    collectives, _ = reported_run(tmp_path, *SPLIT, "-w", "0")
    figures = filled(collectives).summary()
    assert figures["busbw_gbps_newest"] < 0.99 * figures["busbw_gbps"]


def test_several_sizes_give_the_mean_of_their_rows(tmp_path: Path) -> None:
    """As in ring-bench's last line, "Avg bus bandwidth"."""
    collectives, result = reported_run(
        tmp_path, "--world", "4", "-b", "16K", "-e", "64K", "-f", "2", "-n", "5", "-w", "0"
    )
    assert len(result["results"]) == 3
    assert filled(collectives).summary()["busbw_gbps"] == pytest.approx(result["totals"]["avg_busbw_gbps"], rel=1e-9)


def test_the_result_has_the_last_word(tmp_path: Path) -> None:
    """Warm-up that was not known here, and reports that were lost, make no difference once it is there."""
    collectives, result = reported_run(tmp_path, *SPLIT, "-w", "3")
    log = filled(collectives[:-5])
    log.conclude(result)
    assert log.summary()["final"]
    agree(log.summary(), result)


def test_a_result_of_something_else_changes_nothing() -> None:
    """Reporters may send what they like."""
    log = filled([[0, 0, 0, 100, 1.0]])
    log.conclude({"schema_version": 1})
    figures = log.summary()
    assert (figures["final"], figures["p50_s"]) == (False, pytest.approx(100e-9))


def test_what_is_not_known_is_none() -> None:
    """Before the first report nothing is 0."""
    figures = CollectiveLog().summary()
    assert figures.pop("collectives") == 0
    assert not figures.pop("final")
    assert set(figures.values()) == {None}
