# SPDX-License-Identifier: Apache-2.0
"""Hosts: sending under DCQCN's pace, go-back-N and its timers, receiving, acknowledgements and CNPs."""

from __future__ import annotations

import numpy as np

from fabric_twin.engine import dcqcn, progress, recovery
from fabric_twin.engine.dcqcn import Cc, CcQp
from fabric_twin.engine.events import free_ctl, free_packet, new_ctl, push, report, set_key, to_wire
from fabric_twin.engine.jit import inner
from fabric_twin.engine.state import (
    ACK,
    ACTIVE_MAX,
    CC_SHIFT,
    CE,
    DATA,
    E_DELIVERED,
    E_RETRY_EXC,
    ECT,
    GAP_BYTES,
    GEN_SHIFT,
    IMM,
    LAST,
    M_DATA,
    M_IMM,
    M_WRITE_IMM,
    MTU_HEADER_BYTES,
    NAK,
    NEVER,
    PORT_SHIFT,
    RNR,
    SELECTIVE,
    TIMEOUT,
    UNA,
    WINDOW,
    Ctl,
    Msg,
    Packet,
    Port,
    Qp,
    Sc,
    View,
)

__all__ = [
    "activate",
    "deactivate",
    "drop_cnps",
    "fail",
    "go_back",
    "host_arrival",
    "nic_advance",
    "nic_rekey",
    "resend",
    "settle",
    "skip_acknowledged",
    "take_early",
    "timeout",
]


@inner
def deactivate(s: View, q: int) -> None:
    """The QP has nothing more to send: out of its NIC's list, whose order stays."""
    if s.qp[q + Qp.IS_ACTIVE] == 0:
        return
    s.qp[q + Qp.IS_ACTIVE] = 0
    p = s.qp[q + Qp.NIC]
    host = s.port[p + Port.HOST] * ACTIVE_MAX
    n = s.port[p + Port.ACTIVE]
    at = 0
    while s.active[host + at] != q:
        at += 1
    for i in range(at, n - 1):
        s.active[host + i] = s.active[host + i + 1]
    s.port[p + Port.ACTIVE] = n - 1
    if s.port[p + Port.RR] > at:
        s.port[p + Port.RR] -= 1
    if s.port[p + Port.RR] >= n - 1:
        s.port[p + Port.RR] = 0


@inner
def activate(s: View, q: int, t: int) -> None:
    """The QP has something to send; its NIC has been advanced to `t`."""
    p = s.qp[q + Qp.NIC]
    if s.qp[q + Qp.IS_ACTIVE] == 0 and (s.sc[Sc.OPTIONS] == 0 or recovery.may_send(s, q)):
        n = s.port[p + Port.ACTIVE]
        s.active[s.port[p + Port.HOST] * ACTIVE_MAX + n] = q
        s.port[p + Port.ACTIVE] = n + 1
        s.qp[q + Qp.IS_ACTIVE] = 1
    s.port[p + Port.READY_AT] = t


@inner
def nic_advance(s: View, p: int, t: int) -> None:
    """Send what the NIC at port `p` would have sent until `t`: round robin over QPs whose pace allows it."""
    port = s.port
    qp = s.qp
    while port[p + Port.PAUSED] == 0:
        n = port[p + Port.ACTIVE]
        if n == 0:
            return
        start = max(port[p + Port.FREE_AT], port[p + Port.READY_AT])
        if start > t:
            return
        host = port[p + Port.HOST] * ACTIVE_MAX
        rr = port[p + Port.RR]
        best = -1
        soonest = NEVER
        for j in range(n):
            i = rr + j
            if i >= n:
                i -= n
            next_at = qp[s.active[host + i] + Qp.NEXT_AT]
            if next_at <= start:
                best = i
                break
            soonest = min(soonest, next_at)
        if best < 0:
            port[p + Port.READY_AT] = soonest
            continue
        _emit(s, p, s.active[host + best], best, start)


