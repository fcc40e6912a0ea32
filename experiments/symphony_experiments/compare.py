# SPDX-License-Identifier: Apache-2.0
"""Two folders of results of one scenario, held against each other: variant by variant, metric by metric."""

from __future__ import annotations

from typing import Any

from symphony_experiments.claims import Row
from symphony_experiments.errors import ResultsError
from symphony_experiments.statistics import median, relative_change
from symphony_experiments.store import Results

__all__ = ["compare"]

_METRICS = ("cct_ms", "jct_ms", "max_overlap", "mean_overlap", "marked_symphony", "marked_queue")


def compare(before: Results, after: Results) -> list[list[str]]:
    """A table: metric, both medians and the paired change with its interval, for what both have; header first.

    Raises:
        ResultsError: the folders are of different scenarios, or have no run in common.
    """
    names = [results.manifest()["scenario"]["name"] for results in (before, after)]
    if names[0] != names[1]:
        raise ResultsError(f"{before.directory} is {names[0]}, {after.directory} is {names[1]}: nothing to compare")
    old, new = (_by_place(results.rows(), results) for results in (before, after))
    table = [["variant", "job", "metric", str(before.directory), str(after.directory), "change"]]
    for place in [place for place in old if place in new]:
        pairs = [(old[place][seed], new[place][seed]) for seed in old[place] if seed in new[place]]
        for metric in _METRICS:
            both = [(a[metric], b[metric]) for a, b in pairs if a.get(metric) is not None and b.get(metric) is not None]
            if not both:
                continue
            was, now = [a for a, _ in both], [b for _, b in both]
            table.append(
                [*map(str, place), metric, f"{median(was).value:.6g}", f"{median(now).value:.6g}", _change(now, was)]
            )
    if len(table) == 1:
        raise ResultsError(f"{before.directory} and {after.directory} have no run in common")
    return table


def _by_place(rows: list[dict[str, Any]], results: Results) -> dict[tuple[str, str], dict[int, Row]]:
    """(variant and axes, job) -> seed -> row."""
    known = {"variant", "key", "seed", "job"}
    scenario_axes = [name for name in (rows[0] if rows else {}) if "." in name or name == "algorithm"]
    places: dict[tuple[str, str], dict[int, Row]] = {}
    for row in rows:
        axes = ", ".join(
            f"{name}={row[name]}" for name in scenario_axes if name not in known and row.get(name) is not None
        )
        places.setdefault((row["variant"] + (f" ({axes})" if axes else ""), row["job"]), {})[row["seed"]] = row
    return places


def _change(now: list[float], was: list[float]) -> str:
    try:
        change = relative_change(now, was)
    except ValueError:
        return "–"
    interval = (
        "" if change.low is None or change.high is None else f" [{100 * change.low:+.1f}, {100 * change.high:+.1f}]"
    )
    return f"{100 * change.value:+.1f} %{interval}"
