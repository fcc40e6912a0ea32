# SPDX-License-Identifier: Apache-2.0
"""What everything else in the engine is made of: when the next event comes, delay lines, wires, the free lists."""

from __future__ import annotations

import numpy as np

from fabric_twin.engine.jit import inner
from fabric_twin.engine.state import NEVER, PORT_SHIFT, Ctl, Event, Packet, Port, Sc, View

__all__ = ["earliest", "free_ctl", "free_packet", "new_ctl", "push", "random32", "report", "set_key", "to_wire"]


@inner
def set_key(s: View, entity: int, t: int) -> None:
    """Make `t` the time of an entity's next event.

    Events are kept in a calendar (R. Brown, CACM 31(10), 1988): a ring of buckets of equal width, each an unsorted list
    of what is due in it, in this lap or in a later one.
    """
    was = s.key[entity]
    if was == t:
        return
    s.key[entity] = t
    if was != NEVER:
        after = s.after[entity]
        before = s.before[entity]
        if before >= 0:
            s.after[before] = after
        else:
            s.bucket[-1 - before] = after
        if after >= 0:
            s.before[after] = before
    if t != NEVER:
        b = (t >> s.sc[Sc.BUCKET_SHIFT]) & (len(s.bucket) - 1)
        first = s.bucket[b]
        s.bucket[b] = entity
        s.after[entity] = first
        s.before[entity] = -1 - b
        if first >= 0:
            s.before[first] = entity


@inner
def earliest(s: View, t: int) -> int:
    """The entity whose event comes next, not before time `t` (ties: the lowest), or -1 when there is none at all."""
    key = s.key
    shift = s.sc[Sc.BUCKET_SHIFT]
    mask = len(s.bucket) - 1
    lap = t >> shift
    while True:
        for b in range(lap, lap + mask + 1):
            entity = s.bucket[b & mask]
            best = -1
            soonest = (b + 1) << shift
            while entity >= 0:
                at = key[entity]
                if at < soonest or (at == soonest and entity < best):
                    soonest = at
                    best = entity
                entity = s.after[entity]
            if best >= 0:
                return best
        # a lap without an event: go to the bucket of the first one
        soonest = NEVER
        for i in range(len(key)):
            soonest = min(soonest, key[i])
        if soonest == NEVER:
            return -1
        lap = soonest >> shift


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
def new_ctl(s: View) -> int:
    """Take a record for something that is delayed."""
    node: int = s.sc[Sc.FREE_CTL]
    s.sc[Sc.FREE_CTL] = s.ctl[node + Ctl.NEXT]
    s.sc[Sc.FREE_CTLS] -= 1
    return node


@inner
def free_ctl(s: View, node: int) -> None:
    """It has happened."""
    s.ctl[node + Ctl.NEXT] = s.sc[Sc.FREE_CTL]
    s.sc[Sc.FREE_CTL] = node
    s.sc[Sc.FREE_CTLS] += 1


@inner
def push(s: View, line: int, at: int, kind: int, q: int, arg: int, generation: int) -> None:
    """Append to a delay line; a time before its last one is moved up to that, so order is kept."""
    node = new_ctl(s)
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
def to_wire(s: View, p: int, k: int, at: int) -> None:
    """Packet `k` is being sent over port `p`; it arrives at time `at`."""
    port = s.port
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