@inner
def _next_arrival(s: View, p: int) -> int:
    """When what an idle NIC sends next arrives, or when it is sent if that starts the QP's timer (or with options).

    Nothing but a touch of this NIC can change what is sent next, and each touch asks again.
    """
    port = s.port
    qp = s.qp
    n = port[p + Port.ACTIVE]
    host = port[p + Port.HOST] * ACTIVE_MAX
    rr = port[p + Port.RR]
    start = max(port[p + Port.FREE_AT], port[p + Port.READY_AT])
    q = s.active[host + rr]
    soonest = qp[q + Qp.NEXT_AT]
    for j in range(1, n):
        if soonest <= start:
            break
        i = rr + j
        if i >= n:
            i -= n
        next_at = qp[s.active[host + i] + Qp.NEXT_AT]
        if next_at < soonest:
            soonest = next_at
            q = s.active[host + i]
    at: int = max(start, soonest)
    if qp[q + Qp.RTO_ARMED] == 0 or s.sc[Sc.OPTIONS] != 0:
        return at
    m = qp[q + Qp.SEND_MSG]
    index = qp[q + Qp.SND_NXT] - s.msg[m + Msg.PSN]
    mtu = qp[q + Qp.MTU]
    payload = min(mtu, s.msg[m + Msg.BYTES] - index * mtu)
    wire = payload + MTU_HEADER_BYTES + GAP_BYTES
    at += wire * port[p + Port.PS_PER_BYTE] + port[p + Port.DELAY_PS]
    return at


@inner
def nic_rekey(s: View, p: int) -> None:
    """The next event of a NIC: the head of its wire arrives or, the wire being empty, what will be sent next does."""
    port = s.port
    head = port[p + Port.FLIGHT_HEAD]
    if head >= 0:
        set_key(s, p >> PORT_SHIFT, s.pk[head + Packet.TIME])
    elif port[p + Port.PAUSED] == 0 and port[p + Port.ACTIVE] > 0:
        set_key(s, p >> PORT_SHIFT, _next_arrival(s, p))
    else:
        set_key(s, p >> PORT_SHIFT, NEVER)


@inner
def settle(s: View, q: int, t: int) -> None:
    """Give QP `q` the CNPs that have reached it before time `t`; one at the same time as a packet comes after it."""
    qp = s.qp
    node = qp[q + Qp.CNP_HEAD]
    while node >= 0 and s.ctl[node + Ctl.TIME] < t:
        qp[q + Qp.CNPS_HANDLED] += 1
        dcqcn.on_cnp(s.cc, s.ccq, q >> CC_SHIFT, float(s.ctl[node + Ctl.TIME]))
        after = s.ctl[node + Ctl.NEXT]
        free_ctl(s, node)
        node = after
    qp[q + Qp.CNP_HEAD] = node


@inner
def drop_cnps(s: View, q: int, t: int) -> None:
    """The QP's life ends at time `t`: CNPs that are still on their way find nobody."""
    settle(s, q, t + 1)
    node = s.qp[q + Qp.CNP_HEAD]
    while node >= 0:
        after = s.ctl[node + Ctl.NEXT]
        free_ctl(s, node)
        node = after
    s.qp[q + Qp.CNP_HEAD] = -1


