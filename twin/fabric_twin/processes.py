# SPDX-License-Identifier: Apache-2.0
"""Processes as NICs know them: which QPs belong together, whether they share by progress, and their rate ceilings.

A fabric without processes knows queue pairs only; algorithms that need more make a process for each rank of a job.
"""

from __future__ import annotations

import numpy as np

from fabric_twin.engine import progress
from fabric_twin.engine.dcqcn import CcQp
from fabric_twin.engine.state import CC_SHIFT, Port, Process, Qp
from fabric_twin.fabric import Fabric

__all__ = ["Processes"]


class Processes:
    """The processes of a fabric; there may be several of these, each with processes of its own."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._members: dict[int, list[int]] = {}

    def add(self, qps: list[int], *, weighed: bool = False) -> int:
        """Make a process of the queue pairs `qps` (rows); returns its number.

        Args:
            qps: all of one NIC or host; they keep their process over RESET.
            weighed: share by progress, see `fabric_twin.engine.progress`.
        """
        view = self._fabric.view
        number = len(view.process)
        record = np.zeros(Process.COLUMNS, dtype=np.int64)
        record[Process.WEIGHED] = weighed
        self._fabric.view = view._replace(process=np.concatenate([view.process, record]))
        for q in qps:
            self._fabric.view.qp[q + Qp.PROCESS] = number
        self._members[number] = list(qps)
        return number

    def cap(self, process: int, gbps: float | None) -> None:
        """Lower (or lift, None) the ceiling of the rate of each queue pair of a process, from now on.

        A QP that was at its old ceiling goes to the new one; one below it stays where DCQCN has it.
        """
        view = self._fabric.view
        view.process[process + Process.CAP_BPS] = 0 if gbps is None else round(gbps * 1e9)
        for q in self._members[process]:
            row = view.ccq[q >> CC_SHIFT :][: CcQp.COLUMNS]
            rate, target, at_ceiling = row[CcQp.RATE], row[CcQp.TARGET], row[CcQp.RATE] >= row[CcQp.LINE]
            line = 8e12 / view.port[int(view.qp[q + Qp.NIC]) + Port.PS_PER_BYTE]
            row[CcQp.LINE], row[CcQp.CAPPED] = line, 0.0
            progress.limit(view, q)
            if not at_ceiling:
                row[CcQp.RATE] = min(rate, row[CcQp.LINE])
                row[CcQp.TARGET] = min(target, row[CcQp.LINE])
            elif gbps is None:
                row[CcQp.RATE] = row[CcQp.TARGET] = line
