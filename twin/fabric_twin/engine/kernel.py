# SPDX-License-Identifier: Apache-2.0
"""The event loop: one event for each hop of a packet.

Entities are directed links and delay lines; a tournament tree over their next event times picks the earliest
(ties: the lowest entity, so runs repeat exactly). Links and lines are first-in first-out with constant delays:
their contents never enter the tree.

A link's event is the *arrival* of the packet at the head of its wire. When a packet leaves the queue is not an
event of its own: each touch of a port (a packet joins the queue, its own packet arrives, a pause frame comes)
first runs all departures that are due (`_port_advance`). A port with something on its wire is touched before its
next departure can reach anybody, so lateness stays below one link delay and nobody can tell, with one exception:
the switch's buffer occupancy, which PFC thresholds look at, can lag by that much on ports not touched since.

Random early marking looks at the queue behind the departing packet, at the time it departs (HPCC's ns-3 code does
the same). Acknowledgements, NAKs and CNPs are pure delay.
"""

from __future__ import annotations

import numpy as np

from fabric_twin.engine import dcqcn
from fabric_twin.engine.dcqcn import Cc, CcQp
from fabric_twin.engine.jit import entry, inner
from fabric_twin.engine.state import (
    ACK,
    ACTIVE_MAX,
    CANDIDATE,
    CC_SHIFT,
    CE,
    CNP,
    DATA,
    E_ACKED,
    E_DELIVERED,
    E_RETRY_EXC,
    E_RNR_RETRY_EXC,
    ECT,
    GAP_BYTES,
    GATED,
    IMM,
    LAST,
    M_DATA,
    M_IMM,
    M_SIGNALED,
    M_WRITE_IMM,
    MTU_HEADER_BYTES,
    NAK,
    NEVER,
    PFC_OFF,
    PFC_ON,
    PORT_SHIFT,
    RNR,
    TIMEOUT,
    TRACKED,
    Ctl,
    Event,
    Hop,
    Msg,
    Packet,
    Planes,
    Port,
    Qp,
    Sc,
    Sw,
    View,
)
from switch_agent.dataplane.constants import N_JOB
from switch_agent.dataplane.pipeline import process_packet

__all__ = ["GROW", "IDLE", "REACHED", "SLICE", "STOPPED", "catch_up", "post", "run", "stop_sending"]

REACHED = 0  # the time limit
STOPPED = 1  # a completion that somebody may wait for
GROW = 2  # a pool or the report is nearly full
SLICE = 3  # enough events for one call
IDLE = 4  # nothing will ever happen again by itself
OUT_MARGIN = 1024

_V_TRACKED, _V_AHEAD, _V_MARK = 1, 2, 4
_GEN_SHIFT = 16


@inner
def _set_key(s: View, entity: int, t: int) -> None:
    key = s.key
    if key[entity] == t:
        return
    key[entity] = t
    win = s.win
    i = (entity + s.sc[Sc.TREE_SIZE]) >> 1
    while i >= 1:
        a = win[2 * i]
        b = win[2 * i + 1]
        w = a if key[a] <= key[b] else b
        if win[i] == w and w != entity:
            return
        win[i] = w
        i >>= 1


@inner
def _random32(s: View) -> int:
    x = np.uint64(s.sc[Sc.RNG])
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    s.sc[Sc.RNG] = np.int64(x)
    mixed: int = np.int64((x * np.uint64(0x2545F4914F6CDD1D)) >> np.uint64(32))  # type: ignore[assignment]
    return mixed


@inner
def _report(s: View, t: int, kind: int, q: int, arg: int) -> None:
    n = s.sc[Sc.N_OUT] * Event.COLUMNS
    s.out[n + Event.TIME] = t
    s.out[n + Event.KIND] = kind
    s.out[n + Event.QP] = q
    s.out[n + Event.ARG] = arg
    s.sc[Sc.N_OUT] += 1


# ------------------------------------------------------------------------------------------- delay lines


