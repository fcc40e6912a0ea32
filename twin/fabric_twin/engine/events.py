# SPDX-License-Identifier: Apache-2.0
"""What everything else in the engine is made of: when the next event comes, delay lines, wires, the free lists."""

from __future__ import annotations

import numpy as np

from fabric_twin.engine.jit import inner
from fabric_twin.engine.state import NEVER, PORT_SHIFT, Ctl, Event, Packet, Port, Sc, View

__all__ = ["free_packet", "push", "random32", "rekey", "report", "set_key", "to_wire"]


@inner
def set_key(s: View, entity: int, t: int) -> None:
    """Make `t` the time of an entity's next event; only the matches it played are played again."""
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
def random32(s: View, stream: int) -> int:
    """The next number of generator `stream` (`Sc.RNG_FABRIC` or `Sc.RNG_SYMPHONY`; xorshift64*), 0 .. 2^32 - 1."""
    x = np.uint64(s.sc[stream])
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    s.sc[stream] = np.int64(x)
    mixed: int = np.int64((x * np.uint64(0x2545F4914F6CDD1D)) >> np.uint64(32))  # type: ignore[assignment]
    return mixed


@inner
def report(s: View, t: int, kind: int, q: int, arg: int) -> None:
    """Tell Python about something at the end of this call of `run`."""
    n = s.sc[Sc.N_OUT] * Event.COLUMNS
    s.out[n + Event.TIME] = t
    s.out[n + Event.KIND] = kind
    s.out[n + Event.QP] = q
    s.out[n + Event.ARG] = arg
    s.sc[Sc.N_OUT] += 1


@inner
def push(s: View, line: int, at: int, kind: int, q: int, arg: int, generation: int) -> None:
    """Append to a delay line; a time before its last one is moved up to that, so order is kept."""
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
        set_key(s, s.sc[Sc.CTL_BASE] + (line >> 2), at)
    else:
        s.ctl[tail + Ctl.NEXT] = node


@inner
def to_wire(s: View, p: int, k: int, at: int, wire: int) -> None:
    """Packet `k` of `wire` bytes is being sent over port `p`; it arrives at time `at`."""
    port = s.port
    port[p + Port.TX_BYTES] += wire
    port[p + Port.TX_PACKETS] += 1
    s.pk[k + Packet.NEXT] = -1
    s.pk[k + Packet.TIME] = at
    tail = port[p + Port.FLIGHT_TAIL]
    port[p + Port.FLIGHT_TAIL] = k
    if tail < 0:
        port[p + Port.FLIGHT_HEAD] = k
        set_key(s, p >> PORT_SHIFT, at)
    else:
        s.pk[tail + Packet.NEXT] = k


@inner
def free_packet(s: View, k: int) -> None:
    """The packet is over: delivered, dropped or lost."""
    s.pk[k + Packet.NEXT] = s.sc[Sc.FREE_PACKET]
    s.sc[Sc.FREE_PACKET] = k
    s.sc[Sc.FREE_PACKETS] += 1
    s.sc[Sc.IN_FLIGHT] -= 1


@inner
def rekey(s: View, p: int) -> None:
    """The next event of a port: the head of its wire arrives, or, the wire being empty, something may leave.

    While something is on the wire, a departure can wait for its arrival: what leaves now arrives later than that.
    """
    port = s.port
    head = port[p + Port.FLIGHT_HEAD]
    if head >= 0:
        set_key(s, p >> PORT_SHIFT, s.pk[head + Packet.TIME])
    elif port[p + Port.PAUSED] == 0 and (port[p + Port.ACTIVE] > 0 or port[p + Port.Q_HEAD] >= 0):
        set_key(s, p >> PORT_SHIFT, max(port[p + Port.FREE_AT], port[p + Port.READY_AT]))
    else:
        set_key(s, p >> PORT_SHIFT, NEVER)
