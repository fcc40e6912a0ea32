# SPDX-License-Identifier: Apache-2.0
"""check_prometheus.py against a real Prometheus that scrapes the agents' real metrics objects."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml
from programs import find

import check_prometheus

if TYPE_CHECKING:
    from simulated_testbed import SimulatedTestbed

DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"
SCRIPT = Path(check_prometheus.__file__)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def write_configuration(folder: Path, port: int, addresses: dict[str, str]) -> Path:
    """The shipped configuration with other targets (and its own port), and the shipped rules."""
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text(encoding="utf-8"))
    own = next(job for job in config["scrape_configs"] if job["job_name"] == "prometheus")
    own["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
    config["rule_files"] = [str(DEPLOY / "rules" / "*.yml")]
    targets = {
        "host-agents.yml": [addresses["host-agent"]],
        "switch-agents.yml": [address for name, address in addresses.items() if name.startswith("tor")],
        "nodes.yml": [addresses["node"]],
    }
    (folder / "targets").mkdir()
    for name, hosts in targets.items():
        (folder / "targets" / name).write_text(yaml.safe_dump([{"targets": hosts}]), encoding="utf-8")
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return file


@pytest.fixture
def prometheus(simulated: SimulatedTestbed, tmp_path: Path) -> Iterator[str]:
    """URL of a Prometheus that scrapes the simulated testbed as the shipped configuration says."""
    from simulated_testbed import serving

    folder = tmp_path / "prometheus"
    folder.mkdir()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with serving(simulated) as exposition, (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                find("prometheus"),
                f"--config.file={write_configuration(folder, port, exposition.addresses)}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=warn",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_ready(url, process, folder / "log")
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until Prometheus says that it is ready."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        assert process.poll() is None, f"prometheus ended: {log.read_text(encoding='utf-8')}"
        try:
            if httpx.get(f"{url}/-/ready", timeout=1).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.05)
    pytest.fail(f"prometheus is not ready: {log.read_text(encoding='utf-8')}")


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
    url = f"http://127.0.0.1:{free_port()}"
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