@inner
def _push(s: View, line: int, at: int, kind: int, q: int, arg: int, generation: int) -> None:
    node = s.sc[Sc.FREE_CTL]
    s.sc[Sc.FREE_CTL] = s.ctl[node + Ctl.NEXT]
    s.sc[Sc.FREE_CTLS] -= 1
    tail = s.line[line + 2]
    if tail >= 0 and s.ctl[tail + Ctl.TIME] > at:
        at = s.ctl[tail + Ctl.TIME]
    s.ctl[node + Ctl.NEXT] = -1
    s.ctl[node + Ctl.TIME] = at
    s.ctl[node + Ctl.KIND] = kind
    s.ctl[node + Ctl.QP] = q
    s.ctl[node + Ctl.ARG] = arg
    s.ctl[node + Ctl.GENERATION] = generation
    s.line[line + 2] = node
    if tail < 0:
        s.line[line + 1] = node
        _set_key(s, s.sc[Sc.CTL_BASE] + (line >> 2), at)
    else:
        s.ctl[tail + Ctl.NEXT] = node


@inner
def _line_event(s: View, line: int, t: int) -> None:
    node = s.line[line + 1]
    after = s.ctl[node + Ctl.NEXT]
    s.line[line + 1] = after
    if after < 0:
        s.line[line + 2] = -1
        _set_key(s, s.sc[Sc.CTL_BASE] + (line >> 2), NEVER)
    else:
        _set_key(s, s.sc[Sc.CTL_BASE] + (line >> 2), s.ctl[after + Ctl.TIME])
    kind = s.ctl[node + Ctl.KIND]
    q = s.ctl[node + Ctl.QP]
    arg = s.ctl[node + Ctl.ARG]
    generation = s.ctl[node + Ctl.GENERATION]
    s.ctl[node + Ctl.NEXT] = s.sc[Sc.FREE_CTL]
    s.sc[Sc.FREE_CTL] = node
    s.sc[Sc.FREE_CTLS] += 1

    if kind in (PFC_ON, PFC_OFF):
        _advance(s, q, t)
        _pause(s, q, kind == PFC_ON, t)
        _rekey(s, q)
        return
    if s.qp[q + Qp.GENERATION] != generation or s.qp[q + Qp.STATE] == 0:
        return
    p = s.qp[q + Qp.NIC]
    _nic_advance(s, p, t)
    if kind == CNP:
        s.qp[q + Qp.CNPS_HANDLED] += 1
        dcqcn.on_cnp(s.cc, s.ccq, q >> CC_SHIFT, float(t))
    elif kind == ACK:
        s.qp[q + Qp.UNA_MSG] = s.msg[arg + Msg.NEXT]
        s.qp[q + Qp.RETRIES] = 0
        s.qp[q + Qp.RNR_RETRIES] = 0
        _skip_acknowledged(s, q, arg)
        _report(s, t, E_ACKED, q, arg)
        if s.msg[arg + Msg.FLAGS] & M_SIGNALED:
            s.sc[Sc.STOP] = 1
    elif kind == NAK:
        _go_back(s, q, arg, t, 0)
    elif kind == RNR:
        s.qp[q + Qp.RNR_NAKS] += 1
        if s.qp[q + Qp.RNR_RETRY] != 7 and s.qp[q + Qp.RNR_RETRIES] >= s.qp[q + Qp.RNR_RETRY]:
            _fail(s, q, t, E_RNR_RETRY_EXC)
        else:
            s.qp[q + Qp.RNR_RETRIES] += 1
            receiver = s.qp[q + Qp.PEER]
            _go_back(s, q, arg, t, s.qp[receiver + Qp.RNR_PS] if receiver >= 0 else 0)
    elif kind == TIMEOUT:
        _timeout(s, line, q, t)
    _rekey(s, p)


@inner
def _skip_acknowledged(s: View, q: int, m: int) -> None:
    """Message `m` is acknowledged: what a timeout had made us send again of it need not leave any more."""
    end = s.msg[m + Msg.PSN] + s.msg[m + Msg.PACKETS]
    if s.qp[q + Qp.SND_NXT] >= end:
        return
    s.qp[q + Qp.SND_NXT] = end
    s.qp[q + Qp.SEND_MSG] = s.msg[m + Msg.NEXT]
    if s.qp[q + Qp.SEND_MSG] < 0:
        _deactivate(s, q)


