# SPDX-License-Identifier: Apache-2.0
"""Faults to inject into a running server, for tests of control planes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

__all__ = ["Faults"]


@dataclass(slots=True)
class Faults:
    """Set attributes or call methods while the server runs; everything is off at first.

    - ``table_capacity``: short table name -> entries it takes before INSERT says RESOURCE_EXHAUSTED, below
      the table's size;
    - ``locked``: a pipeline change holds the lock: Write, Read and GetForwardingPipelineConfig answer
      UNAVAILABLE;
    - ``read_delay_s``: seconds (wall clock) that each Read waits before it answers;
    - ``half_open``: streams that end now are not noticed, as behind a dead TCP peer: their client id and
      binding stay taken until this is set back to False.
    """

    set_link: Callable[[int, bool], None]
    restart_server: Callable[[float], Awaitable[None]]
    table_capacity: dict[str, int] = field(default_factory=dict)
    locked: bool = False
    read_delay_s: float = 0.0
    half_open: bool = False

    def port_down(self, dev_port: int) -> None:
        """The link of that port loses its signal; subscribers are told. KeyError without such a port."""
        self.set_link(dev_port, False)

    def port_up(self, dev_port: int) -> None:
        """The signal is back."""
        self.set_link(dev_port, True)

    async def restart(self, down_s: float = 0.0) -> None:
        """The driver dies and comes back after ``down_s`` seconds on the same port, all state lost."""
        await self.restart_server(down_s)
