#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the dashboards' JSON, or check with --check that the committed JSON is what the Python builds.

Needs the extra `dashboards` (grafana-foundation-sdk).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from symphony_dashboards.catalogue import DASHBOARDS, JSON_FOLDER, path_of, render
from symphony_dashboards.errors import DashboardError, DashboardFileError


def write() -> None:
    """Write all dashboards. Raises DashboardFileError when the folder cannot be written."""
    try:
        JSON_FOLDER.mkdir(exist_ok=True)
        for uid in DASHBOARDS:
            path_of(uid).write_text(render(uid), encoding="utf-8")
            print(path_of(uid))
    except OSError as error:
        raise DashboardFileError(f"cannot write {error.filename}: {error.strerror}") from error


def check() -> None:
    """Compare all dashboards with their files, and the files with the dashboards. Raises DashboardFileError."""
    unknown = {path.name for path in JSON_FOLDER.glob("*.json")} - {path_of(uid).name for uid in DASHBOARDS}
    if unknown:
        raise DashboardFileError(f"{JSON_FOLDER}/{min(unknown)} belongs to no dashboard: delete it")
    for uid in DASHBOARDS:
        path = path_of(uid)
        if not path.exists() or path.read_text(encoding="utf-8") != render(uid):
            raise DashboardFileError(f"{path} is not what the Python builds: run dashboards/build.py and commit it")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0, or 1 with one line on stderr."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file is out of date")
    arguments = parser.parse_args(argv)
    try:
        check() if arguments.check else write()
    except DashboardError as error:
        print(f"dashboards/build.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
