# SPDX-License-Identifier: Apache-2.0
"""All dashboards by uid, and their committed JSON files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from symphony_dashboards import job_overview
from symphony_dashboards.series import SCRAPE_INTERVAL_S

__all__ = ["DASHBOARDS", "JSON_FOLDER", "path_of", "render"]

JSON_FOLDER: Final = Path(__file__).resolve().parent.parent / "json"
"""Where the JSON is committed and where Grafana's provisioning reads it from."""

DASHBOARDS: Final[dict[str, Callable[[], Dashboard]]] = {
    job_overview.UID: job_overview.build,
}


def path_of(uid: str) -> Path:
    """File of a dashboard: its uid is its name."""
    return JSON_FOLDER / f"{uid}.json"


def render(uid: str) -> str:
    """JSON text of a dashboard, as it is committed: `id` null, so that any Grafana takes it as a new one."""
    content: dict[str, Any] = json.loads(json.dumps(DASHBOARDS[uid]().build(), cls=JSONEncoder))
    for annotation in content.get("annotations", {}).get("list", []):
        # The SDK has no field for an annotation's resolution, and Grafana's default is a minute.
        annotation["step"] = f"{SCRAPE_INTERVAL_S}s"
    return json.dumps({"id": None, **content}, indent=1, ensure_ascii=False) + "\n"