@inner
def _timeout(s: View, line: int, q: int, t: int) -> None:
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
            _fail(s, q, t, E_RETRY_EXC)
            return
        _go_back(s, q, max(reached, s.msg[oldest + Msg.PSN]), t, 0)
    _push(s, line, t + s.line[line], TIMEOUT, q, 0, s.qp[q + Qp.GENERATION])


@inner
def _fail(s: View, q: int, t: int, kind: int) -> None:
    """Retries are used up: the QP goes to the error state."""
    s.qp[q + Qp.STATE] = 0
    _deactivate(s, q)
    _report(s, t, kind, q, s.qp[q + Qp.UNA_MSG])
    s.sc[Sc.STOP] = 1


# ------------------------------------------------------------------------------------------- sending


@inner
def _deactivate(s: View, q: int) -> None:
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
def _activate(s: View, q: int, t: int) -> None:
    """The QP has something to send; its NIC has been advanced to `t`."""
    p = s.qp[q + Qp.NIC]
    if s.qp[q + Qp.IS_ACTIVE] == 0:
        n = s.port[p + Port.ACTIVE]
        s.active[s.port[p + Port.HOST] * ACTIVE_MAX + n] = q
        s.port[p + Port.ACTIVE] = n + 1
        s.qp[q + Qp.IS_ACTIVE] = 1
    s.port[p + Port.READY_AT] = t


@inner
def _go_back(s: View, q: int, psn: int, t: int, wait: int) -> None:
    """Go-back-N: send again from `psn` on (IB spec 9.7.5.1.2 / 9.7.5.2.8)."""
    m = s.qp[q + Qp.UNA_MSG]
    while m >= 0 and psn >= s.msg[m + Msg.PSN] + s.msg[m + Msg.PACKETS]:
        m = s.msg[m + Msg.NEXT]
    if m < 0 or psn < s.msg[m + Msg.PSN]:
        return  # acknowledged in the meantime
    if psn < s.qp[q + Qp.SND_NXT]:
        s.qp[q + Qp.RETRANSMITTED] += s.qp[q + Qp.SND_NXT] - psn
        s.qp[q + Qp.SND_NXT] = psn
        s.qp[q + Qp.SEND_MSG] = m
    if wait > 0:
        s.qp[q + Qp.NEXT_AT] = t + wait
    _activate(s, q, t)


@inner
def _nic_advance(s: View, p: int, t: int) -> None:
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
def _emit(s: View, p: int, q: int, at: int, start: int) -> None:
    """Send the next packet of QP `q` (number `at` in the NIC's list) at time `start`."""
    port = s.port
    qp = s.qp
    pk = s.pk
    m = qp[q + Qp.SEND_MSG]
    psn = qp[q + Qp.SND_NXT]
    n_packets = s.msg[m + Msg.PACKETS]
    index = psn - s.msg[m + Msg.PSN]
    mflags = s.msg[m + Msg.FLAGS]
    mtu = qp[q + Qp.MTU]
    flags = qp[q + Qp.GENERATION] << _GEN_SHIFT
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
    _to_wire(s, p, k, start + busy + port[p + Port.DELAY_PS], wire)

    qp[q + Qp.TX_PACKETS] += 1
    cc = s.ccq
    o = q >> CC_SHIFT
    dcqcn.advance(s.cc, cc, o, float(start))
    if cc[o + CcQp.RATE] >= cc[o + CcQp.LINE]:
        qp[q + Qp.NEXT_AT] = start + busy
    else:
        qp[q + Qp.NEXT_AT] = start + np.int64(wire * 8e12 / cc[o + CcQp.RATE])
    dcqcn.on_bytes_sent(s.cc, cc, o, float(wire))

    qp[q + Qp.SND_NXT] = psn + 1
    port[p + Port.RR] = at + 1 if at + 1 < port[p + Port.ACTIVE] else 0
    if qp[q + Qp.RTO_ARMED] == 0:
        qp[q + Qp.RTO_ARMED] = 1
        qp[q + Qp.RTO_PSN] = psn
        line = qp[q + Qp.RTO_LINE]
        _push(s, line, start + s.line[line], TIMEOUT, q, 0, qp[q + Qp.GENERATION])
    if last:
        qp[q + Qp.SEND_MSG] = s.msg[m + Msg.NEXT]
        if qp[q + Qp.SEND_MSG] < 0:
            _deactivate(s, q)


