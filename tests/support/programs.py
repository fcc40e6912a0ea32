# SPDX-License-Identifier: Apache-2.0
"""Programs of other packages that tests run. A missing one fails the test: what is shipped must be checked."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

__all__ = ["find", "run"]

PACKAGES = {
    "chromium": "chromium",
    "mpirun": "openmpi-bin",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "systemd-analyze": "systemd",
    "tshark": "tshark",
}


def find(name: str) -> str:
    """Path of a program. Without it the test fails, or is skipped where SYMPHONY_SKIP_MISSING_TOOLS=1 says so."""
    path = shutil.which(name)
    if path is None:
        text = f"{name} is missing: apt-get install --no-install-recommends {PACKAGES[name]}"
        if os.environ.get("SYMPHONY_SKIP_MISSING_TOOLS") == "1":
            pytest.skip(text)
        pytest.fail(text)
    return path


def run(name: str, *arguments: str, cwd: str | None = None) -> str:
    """Output of a program (both streams); the test fails with it when the program does."""
    result = subprocess.run(
        [find(name), *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=50,
        check=False,
    )
    assert result.returncode == 0, f"{name} {' '.join(arguments)}:\n{result.stdout}"
    return result.stdout
