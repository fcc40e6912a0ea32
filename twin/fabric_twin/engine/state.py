# SPDX-License-Identifier: Apache-2.0
"""The engine's memory: a handful of arrays, laid out so that one packet, port or QP is one cache line or two.

Everything the event loop touches lives in `View`, a named tuple of flat numpy arrays that numba takes apart once a
call. The classes below name the fields of the records in them. Times are picoseconds of virtual time.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fabric_twin.engine.dcqcn import CcQp
from switch_agent.dataplane.pipeline import Lookups, Registers

__all__ = ["Ctl", "Event", "Hop", "Msg", "Packet", "Planes", "Port", "Qp", "Sc", "Sw", "View"]

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

MAX_DISTANCES = 8
"""Different delays that acknowledgements may have."""


class Sc(IntEnum):
    """Scalars of the run."""

    NOW = 0
    EVENTS = 1
    DATA_PACKETS = 2
    FREE_PACKET = 3  # head of the free list
    FREE_PACKETS = 4  # its length
    FREE_CTL = 5
    FREE_CTLS = 6
    N_OUT = 7
    STOP = 8
    N_PORTS = 9
    CTL_BASE = 10  # entity of the first delay line
    N_PAUSE_LINES = 11  # the first delay lines are those of pause frames, one for each delay of links
    BUCKET_SHIFT = 12  # a bucket of the calendar is 2^BUCKET_SHIFT ps wide
    RNG_FABRIC = 13  # xorshift64* states, never 0: coins of RED and of lossy links
    PFC_ON = 14
    PFC_SHIFT = 15
    PFC_RESUME_OFFSET = 16
    DROPS = 17
    CNPS = 18
    IN_FLIGHT = 19  # packets anywhere in the fabric
    MARGIN = 20  # free records that one event may need
    OPTIONS = 22  # SELECTIVE, WINDOW, SCALED_WINDOW
    RNG_SYMPHONY = 21  # a stream of its own: tracking packets does not change RED's coins
    COLUMNS = 24


class Port(IntEnum):
    """A directed link with the queue in front of it; also the ingress of the node it leads to."""

    PS_PER_BYTE = 0
    DELAY_PS = 1
    NODE = 2  # switch that owns it, or -1 for a NIC
    PEER = 3  # switch it leads to, or -1 for a host
    HOST = 4  # NIC: its host
    FREE_AT = 5  # the serialiser
    READY_AT = 6  # earliest time the head of the queue may leave
    PAUSED = 7
    Q_HEAD = 8
    Q_TAIL = 9
    Q_BYTES = 10
    FLIGHT_HEAD = 11
    FLIGHT_TAIL = 12
    ROW = 13  # register row (switch and pipe) of packets that *arrive* over it, or -1
    INDEX = 14  # dense index of the port at its switch
    KMIN = 15
    KMAX = 16
    PMAX = 17  # of 2^32
    IN_BYTES = 18  # bytes buffered at the peer that came over this link
    XOFF = 19  # the peer has paused us
    DROP_PROB = 20  # of 2^32: loss on the wire
    TX_BYTES = 21
    TX_PACKETS = 22
    MARKED = 23  # by RED
    DROPPED = 24
    MAX_Q_BYTES = 25
    PAUSES = 26
    PAUSED_SINCE = 27
    PAUSED_PS = 28
    ACTIVE = 29  # NIC: QPs with something to send
    RR = 30  # NIC: round-robin pointer
    HIGH_TAIL = 30  # switch: 1 + the last packet of high priority in the queue, 0: there is none
    FOLDED_AT = 31  # when the last packet arrives that is no longer on the wire: its host has taken it early
    COLUMNS = 32


class Packet(IntEnum):
    """A packet in a queue or on a wire."""

    NEXT = 0
    QP = 1
    PSN = 2  # not wrapped; the wire carries the low 24 bits
    SIZE = 3  # bytes in buffers: payload and headers
    FLAGS = 4
    TIME = 5  # arrival at the next node
    HOP = 6  # the hop of its route that it is on
    IN_PORT = 7  # link it came in by
    COLUMNS = 8


CE = 1
LAST = 2  # last packet of a message
IMM = 4  # last packet of an RDMA WRITE WITH IMMEDIATE: "LAST" of Algorithm 1
DATA = 8  # RDMA WRITE: what Symphony tracks
CANDIDATE = 16  # Symphony would mark it
GATED = 32  # ... if the egress queue behind it is not empty
TRACKED = 64
ECT = 128
OUTRANKED = 256  # waits in a queue behind packets of high priority
GEN_SHIFT = 16
"""The bits from here up are the generation of the QP that sent the packet."""


class Hop(IntEnum):
    """One hop of a route. Routes never change, so packets keep theirs while their QP gets another."""

    PORT = 0
    JOB = 1  # of a classified packet at the node behind the port, or -1
    BLOCK = 2  # its state index
    COLUMNS = 4


class Qp(IntEnum):
    """One end of a reliable connection; sender and receiver columns."""

    NEXT_AT = 0  # pacing
    SND_NXT = 1
    SEND_MSG = 2  # message of SND_NXT, or -1
    MTU = 3
    ROUTE = 4  # first hop
    ECT = 5
    GENERATION = 6  # bumped by RESET: packets of the old life are ignored
    RTO_ARMED = 7  # its timer runs, or it has none
    TX_PACKETS = 8
    NIC = 9  # port
    PEER = 10  # the other end's row, or -1
    STATE = 11  # 0 not ready, 1 RTS
    SPORT = 12
    SIG = 13
    SLOT = 14
    PSN_OFFSET = 15  # wire PSN = (PSN + PSN_OFFSET) mod 2^24
    RX_PSN = 16  # next expected
    RX_NAKED = 17  # a NAK for RX_PSN is out
    RX_PACKETS = 18
    RX_MARKED = 19  # with CE
    CTL_LINE = 20  # delay line of its acknowledgements and CNPs (as receiver)
    CNP_AT = 21  # time of the last CNP it sent
    CNPS_SENT = 22
    RQ = 23  # receives posted
    UNA_MSG = 24  # oldest message not acknowledged, or -1
    TAIL_MSG = 25
    RX_MSG = 26  # sender's row: message the receiver is at, or -1
    IS_ACTIVE = 27
    CNPS_HANDLED = 28
    RTO_LINE = 29
    RTO_PSN = 30  # receiver's progress when the timer was looked at last
    RETRIES = 31
    RETRY_CNT = 32
    RNR_RETRIES = 33
    RNR_RETRY = 34
    RNR_PS = 35  # pause that it asks for as receiver
    RETRANSMITTED = 36
    OUT_OF_SEQUENCE = 37
    TIMEOUTS = 38
    RNR_NAKS = 39
    RX_GENERATION = 40  # receiver's row: life of the sender whose PSNs it counts
    RX_FOLDED_AT = 41  # receiver's row: when the last packet arrives that it has taken early
    RX_FOLDED_BEFORE = 42  # ... and the one before it
    CNP_HEAD = 43  # CNPs on their way to it that its rate has not seen, a chain of `Ctl`, or -1
    CNP_TAIL = 44
    WINDOW = 45  # bytes that it may have on its way, if there is a window
    UNA_PSN = 46  # all before it is acknowledged, as far as it knows (window)
    LOST_HEAD = 47  # ranges of PSNs to send again (selective repeat), a chain of `Ctl`, or -1
    LOST_TAIL = 48
    RX_HIGH = 49  # receiver's row: one past the highest PSN that has come (selective repeat)
    OUTRANKED = 50  # its packets that wait outranked, for each hop modulo 8
    AFTER_OUTRANKED = 58
    PROCESS = 58  # the process that it belongs to, for algorithms that know them, or 0
    COLUMNS = 64


COUNTERS = [
    Qp.TX_PACKETS, Qp.RX_PACKETS, Qp.RX_MARKED, Qp.CNPS_SENT, Qp.CNPS_HANDLED,
    Qp.RETRANSMITTED, Qp.OUT_OF_SEQUENCE, Qp.TIMEOUTS, Qp.RNR_NAKS,
]  # fmt: skip
"""What outlives RESET."""


class Process(IntEnum):
    """A process as its NIC knows it (`engine.progress`)."""

    WEIGHED = 0  # its QPs share by progress
    HEARD = 1  # 1 + the newest step that has come to it, modulo 2^10; 0: none yet
    CAP_BPS = 2  # ceiling of the rate of each of its QPs, or 0
    COLUMNS = 4


class Msg(IntEnum):
    """A work request on its way."""

    NEXT = 0
    QP = 1
    BYTES = 2
    PACKETS = 3
    PSN = 4  # of its first packet
    FLAGS = 5
    COLUMNS = 8


M_DATA = 1  # RDMA WRITE*
M_IMM = 2  # consumes a receive (…WITH_IMM, SEND*)
M_WRITE_IMM = 4
M_SIGNALED = 8


class Ctl(IntEnum):
    """An entry of a delay line: acknowledgement, CNP, pause frame, timeout."""

    NEXT = 0
    TIME = 1
    KIND = 2
    QP = 3
    ARG = 4
    GENERATION = 5
    COLUMNS = 8


ACK = 1
NAK = 2
UNA = 3  # ARG = PSN: everything before it has arrived
RNR = 4
PFC_ON = 5
PFC_OFF = 6
TIMEOUT = 7


class Event(IntEnum):
    """What the loop reports to Python."""

    TIME = 0
    KIND = 1
    QP = 2
    ARG = 3
    COLUMNS = 4


E_DELIVERED = 1  # ARG = message: its last packet has arrived
E_ACKED = 2  # ARG = message
E_RETRY_EXC = 3
E_RNR_RETRY_EXC = 4


class Sw(IntEnum):
    """Per switch."""

    BUFFER = 0
    USED = 1
    PIPELINE = 2  # row of its look-ups and parameters, or -1: no Symphony here
    MAX_USED = 3
    COLUMNS = 4


class View(NamedTuple):
    """What the loop works on: flat arrays. A record is known by its *offset*: port `p` has its queue at
    ``port[p + Port.Q_HEAD]``, and links between records (next packet, path, peer...) hold offsets too.
    """

    sc: I64
    key: I64  # time of each entity's next event
    bucket: npt.NDArray[np.int32]  # the calendar: first entity of each bucket, or -1
    after: npt.NDArray[np.int32]  # per entity: the next one in its bucket, or -1
    before: npt.NDArray[np.int32]  # per entity: the one before it, or -1 - bucket for the first
    port: I64
    sw: I64
    pk: I64
    ctl: I64
    line: I64  # per delay line: delay, head, tail, -
    qp: I64
    route: I64
    ccq: F64
    cc: F64
    msg: I64
    process: I64  # the first record is nobody's
    held: npt.NDArray[np.uint8]  # per QP: PSN mod HELD has come before its time (selective repeat)
    active: npt.NDArray[np.int32]  # per host: QPs with something to send
    out: I64
    enabled: npt.NDArray[np.uint8]  # [switch, job]: 1: the job has parameters; `RANKED`: and lagging packets go first
    counts: I64  # [register row, job]: packets and bytes, all / outpacing / marked by Symphony / by the queue


RANKED = 2
"""Strict priority for a job's lagging step, on top of its parameters."""


