# SPDX-License-Identifier: Apache-2.0
"""The service that keeps one switch in its desired state and shows what it sees.

- ``service``: the agent put together; ``server``: the process around it
- ``jobs``: changes of jobs; ``entries``: a job as table entries; ``reconcile``: desired against actual
- ``sampler`` and ``sampling``: registers in the background; ``history``: samples in bounded memory
- ``rest``, ``metrics``: what others see; ``console``, ``doctor``: the commands
- ``models``, ``store``, ``config``: jobs, their file, the switch's own configuration
"""

from __future__ import annotations

from switch_agent.agent.models import JobSpec, SymphonySettings
from switch_agent.agent.rest import build_app
from switch_agent.agent.service import Agent, AgentOptions

__all__ = ["Agent", "AgentOptions", "JobSpec", "SymphonySettings", "build_app"]
