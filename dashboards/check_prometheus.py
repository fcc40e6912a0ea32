#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Evaluate every query of the committed dashboards in a running Prometheus.

Prints a table (panel, query, series) and exits with 1 when a query is invalid, or when one that should have
data has none in the window; with 2 when Prometheus cannot be asked. Variables are put to All. Queries that
read NIC counters need node_exporter, so without --nics they may be empty.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from symphony_dashboards.errors import DashboardError, DashboardFileError, PrometheusError
from symphony_dashboards.prometheus import Finding, Prometheus, check_queries, duration_s
from symphony_dashboards.queries import load, queries_of

JSON_FOLDER = Path(__file__).resolve().parent / "json"
RETRY_S = 0.5


def print_table(findings: Sequence[Finding]) -> None:
    """One line per query; what is wrong stands in the first column."""
    width = max(len(finding.query.panel) for finding in findings)
    print(f"{'':7}  {'panel':{width}}  ref  series  query")
    for finding in findings:
        state = "ok" if finding.good else "INVALID" if finding.error else "EMPTY"
        if finding.good and not finding.series:
            state = "-"
        query = finding.query
        print(f"{state:7}  {query.panel:{width}}  {query.ref:3}  {finding.series:6}  {query.expr}")
        if finding.error:
            print(f"{'':7}  {finding.error}")


def check(arguments: argparse.Namespace) -> int:
    """Check once, or until all is good or --wait is over. Returns the exit code."""
    paths = sorted(arguments.dashboards.glob("*.json"))
    if not paths:
        raise DashboardFileError(f"no dashboards in {arguments.dashboards}: run dashboards/build.py")
    queries = [query for path in paths for query in queries_of(load(path))]
    deadline = time.monotonic() + arguments.wait
    with Prometheus(arguments.url) as prometheus:
        while True:
            late = time.monotonic() >= deadline
            try:
                findings = check_queries(prometheus, queries, window_s=arguments.window, nics=arguments.nics)
            except PrometheusError:  # not up yet, or no targets yet
                if late:
                    raise
            else:
                bad = [finding for finding in findings if not finding.good]
                if late or not bad or any(finding.error for finding in bad):
                    break
            time.sleep(RETRY_S)
    print_table(findings)
    invalid = sum(finding.error is not None for finding in bad)
    print(f"{len(findings)} queries: {invalid} invalid, {len(bad) - invalid} without the data they should have")
    return 1 if bad else 0


def _duration(text: str) -> float:
    try:
        return duration_s(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:9090", help="Prometheus (default %(default)s)")
    parser.add_argument("--window", type=_duration, default=900.0, metavar="15m", help="look back (default 15m)")
    parser.add_argument(
        "--wait", type=_duration, default=0.0, metavar="30s", help="retry for so long while data is missing"
    )
    parser.add_argument("--nics", action="store_true", help="NIC panels must have data, too")
    parser.add_argument(
        "--dashboards", type=Path, default=JSON_FOLDER, metavar="DIR", help="their JSON (default: the committed one)"
    )
    arguments = parser.parse_args(argv)
    try:
        return check(arguments)
    except DashboardError as error:
        print(f"check_prometheus: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
