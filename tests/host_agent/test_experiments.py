# SPDX-License-Identifier: Apache-2.0
"""host-agent lists folders of results and serves their reports, and nothing else that lies there."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from host_agent.errors import UnknownExperimentError
from host_agent.experiments import Experiments, add_experiment_routes


def results(root: Path, name: str, **more: object) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    manifest = {
        "scenario": {"name": "fig5", "title": "CCT", "paper": "Figure 5"},
        "quick": True,
        "written": "2026-12-07T12:00:00Z",
        "runs": {"a": {"trace_hash": "ff"}, "b": {"trace_hash": None}},
        **more,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "report.html").write_text("<h1>report</h1>")
    claim = {"id": "c", "text": "It helps", "verdict": "reproduced"}
    (folder / "report.json").write_text(json.dumps({"claims": [claim]}))
    return folder


async def get(root: Path, path: str) -> httpx.Response:
    app = FastAPI()
    add_experiment_routes(app, Experiments(root))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        return await client.get(path)


async def test_a_folder_is_listed_with_its_runs_and_verdicts(tmp_path: Path) -> None:
    results(tmp_path, "fig5-quick")
    (tmp_path / "something-else").mkdir()
    (one,) = (await get(tmp_path, "/api/v1/experiments")).json()["experiments"]
    assert one["runs"] == {"planned": 2, "finished": 1}
    assert one["claims"][0]["verdict"] == "reproduced"
    assert one["report"] == "/experiments/fig5-quick/report.html"
    assert one["problem"] is None


async def test_a_report_may_run_no_script_and_load_nothing(tmp_path: Path) -> None:
    results(tmp_path, "fig5-quick")
    answer = await get(tmp_path, "/experiments/fig5-quick/report.html")
    assert answer.text == "<h1>report</h1>"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "sandbox" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("manifest", ["{", "[]", "{}", '{"scenario": 3}', "\x00"])
async def test_a_folder_that_cannot_be_read_says_so_and_hides_no_other(tmp_path: Path, manifest: str) -> None:
    results(tmp_path, "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "manifest.json").write_text(manifest)
    bad, good = (await get(tmp_path, "/api/v1/experiments")).json()["experiments"]
    assert "cannot be read" in bad["problem"]
    assert good["problem"] is None


async def test_a_root_that_is_not_there_has_no_experiments(tmp_path: Path) -> None:
    assert (await get(tmp_path / "nowhere", "/api/v1/experiments")).json()["experiments"] == []


@pytest.mark.parametrize("name", ["..", ".", "../results/fig5", "unknown", "fig5/../../secret", "x" * 150])
def test_only_listed_folders_are_served(tmp_path: Path, name: str) -> None:
    results(tmp_path / "results", "fig5")
    (tmp_path / "report.html").write_text("secret")
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(UnknownExperimentError):
        Experiments(tmp_path / "results").report(name)
