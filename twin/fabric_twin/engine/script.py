# SPDX-License-Identifier: Apache-2.0
"""Ranks inside the engine: ring-bench's rank and ring end as compiled code over flat arrays.

A *lane* is what `ring_bench.ring_end.RingEnd` is: a rank's part in one ring, with the edge to the next rank and the one
from the previous rank. Everything here happens between two events of the loop, at the time of the first: the
completion that an event has brought is answered before the next event, as the verbs service has it. So the order of
posts, resets and credits is that of ring-bench ranks, and so are all times.

The functions bear the names of what they are in `ring_bench.rank` and `ring_bench.ring_end`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fabric_twin.engine import dcqcn, kernel, progress
from fabric_twin.engine.jit import entry, inner
from fabric_twin.engine.state import (
    CC_SHIFT,
    COUNTERS,
    E_ACKED,
    E_DELIVERED,
    I64,
    M_DATA,
    M_IMM,
    M_SIGNALED,
    M_WRITE_IMM,
    UNCONNECTED,
    Event,
    Msg,
    Planes,
    Port,
    Qp,
    Sc,
    View,
)
from switch_agent.dataplane.hashes import flow_signature

__all__ = ["JOB_OVER", "Do", "End", "Job", "Link", "Operation", "Rank", "S", "Script", "Slot", "Step"]

JOB_OVER = 16
"""Return value of `run` beside those of the kernel: a job has ended, well or not (`S.JOB_OVER`)."""
PER_STEP, RETAG, STATIC = 0, 1, 2
IN_ORDER, INDEPENDENT, COUNT = 0, 1, 2
SEND, RECV, CREDIT, GRANT = 1, 2, 3, 4
KIND_BITS = 3
SLOT_BITS = 17
PATH_COLUMNS = 4
NO_TIME = 1 << 62
"""ns"""


class S(IntEnum):
    """Scalars of the script."""

    FREE_MSG = 0
    JOB_OVER = 1  # a job has ended: its offset, or -1
    POSTS = 2  # records that the answer to one completion may need at most
    FREE_MSGS = 3  # length of the free list
    ACK_LINE = 4  # first delay line of acknowledgements
    ACK_LINES = 5  # extent of those in use
    DEADLINE = 6  # when the first computation ends, ns, or `NO_TIME`
    DEPTH = 7  # of `stack`
    COLUMNS = 8


class Job(IntEnum):
    """What all ranks of a job have in common."""

    OPERATIONS = 0  # how many
    OPERATION = 1  # first of its rows in `operation`
    OPERATION_OF = 2  # its rows in `steps`: the operation of each step
    TOTAL = 3  # steps of the run, per ring
    SLOTS = 4
    RELEASE = 5
    TAGGING = 6
    SPORT = 7  # of step 0
    TAG_MASK = 8  # 2^step_bits - 1
    SEGMENT = 9  # bytes on the wire of a whole segment
    ACTIONS = 10  # how many
    ACTION = 11  # first of its rows in `action`
    RANKS_LEFT = 12
    FAILED_QP = 13
    FAILED_KIND = 14  # 0: it has not failed
    COLUMNS = 16


class Operation(IntEnum):
    """A collective of a job."""

    SHAPE = 0
    FIRST = 1  # step
    COLUMNS = 2


class Rank(IntEnum):
    """`ring_bench.rank.Rank`."""

    JOB = 0
    CURRENT = 1  # the operation that has begun last
    COMPLETE = 2  # leading operations that are complete
    ISSUED = 3  # leading operations that the computation has issued
    UNACKED = 4  # own sends still to be acknowledged
    END = 5  # first ring end
    ENDS = 6
    LEFT = 7  # its rows in `left`: receives, sends still missing of each operation
    RECEIVES = 8  # its rows in `left`: receives of an operation of each shape
    DONE = 9  # its rows in `complete`
    MARKS = 10  # its rows in `mark`
    CURSOR = 11  # next action
    WALKING = 12
    DEADLINE = 13  # when its computation ends, ns, or `NO_TIME`
    DURATION = 14  # next of its rows in `duration`
    FINISHED = 15
    COLUMNS = 16


class End(IntEnum):
    """`ring_bench.ring_end.RingEnd`."""

    RANK = 0
    TRACE = 1  # its rows in `posted` and `delivered`
    TAKEN = 2  # its rows in `taken`
    STEP = 3  # its rows in `steps`: where the steps of each shape are in `step`
    LINK = 4  # its link along the first axis
    SENDS = 5  # its rows in `steps`: steps that it sends ...
    N_SENDS = 6
    RECEIVES = 7  # ... and receives
    N_RECEIVES = 8
    WAITED_FOR = 9  # release by count: how many must have arrived for each of them
    NEXT = 10  # in-order release: place in `SENDS` of the first step that is not released
    POST = 11  # ... and of the first that is not posted
    ARRIVALS = 12
    LEADING = 13  # place in `RECEIVES` of the first step that has not arrived
    HELD = 14  # its place in `queues`: steps that have arrived and cannot be taken yet
    HELD_N = 15
    READY = 16  # its place in `queues`, release "independent"
    READY_HEAD = 17
    READY_N = 18
    READY_CAP = 19
    COLUMNS = 32


class Step(IntEnum):
    """A rank's part in one step of a collective of some shape."""

    LINK = 0  # 0, 1... by axis
    BYTES = 1  # that it sends, -1: it does not
    NEEDS = 2  # steps that its sends wait for under "independent": from this one ...
    NEEDS_END = 3  # ... to before this one
    RECEIVES = 4  # 1: it receives
    TAKES = 5  # steps that must have been taken before what it receives
    TAKES_END = 6
    WAITING = 7  # last of the later sends that need this step, plus one; 0: none
    COLUMNS = 8


