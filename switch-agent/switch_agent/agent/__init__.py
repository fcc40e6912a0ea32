# SPDX-License-Identifier: Apache-2.0
"""The service that keeps one switch in its desired state and shows what it sees.

- ``service``: the agent put together; ``server``: the process around it; ``address``: where it listens
- ``jobs``: changes of jobs; ``entries``: a job as table entries; ``reconcile``: desired against actual
- ``sampler`` and ``sampling``: registers in the background; ``history``: samples in bounded memory
- ``upkeep``: what must be written back now and then; ``capacity``: what fits on the switch
- ``rest``, ``metrics``: what others see; ``console``, ``watch``, ``doctor``: the commands
- ``models``, ``store``, ``config``: jobs, their file, the switch's own configuration

The names below load on first use: the commands that only show something need no server.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from switch_agent.agent.models import JobSpec, SymphonySettings
    from switch_agent.agent.rest import build_app
    from switch_agent.agent.service import Agent, AgentOptions

__all__ = ["Agent", "AgentOptions", "JobSpec", "SymphonySettings", "build_app"]

_MODULE_OF = {
    "Agent": "service",
    "AgentOptions": "service",
    "JobSpec": "models",
    "SymphonySettings": "models",
    "build_app": "rest",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