@inner
def _emit(s: View, p: int, q: int, at: int, start: int) -> None:
    """Send the next packet of QP `q` (number `at` in the NIC's list) at time `start`."""
    port = s.port
    qp = s.qp
    pk = s.pk
    m = qp[q + Qp.SEND_MSG]
    psn = qp[q + Qp.SND_NXT]
    lost = s.sc[Sc.OPTIONS] != 0 and qp[q + Qp.LOST_HEAD] >= 0
    if lost:
        psn = recovery.take_lost(s, q)
        m = recovery.find_message(s, q, psn)
        qp[q + Qp.RETRANSMITTED] += 1
    n_packets = s.msg[m + Msg.PACKETS]
    index = psn - s.msg[m + Msg.PSN]
    mflags = s.msg[m + Msg.FLAGS]
    mtu = qp[q + Qp.MTU]
    flags = qp[q + Qp.GENERATION] << GEN_SHIFT
    if qp[q + Qp.ECT] != 0:
        flags |= ECT
    if mflags & M_DATA:
        flags |= DATA
        s.sc[Sc.DATA_PACKETS] += 1
    last = index == n_packets - 1
    payload = mtu
    if last:
        payload = s.msg[m + Msg.BYTES] - index * mtu
        flags |= LAST
        if mflags & M_WRITE_IMM:
            flags |= IMM
    size = payload + MTU_HEADER_BYTES
    wire = size + GAP_BYTES
    busy = wire * port[p + Port.PS_PER_BYTE]

    k = s.sc[Sc.FREE_PACKET]
    s.sc[Sc.FREE_PACKET] = pk[k + Packet.NEXT]
    s.sc[Sc.FREE_PACKETS] -= 1
    s.sc[Sc.IN_FLIGHT] += 1
    pk[k + Packet.QP] = q
    pk[k + Packet.PSN] = psn
    pk[k + Packet.SIZE] = size
    pk[k + Packet.FLAGS] = flags
    pk[k + Packet.HOP] = qp[q + Qp.ROUTE]
    port[p + Port.FREE_AT] = start + busy
    port[p + Port.READY_AT] = start
    port[p + Port.TX_BYTES] += wire
    port[p + Port.TX_PACKETS] += 1
    to_wire(s, p, k, start + busy + port[p + Port.DELAY_PS])

    qp[q + Qp.TX_PACKETS] += 1
    cc = s.ccq
    o = q >> CC_SHIFT
    settle(s, q, start)
    dcqcn.advance(s.cc, cc, o, float(start))
    if cc[o + CcQp.RATE] >= cc[o + CcQp.LINE] and cc[o + CcQp.CAPPED] == 0.0:
        qp[q + Qp.NEXT_AT] = start + busy
    else:
        qp[q + Qp.NEXT_AT] = start + np.int64(wire * 8e12 / cc[o + CcQp.RATE])
    dcqcn.on_bytes_sent(s.cc, cc, o, float(wire))
    if qp[q + Qp.PROCESS] != 0 and flags & DATA:
        progress.weigh(s, p, q)

    if not lost:
        qp[q + Qp.SND_NXT] = psn + 1
    port[p + Port.RR] = at + 1 if at + 1 < port[p + Port.ACTIVE] else 0
    if qp[q + Qp.RTO_ARMED] == 0:
        qp[q + Qp.RTO_ARMED] = 1
        qp[q + Qp.RTO_PSN] = psn
        line = qp[q + Qp.RTO_LINE]
        push(s, line, start + s.line[line], TIMEOUT, q, 0, qp[q + Qp.GENERATION])
    if last and not lost:
        qp[q + Qp.SEND_MSG] = s.msg[m + Msg.NEXT]
    if s.sc[Sc.OPTIONS] == 0:
        if last and qp[q + Qp.SEND_MSG] < 0:
            deactivate(s, q)
    elif not recovery.may_send(s, q):
        deactivate(s, q)


@inner
def go_back(s: View, q: int, psn: int, t: int, wait: int) -> None:
    """Go-back-N: send again from `psn` on (IB spec 9.7.5.1.2 / 9.7.5.2.8)."""
    m = recovery.find_message(s, q, psn)
    if m < 0:
        return  # acknowledged in the meantime
    if psn < s.qp[q + Qp.SND_NXT]:
        s.qp[q + Qp.RETRANSMITTED] += s.qp[q + Qp.SND_NXT] - psn
        s.qp[q + Qp.SND_NXT] = psn
        s.qp[q + Qp.SEND_MSG] = m
    if wait > 0:
        s.qp[q + Qp.NEXT_AT] = t + wait
    activate(s, q, t)


@inner
def skip_acknowledged(s: View, q: int, m: int) -> None:
    """Message `m` is acknowledged: what a timeout had made us send again of it need not leave any more."""
    end = s.msg[m + Msg.PSN] + s.msg[m + Msg.PACKETS]
    if s.qp[q + Qp.SND_NXT] >= end:
        return
    s.qp[q + Qp.SND_NXT] = end
    s.qp[q + Qp.SEND_MSG] = s.msg[m + Msg.NEXT]
    if s.qp[q + Qp.SEND_MSG] < 0:
        deactivate(s, q)


