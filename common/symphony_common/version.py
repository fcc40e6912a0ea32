# SPDX-License-Identifier: Apache-2.0
"""The version of the testbed: its programs are installed together."""

from __future__ import annotations

from importlib import metadata

__all__ = ["version"]


def version() -> str:
    """Give the installed version, or "unknown" in a bare source tree."""
    try:
        return metadata.version("symphony-testbed")
    except metadata.PackageNotFoundError:
        return "unknown"