class Link(IntEnum):
    """`ring_bench.link.Link`."""

    END = 0
    SLOT = 1  # its first slot
    CREDIT_QP = 2
    GRANT_QP = 3
    FOLLOWING = 4  # its rows in `steps`: the next step on the same slot of what comes in
    GRANTS_POSTED = 5
    GRANTS_ACKED = 6
    GRANTS_DONE = 7  # known to be acknowledged by a signaled completion
    GRANTS = 8  # its place in `queues`: grants on their way
    GRANT_HEAD = 9
    GRANT_N = 10
    HELD = 11  # its place in `queues`: grants to be posted
    HELD_HEAD = 12
    HELD_N = 13
    PATH_OUT = 14  # its rows in `path`: to the next rank
    PATH_BACK = 15  # to the previous rank
    ADDRESS = 16
    NEXT_ADDRESS = 17
    NEXT_LINK = 18  # of the next rank
    COLUMNS = 32


class Slot(IntEnum):
    """A slot of a link: a data QP of each edge."""

    SEND_QP = 0
    RECV_QP = 1
    GRANTED = 2  # step that the next rank has granted, or -1
    IDLE = 3  # the send queue is drained
    PSN = 4  # of the next packet
    SENDS = 5  # step being sent
    EXPECTS = 6  # step whose receive is posted
    QPN = 7  # of the other end of SEND_QP
    FIRST = 8  # first step that it sends, or -1
    COLUMNS = 16


class Do(IntEnum):
    """`ring_bench.workload.Do`."""

    COMPUTE = 0
    ISSUE = 1
    WAIT = 2
    MARK = 3


class Script(NamedTuple):
    """State of all scripted ranks. Offsets as in `View`."""

    sc: I64
    job: I64
    operation: I64
    action: I64  # what, value
    rank: I64
    end: I64
    link: I64
    slot: I64
    step: I64
    steps: npt.NDArray[np.int32]  # lists of steps, and what belongs to steps
    queues: npt.NDArray[np.int32]
    left: npt.NDArray[np.int32]
    path: I64  # per directed pair of hosts and tag: route, delay of acknowledgements, window
    owner: I64  # per QP: kind, slot, link; 0: none of ours
    taken: npt.NDArray[np.uint8]  # per ring end and step
    posted: I64  # per ring end and step, ns; -1: not
    delivered: I64  # ... by this ring end
    complete: I64  # per rank and operation, ns; -1: not
    mark: I64  # per rank: when it started and when each iteration of a trace ended, ns
    duration: I64  # per rank: how long each computation takes, ns
    stack: I64


def owner_code(link: int, kind: int, slot: int) -> int:
    """What `Script.owner` holds for a QP."""
    return (link << SLOT_BITS | slot) << KIND_BITS | kind


# ------------------------------------------------------------------------------------------ queue pairs

_KEPT = np.zeros(Qp.COLUMNS, dtype=np.bool_)
_KEPT[
    [
        Qp.NIC,
        Qp.PROCESS,
        Qp.PEER,
        Qp.MTU,
        Qp.ECT,
        Qp.RETRY_CNT,
        Qp.RNR_RETRY,
        Qp.RNR_PS,
        Qp.RTO_LINE,
        Qp.SLOT,
        *COUNTERS,
    ]
] = True
"""What a QP still knows after RESET and a new connection to the same peer."""


