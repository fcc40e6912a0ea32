# SPDX-License-Identifier: Apache-2.0
"""The NICs of this machine: what there is, preparing them and back, their counters."""

from host_agent.nics.counters import NicCounters
from host_agent.nics.models import Wishes
from host_agent.nics.service import NicService

__all__ = ["NicCounters", "NicService", "Wishes"]
