# SPDX-License-Identifier: Apache-2.0
"""check_prometheus.py against a real Prometheus that scrapes the agents' real metrics objects."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import prometheus_server
import pytest

import check_prometheus

if TYPE_CHECKING:
    from simulated_testbed import SimulatedTestbed

SCRIPT = Path(check_prometheus.__file__)


@pytest.fixture
def prometheus(simulated: SimulatedTestbed, tmp_path: Path) -> Iterator[str]:
    """URL of a Prometheus that scrapes the simulated testbed as the shipped configuration says."""
    from simulated_testbed import serving

    with (
        serving(simulated) as exposition,
        prometheus_server.prometheus(tmp_path / "prometheus", exposition.addresses) as url,
    ):
        yield url


def ask(url: str, call: str, **arguments: str) -> Any:
    """Data of a call of Prometheus' HTTP API."""
    answer = httpx.get(f"{url}/api/v1/{call}", params=arguments, timeout=5).json()
    assert answer["status"] == "success", answer
    return answer["data"]


@pytest.mark.system
def test_every_query_finds_data_in_a_prometheus_configured_as_shipped(
    prometheus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All panels of all dashboards have series, job names stay job names, and rules evaluate."""
    code = check_prometheus.main(["--url", prometheus, "--window", "5m", "--wait", "40s", "--nics"])
    table = capsys.readouterr().out
    assert code == 0, table
    assert re.search(r"^ok +Step overlap +A +2 ", table, re.MULTILINE), table
    assert re.search(r"^\d+ queries: 0 invalid, 0 without the data they should have$", table, re.MULTILINE), table

    # honor_labels: the AllReduce job, not Prometheus' name for the scrape.
    jobs = {series["metric"]["job"] for series in ask(prometheus, "query", query="symphony_step_overlap")["result"]}
    assert jobs == {"off", "refined"}
    assert not ask(prometheus, "query", query='{exported_job!=""}')["result"]
    down = ask(prometheus, "query", query="up == 0")["result"]
    assert not down
    rules = [rule for group in ask(prometheus, "rules")["groups"] for rule in group["rules"]]
    assert {rule["health"] for rule in rules} <= {"ok", "unknown"}, rules

    # A query that Prometheus refuses, and one that finds nothing, are told apart and both fail the check.
    broken = {
        "panels": [
            {"title": "good", "targets": [{"refId": "A", "expr": "up"}]},
            {"title": "nonsense", "targets": [{"refId": "A", "expr": "rate(up)"}]},
            {"title": "nothing", "targets": [{"refId": "A", "expr": "symphony_no_such_metric"}]},
            {"title": "no NICs", "targets": [{"refId": "A", "expr": "node_no_such_metric"}]},
        ]
    }
    folder = tmp_path / "dashboards"
    folder.mkdir()
    (folder / "broken.json").write_text(json.dumps(broken), encoding="utf-8")
    result = subprocess.run(
        [sys.executable, str(SCRIPT), "--url", prometheus, "--dashboards", str(folder)],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert result.returncode == 1
    assert re.search(r"^ok +good ", result.stdout, re.MULTILINE)
    assert re.search(r"^INVALID +nonsense ", result.stdout, re.MULTILINE)
    assert "expected type range vector" in result.stdout
    assert re.search(r"^EMPTY +nothing ", result.stdout, re.MULTILINE)
    assert re.search(r"^- +no NICs ", result.stdout, re.MULTILINE)
    assert result.stdout.endswith("4 queries: 1 invalid, 1 without the data they should have\n")


def test_no_prometheus_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    """What happened, where, what to do."""
    url = f"http://127.0.0.1:{prometheus_server.free_port()}"
    assert check_prometheus.main(["--url", url]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"check_prometheus: no Prometheus answers at {url}: ")
    assert error.endswith("start it or give --url\n")
    assert error.count("\n") == 1


def test_a_server_that_is_no_prometheus_is_told_apart(
    simulated: SimulatedTestbed, capsys: pytest.CaptureFixture[str]
) -> None:
    """An agent's port given by mistake."""
    from simulated_testbed import serving

    with serving(simulated) as exposition:
        assert check_prometheus.main(["--url", f"http://{exposition.addresses['tor0']}"]) == 2
    assert "is no Prometheus: it answers targets with" in capsys.readouterr().err


def test_a_folder_without_dashboards_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing to check is no success."""
    assert check_prometheus.main(["--dashboards", str(tmp_path)]) == 2
    assert f"no dashboards in {tmp_path}" in capsys.readouterr().err
