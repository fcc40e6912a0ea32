#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the dashboards' JSON, or check with --check that the committed JSON is what the Python builds.

Needs the extra `dashboards` (grafana-foundation-sdk).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from symphony_dashboards.catalogue import JSON_FOLDER, check, write
from symphony_dashboards.errors import DashboardError


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0, or 1 with one line on stderr."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file is out of date")
    parser.add_argument("--folder", type=Path, default=JSON_FOLDER, metavar="DIR", help="default: the committed one")
    arguments = parser.parse_args(argv)
    try:
        if arguments.check:
            check(arguments.folder)
        else:
            print(*write(arguments.folder), sep="\n")
    except DashboardError as error:
        print(f"dashboards/build.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
