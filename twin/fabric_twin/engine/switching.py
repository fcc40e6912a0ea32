# SPDX-License-Identifier: Apache-2.0
"""Switches: Symphony's pipeline and the shared buffer at arrival, RED and the gate at departure, PFC."""

from __future__ import annotations

from fabric_twin.engine.events import free_packet, push, random32, set_key, to_wire
from fabric_twin.engine.jit import inner
from fabric_twin.engine.nic import take_early
from fabric_twin.engine.state import (
    CANDIDATE,
    CE,
    DATA,
    ECT,
    GAP_BYTES,
    GATED,
    GEN_SHIFT,
    IMM,
    NEVER,
    OUTRANKED,
    PFC_OFF,
    PFC_ON,
    PORT_SHIFT,
    RANKED,
    TRACKED,
    Hop,
    Packet,
    Planes,
    Port,
    Qp,
    Sc,
    Sw,
    View,
)
from switch_agent.dataplane.constants import AHEAD, MARK, N_JOB
from switch_agent.dataplane.pipeline import process_packet

__all__ = ["port_advance", "port_rekey", "switch_arrival"]


@inner
def _depart(s: View, p: int, k: int, start: int) -> None:
    """Packet `k` leaves by port `p`, whose queue it has left, at time `start`."""
    port = s.port
    wire = s.pk[k + Packet.SIZE] + GAP_BYTES
    free_at = start + wire * port[p + Port.PS_PER_BYTE]
    at = free_at + port[p + Port.DELAY_PS]
    port[p + Port.FREE_AT] = free_at
    port[p + Port.TX_BYTES] += wire
    port[p + Port.TX_PACKETS] += 1
    alone = port[p + Port.Q_HEAD] < 0 and port[p + Port.FLIGHT_HEAD] < 0 and port[p + Port.FOLDED_AT] < free_at
    if alone and port[p + Port.PEER] < 0 and port[p + Port.DROP_PROB] == 0 and take_early(s, k, at):
        port[p + Port.FOLDED_AT] = at
    else:
        to_wire(s, p, k, at)


@inner
def port_rekey(s: View, p: int) -> None:
    """The next event of a port: the head of its wire arrives, or, the wire being empty, something may leave.

    While something is on the wire, a departure can wait for its arrival: what leaves now arrives later than that.
    """
    port = s.port
    head = port[p + Port.FLIGHT_HEAD]
    waits = port[p + Port.Q_HEAD] >= 0
    if waits and port[p + Port.FOLDED_AT] > s.sc[Sc.NOW]:
        set_key(s, p >> PORT_SHIFT, port[p + Port.FOLDED_AT])
    elif head >= 0:
        set_key(s, p >> PORT_SHIFT, s.pk[head + Packet.TIME])
    elif waits and port[p + Port.PAUSED] == 0:
        set_key(s, p >> PORT_SHIFT, max(port[p + Port.FREE_AT], port[p + Port.READY_AT]))
    else:
        set_key(s, p >> PORT_SHIFT, NEVER)


@inner
def port_advance(s: View, p: int, t: int) -> None:
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
        if port[p + Port.HIGH_TAIL] == k + 1:
            port[p + Port.HIGH_TAIL] = 0
        size = pk[k + Packet.SIZE]
        behind = port[p + Port.Q_BYTES] - size
        port[p + Port.Q_BYTES] = behind
        flags = pk[k + Packet.FLAGS]
        if flags & OUTRANKED:
            flags &= ~OUTRANKED
            pk[k + Packet.FLAGS] = flags
            q = pk[k + Packet.QP]
            if flags >> GEN_SHIFT == s.qp[q + Qp.GENERATION]:
                s.qp[q + _outranked(pk[k + Packet.HOP] - Hop.COLUMNS)] -= 1
        if flags & ECT:
            red = False
            if behind > port[p + Port.KMIN]:
                if behind > port[p + Port.KMAX]:
                    red = True
                else:
                    share = port[p + Port.PMAX] * (behind - port[p + Port.KMIN])
                    red = random32(s, Sc.RNG_FABRIC) < share // (port[p + Port.KMAX] - port[p + Port.KMIN])
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
                _pause(s, source, max(t, start + port[source + Port.DELAY_PS]), PFC_OFF)

        _depart(s, p, k, start)