@inner
def timeout(s: View, line: int, q: int, t: int) -> None:
    """The QP's timer: it starts with a packet and runs until a look at it finds nothing on its way.

    No progress of the receiver between two looks is a timeout. So the first one comes one to two periods after
    progress has stopped (IB spec 9.7.6.1.3 allows one to four).
    """
    oldest = s.qp[q + Qp.UNA_MSG]
    if oldest < 0:
        s.qp[q + Qp.RTO_ARMED] = 0
        return
    peer = s.qp[q + Qp.PEER]
    reached = s.qp[q + Qp.RTO_PSN]
    if peer >= 0 and s.qp[peer + Qp.PEER] == q and s.qp[peer + Qp.RX_GENERATION] == s.qp[q + Qp.GENERATION]:
        reached = s.qp[peer + Qp.RX_PSN]
        reached -= int(s.qp[peer + Qp.RX_FOLDED_AT] > t) + int(s.qp[peer + Qp.RX_FOLDED_BEFORE] > t)
    if s.qp[q + Qp.IS_ACTIVE] != 0 and s.qp[q + Qp.SND_NXT] == reached:
        s.qp[q + Qp.RTO_ARMED] = 0  # it paces, waits after an RNR NAK or is paused
        return
    if reached > s.qp[q + Qp.RTO_PSN]:
        s.qp[q + Qp.RTO_PSN] = reached  # it moves: the acknowledgements in between would have restarted the timer
        s.qp[q + Qp.RETRIES] = 0
    else:
        s.qp[q + Qp.TIMEOUTS] += 1
        s.qp[q + Qp.RETRIES] += 1
        if s.qp[q + Qp.RETRIES] > s.qp[q + Qp.RETRY_CNT]:
            fail(s, q, t, E_RETRY_EXC)
            return
        again = max(reached, s.msg[oldest + Msg.PSN])
        if s.sc[Sc.OPTIONS] & SELECTIVE and peer >= 0:
            again = recovery.miss(s, q, peer, again)
            activate(s, q, t)
        go_back(s, q, again, t, 0)
    push(s, line, t + s.line[line], TIMEOUT, q, 0, s.qp[q + Qp.GENERATION])


@inner
def resend(s: View, q: int, psn: int, count: int, t: int, wait: int) -> None:
    """Selective repeat: send `count` packets from `psn` on again, as far as they are not acknowledged by now."""
    if recovery.find_message(s, q, psn) < 0:
        return
    recovery.keep_lost(s, q, psn, count)
    if wait > 0:
        s.qp[q + Qp.NEXT_AT] = t + wait
    activate(s, q, t)


@inner
def fail(s: View, q: int, t: int, kind: int) -> None:
    """Retries are used up: the QP goes to the error state."""
    s.qp[q + Qp.STATE] = 0
    deactivate(s, q)
    drop_cnps(s, q, t)
    recovery.drop_lost(s, q)
    report(s, t, kind, q, s.qp[q + Qp.UNA_MSG])
    s.sc[Sc.STOP] = 1


@inner
def _count(s: View, r: int, q: int, flags: int, t: int) -> None:
    """QP `r` has got a packet of `q` at time `t`; CE makes a CNP, which waits at the sender until its rate is asked."""
    qp = s.qp
    qp[r + Qp.RX_PACKETS] += 1
    if flags & CE == 0:
        return
    qp[r + Qp.RX_MARKED] += 1
    interval = np.int64(s.cc[Cc.CNP_INTERVAL_PS])
    if interval != 0 and t - qp[r + Qp.CNP_AT] < interval:
        return
    qp[r + Qp.CNP_AT] = t
    qp[r + Qp.CNPS_SENT] += 1
    s.sc[Sc.CNPS] += 1
    if qp[q + Qp.STATE] == 0:
        return  # the sender has failed and does not listen any more
    node = new_ctl(s)
    s.ctl[node + Ctl.NEXT] = -1
    s.ctl[node + Ctl.TIME] = t + s.line[qp[r + Qp.CTL_LINE]]
    if qp[q + Qp.CNP_HEAD] < 0:
        qp[q + Qp.CNP_HEAD] = node
    else:
        s.ctl[qp[q + Qp.CNP_TAIL] + Ctl.NEXT] = node
    qp[q + Qp.CNP_TAIL] = node


