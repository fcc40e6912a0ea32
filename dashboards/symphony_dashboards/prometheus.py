# SPDX-License-Identifier: Apache-2.0
"""Ask a running Prometheus every query of a dashboard."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import httpx

from symphony_dashboards.errors import PrometheusError, QueryTextError
from symphony_dashboards.queries import PanelQuery, metric_names, substitute

__all__ = ["Finding", "Prometheus", "check_queries", "duration_s", "grafana_values"]

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MAX_POINTS: Final = 5000


def duration_s(text: str) -> float:
    """Seconds of a Prometheus duration like 2s, 500ms or 1m30s. Raises ValueError."""
    parts = re.findall(r"(\d+)(ms|s|m|h|d)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is no duration like 90s, 15m or 1h30m")
    return sum(int(number) * _UNITS[unit] for number, unit in parts)


def grafana_values(scrape_s: float, window_s: float) -> dict[str, str]:
    """Values that Grafana would put for its own variables and ours, with All chosen everywhere.

    `$__rate_interval` is four scrape intervals at this resolution, as Grafana computes it.
    """
    return {
        "__rate_interval": f"{round(4 * scrape_s * 1000)}ms",
        "__interval": f"{round(scrape_s * 1000)}ms",
        "__range": f"{round(window_s * 1000)}ms",
        "job": ".+",
        "switch": ".+",
        "priority": "3",
    }


class Prometheus:
    """The few calls of the HTTP API that a check needs. Use it as a context."""

    def __init__(self, url: str, *, timeout_s: float = 10.0) -> None:
        self.url = url.rstrip("/")
        self._client = httpx.Client(base_url=self.url, timeout=timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def query_range(self, expr: str, *, start_s: float, end_s: float, step_s: float) -> list[dict[str, Any]]:
        """Series of an expression. Raises QueryTextError when Prometheus refuses it, PrometheusError when it fails."""
        data = self._get("query_range", {"query": expr, "start": start_s, "end": end_s, "step": step_s})
        result: list[dict[str, Any]] = data["result"]
        return result

    def scrape_interval_s(self) -> float:
        """The longest scrape interval of the active targets. Raises PrometheusError when there are none."""
        targets = self._get("targets", {"state": "active"})["activeTargets"]
        if not targets:
            raise PrometheusError(f"Prometheus at {self.url} has no active targets: check its scrape_configs")
        return max(duration_s(target["scrapeInterval"]) for target in targets)

    def _get(self, call: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            answer = self._client.get(f"/api/v1/{call}", params=dict(arguments))
            content = answer.json()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise PrometheusError(f"no Prometheus answers at {self.url}: {error}; start it or give --url") from error
        except ValueError as error:
            raise PrometheusError(
                f"{self.url} is no Prometheus: it answers {call} with {answer.text[:80]!r}"
            ) from error
        if not isinstance(content, dict) or "status" not in content:
            raise PrometheusError(f"{self.url} is no Prometheus: it answers {call} with {answer.text[:80]!r}")
        if content["status"] != "success":
            text = f"{content.get('errorType')}: {content.get('error')}"
            if content.get("errorType") in ("bad_data", "execution"):
                raise QueryTextError(text)
            raise PrometheusError(f"Prometheus at {self.url} cannot answer {call}: {text}")
        data: dict[str, Any] = content["data"]
        return data


class Finding(NamedTuple):
    """What came of one query. `series` counts those with at least one finite value in the window."""

    query: PanelQuery
    series: int
    expected: bool
    error: str | None

    @property
    def good(self) -> bool:
        """Valid, and with data where data is expected."""
        return self.error is None and (self.series > 0 or not self.expected)


def check_queries(
    prometheus: Prometheus, queries: Sequence[PanelQuery], *, window_s: float, nics: bool = False
) -> list[Finding]:
    """Evaluate queries over the last `window_s` seconds, in scrape intervals.

    Data is expected of every panel's query; of those that read NIC counters (node_exporter's) only with `nics`.
    Raises PrometheusError when the server cannot be asked at all.
    """
    scrape_s = prometheus.scrape_interval_s()
    values = grafana_values(scrape_s, window_s)
    end_s = time.time()
    step_s = max(scrape_s, window_s / _MAX_POINTS)
    findings = []
    for query in queries:
        series, expected, problem = 0, query.in_panel, None
        try:
            expr = substitute(query.expr, values)
            expected = expected and (nics or not any(name.startswith("node_") for name in metric_names(expr)))
            result = prometheus.query_range(expr, start_s=end_s - window_s, end_s=end_s, step_s=step_s)
            series = sum(any(math.isfinite(float(value)) for _, value in one["values"]) for one in result)
        except QueryTextError as error:
            problem = str(error)
        findings.append(Finding(query, series, expected, problem))
    return findings
