# SPDX-License-Identifier: Apache-2.0
"""docs/openapi.json: what host-agent says of its REST interface when all parts of it are there."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from host_agent.app import create_app
from host_agent.experiments import Experiments
from host_agent.hub import Hub
from host_agent.nics import NicService
from host_agent.store import Store
from host_agent.testbed import HostEntry, SwitchEntry, Testbed

__all__ = ["committed_text"]


def committed_text() -> str:
    """What docs/openapi.json has to be."""

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        testbed = Testbed(
            switches=[SwitchEntry.model_validate({"name": "s1", "url": "http://127.0.0.1:9300"})],
            hosts=[HostEntry.model_validate({"name": "h1", "address": "10.0.0.1"})],
        )
        nics = NicService(root)
        app = create_app(Hub(testbed, Store(root)), nics=nics, experiments=Experiments(root))
        nics.close()
    return json.dumps(app.openapi(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(committed_text(), end="")
