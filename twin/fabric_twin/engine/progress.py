# SPDX-License-Identifier: Apache-2.0
"""What NICs know of processes: process-centric rate control, and ceilings that a coordinator sets.

With the first a process that lags takes more, and one that is ahead gives way.

What a NIC knows by itself: the steps that have come to its process from the one before it in the ring (so far that one
has got), and the steps that the process is still sending. A flow of step k gets the weight

    (1 + steps that may be sent and are newer than k) / (1 + own steps older than k that are still being sent)

between 1/4 and 4. DCQCN's additive increase is multiplied by the weight and its cut divided by it, so that shares of a
congested link move towards the weights, as with weighted AIMD (Crowcroft and Oechslin, 1998). See
`fabric_twin.algorithms.ProcessCentric`.
"""

from __future__ import annotations

from fabric_twin.engine.dcqcn import CcQp
from fabric_twin.engine.jit import inner
from fabric_twin.engine.state import ACTIVE_MAX, CC_SHIFT, Port, Process, Qp, View
from switch_agent.dataplane.constants import STEP_BITS

__all__ = ["hear", "limit", "weigh"]

MOST = 4.0
_MASK = (1 << STEP_BITS) - 1
_HALF = 1 << (STEP_BITS - 1)


@inner
def _ahead(a: int, b: int) -> int:
    """How far step `a` is ahead of step `b`, both modulo 2^STEP_BITS (serial-number arithmetic, RFC 1982)."""
    return ((a - b + _HALF) & _MASK) - _HALF


@inner
def hear(s: View, q: int, r: int) -> None:
    """A message of QP `q` has come to the process of QP `r`."""
    process = s.qp[r + Qp.PROCESS]
    if process == 0:
        return
    step = s.qp[q + Qp.SPORT] & _MASK
    heard = s.process[process + Process.HEARD]
    if heard == 0 or _ahead(step, heard - 1) > 0:
        s.process[process + Process.HEARD] = step + 1


@inner
def weigh(s: View, p: int, q: int) -> None:
    """Give QP `q` of the NIC at port `p`, which is sending a packet, its present weight."""
    process = s.qp[q + Qp.PROCESS]
    if s.process[process + Process.WEIGHED] == 0:
        return
    step = s.qp[q + Qp.SPORT] & _MASK
    lag = 0
    may_send = s.process[process + Process.HEARD]  # the newest step that has come, plus one
    if may_send != 0:
        lag = max(0, _ahead(may_send, step))
    older = 0
    first = s.port[p + Port.HOST] * ACTIVE_MAX
    for i in range(first, first + s.port[p + Port.ACTIVE]):
        other = s.active[i]
        if s.qp[other + Qp.PROCESS] == process and _ahead(step, s.qp[other + Qp.SPORT] & _MASK) > 0:
            older += 1
    s.ccq[(q >> CC_SHIFT) + CcQp.WEIGHT] = min(MOST, max(1.0 / MOST, (1.0 + lag) / (1.0 + older)))


@inner
def limit(s: View, q: int) -> None:
    """QP `q` has just been connected, at line rate: lower its ceiling to that of its process."""
    process = s.qp[q + Qp.PROCESS]
    if process == 0:
        return
    cap = float(s.process[process + Process.CAP_BPS])
    o = q >> CC_SHIFT
    if 0.0 < cap < s.ccq[o + CcQp.LINE]:
        s.ccq[o + CcQp.LINE] = cap
        s.ccq[o + CcQp.RATE] = cap
        s.ccq[o + CcQp.TARGET] = cap
        s.ccq[o + CcQp.CAPPED] = 1.0
