# SPDX-License-Identifier: Apache-2.0
"""The event loop: one event for each hop of a packet, but for the last one where nothing depends on it.

Entities are directed links and delay lines; a calendar of their next event times gives the earliest (ties: the
lowest entity, so runs repeat exactly). Links and lines are first-in first-out with constant delays: their contents
never enter the calendar.

A link's event is the *arrival* of the packet at the head of its wire. When a packet leaves the queue is not an
event of its own: each touch of a port (a packet joins the queue, its own packet arrives, a pause frame comes)
first runs all departures that are due (`nic_advance`, `port_advance`). A port with something on its wire is
touched before its next departure can reach anybody, so lateness stays below one link delay and nobody can tell,
with one exception: the switch's buffer occupancy, which PFC thresholds look at, can lag by that much on ports not
touched since. What an idle NIC will send next is known, so its event is the arrival of that.

Three things are no events although they happen. A packet that leaves for its host by an empty wire, and will only
be counted there, is taken as it leaves (`take_early`). A CNP waits at its sender until the rate is asked for
(`settle`). Both are done with the times they really have, so results are those of an engine that makes events of
them; what a host has counted can be early by one link's delay. And DCQCN's timers (see `dcqcn`).

Random early marking looks at the queue behind the departing packet, at the time it departs (HPCC's ns-3 code does
the same). Acknowledgements, NAKs and CNPs are pure delay.
"""

from __future__ import annotations

from fabric_twin.engine import dcqcn, recovery
from fabric_twin.engine.events import earliest, free_ctl, free_packet, random32, report, set_key
from fabric_twin.engine.jit import entry, inner
from fabric_twin.engine.nic import (
    activate,
    deactivate,
    drop_cnps,
    fail,
    go_back,
    host_arrival,
    nic_advance,
    nic_rekey,
    resend,
    settle,
    skip_acknowledged,
    timeout,
)
from fabric_twin.engine.state import (
    ACK,
    CC_SHIFT,
    E_ACKED,
    E_RNR_RETRY_EXC,
    M_SIGNALED,
    NAK,
    NEVER,
    PFC_OFF,
    PFC_ON,
    PORT_SHIFT,
    RNR,
    SELECTIVE,
    TIMEOUT,
    UNA,
    Ctl,
    Event,
    Msg,
    Packet,
    Planes,
    Port,
    Qp,
    Sc,
    View,
)
from fabric_twin.engine.switching import port_advance, port_rekey, switch_arrival

__all__ = ["GROW", "IDLE", "REACHED", "SLICE", "STOPPED", "catch_up", "look", "post", "run", "stop_sending"]

REACHED = 0  # the time limit
STOPPED = 1  # a completion that somebody may wait for
GROW = 2  # a pool or the report is nearly full
SLICE = 3  # enough events for one call
IDLE = 4  # nothing will ever happen again by itself
OUT_MARGIN = 1024


@inner
def _advance(s: View, p: int, t: int) -> None:
    if s.port[p + Port.NODE] < 0:
        nic_advance(s, p, t)
    else:
        port_advance(s, p, t)


@inner
def _rekey(s: View, p: int) -> None:
    if s.port[p + Port.NODE] < 0:
        nic_rekey(s, p)
    else:
        port_rekey(s, p)


@inner
def _port_event(s: View, planes: Planes, p: int, t: int) -> None:
    port = s.port
    _advance(s, p, t)
    k = port[p + Port.FLIGHT_HEAD]
    arrives = k >= 0 and s.pk[k + Packet.TIME] <= t
    if arrives:
        after = s.pk[k + Packet.NEXT]
        port[p + Port.FLIGHT_HEAD] = after
        if after < 0:
            port[p + Port.FLIGHT_TAIL] = -1
    _rekey(s, p)
    if not arrives:
        return
    if port[p + Port.DROP_PROB] != 0 and random32(s, Sc.RNG_FABRIC) < port[p + Port.DROP_PROB]:
        port[p + Port.DROPPED] += 1
        s.sc[Sc.DROPS] += 1
        free_packet(s, k)
        return
    if port[p + Port.PEER] >= 0:
        switch_arrival(s, planes, p, k, t)
    else:
        host_arrival(s, k, t)


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


