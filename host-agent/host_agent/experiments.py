# SPDX-License-Identifier: Apache-2.0
"""Results of symphony-experiments, as far as host-agent shows them: what there is, its verdicts, its report.

A folder of results is one with a ``manifest.json``. host-agent reads ``manifest.json``, ``report.json`` and
``report.html`` in it and nothing else, and runs no experiments itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Response
from fastapi import Path as PathParameter

from host_agent.errors import UnknownExperimentError

__all__ = ["Experiments", "add_experiment_routes"]

MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_FOLDERS = 500
REPORT_HEADERS = {
    # a report is a page without scripts; whatever else lies in that folder may not act in host-agent's name
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox",
    "X-Content-Type-Options": "nosniff",
}


class Experiments:
    """The folders of results below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def listing(self) -> list[dict[str, Any]]:
        """One entry per folder, by name; a folder that cannot be read has a `problem` instead of figures."""
        if not self.root.is_dir():
            return []
        folders = [path for path in sorted(self.root.iterdir()) if (path / "manifest.json").is_file()]
        return [self._view(path) for path in folders[:MAX_FOLDERS]]

    def _view(self, folder: Path) -> dict[str, Any]:
        try:
            manifest = _read_json(folder / "manifest.json")
            runs = manifest["runs"].values()
            view = {
                "name": folder.name,
                "scenario": str(manifest["scenario"]["name"]),
                "title": str(manifest["scenario"]["title"]),
                "paper": str(manifest["scenario"].get("paper", "")),
                "quick": bool(manifest["quick"]),
                "written": str(manifest["written"]),
                "runs": {"planned": len(runs), "finished": sum(run["trace_hash"] is not None for run in runs)},
                "problem": None,
            }
            report = folder / "report.json"
            view["claims"] = _read_json(report)["claims"] if report.is_file() else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return {"name": folder.name, "problem": f"cannot be read: {type(error).__name__}: {error}"}
        view["report"] = f"/experiments/{folder.name}/report.html" if (folder / "report.html").is_file() else None
        return view

    def report(self, name: str) -> bytes:
        """The report of one folder, as HTML.

        Raises:
            UnknownExperimentError: there is no such folder, or it has no report.
        """
        if name not in {entry["name"] for entry in self.listing()}:
            raise UnknownExperimentError(f"no results of an experiment called {name!r} in {self.root}")
        path = self.root / name / "report.html"
        try:
            return _read(path)
        except (OSError, ValueError) as error:
            raise UnknownExperimentError(f"no report of {name!r}: {error}") from None


def add_experiment_routes(app: FastAPI, experiments: Experiments) -> None:
    """Routes that list results and serve reports; reading needs no token, as everywhere."""

    @app.get("/api/v1/experiments")
    def list_experiments() -> dict[str, Any]:
        """Folders of results, with runs finished and verdicts."""
        return {"root": str(experiments.root), "experiments": experiments.listing()}

    @app.get(
        "/experiments/{name}/report.html", response_class=Response, responses={200: {"content": {"text/html": {}}}}
    )
    def show_report(name: Annotated[str, PathParameter(max_length=200)]) -> Response:
        """The report of one folder: a page that needs nothing else."""
        return Response(experiments.report(name), media_type="text/html; charset=utf-8", headers=REPORT_HEADERS)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"{path.name} is larger than {MAX_FILE_BYTES >> 20} MiB")
    return content


def _read_json(path: Path) -> dict[str, Any]:
    data = json.loads(_read(path))
    if not isinstance(data, dict):
        raise TypeError(f"{path.name} holds no object")
    return data
