# SPDX-License-Identifier: Apache-2.0
"""House style of all dashboards: data source, variables, panels.

Panels ask the data source variable and have a unit and a description of three parts: what they show, how to
read it, and what it is not. A row is 24 units wide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar

from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as look
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

__all__ = [
    "DATASOURCE",
    "DATASOURCE_UID",
    "OFF_ON",
    "Query",
    "choice_variable",
    "datasource_variable",
    "graph",
    "heat",
    "label_variable",
    "levels",
    "note",
    "single",
    "table_by",
    "words",
]

DATASOURCE_UID: Final = "symphony-prometheus"
"""uid of the provisioned data source (deploy/grafana/provisioning/datasources)."""
DATASOURCE: Final = model.DataSourceRef(type_val="prometheus", uid="${datasource}")


class Query(NamedTuple):
    """A PromQL expression and the name of its series: a legend, or a column's title in a table."""

    expr: str
    legend: str


def note(shows: str, *, read: str, is_not: str) -> str:
    """A panel's description (Markdown): what it shows, how to read it, what it is not."""
    return f"**Shows** {shows}\n\n**Read it** {read}\n\n**It is not** {is_not}"


def words(texts: Mapping[int, tuple[str, str]]) -> list[model.ValueMapping]:
    """Show numbers as words: number -> (word, colour)."""
    return [
        model.ValueMap(
            options={
                str(value): model.ValueMappingResult(text=text, color=color, index=index)
                for index, (value, (text, color)) in enumerate(texts.items())
            }
        )
    ]


OFF_ON: Final = words({0: ("off", "text"), 1: ("on", "green")})


def levels(base: str, *steps: tuple[float, str]) -> dashboard.ThresholdsConfig:
    """Colours by value: `base` below the first step, then each step's colour from its value on."""
    first = model.Threshold(value=None, color=base)
    return (
        dashboard.ThresholdsConfig()
        .mode(model.ThresholdsMode.ABSOLUTE)
        .steps([first, *(model.Threshold(value=value, color=color) for value, color in steps)])
    )


# -- variables


def datasource_variable() -> dashboard.DatasourceVariable:
    """`datasource`: which Prometheus; at first the provisioned one."""
    return (
        dashboard.DatasourceVariable("datasource")
        .label("Data source")
        .type("prometheus")
        .current(model.VariableOption(text="Symphony Prometheus", value=DATASOURCE_UID))
    )


def label_variable(name: str, title: str, query: str) -> dashboard.QueryVariable:
    """Values of a label, several at a time; All stands for any value but none at all (`.+`)."""
    return (
        dashboard.QueryVariable(name)
        .label(title)
        .datasource(DATASOURCE)
        .query(query)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_CASE_INSENSITIVE_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".+")
        .current(model.VariableOption(text=["All"], value=["$__all"]))
    )


def choice_variable(name: str, title: str, values: Sequence[str], default: str) -> dashboard.CustomVariable:
    """One of some fixed values."""
    return (
        dashboard.CustomVariable(name)
        .label(title)
        .values(",".join(values))
        .current(model.VariableOption(text=default, value=default))
    )


# -- panels


class _Panel(Protocol):
    """What the builders of all panel types have in common."""

    def title(self, title: str) -> Self: ...
    def description(self, description: str) -> Self: ...
    def datasource(self, datasource: model.DataSourceRef) -> Self: ...
    def span(self, w: int) -> Self: ...
    def height(self, h: int) -> Self: ...
    def with_target(self, target: Builder[Any]) -> Self: ...


_PanelT = TypeVar("_PanelT", bound=_Panel)


def _dressed(
    panel: _PanelT, title: str, text: str, size: tuple[int, int], targets: Iterable[prometheus.Dataquery]
) -> _PanelT:
    width, height = size
    panel = panel.title(title).description(text).datasource(DATASOURCE).span(width).height(height)
    for index, target in enumerate(targets):
        panel = panel.with_target(target.ref_id(chr(ord("A") + index)))
    return panel


