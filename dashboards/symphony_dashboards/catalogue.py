# SPDX-License-Identifier: Apache-2.0
"""All dashboards by uid, and the JSON files that are committed of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from symphony_dashboards import job_overview
from symphony_dashboards.errors import DashboardFileError
from symphony_dashboards.series import SCRAPE_INTERVAL_S

__all__ = ["DASHBOARDS", "JSON_FOLDER", "check", "render", "write"]

JSON_FOLDER: Final = Path(__file__).resolve().parent.parent / "json"
"""Where the JSON is committed and where Grafana's provisioning reads it from."""

DASHBOARDS: Final[dict[str, Callable[[], Dashboard]]] = {
    job_overview.UID: job_overview.build,
}


def render(uid: str) -> str:
    """JSON text of a dashboard, as it is committed: `id` null, so that any Grafana takes it as a new one."""
    content: dict[str, Any] = json.loads(json.dumps(DASHBOARDS[uid]().build(), cls=JSONEncoder))
    for annotation in content.get("annotations", {}).get("list", []):
        # The SDK has no field for an annotation's resolution, and Grafana's default is a minute.
        annotation["step"] = f"{SCRAPE_INTERVAL_S}s"
    return json.dumps({"id": None, **content}, indent=1, ensure_ascii=False) + "\n"


def write(folder: Path = JSON_FOLDER) -> list[Path]:
    """Write all dashboards, each into <uid>.json. Raises DashboardFileError when the folder cannot be written."""
    paths = [folder / f"{uid}.json" for uid in DASHBOARDS]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            path.write_text(render(path.stem), encoding="utf-8")
    except OSError as error:
        raise DashboardFileError(f"cannot write {error.filename}: {error.strerror}") from error
    return paths


def check(folder: Path = JSON_FOLDER) -> None:
    """Compare dashboards with their files, and files with the dashboards. Raises DashboardFileError."""
    strays = sorted({path.stem for path in folder.glob("*.json")} - DASHBOARDS.keys())
    if strays:
        raise DashboardFileError(f"{folder}/{strays[0]}.json belongs to no dashboard: delete it")
    for uid in DASHBOARDS:
        path = folder / f"{uid}.json"
        if not path.exists() or path.read_text(encoding="utf-8") != render(uid):
            raise DashboardFileError(f"{path} is not what the Python builds: run dashboards/build.py and commit it")
