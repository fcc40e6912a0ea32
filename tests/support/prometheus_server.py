# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus, configured as shipped but for its targets."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from programs import find

__all__ = ["free_port", "prometheus"]

DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _write_configuration(folder: Path, port: int, addresses: dict[str, str]) -> Path:
    """The shipped configuration with other targets (and its own port), and the shipped rules."""
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text(encoding="utf-8"))
    own = next(job for job in config["scrape_configs"] if job["job_name"] == "prometheus")
    own["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
    config["rule_files"] = [str(DEPLOY / "rules" / "*.yml")]
    targets = {
        "host-agents.yml": [addresses["host-agent"]],
        "switch-agents.yml": [address for name, address in addresses.items() if name.startswith("tor")],
        "nodes.yml": [address for name, address in addresses.items() if name == "node"],
    }
    (folder / "targets").mkdir()
    for name, hosts in targets.items():
        (folder / "targets" / name).write_text(yaml.safe_dump([{"targets": hosts}]), encoding="utf-8")
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return file


@contextlib.contextmanager
def prometheus(folder: Path, addresses: dict[str, str]) -> Iterator[str]:
    """URL of a Prometheus that scrapes these host:port: "host-agent", "tor0"..., "node"."""
    folder.mkdir()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                find("prometheus"),
                f"--config.file={_write_configuration(folder, port, addresses)}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=warn",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait_ready(url, process, folder / "log")
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
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
