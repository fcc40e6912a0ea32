# SPDX-License-Identifier: Apache-2.0
"""The shipped Prometheus configuration and rules, checked by Prometheus' own tools and against the agents."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from programs import run
from simulated_testbed import SimulatedTestbed, names_in

from symphony_dashboards.prometheus import duration_s
from symphony_dashboards.queries import metric_names
from symphony_dashboards.series import SCRAPE_INTERVAL_S

HERE = Path(__file__).resolve().parent
DEPLOY = HERE.parents[1] / "deploy"
PROMETHEUS = DEPLOY / "prometheus"


def read(path: Path) -> Any:
    """Content of a YAML file."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def rules() -> list[dict[str, Any]]:
    """All rules of all groups."""
    return [
        rule
        for path in sorted((PROMETHEUS / "rules").glob("*.yml"))
        for group in read(path)["groups"]
        for rule in group["rules"]
    ]


def targets(folder: str, name: str) -> list[str]:
    """Addresses of a target file."""
    return [address for group in read(PROMETHEUS / folder / name) for address in group["targets"]]


def test_promtool_accepts_configuration_and_rules() -> None:
    """As Prometheus itself would at its start."""
    output = run("promtool", "check", "config", str(PROMETHEUS / "prometheus.yml"))
    assert f"{len(rules())} rules found" in output


def test_rules_fire_when_they_should() -> None:
    """promtool's unit tests of recording rules and alerts."""
    run("promtool", "test", "rules", "symphony_rules_test.yml", cwd=str(HERE))


def test_every_rule_has_a_unit_test() -> None:
    """An alert that nobody has seen firing is a guess."""
    text = (HERE / "symphony_rules_test.yml").read_text(encoding="utf-8")
    tested_by_alert = {"job:symphony_step_overlap_host:max", "job:symphony_job_enabled_asked:max"}
    for rule in rules():
        name = rule.get("alert") or rule["record"]
        assert name in text or name in tested_by_alert, name


def test_rules_read_metrics_that_are_exported(tmp_path: Path) -> None:
    """Of the agents, of node_exporter, or recorded by another rule."""
    simulated = SimulatedTestbed(tmp_path)
    simulated.advance()
    exported = {"up", *(rule["record"] for rule in rules() if "record" in rule)}
    exported |= names_in(simulated.host_text()) | names_in(simulated.node_text())
    exported |= names_in(simulated.switch_text("tor0"))
    simulated.close()
    for rule in rules():
        assert metric_names(rule["expr"]) <= exported, rule


def test_alerts_say_how_bad_it_is_and_where_to_look() -> None:
    """Severity, summary and description."""
    for rule in rules():
        if "alert" in rule:
            assert rule["labels"]["severity"] in ("info", "warning", "critical")
            assert rule["annotations"]["summary"]
            assert rule["annotations"]["description"].endswith((".", "?"))


def test_one_scrape_interval_for_all_jobs_and_for_grafana() -> None:
    """$__rate_interval is made of the data source's timeInterval: were a job scraped less often, panels were empty."""
    config = read(PROMETHEUS / "prometheus.yml")
    interval = config["global"]["scrape_interval"]
    assert not any("scrape_interval" in job for job in config["scrape_configs"])
    datasources = read(DEPLOY / "grafana/provisioning/datasources/symphony.yaml")["datasources"]
    assert [source["jsonData"]["timeInterval"] for source in datasources] == [interval]
    assert duration_s(interval) == SCRAPE_INTERVAL_S
    assert duration_s(config["global"]["scrape_timeout"]) <= duration_s(interval)


def test_the_agents_label_job_wins_over_prometheus_own() -> None:
    """Else the AllReduce job would be called exported_job, and every dashboard would be empty."""
    jobs = {job["job_name"]: job for job in read(PROMETHEUS / "prometheus.yml")["scrape_configs"]}
    assert jobs["host-agent"]["honor_labels"] is True
    assert jobs["switch-agent"]["honor_labels"] is True


@pytest.mark.parametrize(("folder", "host"), [("targets", "127.0.0.1"), ("targets-bridge", "host.docker.internal")])
def test_targets_are_the_agents_default_ports(folder: str, host: str) -> None:
    """host-agent and the four ToRs of the twin; no node_exporter there."""
    from host_agent.cli import DEFAULT_LISTEN

    assert targets(folder, "host-agents.yml") == [f"{host}:{DEFAULT_LISTEN.rpartition(':')[2]}"]
    assert targets(folder, "switch-agents.yml") == [f"{host}:{9401 + tor}" for tor in range(4)]
    assert targets(folder, "nodes.yml") == []


def test_every_target_file_is_read_by_a_scrape_job(tmp_path: Path) -> None:
    """And Prometheus finds them beside its configuration, wherever that is copied to."""
    config = read(PROMETHEUS / "prometheus.yml")
    files = [
        file
        for job in config["scrape_configs"]
        for discovery in job.get("file_sd_configs", ())
        for file in discovery["files"]
    ]
    for folder in ("targets", "targets-bridge"):
        names = {f"targets/{path.name}" for path in (PROMETHEUS / folder).iterdir()}
        assert names == set(files)
    copy = tmp_path / "etc"
    shutil.copytree(PROMETHEUS, copy)
    run("promtool", "check", "config", str(copy / "prometheus.yml"))
