# SPDX-License-Identifier: Apache-2.0
"""What every committed dashboard must be, so that any Grafana shows it and a reader understands it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from programs import run

from symphony_dashboards.catalogue import DASHBOARDS, JSON_FOLDER, check, render
from symphony_dashboards.errors import DashboardFileError
from symphony_dashboards.prometheus import grafana_values
from symphony_dashboards.queries import load, metric_names, queries_of, substitute
from symphony_dashboards.series import SCRAPE_INTERVAL_S
from symphony_dashboards.style import DATASOURCE_UID

if TYPE_CHECKING:
    from simulated_testbed import SimulatedTestbed

FILES = sorted(JSON_FOLDER.glob("*.json"))
BUILD = JSON_FOLDER.parent / "build.py"
ALLOWED = {"row", "timeseries", "stat", "heatmap", "table"}
VALUES = grafana_values(SCRAPE_INTERVAL_S, 900)


def panels_of(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Panels without rows."""
    for panel in dashboard["panels"]:
        for inner in (panel, *panel.get("panels", ())):
            if inner["type"] != "row":
                yield inner


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def dashboard(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Each committed dashboard."""
    return load(request.param)


def test_committed_json_is_what_the_python_builds() -> None:
    """Nobody edits the JSON, and nobody forgets to build it."""
    check()
    assert [path.stem for path in FILES] == sorted(DASHBOARDS)


def test_a_build_gives_the_same_text_every_time() -> None:
    """Diffs of the JSON show changes of the dashboards, nothing else."""
    for uid in DASHBOARDS:
        assert render(uid) == render(uid)


def test_check_names_a_file_that_is_out_of_date(tmp_path: Path) -> None:
    """build.py --check exits with 1 and says which file, and how to put it right."""

    def build(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(BUILD), "--folder", str(tmp_path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=30)

    first = build()
    changed = tmp_path / "symphony-job-overview.json"
    assert (first.returncode, first.stdout) == (0, f"{changed}\n")
    assert changed.read_bytes() == (JSON_FOLDER / changed.name).read_bytes()
    changed.write_text(changed.read_text(encoding="utf-8").replace("Alpha", "Beta"), encoding="utf-8")
    edited = build("--check")
    assert edited.returncode == 1
    assert edited.stderr == (
        f"dashboards/build.py: {changed} is not what the Python builds: run dashboards/build.py and commit it\n"
    )
    (tmp_path / "stray.json").touch()
    with pytest.raises(DashboardFileError, match=r"stray\.json belongs to no dashboard: delete it"):
        check(tmp_path)


def test_uids_and_titles_are_unique_and_ours() -> None:
    """Two dashboards with one uid or title stop Grafana's provisioning; foreign ones must not collide."""
    contents = [load(path) for path in FILES]
    for key in ("uid", "title"):
        values = [content[key] for content in contents]
        assert len(set(values)) == len(values)
    for path, content in zip(FILES, contents, strict=True):
        assert content["uid"].startswith("symphony-")
        assert path.stem == content["uid"]


def test_a_dashboard_belongs_to_no_grafana_yet(dashboard: dict[str, Any]) -> None:
    """No id of some server, no inputs that only an import by hand could fill."""
    assert dashboard["id"] is None
    assert "__inputs" not in dashboard
    assert "${DS_" not in json.dumps(dashboard)


def test_only_panel_types_that_every_grafana_has(dashboard: dict[str, Any]) -> None:
    """Rows, timeseries, stat, heatmap and table are there in all current versions."""
    assert {panel["type"] for panel in dashboard["panels"]} <= ALLOWED
    assert {panel["type"] for panel in panels_of(dashboard)} <= ALLOWED


def test_panels_have_ids_places_and_options_of_their_own(dashboard: dict[str, Any]) -> None:
    """No two panels share an id or a place on the grid; options are never null."""
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert all(panel["options"] is not None for panel in panels_of(dashboard))


def test_data_comes_from_the_data_source_variable(dashboard: dict[str, Any]) -> None:
    """Panels, variables and annotations ask `datasource`, which starts with the provisioned one."""
    variable = next(v for v in dashboard["templating"]["list"] if v["type"] == "datasource")
    assert variable["name"] == "datasource"
    assert variable["query"] == "prometheus"
    assert variable["current"]["value"] == DATASOURCE_UID
    askers = [
        *panels_of(dashboard),
        *dashboard["annotations"]["list"],
        *(v for v in dashboard["templating"]["list"] if v["type"] == "query"),
    ]
    assert {json.dumps(asker["datasource"], sort_keys=True) for asker in askers} == {
        '{"type": "prometheus", "uid": "${datasource}"}'
    }


def test_every_panel_says_what_it_shows_how_to_read_it_and_what_it_is_not(dashboard: dict[str, Any]) -> None:
    """Descriptions have their three parts, each a sentence."""
    for panel in panels_of(dashboard):
        parts = re.fullmatch(
            r"\*\*Shows\*\* (.+)\n\n\*\*Read it\*\* (.+)\n\n\*\*It is not\*\* (.+)", panel["description"]
        )
        assert parts is not None, panel["title"]
        assert all(len(part) > 15 and part.endswith(".") for part in parts.groups()), panel["title"]
    titles = [(panel["type"], panel["title"]) for panel in panels_of(dashboard)]
    assert len(set(titles)) == len(titles)


def test_every_panel_has_a_unit(dashboard: dict[str, Any]) -> None:
    """Axes and numbers say what they count (tables by column, heatmaps on their axis)."""
    for panel in panels_of(dashboard):
        if panel["type"] == "heatmap":
            assert panel["options"]["yAxis"]["unit"]
        elif panel["type"] == "table":
            named = {override["matcher"]["options"] for override in panel["fieldConfig"]["overrides"]}
            renamed = panel["transformations"][1]["options"]["renameByName"]
            assert named == set(renamed.values())
        else:
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]


def test_rates_take_the_interval_that_grafana_computes(dashboard: dict[str, Any]) -> None:
    """A fixed range in rate() or increase() is empty for some scrape interval or some zoom."""
    for query in queries_of(dashboard):
        for call in re.findall(r"\b(?:rate|irate|increase)\([^\[\]]*\[([^\]]+)\]", query.expr):
            assert call == "$__rate_interval", query


def test_rows_lead_from_overview_over_compare_to_investigate(dashboard: dict[str, Any]) -> None:
    """First whether it is good, then which is better, then why."""
    rows = [panel["title"].split(":")[0] for panel in dashboard["panels"] if panel["type"] == "row"]
    assert list(dict.fromkeys(rows)) == ["Overview", "Compare", "Investigate"]


def test_every_metric_exists_in_an_exposition(dashboard: dict[str, Any], simulated: SimulatedTestbed) -> None:
    """Names in queries are names that the agents (or node_exporter, as far as it is known) export."""
    from simulated_testbed import names_in

    exported = {"up"} | names_in(simulated.host_text()) | names_in(simulated.node_text())
    for switch in simulated.switches:
        exported |= names_in(simulated.switch_text(switch))
    for query in queries_of(dashboard):
        names = metric_names(substitute(query.expr, VALUES))
        assert names, query
        assert names <= exported, query


def test_promtool_parses_every_query(dashboard: dict[str, Any], tmp_path: Path) -> None:
    """Each query, with values for its variables, is good PromQL for Prometheus' own parser."""
    rules = [
        {"record": f"dashboard:query_{number}", "expr": substitute(query.expr, VALUES)}
        for number, query in enumerate(queries_of(dashboard))
    ]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}), encoding="utf-8")
    assert f"{len(rules)} rules found" in run("promtool", "check", "rules", str(file))