# ------------------------------------------------------------------------------------------- links


@inner
def _to_wire(s: View, p: int, k: int, at: int, wire: int) -> None:
    port = s.port
    port[p + Port.TX_BYTES] += wire
    port[p + Port.TX_PACKETS] += 1
    s.pk[k + Packet.NEXT] = -1
    s.pk[k + Packet.TIME] = at
    tail = port[p + Port.FLIGHT_TAIL]
    port[p + Port.FLIGHT_TAIL] = k
    if tail < 0:
        port[p + Port.FLIGHT_HEAD] = k
        _set_key(s, p >> PORT_SHIFT, at)
    else:
        s.pk[tail + Packet.NEXT] = k


@inner
def _free(s: View, k: int) -> None:
    s.pk[k + Packet.NEXT] = s.sc[Sc.FREE_PACKET]
    s.sc[Sc.FREE_PACKET] = k
    s.sc[Sc.FREE_PACKETS] += 1
    s.sc[Sc.IN_FLIGHT] -= 1


@inner
def _rekey(s: View, p: int) -> None:
    """The next event of a port: the head of its wire arrives, or, the wire being empty, something may leave.

    While something is on the wire, a departure can wait for its arrival: what leaves now arrives later than that.
    """
    port = s.port
    head = port[p + Port.FLIGHT_HEAD]
    if head >= 0:
        _set_key(s, p >> PORT_SHIFT, s.pk[head + Packet.TIME])
    elif port[p + Port.PAUSED] == 0 and (port[p + Port.ACTIVE] > 0 or port[p + Port.Q_HEAD] >= 0):
        _set_key(s, p >> PORT_SHIFT, max(port[p + Port.FREE_AT], port[p + Port.READY_AT]))
    else:
        _set_key(s, p >> PORT_SHIFT, NEVER)


@inner
def _advance(s: View, p: int, t: int) -> None:
    if s.port[p + Port.NODE] < 0:
        _nic_advance(s, p, t)
    else:
        _port_advance(s, p, t)


@inner
def _port_event(s: View, planes: Planes, p: int, t: int) -> None:
    port = s.port
    k = port[p + Port.FLIGHT_HEAD]
    arrives = k >= 0 and s.pk[k + Packet.TIME] <= t
    if arrives:
        after = s.pk[k + Packet.NEXT]
        port[p + Port.FLIGHT_HEAD] = after
        if after < 0:
            port[p + Port.FLIGHT_TAIL] = -1
    _advance(s, p, t)
    _rekey(s, p)
    if not arrives:
        return
    if port[p + Port.DROP_PROB] != 0 and _random32(s) < port[p + Port.DROP_PROB]:
        port[p + Port.DROPPED] += 1
        s.sc[Sc.DROPS] += 1
        _free(s, k)
        return
    if port[p + Port.PEER] >= 0:
        _switch_arrival(s, planes, p, k, t)
    else:
        _host_arrival(s, k, t)


@inner
def _pause(s: View, p: int, on: bool, t: int) -> None:
    port = s.port
    if on:
        if port[p + Port.PAUSED] == 0:
            port[p + Port.PAUSED_SINCE] = t
            port[p + Port.PAUSES] += 1
        port[p + Port.PAUSED] = 1
    else:
        if port[p + Port.PAUSED] != 0:
            port[p + Port.PAUSED_PS] += t - port[p + Port.PAUSED_SINCE]
        port[p + Port.PAUSED] = 0
        port[p + Port.READY_AT] = t


# ------------------------------------------------------------------------------------------- switches


