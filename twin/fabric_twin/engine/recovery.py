# SPDX-License-Identifier: Apache-2.0
"""Options of the NICs: a window on what a QP has on its way, and selective repeat instead of go-back-N.

Window (`WINDOW`): a QP stops sending while (next PSN - PSN acknowledged) x MTU reaches its `Qp.WINDOW` bytes, or, with
`SCALED_WINDOW`, that times its rate over line rate. Every packet in sequence is then acknowledged by itself.

Selective repeat (`SELECTIVE`): the receiver keeps what comes out of order, up to `HELD` packets ahead. When a packet
shows a new gap one NAK names the missing PSNs, and the sender sends just those again, before anything new. A lost
retransmission shows by the timer only; then all that the receiver misses is sent again.

None of this runs, and nothing is allocated, while `Sc.OPTIONS` is 0.
"""

from __future__ import annotations

from fabric_twin.engine import progress
from fabric_twin.engine.dcqcn import CcQp
from fabric_twin.engine.events import free_ctl, new_ctl, push, report
from fabric_twin.engine.jit import inner
from fabric_twin.engine.state import (
    ACK,
    CC_SHIFT,
    E_DELIVERED,
    HELD,
    M_IMM,
    NAK,
    RNR,
    SCALED_WINDOW,
    UNA,
    WINDOW,
    Ctl,
    Msg,
    Qp,
    Sc,
    View,
)

__all__ = [
    "COUNT_BITS",
    "acknowledge",
    "drop_lost",
    "find_message",
    "forget_held",
    "keep_lost",
    "may_send",
    "miss",
    "receive",
    "take_lost",
]

COUNT_BITS = 24
"""A range of PSNs in one word: first PSN, and in the low bits how many."""
MOST_RANGES = 128
"""Gaps sent again after one timeout; further ones wait for the next."""


@inner
def may_send(s: View, q: int) -> bool:
    """The QP has a packet that it may send now: one that was lost, or a new one that its window allows."""
    qp = s.qp
    if qp[q + Qp.LOST_HEAD] >= 0:
        return True
    if qp[q + Qp.SEND_MSG] < 0:
        return False
    window = qp[q + Qp.WINDOW]
    if s.sc[Sc.OPTIONS] & WINDOW == 0 or window == 0:
        return True
    if s.sc[Sc.OPTIONS] & SCALED_WINDOW:
        o = q >> CC_SHIFT
        window = max(int(window * s.ccq[o + CcQp.RATE] / s.ccq[o + CcQp.LINE]), 1)
    under_way = (qp[q + Qp.SND_NXT] - qp[q + Qp.UNA_PSN]) * qp[q + Qp.MTU]
    return bool(under_way < window)


@inner
def find_message(s: View, q: int, psn: int) -> int:
    """The message of a PSN among those that are not acknowledged, or -1."""
    m = s.qp[q + Qp.UNA_MSG]
    while m >= 0 and psn >= s.msg[m + Msg.PSN] + s.msg[m + Msg.PACKETS]:
        m = s.msg[m + Msg.NEXT]
    return -1 if m >= 0 and psn < s.msg[m + Msg.PSN] else m


# ------------------------------------------------------------------------------------------------ sender


@inner
def keep_lost(s: View, q: int, first: int, count: int) -> None:
    """Remember that `count` packets from PSN `first` on are to be sent again."""
    node = new_ctl(s)
    s.ctl[node + Ctl.NEXT] = -1
    s.ctl[node + Ctl.ARG] = first
    s.ctl[node + Ctl.QP] = count
    if s.qp[q + Qp.LOST_HEAD] < 0:
        s.qp[q + Qp.LOST_HEAD] = node
    else:
        s.ctl[s.qp[q + Qp.LOST_TAIL] + Ctl.NEXT] = node
    s.qp[q + Qp.LOST_TAIL] = node


@inner
def _drop_head(s: View, q: int) -> None:
    node = s.qp[q + Qp.LOST_HEAD]
    s.qp[q + Qp.LOST_HEAD] = s.ctl[node + Ctl.NEXT]
    free_ctl(s, node)


@inner
def take_lost(s: View, q: int) -> int:
    """The next PSN to be sent again; there is one."""
    node = s.qp[q + Qp.LOST_HEAD]
    psn: int = s.ctl[node + Ctl.ARG]
    s.ctl[node + Ctl.ARG] = psn + 1
    s.ctl[node + Ctl.QP] -= 1
    if s.ctl[node + Ctl.QP] == 0:
        _drop_head(s, q)
    return psn


