# SPDX-License-Identifier: Apache-2.0
"""Traffic of no job: QPs of the twin's own that send on a schedule and belong to nobody's completion queue.

They send SENDs without immediate, which Symphony does not look at, so they count for no job. A flow posts its
messages on time as long as fewer than `OUTSTANDING` of them wait for their acknowledgement; those beyond are
skipped, and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from fabric_twin.engine.state import Msg, Qp
from fabric_twin.errors import FabricError
from fabric_twin.events import BackgroundConstant, BackgroundIncast, BackgroundOnOff
from fabric_twin.fabric import ACKED, DELIVERED, Fabric, FabricEvent
from fabric_twin.topology import Host

__all__ = ["Background"]

OUTSTANDING: Final = 8
FIRST_SPORT: Final = 0x8000
"""Below the ports of RoCEv2 flow labels (0xC000 and up), so that no job has them."""
FIRST_QPN: Final = 0x800000
ACK_TIMEOUT: Final = 14
MS: Final = 10**9

At = Callable[[int, Callable[[], None]], None]
"""Do something at a time, ps."""


class _Flow:
    """One sending QP and its receiver."""

    def __init__(self, fabric: Fabric, source: Host, target: Host, number: int, *, dcqcn: bool) -> None:
        self._fabric = fabric
        self._ends = source, target
        self._sport = FIRST_SPORT + number % 0x4000
        self._dcqcn = dcqcn
        self.sender = fabric.create_qp(source, FIRST_QPN + 2 * number)
        try:
            self.receiver = fabric.create_qp(target, FIRST_QPN + 2 * number + 1)
        except FabricError:
            fabric.destroy_qp(self.sender)
            raise
        self._connect()

    def _connect(self) -> None:
        source, target = self._ends
        for q, dest, peer in ((self.receiver, source, self.sender), (self.sender, target, self.receiver)):
            self._fabric.connect(
                q, dest, peer, mtu=self._fabric.preset.mtu, sport=self._sport, psn=0, ect=self._dcqcn,
                timeout=ACK_TIMEOUT, retry_cnt=7, rnr_retry=7, rnr_timer_ps=1,
            )  # fmt: skip

    def post(self, size: int) -> bool:
        """Send a message; False: too many are on their way."""
        view = self._fabric.view
        if view.qp[self.sender + Qp.STATE] == 0:  # its retries were used up: a new connection
            self._fabric.reset_qp(self.sender)
            self._fabric.reset_qp(self.receiver)
            self._connect()
        waiting, m = 0, int(view.qp[self.sender + Qp.UNA_MSG])
        while m >= 0:
            waiting, m = waiting + 1, int(view.msg[m + Msg.NEXT])
        if waiting >= OUTSTANDING:
            return False
        self._fabric.post(self.sender, size, write=False, imm=False, signaled=False)
        return True

    def close(self) -> None:
        """What is on its way will find nobody."""
        self._fabric.destroy_qp(self.sender)
        self._fabric.destroy_qp(self.receiver)


class Background:
    """The flows of one event, from its begin to `stop`.

    Args:
        fabric: what they run on.
        event: what they do.
        at: how to be called at a time.
        stream: of the lengths of on and off.
        number: of the event's first flow among all of the run.
    """

    def __init__(
        self,
        fabric: Fabric,
        event: BackgroundConstant | BackgroundIncast,
        at: At,
        stream: np.random.Generator,
        number: int,
    ) -> None:
        self._fabric = fabric
        self._at = at
        self._stream = stream
        self._size = event.size_bytes if isinstance(event, BackgroundIncast) else event.message_bytes
        self.skipped = 0
        self.delivered_bytes = 0
        sources = event.sources if isinstance(event, BackgroundIncast) else [event.source]
        host = fabric.topology.host
        target = host(event.target)
        self._flows: list[_Flow] = []
        try:
            for i, source in enumerate(sources, number):
                self._flows.append(_Flow(fabric, host(source), target, i, dcqcn=event.dcqcn))
        except FabricError:  # a NIC has no more QPs
            self.stop()
            raise
        self._rows = frozenset(q for flow in self._flows for q in (flow.sender, flow.receiver))
        self._running = True
        if isinstance(event, BackgroundIncast):
            self._burst(event.times, round(event.every_ms * MS))
            return
        self._gap = round(event.message_bytes * 8000 / event.gbps)
        if isinstance(event, BackgroundOnOff):
            self._on(event)
        else:
            self._tick(None)

    def __len__(self) -> int:
        return len(self._flows)

    def _post(self) -> None:
        for flow in self._flows:
            self.skipped += not flow.post(self._size)

    def _burst(self, left: int, every: int) -> None:
        if self._running and left:
            self._post()
            self._at(self._fabric.now_ps + every, lambda: self._burst(left - 1, every))

    def _tick(self, until: int | None) -> None:
        if self._running and (until is None or self._fabric.now_ps < until):
            self._post()
            self._at(self._fabric.now_ps + self._gap, lambda: self._tick(until))

    def _on(self, event: BackgroundOnOff) -> None:
        if not self._running:
            return
        on, off = event.on_ms, event.off_ms
        if event.distribution == "exponential":
            on, off = self._stream.exponential(on), self._stream.exponential(off)
        ends = self._fabric.now_ps + max(round(on * MS), 1)
        self._at(ends + round(off * MS), lambda: self._on(event))
        self._tick(ends)

    def take(self, events: Iterable[FabricEvent]) -> list[FabricEvent]:
        """Keep what is about these flows, give back the rest."""
        rest = []
        for event in events:
            if event.qp not in self._rows:
                rest.append(event)
            elif event.kind == ACKED:
                self._fabric.free_message(event.message)
            elif event.kind == DELIVERED:
                self.delivered_bytes += self._size
        return rest

    def stop(self) -> None:
        """End all flows at once."""
        self._running = False
        for flow in self._flows:
            flow.close()
