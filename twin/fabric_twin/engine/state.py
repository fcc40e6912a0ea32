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

__all__ = ["Ctl", "Event", "Msg", "Packet", "Planes", "Port", "Qp", "Sc", "Sw", "View"]

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

MAX_HOPS = 8
"""Ports on the longest path: 4 in two tiers, 6 in three."""


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
    PFC_LINE = 11  # entity of the line of pause frames
    TREE_SIZE = 12
    RNG = 13  # xorshift64* state, never 0
    PFC_ON = 14
    PFC_SHIFT = 15
    PFC_RESUME_OFFSET = 16
    ACTIVE_MAX = 17
    DROPS = 18
    CNPS = 19
    IN_FLIGHT = 20  # packets anywhere in the fabric
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
    COLUMNS = 32


class Packet(IntEnum):
    """A packet in a queue or on a wire."""

    NEXT = 0
    QP = 1
    PSN = 2  # not wrapped; the wire carries the low 24 bits
    SIZE = 3  # bytes in buffers: payload and headers
    FLAGS = 4
    TIME = 5  # arrival at the next node
    HOP = 6  # index of its port in the path
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


class Qp(IntEnum):
    """One end of a reliable connection; sender and receiver columns."""

    SRC = 0  # host
    PEER = 1  # the other end's row, or -1
    STATE = 2  # 0 not ready, 1 RTS
    NIC = 3  # port
    HOPS = 4
    MTU = 5
    SND_NXT = 6
    UNA_MSG = 7  # oldest message not acknowledged, or -1
    SEND_MSG = 8  # message of SND_NXT, or -1
    TAIL_MSG = 9
    NEXT_AT = 10  # pacing
    IS_ACTIVE = 11
    RX_PSN = 12  # next expected
    RX_NAKED = 13  # a NAK for RX_PSN is out
    RQ = 14  # receives posted
    CNP_AT = 15  # time of the last CNP it sent
    CTL_LINE = 16  # delay line of its acknowledgements and CNPs (as receiver)
    RTO_LINE = 17
    RTO_PSN = 18  # receiver's progress at the last timeout
    RETRIES = 19
    RETRY_CNT = 20
    RNR_RETRIES = 21
    RNR_RETRY = 22
    RNR_PS = 23
    SPORT = 24
    SIG = 25
    SLOT = 26
    ECT = 27
    PSN_OFFSET = 28  # wire PSN = (PSN + PSN_OFFSET) mod 2^24
    TX_PACKETS = 29
    RETRANSMITTED = 30
    GENERATION = 31  # bumped by RESET: packets of the old life are ignored
    RX_MSG = 32  # sender's row: message the receiver is at, or -1
    RX_PACKETS = 33
    RX_MARKED = 34  # with CE
    CNPS_SENT = 35
    CNPS_HANDLED = 36
    OUT_OF_SEQUENCE = 37
    TIMEOUTS = 38
    RNR_NAKS = 39
    PATH = 40  # .. 47: the port of each hop
    JOB = 48  # .. 55: job of a classified packet at the node behind each hop, or -1
    BLOCK = 56  # .. 63: its state index
    COLUMNS = 64


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
CNP = 3
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
    win: npt.NDArray[np.int32]  # the tournament over `key`
    port: I64
    sw: I64
    pk: I64
    ctl: I64
    line: I64  # per delay line: delay, head, tail, -
    qp: I64
    ccq: F64
    cc: F64
    msg: I64
    active: npt.NDArray[np.int32]  # per host: QPs with something to send
    out: I64
    enabled: npt.NDArray[np.uint8]  # [switch, job]: the job has parameters
    counts: I64  # [register row, job]: packets and bytes, all / outpacing / marked by Symphony / by the queue


class Planes(NamedTuple):
    """Symphony in all ToRs."""

    regs: Registers
    lut: Lookups
    params: I64  # [switch, job, 10]


NEVER = 1 << 62
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


ACTIVE_MAX = 1024
"""QPs of one host that may have something to send at the same time."""
PORT_SHIFT = (Port.COLUMNS - 1).bit_length()
CC_SHIFT = (Qp.COLUMNS // CcQp.COLUMNS - 1).bit_length()
assert 1 << PORT_SHIFT == Port.COLUMNS
assert CcQp.COLUMNS << CC_SHIFT == Qp.COLUMNS