@inner
def _pause(s: View, p: int, at: int, kind: int) -> None:
    """Send a pause frame to the sender of link `p`. Those of links of one delay are in one line, so order is kept."""
    line = 0
    while s.line[line] != s.port[p + Port.DELAY_PS]:
        line += 4
    push(s, line, at, kind, p, 0, 0)


@inner
def _outranked(hop: int) -> int:
    """The column of `Qp` that counts a QP's outranked packets at a hop: a route has fewer than eight."""
    return Qp.OUTRANKED + ((hop >> 2) & 7)


@inner
def _jump(s: View, p: int, k: int) -> None:
    """Put packet `k` into the queue of port `p`, which is not empty, behind those of high priority only."""
    last = s.port[p + Port.HIGH_TAIL] - 1
    s.port[p + Port.HIGH_TAIL] = k + 1
    if last < 0:
        s.pk[k + Packet.NEXT] = s.port[p + Port.Q_HEAD]
        s.port[p + Port.Q_HEAD] = k
        return
    after = s.pk[last + Packet.NEXT]
    s.pk[k + Packet.NEXT] = after
    s.pk[last + Packet.NEXT] = k
    if after < 0:
        s.port[p + Port.Q_TAIL] = k


@inner
def switch_arrival(s: View, planes: Planes, p: int, k: int, t: int) -> None:
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
    high = False
    if pipeline >= 0 and flags & DATA:
        job = s.route[hop + Hop.JOB]
        # a packet of a QP that has been reset meanwhile passes untouched: its port and PSN are no longer known
        if job >= 0 and s.enabled[pipeline * N_JOB + job] != 0 and flags >> GEN_SHIFT == s.qp[q + Qp.GENERATION]:
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
                random32(s, Sc.RNG_SYMPHONY),
            )
            flags |= TRACKED
            s.counts[(row * N_JOB + job) * 8 + 0] += 1
            s.counts[(row * N_JOB + job) * 8 + 1] += size
            if verdict & AHEAD:
                s.counts[(row * N_JOB + job) * 8 + 2] += 1
                s.counts[(row * N_JOB + job) * 8 + 3] += size
                if verdict & MARK:
                    flags |= CANDIDATE
                    if params[1] != 0:
                        flags |= GATED
            if s.enabled[pipeline * N_JOB + job] == RANKED:
                # a flow whose packets wait here outranked stays behind them: priority must not change its order
                high = verdict & AHEAD == 0 and s.qp[q + _outranked(hop)] == 0
                if not high:
                    flags |= OUTRANKED
            pk[k + Packet.FLAGS] = flags
    used = s.sw[node + Sw.USED] + size
    if used > s.sw[node + Sw.BUFFER]:
        port[egress + Port.DROPPED] += 1
        s.sc[Sc.DROPS] += 1
        free_packet(s, k)
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
        _pause(s, p, t + port[p + Port.DELAY_PS], PFC_ON)

    pk[k + Packet.HOP] = hop + Hop.COLUMNS
    pk[k + Packet.IN_PORT] = p
    pk[k + Packet.NEXT] = -1
    port_advance(s, egress, t)
    if flags & OUTRANKED:
        s.qp[q + _outranked(hop)] += 1
    tail = port[egress + Port.Q_TAIL]
    if tail < 0 or not high:
        port[egress + Port.Q_TAIL] = k
    queued = port[egress + Port.Q_BYTES] + size
    port[egress + Port.Q_BYTES] = queued
    if queued > port[egress + Port.MAX_Q_BYTES]:
        port[egress + Port.MAX_Q_BYTES] = queued
    if tail < 0:
        port[egress + Port.Q_HEAD] = k
        port[egress + Port.READY_AT] = t
        if high:
            port[egress + Port.HIGH_TAIL] = k + 1
        port_advance(s, egress, t)
        if port[egress + Port.Q_HEAD] >= 0 and port[egress + Port.FOLDED_AT] > t:
            set_key(s, egress >> PORT_SHIFT, port[egress + Port.FOLDED_AT])
    elif high:
        _jump(s, egress, k)
    else:
        pk[tail + Packet.NEXT] = k