@inner
def _port_advance(s: View, p: int, t: int) -> None:
    """Let the packets leave that are due until `t`; RED and the gate look at the queue they leave behind."""
    port = s.port
    pk = s.pk
    while port[p + Port.Q_HEAD] >= 0 and port[p + Port.PAUSED] == 0:
        start = max(port[p + Port.FREE_AT], port[p + Port.READY_AT])
        if start > t:
            return
        k = port[p + Port.Q_HEAD]
        after = pk[k + Packet.NEXT]
        port[p + Port.Q_HEAD] = after
        if after < 0:
            port[p + Port.Q_TAIL] = -1
        size = pk[k + Packet.SIZE]
        behind = port[p + Port.Q_BYTES] - size
        port[p + Port.Q_BYTES] = behind
        flags = pk[k + Packet.FLAGS]
        if flags & ECT:
            red = False
            if behind > port[p + Port.KMIN]:
                if behind > port[p + Port.KMAX]:
                    red = True
                else:
                    share = port[p + Port.PMAX] * (behind - port[p + Port.KMIN])
                    red = _random32(s) < share // (port[p + Port.KMAX] - port[p + Port.KMIN])
            symphony = flags & CANDIDATE != 0 and (flags & GATED == 0 or behind > 0)
            if red or symphony:
                if flags & TRACKED:
                    source = pk[k + Packet.IN_PORT]
                    row = port[source + Port.ROW]
                    job = s.route[pk[k + Packet.HOP] + (Hop.JOB - Hop.COLUMNS)]
                    if symphony:
                        s.counts[(row * N_JOB + job) * 8 + 4] += 1
                        s.counts[(row * N_JOB + job) * 8 + 5] += size
                    if red:
                        s.counts[(row * N_JOB + job) * 8 + 6] += 1
                        s.counts[(row * N_JOB + job) * 8 + 7] += size
                if red:
                    port[p + Port.MARKED] += 1
                flags |= CE
            pk[k + Packet.FLAGS] = flags & ~(CANDIDATE | GATED | TRACKED)

        node = port[p + Port.NODE]
        source = pk[k + Packet.IN_PORT]
        s.sw[node + Sw.USED] -= size
        waiting = port[source + Port.IN_BYTES] - size
        port[source + Port.IN_BYTES] = waiting
        if port[source + Port.XOFF] != 0:
            limit = ((s.sw[node + Sw.BUFFER] - s.sw[node + Sw.USED]) >> s.sc[Sc.PFC_SHIFT]) - s.sc[Sc.PFC_RESUME_OFFSET]
            if waiting <= limit or waiting == 0:
                port[source + Port.XOFF] = 0
                _push(s, s.sc[Sc.PFC_LINE], max(t, start + port[source + Port.DELAY_PS]), PFC_OFF, source, 0, 0)

        wire = size + GAP_BYTES
        busy = wire * port[p + Port.PS_PER_BYTE]
        port[p + Port.FREE_AT] = start + busy
        _to_wire(s, p, k, start + busy + port[p + Port.DELAY_PS], wire)


