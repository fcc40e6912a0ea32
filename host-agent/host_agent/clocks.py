# SPDX-License-Identifier: Apache-2.0
"""A job's time axis, and how moments of other clocks are placed on it.

Events carry the ranks' clock. On the twin that is its virtual clock, which the switches share, so a switch's
own time places its samples exactly. On hardware it is a host's CLOCK_MONOTONIC: switch samples are then
placed by the wall clock of their switch agent, which is as good as the clocks are synchronised (NTP or PTP),
and says so.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

__all__ = ["ClockKind", "JobClock"]

ClockKind = Literal["twin", "monotonic"]


@dataclass(frozen=True)
class JobClock:
    """Places moments on the axis of the job's events (ns)."""

    kind: ClockKind

    def place(self, switch_time_ns: int, time_unix_s: float) -> int:
        """A moment known by the switch's clock and by the switch agent's wall clock."""
        if self.kind == "twin":
            return switch_time_ns
        return self.of_wall(time_unix_s)

    def of_wall(self, time_unix_s: float) -> int:
        """A wall-clock moment on this machine's CLOCK_MONOTONIC, in ns."""
        return round(time_unix_s * 1e9) - (time.time_ns() - time.monotonic_ns())

    def view(self) -> dict[str, str]:
        """As REST shows it."""
        placed = "switch clock" if self.kind == "twin" else "wall clock of the switch agent (as good as NTP or PTP)"
        return {"kind": self.kind, "unit": "ns", "switch_samples_placed_by": placed}
