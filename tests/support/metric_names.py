# SPDX-License-Identifier: Apache-2.0
"""Names and help texts of metrics, as Prometheus' own checker sees them."""

from __future__ import annotations

import subprocess

from programs import find

__all__ = ["lint"]


def lint(text: bytes) -> None:
    """Fails when promtool has anything to say about this exposition."""
    command = [find("promtool"), "check", "metrics"]
    done = subprocess.run(
        command, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=50
    )
    assert (done.returncode, done.stdout.decode()) == (0, "")