@inner
def _switch_arrival(s: View, planes: Planes, p: int, k: int, t: int) -> None:
    """A packet comes in over link `p`: Symphony's pipeline, admission, PFC, egress queue."""
    port = s.port
    pk = s.pk
    node = port[p + Port.PEER]
    q = pk[k + Packet.QP]
    hop = pk[k + Packet.HOP]
    egress = s.route[hop + (Hop.COLUMNS + Hop.PORT)]
    size = pk[k + Packet.SIZE]
    flags = pk[k + Packet.FLAGS]
    pipeline = s.sw[node + Sw.PIPELINE]
    if pipeline >= 0 and flags & DATA:
        job = s.route[hop + Hop.JOB]
        # a packet of a QP that has been reset meanwhile passes untouched: its port and PSN are no longer known
        if job >= 0 and s.enabled[pipeline * N_JOB + job] != 0 and flags >> _GEN_SHIFT == s.qp[q + Qp.GENERATION]:
            row = port[p + Port.ROW]
            params = planes.params[pipeline, job]
            block = s.route[hop + Hop.BLOCK] + (port[egress + Port.INDEX] & params[0])
            verdict = process_packet(
                planes.regs,
                row,
                planes.lut,
                pipeline,
                block,
                params,
                s.qp[q + Qp.SPORT],
                (pk[k + Packet.PSN] + s.qp[q + Qp.PSN_OFFSET]) & 0xFFFFFF,
                flags & IMM != 0,
                s.qp[q + Qp.SIG],
                s.qp[q + Qp.SLOT],
                t // 256000,
                _random32(s),
            )
            flags |= TRACKED
            s.counts[(row * N_JOB + job) * 8 + 0] += 1
            s.counts[(row * N_JOB + job) * 8 + 1] += size
            if verdict & _V_AHEAD:
                s.counts[(row * N_JOB + job) * 8 + 2] += 1
                s.counts[(row * N_JOB + job) * 8 + 3] += size
                if verdict & _V_MARK:
                    flags |= CANDIDATE
                    if params[1] != 0:
                        flags |= GATED
            pk[k + Packet.FLAGS] = flags
    used = s.sw[node + Sw.USED] + size
    if used > s.sw[node + Sw.BUFFER]:
        port[egress + Port.DROPPED] += 1
        s.sc[Sc.DROPS] += 1
        _free(s, k)
        return
    s.sw[node + Sw.USED] = used
    if used > s.sw[node + Sw.MAX_USED]:
        s.sw[node + Sw.MAX_USED] = used
    waiting = port[p + Port.IN_BYTES] + size
    port[p + Port.IN_BYTES] = waiting
    if (
        s.sc[Sc.PFC_ON] != 0
        and port[p + Port.XOFF] == 0
        and waiting > (s.sw[node + Sw.BUFFER] - used) >> s.sc[Sc.PFC_SHIFT]
    ):
        port[p + Port.XOFF] = 1
        _push(s, s.sc[Sc.PFC_LINE], t + port[p + Port.DELAY_PS], PFC_ON, p, 0, 0)

    pk[k + Packet.HOP] = hop + Hop.COLUMNS
    pk[k + Packet.IN_PORT] = p
    pk[k + Packet.NEXT] = -1
    _port_advance(s, egress, t)
    tail = port[egress + Port.Q_TAIL]
    port[egress + Port.Q_TAIL] = k
    queued = port[egress + Port.Q_BYTES] + size
    port[egress + Port.Q_BYTES] = queued
    if queued > port[egress + Port.MAX_Q_BYTES]:
        port[egress + Port.MAX_Q_BYTES] = queued
    if tail < 0:
        port[egress + Port.Q_HEAD] = k
        port[egress + Port.READY_AT] = t
        _port_advance(s, egress, t)
    else:
        pk[tail + Packet.NEXT] = k


# ------------------------------------------------------------------------------------------- receiving


@inner
def _host_arrival(s: View, k: int, t: int) -> None:
    qp = s.qp
    q = s.pk[k + Packet.QP]
    psn = s.pk[k + Packet.PSN]
    flags = s.pk[k + Packet.FLAGS]
    _free(s, k)
    r = qp[q + Qp.PEER]
    generation = qp[q + Qp.GENERATION]
    if r < 0 or qp[r + Qp.STATE] == 0 or qp[r + Qp.PEER] != q or flags >> _GEN_SHIFT != generation:
        return  # nobody there: the sender's timer will tell
    qp[r + Qp.RX_PACKETS] += 1
    line = qp[r + Qp.CTL_LINE]
    back_at = t + s.line[line]
    if flags & CE:
        qp[r + Qp.RX_MARKED] += 1
        interval = np.int64(s.cc[Cc.CNP_INTERVAL_PS])
        if interval == 0 or t - qp[r + Qp.CNP_AT] >= interval:
            qp[r + Qp.CNP_AT] = t
            qp[r + Qp.CNPS_SENT] += 1
            s.sc[Sc.CNPS] += 1
            _push(s, line, back_at, CNP, q, 0, generation)
    expected = qp[r + Qp.RX_PSN]
    if qp[r + Qp.RX_GENERATION] != generation:
        if expected > 0:
            return  # the sender has been reset, the receiver has not: their PSNs mean different things
        qp[r + Qp.RX_GENERATION] = generation
    if psn == expected:
        if flags & LAST:
            m = qp[q + Qp.RX_MSG]
            if s.msg[m + Msg.FLAGS] & M_IMM:
                if qp[r + Qp.RQ] == 0:
                    qp[r + Qp.RX_NAKED] = 1
                    _push(s, line, back_at, RNR, q, psn, generation)
                    return
                qp[r + Qp.RQ] -= 1
                s.sc[Sc.STOP] = 1
            qp[q + Qp.RX_MSG] = s.msg[m + Msg.NEXT]
            _report(s, t, E_DELIVERED, r, m)
            _push(s, line, back_at, ACK, q, m, generation)
        qp[r + Qp.RX_PSN] = expected + 1
        qp[r + Qp.RX_NAKED] = 0
    elif psn > expected:
        qp[r + Qp.OUT_OF_SEQUENCE] += 1
        if qp[r + Qp.RX_NAKED] == 0:
            qp[r + Qp.RX_NAKED] = 1
            _push(s, line, back_at, NAK, q, expected, generation)