@inner
def _reconnect(s: View, q: int, psn: int) -> None:
    """RESET, and to RTS again with the same peer, as `Fabric.reset_qp` and `Fabric.connect`; nothing is queued."""
    kernel.stop_sending(s, q)
    generation = (s.qp[q + Qp.GENERATION] + 1) & 0xFFFF
    for i in range(Qp.COLUMNS):
        if not _KEPT[i]:
            s.qp[q + i] = UNCONNECTED[i]
    s.qp[q + Qp.GENERATION] = generation
    s.qp[q + Qp.PSN_OFFSET] = psn
    s.qp[q + Qp.STATE] = 1
    dcqcn.reset(s.ccq, q >> CC_SHIFT, float(8e12 / s.port[s.qp[q + Qp.NIC] + Port.PS_PER_BYTE]))
    progress.limit(s, q)


@inner
def _ack_line(s: View, k: Script, delay: int) -> int:
    """The delay line of acknowledgements that take `delay`, a new one for a new delay."""
    line: int = k.sc[S.ACK_LINE]
    end = line + k.sc[S.ACK_LINES]
    while line < end:
        if s.line[line] == delay:
            return line
        line += 4
    s.line[line] = delay
    k.sc[S.ACK_LINES] += 4
    return line


@inner
def _set_sport(s: View, k: Script, q: int, path: int, sport: int) -> None:
    """Packets sent from now on carry this source port, on the path that the fabric has for it."""
    s.qp[q + Qp.SPORT] = sport
    s.qp[q + Qp.ROUTE] = k.path[path]
    s.qp[q + Qp.CTL_LINE] = _ack_line(s, k, k.path[path + 1])
    s.qp[q + Qp.WINDOW] = k.path[path + 2]


@inner
def _slot(k: Script, link: int, j: int, step: int) -> int:
    slot: int = k.link[link + Link.SLOT] + step % k.job[j + Job.SLOTS] * Slot.COLUMNS
    return slot


@inner
def _job_of(k: Script, end: int) -> int:
    j: int = k.rank[k.end[end + End.RANK] + Rank.JOB]
    return j


@inner
def _tag(k: Script, j: int, step: int) -> int:
    tag: int = step & k.job[j + Job.TAG_MASK]
    return tag


@inner
def _post_message(s: View, k: Script, q: int, length: int, flags: int) -> None:
    m = k.sc[S.FREE_MSG]
    k.sc[S.FREE_MSG] = s.msg[m + Msg.NEXT]
    k.sc[S.FREE_MSGS] -= 1
    s.msg[m + Msg.BYTES] = length
    s.msg[m + Msg.FLAGS] = flags
    kernel.post(s, q, m)


# ------------------------------------------------------------------------------------------ links


@inner
def _free(k: Script, link: int, j: int, step: int) -> bool:
    slot = _slot(k, link, j, step)
    free: bool = k.slot[slot + Slot.IDLE] != 0 and k.slot[slot + Slot.GRANTED] == step
    return free


@inner
def _recycle(s: View, k: Script, link: int, j: int, step: int) -> int:
    """Take a free slot for a step; returns the slot."""
    slot = _slot(k, link, j, step)
    tagging = k.job[j + Job.TAGGING]
    if step != k.slot[slot + Slot.FIRST] and tagging != STATIC:
        q = k.slot[slot + Slot.SEND_QP]
        if tagging == PER_STEP:
            _reconnect(s, q, k.slot[slot + Slot.PSN])
        sport = k.job[j + Job.SPORT] | _tag(k, j, step)
        _set_sport(s, k, q, k.link[link + Link.PATH_OUT] + PATH_COLUMNS * _tag(k, j, step), sport)
        src, dst = k.link[link + Link.ADDRESS], k.link[link + Link.NEXT_ADDRESS]
        s.qp[q + Qp.SIG] = flow_signature(src, dst, k.slot[slot + Slot.QPN], sport)
    k.slot[slot + Slot.IDLE] = 0
    k.slot[slot + Slot.SENDS] = step
    return slot


@inner
def _post_grant(s: View, k: Script, link: int, slots: int, step: int) -> None:
    serial = k.link[link + Link.GRANTS_POSTED]
    k.link[link + Link.GRANTS_POSTED] = serial + 1
    n = k.link[link + Link.GRANT_N]
    k.queues[k.link[link + Link.GRANTS] + (k.link[link + Link.GRANT_HEAD] + n) % slots] = step
    k.link[link + Link.GRANT_N] = n + 1
    signaled = M_SIGNALED if serial % slots == slots - 1 else 0
    _post_message(s, k, k.link[link + Link.GRANT_QP], 0, M_IMM | signaled)


