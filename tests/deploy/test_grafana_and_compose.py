# SPDX-License-Identifier: Apache-2.0
"""Grafana's provisioning and the compose files, structurally: neither Grafana nor Docker runs in the tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from symphony_dashboards.style import DATASOURCE_UID

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PROVISIONING = DEPLOY / "grafana" / "provisioning"
COMPOSE = ["compose.yaml", "compose.bridge.yaml"]


def read(path: Path) -> Any:
    """Content of a YAML file."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def services(name: str) -> dict[str, Any]:
    """Services of a compose file."""
    found: dict[str, Any] = read(DEPLOY / name)["services"]
    return found


def test_the_data_source_has_the_uid_that_dashboards_start_with() -> None:
    """One default Prometheus, with the fixed uid."""
    (source,) = read(PROVISIONING / "datasources/symphony.yaml")["datasources"]
    assert (source["uid"], source["type"], source["isDefault"]) == (DATASOURCE_UID, "prometheus", True)
    assert source["url"] == "$PROMETHEUS_URL"


def test_dashboards_are_provisioned_from_files_and_not_edited_in_place() -> None:
    """What somebody saves in the browser would be lost with the next start."""
    (provider,) = read(PROVISIONING / "dashboards/symphony.yaml")["providers"]
    assert provider["type"] == "file"
    assert provider["allowUiUpdates"] is False
    assert provider["options"]["path"] == "$SYMPHONY_DASHBOARDS"


@pytest.mark.parametrize("name", COMPOSE)
def test_grafana_gets_every_variable_that_provisioning_reads(name: str) -> None:
    """And the folders are mounted where the variables and Grafana look for them."""
    grafana = services(name)["grafana"]
    used = {
        variable
        for path in PROVISIONING.rglob("*.yaml")
        for variable in re.findall(r"^\s*\w+: \$(\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert used == {"PROMETHEUS_URL", "SYMPHONY_DASHBOARDS"}
    assert used <= grafana["environment"].keys()
    mounts = dict(volume.split(":")[:2] for volume in grafana["volumes"])
    assert mounts["./grafana/provisioning"] == "/etc/grafana/provisioning"
    assert mounts["../dashboards/json"] == grafana["environment"]["SYMPHONY_DASHBOARDS"]


@pytest.mark.parametrize("name", COMPOSE)
def test_mounted_paths_exist_and_are_read_only(name: str) -> None:
    """Containers read our files, they do not write them."""
    for service in services(name).values():
        for volume in service["volumes"]:
            if volume.startswith("."):
                source, _, mode = volume.split(":")
                assert (DEPLOY / source).exists(), volume
                assert mode == "ro", volume


@pytest.mark.parametrize("name", COMPOSE)
def test_images_are_pinned_to_a_release(name: str) -> None:
    """Panel types and provisioning change between versions; both files use the same ones."""
    images = {key: service["image"] for key, service in services(name).items()}
    assert images == {key: service["image"] for key, service in services(COMPOSE[0]).items()}
    assert all(re.fullmatch(r"[\w/]+:v?\d+\.\d+\.\d+", image) for image in images.values())


@pytest.mark.parametrize("name", COMPOSE)
def test_nothing_can_be_reached_from_other_machines(name: str) -> None:
    """Published on, or listening on, 127.0.0.1 only."""
    prometheus, grafana = services(name)["prometheus"], services(name)["grafana"]
    for service in (prometheus, grafana):
        assert ("network_mode" in service) != ("ports" in service)
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:")
    if "network_mode" in prometheus:
        assert "--web.listen-address=127.0.0.1:9090" in prometheus["command"]
        assert grafana["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"


@pytest.mark.parametrize("name", COMPOSE)
def test_grafana_has_no_default_password(name: str) -> None:
    """Compose refuses to start without one, and says so."""
    assert services(name)["grafana"]["environment"]["GF_SECURITY_ADMIN_PASSWORD"].startswith(
        "${GRAFANA_ADMIN_PASSWORD:?"
    )


def test_the_bridge_reaches_agents_through_the_hosts_gateway() -> None:
    """localhost in a container is the container: targets name the host."""
    prometheus = services("compose.bridge.yaml")["prometheus"]
    assert prometheus["extra_hosts"] == ["host.docker.internal:host-gateway"]
    mounts = dict(volume.split(":")[:2] for volume in prometheus["volumes"])
    assert mounts["./prometheus/targets-bridge"] == "/etc/prometheus/targets"