# ------------------------------------------------------------------------------------------- entry points


@entry
def post(s: View, q: int, m: int) -> None:
    """Append message `m` (its BYTES and FLAGS are set) to QP `q` at the present time."""
    qp = s.qp
    msg = s.msg
    t = s.sc[Sc.NOW]
    p = qp[q + Qp.NIC]
    _nic_advance(s, p, t)
    mtu = qp[q + Qp.MTU]
    packets = max((msg[m + Msg.BYTES] + mtu - 1) // mtu, 1)
    tail = qp[q + Qp.TAIL_MSG]
    msg[m + Msg.NEXT] = -1
    msg[m + Msg.QP] = q
    msg[m + Msg.PACKETS] = packets
    if qp[q + Qp.UNA_MSG] < 0:
        qp[q + Qp.UNA_MSG] = m
        msg[m + Msg.PSN] = qp[q + Qp.SND_NXT]
    else:
        msg[m + Msg.PSN] = msg[tail + Msg.PSN] + msg[tail + Msg.PACKETS]
        msg[tail + Msg.NEXT] = m
    qp[q + Qp.TAIL_MSG] = m
    if qp[q + Qp.RX_MSG] < 0:
        qp[q + Qp.RX_MSG] = m
    if qp[q + Qp.SEND_MSG] < 0:
        qp[q + Qp.SEND_MSG] = m
    _activate(s, q, t)
    _rekey(s, p)


@entry
def stop_sending(s: View, q: int) -> None:
    """Take QP `q` out of its NIC's list (reset, error, destroyed); packets on the wire are ignored by generation."""
    p = s.qp[q + Qp.NIC]
    _nic_advance(s, p, s.sc[Sc.NOW])
    _deactivate(s, q)
    _rekey(s, p)


@entry
def catch_up(s: View, p: int) -> None:
    """Let port `p` do what it would have done until now, before something about it changes."""
    _advance(s, p, s.sc[Sc.NOW])
    _rekey(s, p)


@entry
def run(s: View, planes: Planes, until: int, max_events: int) -> int:
    """Run events up to and including time `until`; returns why it came back."""
    sc = s.sc
    key = s.key
    n_ports = sc[Sc.N_PORTS]
    base = sc[Sc.CTL_BASE]
    events = 0
    reason = SLICE
    room = len(s.out) // Event.COLUMNS - OUT_MARGIN
    margin = sc[Sc.MARGIN]
    while events < max_events:
        entity = s.win[1]
        t = key[entity]
        if t > until or t == NEVER:
            if until < NEVER:
                sc[Sc.NOW] = max(sc[Sc.NOW], until)
                reason = REACHED
            else:
                reason = IDLE
            break
        if sc[Sc.FREE_PACKETS] < margin or sc[Sc.FREE_CTLS] < margin or sc[Sc.N_OUT] > room:
            reason = GROW
            break
        sc[Sc.NOW] = t
        events += 1
        if entity < n_ports:
            _port_event(s, planes, entity << PORT_SHIFT, t)
        else:
            _line_event(s, (entity - base) << 2, t)
        if sc[Sc.STOP] != 0:
            sc[Sc.STOP] = 0
            reason = STOPPED
            break
    sc[Sc.EVENTS] += events
    return reason