@inner
def drop_lost(s: View, q: int) -> None:
    """Nothing is to be sent again any more."""
    while s.qp[q + Qp.LOST_HEAD] >= 0:
        _drop_head(s, q)


@inner
def acknowledge(s: View, q: int, psn: int) -> None:
    """Everything before `psn` has arrived: the window moves on, and none of it is sent again."""
    qp = s.qp
    qp[q + Qp.UNA_PSN] = max(qp[q + Qp.UNA_PSN], psn)
    while qp[q + Qp.LOST_HEAD] >= 0:
        node = qp[q + Qp.LOST_HEAD]
        behind = psn - s.ctl[node + Ctl.ARG]
        if behind <= 0:
            return
        if behind < s.ctl[node + Ctl.QP]:
            s.ctl[node + Ctl.ARG] = psn
            s.ctl[node + Ctl.QP] -= behind
            return
        _drop_head(s, q)


@inner
def miss(s: View, q: int, r: int, reached: int) -> int:
    """After a timeout: remember the gaps that receiver `r` has from `reached` on; returns where its last one ends."""
    drop_lost(s, q)
    ranges = 0
    count = 0
    end: int = max(s.qp[r + Qp.RX_HIGH], reached)
    for psn in range(reached, end):
        if s.held[(r // Qp.COLUMNS) * HELD + psn % HELD] == 0:
            count += 1
        elif count > 0:
            keep_lost(s, q, psn - count, count)
            ranges += 1
            count = 0
            if ranges == MOST_RANGES:
                return end
    if count > 0:
        keep_lost(s, q, end - count, count)
    return end


# ------------------------------------------------------------------------------------------------ receiver


@inner
def forget_held(s: View, r: int) -> None:
    """The sender of QP `r` begins a new life: what the old one has sent means nothing any more."""
    s.qp[r + Qp.RX_HIGH] = 0
    base = (r // Qp.COLUMNS) * HELD
    for i in range(HELD):
        s.held[base + i] = 0


@inner
def receive(s: View, q: int, r: int, psn: int, t: int, generation: int) -> None:
    """Packet `psn` of QP `q` reaches QP `r` at time `t`, which keeps it if it is ahead of what is expected."""
    qp = s.qp
    line = qp[r + Qp.CTL_LINE]
    back_at = t + s.line[line]
    expected = qp[r + Qp.RX_PSN]
    base = (r // Qp.COLUMNS) * HELD
    if psn < expected:
        return
    high = max(qp[r + Qp.RX_HIGH], expected)
    if psn > expected:
        qp[r + Qp.OUT_OF_SEQUENCE] += 1
        if psn - expected >= HELD:
            return  # no room: lost, as on the wire
        s.held[base + psn % HELD] = 1
        if psn > high:
            push(s, line, back_at, NAK, q, high << COUNT_BITS | (psn - high), generation)
        qp[r + Qp.RX_HIGH] = max(high, psn + 1)
        return
    while True:
        s.held[base + expected % HELD] = 0
        m = qp[q + Qp.RX_MSG]
        if expected == s.msg[m + Msg.PSN] + s.msg[m + Msg.PACKETS] - 1:
            if s.msg[m + Msg.FLAGS] & M_IMM:
                if qp[r + Qp.RQ] == 0:
                    qp[r + Qp.RX_PSN] = expected
                    qp[r + Qp.RX_HIGH] = max(high, expected + 1)  # known to be missing: no gap that a NAK must name
                    push(s, line, back_at, RNR, q, expected, generation)
                    return
                qp[r + Qp.RQ] -= 1
                s.sc[Sc.STOP] = 1
            qp[q + Qp.RX_MSG] = s.msg[m + Msg.NEXT]
            report(s, t, E_DELIVERED, r, m)
            progress.hear(s, q, r)
            push(s, line, back_at, ACK, q, m, generation)
        expected += 1
        if expected >= high or s.held[base + expected % HELD] == 0:
            break
    qp[r + Qp.RX_PSN] = expected
    qp[r + Qp.RX_HIGH] = max(high, expected)
    if s.sc[Sc.OPTIONS] & WINDOW:
        push(s, line, back_at, UNA, q, expected, generation)