@inner
def _taken(s: View, k: Script, link: int, j: int, step: int) -> None:
    """A step's data are taken: ready its slot for the next one and grant that."""
    slots = k.job[j + Job.SLOTS]
    following: int = np.int64(k.steps[k.link[link + Link.FOLLOWING] + step])  # type: ignore[assignment]
    if following < 0:
        return
    slot = _slot(k, link, j, step)
    q = k.slot[slot + Slot.RECV_QP]
    if k.job[j + Job.TAGGING] == PER_STEP:
        _reconnect(s, q, 0)
        tag = _tag(k, j, following)
        _set_sport(s, k, q, k.link[link + Link.PATH_BACK] + PATH_COLUMNS * tag, k.job[j + Job.SPORT] | tag)
    s.qp[q + Qp.RQ] += 1
    k.slot[slot + Slot.EXPECTS] = following
    if k.link[link + Link.GRANTS_POSTED] - k.link[link + Link.GRANTS_DONE] < 2 * slots:
        _post_grant(s, k, link, slots, following)
    else:
        n = k.link[link + Link.HELD_N]
        k.queues[k.link[link + Link.HELD] + (k.link[link + Link.HELD_HEAD] + n) % slots] = following
        k.link[link + Link.HELD_N] = n + 1


@inner
def _credited(s: View, k: Script, link: int, j: int) -> None:
    """The next rank grants a step."""
    granter = k.link[link + Link.NEXT_LINK]
    head = k.link[granter + Link.GRANT_HEAD]
    step: int = np.int64(k.queues[k.link[granter + Link.GRANTS] + head])  # type: ignore[assignment]
    k.link[granter + Link.GRANT_HEAD] = (head + 1) % k.job[j + Job.SLOTS]
    k.link[granter + Link.GRANT_N] -= 1
    k.slot[_slot(k, link, j, step) + Slot.GRANTED] = step
    s.qp[k.link[link + Link.CREDIT_QP] + Qp.RQ] += 1


@inner
def _grants_sent(s: View, k: Script, link: int, j: int) -> None:
    """All grants so far have left the send queue."""
    slots = k.job[j + Job.SLOTS]
    k.link[link + Link.GRANTS_DONE] = k.link[link + Link.GRANTS_ACKED]
    while (
        k.link[link + Link.HELD_N] > 0
        and k.link[link + Link.GRANTS_POSTED] - k.link[link + Link.GRANTS_DONE] < 2 * slots
    ):
        head = k.link[link + Link.HELD_HEAD]
        k.link[link + Link.HELD_HEAD] = (head + 1) % slots
        k.link[link + Link.HELD_N] -= 1
        step: int = np.int64(k.queues[k.link[link + Link.HELD] + head])  # type: ignore[assignment]
        _post_grant(s, k, link, slots, step)


# ------------------------------------------------------------------------------------------ ring ends


@inner
def _operation_of(k: Script, j: int, step: int) -> int:
    operation: int = np.int64(k.steps[k.job[j + Job.OPERATION_OF] + step])  # type: ignore[assignment]
    return operation


@inner
def _shape_of(k: Script, j: int, operation: int) -> int:
    shape: int = k.operation[k.job[j + Job.OPERATION] + operation * Operation.COLUMNS + Operation.SHAPE]
    return shape


@inner
def _first_of(k: Script, j: int, operation: int) -> int:
    first: int = k.operation[k.job[j + Job.OPERATION] + operation * Operation.COLUMNS + Operation.FIRST]
    return first


@inner
def _table(k: Script, end: int, j: int, operation: int) -> int:
    """Where the steps of an operation are in `step`."""
    rows = k.end[end + End.STEP]
    at: int = np.int64(k.steps[rows + _shape_of(k, j, operation)]) * Step.COLUMNS  # type: ignore[assignment]
    return at


@inner
def _planned(k: Script, end: int, j: int, step: int) -> int:
    operation = _operation_of(k, j, step)
    return _table(k, end, j, operation) + (step - _first_of(k, j, operation)) * Step.COLUMNS


@inner
def _link_of(k: Script, end: int, planned: int) -> int:
    link: int = k.end[end + End.LINK] + k.step[planned + Step.LINK] * Link.COLUMNS
    return link


@inner
def _push_ready(k: Script, end: int, step: int) -> None:
    n = k.end[end + End.READY_N]
    k.queues[k.end[end + End.READY] + (k.end[end + End.READY_HEAD] + n) % k.end[end + End.READY_CAP]] = step
    k.end[end + End.READY_N] = n + 1


@inner
def _pop_ready(k: Script, end: int) -> int:
    head = k.end[end + End.READY_HEAD]
    k.end[end + End.READY_HEAD] = (head + 1) % k.end[end + End.READY_CAP]
    k.end[end + End.READY_N] -= 1
    step: int = np.int64(k.queues[k.end[end + End.READY] + head])  # type: ignore[assignment]
    return step