@inner
def _line_event(s: View, line: int, t: int) -> None:
    node = s.line[line + 1]
    after = s.ctl[node + Ctl.NEXT]
    s.line[line + 1] = after
    if after < 0:
        s.line[line + 2] = -1
        set_key(s, s.sc[Sc.CTL_BASE] + (line >> 2), NEVER)
    else:
        set_key(s, s.sc[Sc.CTL_BASE] + (line >> 2), s.ctl[after + Ctl.TIME])
    kind = s.ctl[node + Ctl.KIND]
    q = s.ctl[node + Ctl.QP]
    arg = s.ctl[node + Ctl.ARG]
    generation = s.ctl[node + Ctl.GENERATION]
    free_ctl(s, node)

    if kind in (PFC_ON, PFC_OFF):
        _advance(s, q, t)
        _pause(s, q, kind == PFC_ON, t)
        _rekey(s, q)
        return
    if s.qp[q + Qp.GENERATION] != generation or s.qp[q + Qp.STATE] == 0:
        return
    p = s.qp[q + Qp.NIC]
    nic_advance(s, p, t)
    if kind == ACK:
        s.qp[q + Qp.UNA_MSG] = s.msg[arg + Msg.NEXT]
        s.qp[q + Qp.RETRIES] = 0
        s.qp[q + Qp.RNR_RETRIES] = 0
        recovery.acknowledge(s, q, s.msg[arg + Msg.PSN] + s.msg[arg + Msg.PACKETS])
        skip_acknowledged(s, q, arg)
        report(s, t, E_ACKED, q, arg)
        if s.msg[arg + Msg.FLAGS] & M_SIGNALED:
            s.sc[Sc.STOP] = 1
    elif kind == UNA:
        recovery.acknowledge(s, q, arg)
        settle(s, q, t)
        dcqcn.advance(s.cc, s.ccq, q >> CC_SHIFT, float(t))
        activate(s, q, t)
    elif kind == NAK and s.sc[Sc.OPTIONS] & SELECTIVE:
        resend(s, q, arg >> recovery.COUNT_BITS, arg & ((1 << recovery.COUNT_BITS) - 1), t, 0)
    elif kind == NAK:
        recovery.acknowledge(s, q, arg)
        go_back(s, q, arg, t, 0)
    elif kind == RNR:
        s.qp[q + Qp.RNR_NAKS] += 1
        if s.qp[q + Qp.RNR_RETRY] != 7 and s.qp[q + Qp.RNR_RETRIES] >= s.qp[q + Qp.RNR_RETRY]:
            fail(s, q, t, E_RNR_RETRY_EXC)
        else:
            s.qp[q + Qp.RNR_RETRIES] += 1
            receiver = s.qp[q + Qp.PEER]
            wait = s.qp[receiver + Qp.RNR_PS] if receiver >= 0 else 0
            if s.sc[Sc.OPTIONS] & SELECTIVE:
                resend(s, q, arg, 1, t, wait)
            else:
                go_back(s, q, arg, t, wait)
    elif kind == TIMEOUT:
        timeout(s, line, q, t)
    nic_rekey(s, p)


@entry
def post(s: View, q: int, m: int) -> None:
    """Append message `m` (its BYTES and FLAGS are set) to QP `q` at the present time."""
    qp = s.qp
    msg = s.msg
    t = s.sc[Sc.NOW]
    p = qp[q + Qp.NIC]
    nic_advance(s, p, t)
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
    activate(s, q, t)
    nic_rekey(s, p)


@entry
def stop_sending(s: View, q: int) -> None:
    """Take QP `q` out of its NIC's list (reset, error, destroyed); packets on the wire are ignored by generation."""
    p = s.qp[q + Qp.NIC]
    nic_advance(s, p, s.sc[Sc.NOW])
    deactivate(s, q)
    drop_cnps(s, q, s.sc[Sc.NOW])
    recovery.drop_lost(s, q)
    if s.sc[Sc.OPTIONS] & SELECTIVE:
        recovery.forget_held(s, q)
    nic_rekey(s, p)


@entry
def catch_up(s: View, p: int) -> None:
    """Let port `p` do what it would have done until now, before something about it changes."""
    _advance(s, p, s.sc[Sc.NOW])
    _rekey(s, p)


@entry
def look(s: View, q: int) -> None:
    """Bring what DCQCN knows of QP `q` up to the present, before somebody reads its rate or counters."""
    p = s.qp[q + Qp.NIC]
    nic_advance(s, p, s.sc[Sc.NOW])
    settle(s, q, s.sc[Sc.NOW] + 1)
    nic_rekey(s, p)


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
        entity = earliest(s, sc[Sc.NOW])
        t = key[entity] if entity >= 0 else NEVER
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
