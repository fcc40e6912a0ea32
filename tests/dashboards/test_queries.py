# SPDX-License-Identifier: Apache-2.0
"""Reading queries out of dashboards and making them ready for Prometheus."""

from __future__ import annotations

from pathlib import Path

import pytest

from symphony_dashboards.errors import DashboardFileError, QueryTextError
from symphony_dashboards.prometheus import duration_s, grafana_values
from symphony_dashboards.queries import PanelQuery, load, metric_names, queries_of, substitute


@pytest.mark.parametrize(
    ("expr", "names"),
    [
        ("up", {"up"}),
        ('sum by (job, le) (rate(a_bucket{job=~"b|c", le!=""}[8s]))', {"a_bucket"}),
        ("a / on (job) group_left (name) b and on() c", {"a", "b", "c"}),
        ("histogram_quantile(0.99, last_over_time(x_bucket[5m:10s] offset 1m)) > 1e6", {"x_bucket"}),
        ('label_replace(a:b:rate5m, "x", "$1", "y", "(.*) sum(z)")', {"a:b:rate5m"}),
        ("time() - max(stamp_seconds) > bool 3 unless NaN", {"stamp_seconds"}),
    ],
)
def test_metric_names_are_found_by_the_text_of_a_query(expr: str, names: set[str]) -> None:
    """Functions, keywords, labels, strings and numbers are no metrics."""
    assert metric_names(expr) == names


def test_variables_get_values_in_all_of_grafanas_spellings() -> None:
    """$name, ${name} and ${name:format}, also inside a metric's name."""
    expr = 'rate(x_prio${priority}_pause{job=~"$job", switch=~"${switch:regex}"}[$__rate_interval])'
    assert substitute(expr, grafana_values(2, 900)) == ('rate(x_prio3_pause{job=~".+", switch=~".+"}[8000ms])')


def test_a_variable_without_value_is_an_error_that_names_it() -> None:
    """A dashboard may use only variables that it has."""
    with pytest.raises(QueryTextError, match=r"\$instance, which is no variable"):
        substitute('up{instance="$instance"}', {})


def test_queries_are_found_in_panels_rows_annotations_and_variables() -> None:
    """Also those of panels inside a collapsed row."""
    dashboard = {
        "panels": [
            {"title": "row", "panels": [{"title": "inner", "targets": [{"refId": "B", "expr": "b"}]}]},
            {"title": "outer", "targets": [{"refId": "A", "expr": "a"}]},
        ],
        "annotations": {"list": [{"name": "note", "expr": "n"}]},
        "templating": {
            "list": [
                {"name": "job", "type": "query", "query": 'label_values(info{x=~"a,b"}, job)'},
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
            ]
        },
    }
    found = list(queries_of(dashboard))
    assert found == [
        PanelQuery("inner", "B", "b"),
        PanelQuery("outer", "A", "a"),
        PanelQuery("annotation note", "A", "n"),
        PanelQuery("variable job", "A", 'info{x=~"a,b"}'),
    ]
    assert [query.in_panel for query in found] == [True, True, False, False]


def test_a_variable_of_another_kind_is_refused() -> None:
    """Only label_values can be checked; the error names the variable."""
    variable = {"name": "x", "type": "query", "query": "query_result(up)"}
    with pytest.raises(QueryTextError, match="variable x: 'query_result"):
        list(queries_of({"panels": [], "templating": {"list": [variable]}}))


@pytest.mark.parametrize(
    ("text", "message"), [(None, "cannot read"), ("{", "is no JSON"), ('{"a": 1}', "is no Grafana dashboard")]
)
def test_files_that_are_no_dashboards_are_named(tmp_path: Path, text: str | None, message: str) -> None:
    """Missing, broken, or something else: one line with the path."""
    path = tmp_path / "x.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(DashboardFileError, match=message):
        load(path)


@pytest.mark.parametrize(("text", "seconds"), [("2s", 2), ("500ms", 0.5), ("1m30s", 90), ("1h", 3600), ("2d", 172800)])
def test_durations_are_prometheus_durations(text: str, seconds: float) -> None:
    """As in prometheus.yml."""
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "s", "5 s", "1.5s", "-1s"])
def test_other_durations_are_refused(text: str) -> None:
    """With an example of what is meant."""
    with pytest.raises(ValueError, match="is no duration like"):
        duration_s(text)