class Planes(NamedTuple):
    """Symphony in all ToRs."""

    regs: Registers
    lut: Lookups
    params: I64  # [switch, job, 10]


NEVER = 1 << 62
UNCONNECTED = np.zeros(Qp.COLUMNS, dtype=np.int64)
UNCONNECTED[
    [Qp.PEER, Qp.UNA_MSG, Qp.SEND_MSG, Qp.TAIL_MSG, Qp.RX_MSG, Qp.RX_GENERATION, Qp.CNP_HEAD, Qp.LOST_HEAD]
] = -1
UNCONNECTED[Qp.CNP_AT] = -NEVER
"""The row of a QP in RESET, but for its NIC, its generation and `COUNTERS`."""
MTU_HEADER_BYTES = 62
"""Ethernet 14, IPv4 20, UDP 8, BTH 12, ICRC 4, FCS 4."""
GAP_BYTES = 20
"""Preamble and inter-frame gap: on the wire, not in buffers."""


def new_pool(rows: int, columns: int) -> I64:
    """A free list of `rows` records, linked by offsets in column 0."""
    pool = np.zeros((rows, columns), dtype=np.int64)
    pool[:, 0] = np.arange(1, rows + 1) * columns
    pool[-1, 0] = -1
    return pool.reshape(-1)


def grow_pool(pool: I64, columns: int, free_head: int) -> tuple[I64, int]:
    """Twice the records; the new ones go in front of the free list, whose new head is returned."""
    added = new_pool(len(pool) // columns, columns)
    added[::columns] += len(pool)
    added[-columns] = free_head
    return np.concatenate([pool, added]), len(pool)


SELECTIVE = 1  # Sc.OPTIONS, see `fabric_twin.engine.recovery`
WINDOW = 2
SCALED_WINDOW = 4
HELD = 2048
"""Packets that a receiver with selective repeat keeps out of order."""
ACTIVE_MAX = 4096
"""QPs of one host; each may have something to send at the same time."""
PORT_SHIFT = (Port.COLUMNS - 1).bit_length()
CC_SHIFT = (Qp.COLUMNS // CcQp.COLUMNS - 1).bit_length()
assert 1 << PORT_SHIFT == Port.COLUMNS
assert CcQp.COLUMNS << CC_SHIFT == Qp.COLUMNS