def _query(query: Query) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(query.expr).legend_format(query.legend)


def graph(
    title: str, text: str, *queries: Query, unit: str, size: tuple[int, int] = (12, 8), steps: bool = False
) -> timeseries.Panel:
    """Lines over time from 0 up. `steps`: values hold until the next one (settings, counts of steps)."""
    shape = look.LineInterpolation.STEP_AFTER if steps else look.LineInterpolation.LINEAR
    panel = (
        timeseries.Panel()
        .unit(unit)
        .min(0)
        .line_interpolation(shape)
        .fill_opacity(8)
        .show_points(look.VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions()
            .display_mode(look.LegendDisplayMode.TABLE)
            .placement(look.LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["mean", "max", "lastNotNull"])
        )
        .tooltip(common.VizTooltipOptions().mode(look.TooltipDisplayMode.MULTI).sort(look.SortOrder.DESCENDING))
    )
    return _dressed(panel, title, text, size, (_query(query).range() for query in queries))


def single(
    title: str,
    text: str,
    *queries: Query,
    unit: str,
    thresholds: dashboard.ThresholdsConfig | None = None,
    mappings: list[model.ValueMapping] | None = None,
    size: tuple[int, int] = (4, 4),
) -> stat.Panel:
    """One big number per series, at the end of the time range."""
    panel = (
        stat.Panel()
        .unit(unit)
        .thresholds(thresholds or levels("text"))
        .mappings(mappings or [])
        .no_value("no data")
        .graph_mode(look.BigValueGraphMode.NONE)
        .color_mode(look.BigValueColorMode.VALUE)
        .text_mode(look.BigValueTextMode.VALUE_AND_NAME)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    )
    return _dressed(panel, title, text, size, (_query(query).instant() for query in queries))


def heat(title: str, text: str, buckets: Query, *, unit: str, size: tuple[int, int] = (12, 8)) -> heatmap.Panel:
    """A Prometheus histogram over time: `buckets` gives one series per upper bound `le`."""
    panel = (
        heatmap.Panel()
        .calculate(False)
        .y_axis(heatmap.YAxisConfig().unit(unit).axis_placement(look.AxisPlacement.LEFT))
        .cell_values(heatmap.CellValues().unit("short"))
        .color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").exponent(0.5).steps(64))
        .filter_values(heatmap.FilterValueRange().le(1e-9))
        .show_tooltip()
        .show_legend()
    )
    target = _query(buckets).range().format(PromQueryFormat.HEATMAP)
    return _dressed(panel, title, text, size, [target])


def table_by(
    key: str,
    title: str,
    text: str,
    rows: Query,
    *columns: tuple[Query, str],
    shown: Sequence[str] = (),
    size: tuple[int, int] = (24, 7),
) -> table.Panel:
    """One row per value of the label `key`.

    `rows` lists them; its labels `shown` become columns, its value does not. Each of `columns` is a query by
    `key` with the column's title as legend, and the column's unit.
    """
    queries = (rows, *(query for query, _ in columns))
    value_names = [f"Value #{chr(ord('A') + index)}" for index in range(len(queries))]
    panel = (
        table.Panel()
        .show_header(True)
        .with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(
            model.DataTransformerConfig(
                id_val="organize",
                options={
                    "excludeByName": {"Time": True, value_names[0]: True},
                    "indexByName": {name: i for i, name in enumerate([key, *shown, *value_names[1:]])},
                    "renameByName": {
                        name: query.legend for name, (query, _) in zip(value_names[1:], columns, strict=True)
                    },
                },
            )
        )
    )
    for query, unit in columns:
        panel = panel.override_by_name(query.legend, [model.DynamicConfigValue(id_val="unit", value=unit)])
    targets = (_query(query).instant().format(PromQueryFormat.TABLE) for query in queries)
    return _dressed(panel, title, text, size, targets)