@inner
def take_early(s: View, k: int, t: int) -> bool:
    """A packet that will reach its host at time `t` is taken now, if all that happens then is that it is counted.

    So it must be the next one in sequence and not the last of its message, and nothing may reach the host before it.
    """
    qp = s.qp
    q = s.pk[k + Packet.QP]
    flags = s.pk[k + Packet.FLAGS]
    r = qp[q + Qp.PEER]
    generation = qp[q + Qp.GENERATION]
    if flags & LAST or r < 0 or qp[r + Qp.STATE] == 0 or qp[r + Qp.PEER] != q or flags >> GEN_SHIFT != generation:
        return False
    if s.sc[Sc.OPTIONS] != 0 or s.pk[k + Packet.PSN] != qp[r + Qp.RX_PSN] or qp[r + Qp.RX_GENERATION] != generation:
        return False
    _count(s, r, q, flags, t)
    qp[r + Qp.RX_PSN] += 1
    qp[r + Qp.RX_NAKED] = 0
    qp[r + Qp.RX_FOLDED_BEFORE] = qp[r + Qp.RX_FOLDED_AT]
    qp[r + Qp.RX_FOLDED_AT] = t
    free_packet(s, k)
    return True


@inner
def host_arrival(s: View, k: int, t: int) -> None:
    """A packet reaches its host: in sequence, or NAK; CE makes a CNP; the last of a message is reported."""
    qp = s.qp
    q = s.pk[k + Packet.QP]
    psn = s.pk[k + Packet.PSN]
    flags = s.pk[k + Packet.FLAGS]
    free_packet(s, k)
    r = qp[q + Qp.PEER]
    generation = qp[q + Qp.GENERATION]
    if r < 0 or qp[r + Qp.STATE] == 0 or qp[r + Qp.PEER] != q or flags >> GEN_SHIFT != generation:
        return  # nobody there: the sender's timer will tell
    _count(s, r, q, flags, t)
    line = qp[r + Qp.CTL_LINE]
    back_at = t + s.line[line]
    expected = qp[r + Qp.RX_PSN]
    if qp[r + Qp.RX_GENERATION] != generation:
        if expected > 0:
            return  # the sender has been reset, the receiver has not: their PSNs mean different things
        qp[r + Qp.RX_GENERATION] = generation
        if s.sc[Sc.OPTIONS] & SELECTIVE:
            recovery.forget_held(s, r)
    if s.sc[Sc.OPTIONS] & SELECTIVE:
        recovery.receive(s, q, r, psn, t, generation)
        return
    if psn == expected:
        if flags & LAST:
            m = qp[q + Qp.RX_MSG]
            if s.msg[m + Msg.FLAGS] & M_IMM:
                if qp[r + Qp.RQ] == 0:
                    qp[r + Qp.RX_NAKED] = 1
                    push(s, line, back_at, RNR, q, psn, generation)
                    return
                qp[r + Qp.RQ] -= 1
                s.sc[Sc.STOP] = 1
            qp[q + Qp.RX_MSG] = s.msg[m + Msg.NEXT]
            report(s, t, E_DELIVERED, r, m)
            progress.hear(s, q, r)
            push(s, line, back_at, ACK, q, m, generation)
        qp[r + Qp.RX_PSN] = expected + 1
        if s.sc[Sc.OPTIONS] & WINDOW:
            push(s, line, back_at, UNA, q, expected + 1, generation)
        qp[r + Qp.RX_NAKED] = 0
    elif psn > expected:
        qp[r + Qp.OUT_OF_SEQUENCE] += 1
        if qp[r + Qp.RX_NAKED] == 0:
            qp[r + Qp.RX_NAKED] = 1
            push(s, line, back_at, NAK, q, expected, generation)
