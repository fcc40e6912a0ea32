# SPDX-License-Identifier: Apache-2.0
"""The queries inside a dashboard's JSON: find them, put values for Grafana's variables, name their metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from symphony_dashboards.errors import DashboardFileError, QueryTextError

__all__ = ["PanelQuery", "load", "metric_names", "queries_of", "substitute"]

_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)(?::\w+)?\}|(\w+))")
_NOT_METRICS: Final = (
    re.compile(r'"(?:[^"\\]|\\.)*"'),  # strings
    re.compile(r"\{[^{}]*\}"),  # label matchers
    re.compile(r"\[[^\[\]]*\]"),  # ranges
    re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^()]*\)"),
)
_NAME: Final = re.compile(r"(?<![\w.:])[A-Za-z_:][\w:]*(?![\w:]*\s*\()")
_KEYWORDS: Final = frozenset({"and", "or", "unless", "bool", "offset", "atan2", "inf", "nan"})


class PanelQuery(NamedTuple):
    """A query of a dashboard. `panel` is a panel's title, or "annotation ..." or "variable ..."."""

    panel: str
    ref: str
    expr: str

    @property
    def in_panel(self) -> bool:
        """Whether a panel draws it; annotations and variables may rightly have nothing to show."""
        return not self.panel.startswith(("annotation ", "variable "))


def load(path: Path) -> dict[str, Any]:
    """Read a dashboard's JSON. Raises DashboardFileError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DashboardFileError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise DashboardFileError(f"{path} is no JSON: {error}; run dashboards/build.py") from error
    if not isinstance(content, dict) or "panels" not in content:
        raise DashboardFileError(f"{path} is no Grafana dashboard: it has no panels")
    return content


def queries_of(dashboard: Mapping[str, Any]) -> Iterator[PanelQuery]:
    """All queries: of panels (also inside collapsed rows), annotations, and `label_values` variables."""
    for panel in dashboard["panels"]:
        for inner in (panel, *panel.get("panels", ())):
            for target in inner.get("targets", ()):
                yield PanelQuery(inner["title"], target["refId"], target["expr"])
    for annotation in dashboard.get("annotations", {}).get("list", ()):
        yield PanelQuery(f"annotation {annotation['name']}", "A", annotation["expr"])
    for variable in dashboard.get("templating", {}).get("list", ()):
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.*), *\w+\)", variable["query"])
            if match is None:
                raise QueryTextError(f"variable {variable['name']}: {variable['query']!r} is no label_values(...)")
            yield PanelQuery(f"variable {variable['name']}", "A", match[1])


def substitute(expr: str, values: Mapping[str, str]) -> str:
    """Put values for `$name`, `${name}` and `${name:format}`. Raises QueryTextError for a name without a value."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in values:
            raise QueryTextError(f"query uses ${name}, which is no variable of the dashboard: {expr}")
        return values[name]

    return _VARIABLE.sub(value, expr)


def metric_names(expr: str) -> set[str]:
    """Metrics that a query (with values for its variables) reads, by its text."""
    for pattern in _NOT_METRICS:
        expr = pattern.sub(" ", expr)
    return {name for name in _NAME.findall(expr) if name.lower() not in _KEYWORDS}