@inner
def _next_send(k: Script, end: int) -> int:
    step: int = np.int64(k.steps[k.end[end + End.SENDS] + k.end[end + End.POST]])  # type: ignore[assignment]
    return step


@entry
def _pump(s: View, k: Script, end: int) -> None:
    """Post what is released and has its slot: in order, or whichever can go."""
    j = _job_of(k, end)
    independent = k.job[j + Job.RELEASE] == INDEPENDENT
    for _ in range(k.end[end + End.READY_N] if independent else k.end[end + End.NEXT] - k.end[end + End.POST]):
        step = _pop_ready(k, end) if independent else _next_send(k, end)
        planned = _planned(k, end, j, step)
        link = _link_of(k, end, planned)
        if not _free(k, link, j, step):
            if not independent:
                break
            _push_ready(k, end, step)
            continue
        k.end[end + End.POST] += 1
        slot = _recycle(s, k, link, j, step)
        q = k.slot[slot + Slot.SEND_QP]
        k.posted[k.end[end + End.TRACE] + step] = s.sc[Sc.NOW] // 1000
        left = k.step[planned + Step.BYTES]
        segment = k.job[j + Job.SEGMENT]
        mtu = s.qp[q + Qp.MTU]
        packets = 0
        while True:
            length = min(left, segment)
            left -= length
            packets += max((length + mtu - 1) // mtu, 1)
            _post_message(s, k, q, length, M_DATA if left > 0 else M_DATA | M_IMM | M_WRITE_IMM | M_SIGNALED)
            if left == 0:
                break
        k.slot[slot + Slot.PSN] = (k.slot[slot + Slot.PSN] + packets) & 0xFFFFFF


@inner
def _all_taken(k: Script, end: int, first: int, begin: int, stop: int) -> bool:
    need = begin
    while need < stop and k.taken[k.end[end + End.TAKEN] + first + need] != 0:
        need += 1
    return need >= stop


@inner
def _next_held(k: Script, end: int, j: int) -> int:
    """Remove the first of the held steps that can be taken; -1: none."""
    held = k.end[end + End.HELD]
    n = k.end[end + End.HELD_N]
    for i in range(n):
        step: int = np.int64(k.queues[held + i])  # type: ignore[assignment]
        operation = _operation_of(k, j, step)
        if operation > k.rank[k.end[end + End.RANK] + Rank.CURRENT]:
            continue
        planned = _planned(k, end, j, step)
        first = _first_of(k, j, operation)
        if _all_taken(k, end, first, k.step[planned + Step.TAKES], k.step[planned + Step.TAKES_END]):
            for later in range(i, n - 1):
                k.queues[held + later] = k.queues[held + later + 1]
            k.end[end + End.HELD_N] = n - 1
            return step
    return -1


@inner
def _release(k: Script, end: int, j: int) -> int:
    """Release steps in order; returns the operation that must have begun before going on, or -1."""
    r = k.end[end + End.RANK]
    release = k.job[j + Job.RELEASE]
    if release == INDEPENDENT:
        return -1
    sends = k.end[end + End.SENDS]
    missing = k.job[j + Job.TOTAL]
    if k.end[end + End.LEADING] < k.end[end + End.N_RECEIVES]:
        missing = np.int64(k.steps[k.end[end + End.RECEIVES] + k.end[end + End.LEADING]])
    while k.end[end + End.NEXT] < k.end[end + End.N_SENDS]:
        place = k.end[end + End.NEXT]
        operation = _operation_of(k, j, np.int64(k.steps[sends + place]))  # type: ignore[arg-type]
        if release == COUNT:
            if k.steps[k.end[end + End.WAITED_FOR] + place] > k.end[end + End.ARRIVALS]:
                break
        elif k.steps[sends + place] > missing or operation > k.rank[r + Rank.CURRENT]:
            break
        k.end[end + End.NEXT] = place + 1
        if operation > k.rank[r + Rank.CURRENT]:
            return operation
    return -1


@inner
def _take(s: View, k: Script, end: int, j: int, step: int) -> int:
    """Take a step's data; returns the operation that has all its data by that, or -1."""
    operation = _operation_of(k, j, step)
    first = _first_of(k, j, operation)
    planned = _planned(k, end, j, step)
    k.taken[k.end[end + End.TAKEN] + step] = 1
    _taken(s, k, _link_of(k, end, planned), j, step)
    if k.job[j + Job.RELEASE] == INDEPENDENT:
        for later in range(step - first + 1, k.step[planned + Step.WAITING]):
            row = planned + (later - (step - first)) * Step.COLUMNS
            begin, stop = k.step[row + Step.NEEDS], k.step[row + Step.NEEDS_END]
            waits = k.step[row + Step.BYTES] >= 0 and begin <= step - first < stop
            if waits and _all_taken(k, end, first, begin, stop):
                _push_ready(k, end, first + later)
    at = k.rank[k.end[end + End.RANK] + Rank.LEFT] + 2 * operation
    k.left[at] -= 1
    return operation if k.left[at] == 0 else -1


# ------------------------------------------------------------------------------------------ what is to be done

_TAKE, _RELEASE, _PUMP, _FORCE, _COMPLETED, _WALK, _WALKING, _ADVANCE, _BEGIN, _BEGUN, _END_BEGINS = range(11)
FRAME = 4


@inner
def _do(k: Script, what: int, who: int, operation: int, extra: int) -> None:
    """Put something on top of what is to be done."""
    at = k.sc[S.DEPTH] * FRAME
    k.stack[at] = what
    k.stack[at + 1] = who
    k.stack[at + 2] = operation
    k.stack[at + 3] = extra
    k.sc[S.DEPTH] += 1


@inner
def _receives_nothing(k: Script, r: int, j: int, operation: int) -> bool:
    nothing: bool = k.left[k.rank[r + Rank.RECEIVES] + _shape_of(k, j, operation)] == 0
    return nothing


@entry
def _work(s: View, k: Script) -> None:
    """Do what is on the stack, and what that entails, until nothing is left.

    Ring-bench's ranks call each other here: taking a step may complete an operation, which lets the computation go on,
    which issues and begins the next operation, in which early steps can be taken. numba cannot cache recursive
    functions, so calls and what comes after them are entries of a stack, the last one first.
    """
    now_ns = s.sc[Sc.NOW] // 1000
    while k.sc[S.DEPTH] > 0:
        k.sc[S.DEPTH] -= 1
        at = k.sc[S.DEPTH] * FRAME
        what, who, operation, extra = k.stack[at], k.stack[at + 1], k.stack[at + 2], k.stack[at + 3]
        if what == _PUMP:
            _pump(s, k, who)
            continue
        if what in (_TAKE, _RELEASE, _END_BEGINS):
            j = _job_of(k, who)
            r = k.end[who + End.RANK]
            if what == _TAKE:
                step = _next_held(k, who, j)
                if step >= 0:
                    _do(k, _TAKE, who, 0, 0)
                    whole = _take(s, k, who, j, step)
                    if whole >= 0:
                        _do(k, _COMPLETED, r, whole, 0)
            elif what == _RELEASE:
                wanted = _release(k, who, j)
                if wanted >= 0:
                    _do(k, _RELEASE, who, 0, 0)
                    _do(k, _FORCE, r, wanted, 0)
            else:
                if k.job[j + Job.RELEASE] == INDEPENDENT:
                    row = _table(k, who, j, operation)
                    first = _first_of(k, j, operation)
                    for n in range(extra):
                        if k.step[row + Step.BYTES] >= 0 and k.step[row + Step.NEEDS] == k.step[row + Step.NEEDS_END]:
                            _push_ready(k, who, first + n)
                        row += Step.COLUMNS
                _do(k, _PUMP, who, 0, 0)
                _do(k, _RELEASE, who, 0, 0)
                _do(k, _TAKE, who, 0, 0)
            continue
        r = who
        j = k.rank[r + Rank.JOB]
        left = k.rank[r + Rank.LEFT]
        if what == _FORCE:
            if operation > k.rank[r + Rank.CURRENT]:
                _do(k, _FORCE, r, operation, 0)
                _do(k, _BEGIN, r, k.rank[r + Rank.CURRENT] + 1, 0)
        elif what == _BEGIN:
            # `extra` ring ends have begun
            k.rank[r + Rank.CURRENT] = max(k.rank[r + Rank.CURRENT], operation)
            if extra < k.rank[r + Rank.ENDS]:
                _do(k, _BEGIN, r, operation, extra + 1)
                after = k.job[j + Job.TOTAL]
                if operation + 1 < k.job[j + Job.OPERATIONS]:
                    after = _first_of(k, j, operation + 1)
                end = k.rank[r + Rank.END] + extra * End.COLUMNS
                _do(k, _END_BEGINS, end, operation, after - _first_of(k, j, operation))
            elif _receives_nothing(k, r, j, operation) and k.left[left + 2 * operation + 1] == 0:
                _do(k, _COMPLETED, r, operation, 0)
        elif what == _COMPLETED:
            done = k.rank[r + Rank.DONE]
            k.complete[done + operation] = now_ns
            complete = k.rank[r + Rank.COMPLETE]
            while complete <= k.rank[r + Rank.CURRENT] and k.complete[done + complete] >= 0:
                complete += 1
            k.rank[r + Rank.COMPLETE] = complete
            _do(k, _ADVANCE, r, 0, 0)
            _do(k, _WALK, r, 0, 0)
        elif what == _ADVANCE:
            current = k.rank[r + Rank.CURRENT]
            if k.job[j + Job.RELEASE] == COUNT:
                if current < 0:
                    _do(k, _BEGIN, r, 0, 0)
            elif (
                current + 1 < k.rank[r + Rank.ISSUED]
                and k.rank[r + Rank.COMPLETE] > current
                and (current < 1 or k.left[left + 2 * (current - 1) + 1] == 0)
            ):
                _do(k, _ADVANCE, r, 0, 0)
                _do(k, _BEGIN, r, current + 1, 0)
        elif what == _WALK:
            if k.rank[r + Rank.WALKING] == 0:
                k.rank[r + Rank.WALKING] = 1
                _do(k, _WALKING, r, 0, 0)
        else:
            _walk_on(k, r, j, now_ns)


@inner
def _walk_on(k: Script, r: int, j: int, now_ns: int) -> None:
    """Go through a rank's actions up to one that computes, waits or issues."""
    while k.rank[r + Rank.DEADLINE] == NO_TIME and k.rank[r + Rank.CURSOR] < k.job[j + Job.ACTIONS]:
        action = k.job[j + Job.ACTION] + 2 * k.rank[r + Rank.CURSOR]
        do, value = k.action[action], k.action[action + 1]
        if do == Do.WAIT and k.rank[r + Rank.COMPLETE] <= value:
            break
        k.rank[r + Rank.CURSOR] += 1
        if do == Do.COMPUTE:
            duration = k.duration[k.rank[r + Rank.DURATION]]
            k.rank[r + Rank.DURATION] += 1
            if duration > 0:
                k.rank[r + Rank.DEADLINE] = now_ns + duration
                k.sc[S.DEADLINE] = min(k.sc[S.DEADLINE], now_ns + duration)
        elif do == Do.ISSUE:
            k.rank[r + Rank.ISSUED] = value + 1
            _do(k, _WALKING, r, 0, 0)
            _do(k, _ADVANCE, r, 0, 0)
            return
        elif do == Do.MARK:
            k.mark[k.rank[r + Rank.MARKS] + value + 1] = now_ns
    k.rank[r + Rank.WALKING] = 0


@inner
def _check_finished(k: Script, r: int) -> None:
    j = k.rank[r + Rank.JOB]
    if (
        k.rank[r + Rank.FINISHED] == 0
        and k.rank[r + Rank.UNACKED] == 0
        and k.rank[r + Rank.COMPLETE] == k.job[j + Job.OPERATIONS]
        and k.rank[r + Rank.CURSOR] == k.job[j + Job.ACTIONS]
        and k.rank[r + Rank.DEADLINE] == NO_TIME
    ):
        k.rank[r + Rank.FINISHED] = 1
        k.job[j + Job.RANKS_LEFT] -= 1
        if k.job[j + Job.RANKS_LEFT] == 0:
            k.sc[S.JOB_OVER] = j


@entry
def answer(s: View, k: Script, t: int, kind: int, q: int, m: int) -> None:
    """A rank's answer to what the loop has reported of one of its QPs."""
    owner = k.owner[q // Qp.COLUMNS]
    what = owner & ((1 << KIND_BITS) - 1)
    link = owner >> (KIND_BITS + SLOT_BITS)
    slot = k.link[link + Link.SLOT] + ((owner >> KIND_BITS) & ((1 << SLOT_BITS) - 1)) * Slot.COLUMNS
    end = k.link[link + Link.END]
    r = k.end[end + End.RANK]
    j = k.rank[r + Rank.JOB]
    if kind == E_DELIVERED:
        if s.msg[m + Msg.FLAGS] & M_IMM == 0:
            return
        _do(k, _PUMP, end, 0, 0)
        if what == RECV:
            step = k.slot[slot + Slot.EXPECTS]
            trace = k.end[end + End.TRACE]
            k.delivered[trace + step] = t // 1000
            k.end[end + End.ARRIVALS] += 1
            leading = k.end[end + End.LEADING]
            receives = k.end[end + End.RECEIVES]
            while leading < k.end[end + End.N_RECEIVES] and k.delivered[trace + k.steps[receives + leading]] >= 0:
                leading += 1
            k.end[end + End.LEADING] = leading
            k.queues[k.end[end + End.HELD] + k.end[end + End.HELD_N]] = step
            k.end[end + End.HELD_N] += 1
            _do(k, _RELEASE, end, 0, 0)
            _do(k, _TAKE, end, 0, 0)
        else:
            _credited(s, k, link, j)
    elif kind == E_ACKED:
        signaled = s.msg[m + Msg.FLAGS] & M_SIGNALED
        s.msg[m + Msg.NEXT] = k.sc[S.FREE_MSG]
        k.sc[S.FREE_MSG] = m
        k.sc[S.FREE_MSGS] += 1
        if what == GRANT:
            k.link[link + Link.GRANTS_ACKED] += 1
            if signaled:
                _grants_sent(s, k, link, j)
            return
        if signaled == 0:
            return
        k.slot[slot + Slot.IDLE] = 1
        operation = _operation_of(k, j, k.slot[slot + Slot.SENDS])
        at = k.rank[r + Rank.LEFT] + 2 * operation + 1
        k.left[at] -= 1
        k.rank[r + Rank.UNACKED] -= 1
        _do(k, _PUMP, end, 0, 0)
        if k.left[at] == 0:
            if _receives_nothing(k, r, j, operation):
                _do(k, _COMPLETED, r, operation, 0)
            else:
                _do(k, _ADVANCE, r, 0, 0)
    else:
        k.job[j + Job.FAILED_QP] = q
        k.job[j + Job.FAILED_KIND] = kind
        k.sc[S.JOB_OVER] = j
        return
    _work(s, k)
    _check_finished(k, r)


@entry
def start_rank(s: View, k: Script, r: int) -> None:
    """A rank starts at the present time."""
    k.mark[k.rank[r + Rank.MARKS]] = s.sc[Sc.NOW] // 1000
    _do(k, _WALK, r, 0, 0)
    _work(s, k)
    _check_finished(k, r)


@inner
def _enough(s: View, k: Script) -> bool:
    need = s.sc[Sc.MARGIN] + k.sc[S.POSTS]
    enough: bool = s.sc[Sc.FREE_PACKETS] >= need and s.sc[Sc.FREE_CTLS] >= need and k.sc[S.FREE_MSGS] >= k.sc[S.POSTS]
    return enough


@entry
def tick(s: View, k: Script) -> bool:
    """Time has passed: ranks whose computation has ended go on, in their order; False: memory first."""
    now_ns = s.sc[Sc.NOW] // 1000
    soonest = NO_TIME
    for r in range(0, len(k.rank), Rank.COLUMNS):
        if k.rank[r + Rank.DEADLINE] <= now_ns:
            if not _enough(s, k):
                return False
            k.rank[r + Rank.DEADLINE] = NO_TIME
            _do(k, _WALK, r, 0, 0)
            _work(s, k)
            _check_finished(k, r)
        soonest = min(soonest, k.rank[r + Rank.DEADLINE])
    k.sc[S.DEADLINE] = soonest
    return True


@entry
def run(s: View, planes: Planes, k: Script, until: int, max_events: int) -> int:
    """Run events as `kernel.run` does, and the ranks that wait for them.

    Returns one of the kernel's reasons, `JOB_OVER`, or `GROW` also when messages run out. `kernel.STOPPED` leaves
    reports of QPs that are not the script's, for Python to take; after `REACHED` with a deadline that has come, `tick`
    is due.
    """
    out = s.out
    last = s.sc[Sc.EVENTS] + max_events
    reason = kernel.STOPPED
    while True:
        n = s.sc[Sc.N_OUT]
        done = 0
        kept = 0
        while done < n and k.sc[S.JOB_OVER] < 0:
            if not _enough(s, k):
                break
            o = done * Event.COLUMNS
            q = out[o + Event.QP]
            if k.owner[q // Qp.COLUMNS] > 0:
                answer(s, k, out[o + Event.TIME], out[o + Event.KIND], q, out[o + Event.ARG])
            else:
                for c in range(Event.COLUMNS):
                    out[kept * Event.COLUMNS + c] = out[o + c]
                kept += 1
            done += 1
        # what is kept are reports of others, then those that were not handled
        left = n - done
        for i in range(left * Event.COLUMNS):
            out[kept * Event.COLUMNS + i] = out[done * Event.COLUMNS + i]
        s.sc[Sc.N_OUT] = kept + left
        if k.sc[S.JOB_OVER] >= 0:
            return JOB_OVER
        if left > 0:
            return kernel.GROW
        if kept > 0:
            return kernel.STOPPED
        limit = until
        if k.sc[S.DEADLINE] != NO_TIME:
            limit = min(until, k.sc[S.DEADLINE] * 1000)
        if reason != kernel.STOPPED or limit <= s.sc[Sc.NOW] < until:
            return reason
        reason = kernel.run(s, planes, limit, last - s.sc[Sc.EVENTS])
