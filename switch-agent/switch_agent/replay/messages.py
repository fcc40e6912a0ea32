# SPDX-License-Identifier: Apache-2.0
"""Put the messages of each QP together from the packets of a capture; JIT-compiled.

A message is a SEND, an RDMA WRITE or the response to an RDMA READ of a reliable connection: FIRST to LAST, or ONLY (IB
spec vol. 1, 9.4). A PSN that goes back is a retransmission and no new message. A PSN that jumps ahead is a loss: the
message goes on if it is long enough by what the QP sent before, else a new one has started unseen.
"""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from switch_agent.replay.capture import BATCH
from switch_agent.replay.frames import Packets
from switch_agent.replay.jit import inlined, loop
from switch_agent.replay.merge import Piece
from switch_agent.replay.outcomes import ROCE
from switch_agent.replay.records import Records
from switch_agent.replay.steps import END_SEEN, EPOCH, IMMEDIATE, SEND, START_SEEN, Flow, Messages

__all__ = ["MAX_FLOWS", "MAX_MESSAGES", "MessageLog"]

Ints = npt.NDArray[np.int64]

MAX_FLOWS = 1 << 14
MAX_MESSAGES = 1 << 21
"""More than these are counted and left out, so memory is bounded (150 MB)."""

_PSN_MASK, _PSN_HALF = 0xFFFFFF, 0x800000
_RESTART = 1 << 16
_NEW_EPOCH = 1 << 40
_WALK = 256  # messages that a retransmission may go back
_STARTS, _ENDS, _IMMEDIATE, _READ_RESPONSE, _OTHER, _SEND = 1, 2, 4, 8, 16, 32
_READ_REQUEST = 12


def _kinds() -> Ints:
    """Return what each opcode is for a message, as bits; 0: not of a reliable connection's requests or responses."""
    kinds = np.zeros(256, np.int64)
    middle = 64
    for opcode in (0, 6):
        kinds[opcode] = _STARTS
    kinds[[1, 7]] = middle
    kinds[[2, 8, 0x16]] = _ENDS
    kinds[[3, 9]] = _ENDS | _IMMEDIATE
    kinds[[4, 10, 0x17]] = _STARTS | _ENDS
    kinds[[5, 11]] = _STARTS | _ENDS | _IMMEDIATE
    kinds[[0x0D, 0x0E, 0x0F, 0x10]] = np.array([_STARTS, middle, _ENDS, _STARTS | _ENDS]) | _READ_RESPONSE
    kinds[[_READ_REQUEST, 0x13, 0x14]] = _OTHER
    kinds[[0, 1, 2, 3, 4, 5, 0x16, 0x17]] |= _SEND
    return kinds


_KINDS = _kinds()


class _FlowTable(NamedTuple):
    """One direction of a QP each, int64[MAX_FLOWS]; ``slots`` is the hash table, ``counts`` flows, left out, messages.

    ``next_psn`` goes on counting beyond 24 bits. ``row`` is the newest message (-1: none), ``open`` says that it has
    not ended; ``whole_packets`` and ``whole_length`` are those of the last message seen whole.
    """

    slots: Ints
    counts: Ints
    version: Ints
    src_high: Ints
    src_low: Ints
    dst_high: Ints
    dst_low: Ints
    qpn: Ints
    responses: Ints
    next_psn: Ints
    row: Ints
    open: Ints
    loose: Ints
    whole_packets: Ints
    whole_length: Ints
    packets: Ints
    retransmitted: Ints
    missing: Ints


class _MessageTable(NamedTuple):
    """Messages in the order in which they started, int64[capacity]; see ``steps.Messages``."""

    flow: Ints
    start_ns: Ints
    end_ns: Ints
    psn: Ints
    packets: Ints
    length: Ints
    octets: Ints
    flags: Ints
    previous: Ints


def _new_flow_table() -> _FlowTable:
    """Return a table without flows."""
    columns = (np.zeros(MAX_FLOWS, np.int64) for _ in _FlowTable._fields[2:])
    return _FlowTable(np.full(4 * MAX_FLOWS, -1, np.int64), np.zeros(3, np.int64), *columns)


def _new_messages(capacity: int) -> _MessageTable:
    """Return room for ``capacity`` messages."""
    return _MessageTable(*(np.zeros(capacity, np.int64) for _ in _MessageTable._fields))


def _grown(messages: _MessageTable, room_for: int) -> _MessageTable:
    """Return the table with room for ``room_for`` messages, up to ``MAX_MESSAGES``."""
    have = len(messages.flow)
    if room_for <= have or have == MAX_MESSAGES:
        return messages
    more = min(max(room_for, 2 * have), MAX_MESSAGES) - have
    return _MessageTable(*(np.concatenate([column, np.zeros(more, np.int64)]) for column in messages))


@inlined
def _flow_of(table: _FlowTable, packets: Packets, i: int, responses: int) -> int:
    """Return the packet's flow, a new one if need be; -1 if there is no room."""
    mixed = np.uint64(packets.src_low[i]) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= np.uint64(packets.dst_low[i]) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed ^= np.uint64(packets.qpn[i] << 1 | responses) * np.uint64(0x165667B19E3779F9)
    slot = np.int64((mixed ^ (mixed >> np.uint64(31))) & np.uint64(table.slots.shape[0] - 1))
    while table.slots[slot] >= 0:
        f = table.slots[slot]
        if (
            table.qpn[f] == packets.qpn[i]
            and table.src_low[f] == packets.src_low[i]
            and table.dst_low[f] == packets.dst_low[i]
            and table.src_high[f] == packets.src_high[i]
            and table.dst_high[f] == packets.dst_high[i]
            and table.version[f] == packets.version[i]
            and table.responses[f] == responses
        ):
            return int(f)
        slot = (slot + 1) & (table.slots.shape[0] - 1)
    f = table.counts[0]
    if f == table.qpn.shape[0]:
        return -1
    table.counts[0] += 1
    table.slots[slot] = f
    table.version[f] = packets.version[i]
    table.src_high[f], table.src_low[f] = packets.src_high[i], packets.src_low[i]
    table.dst_high[f], table.dst_low[f] = packets.dst_high[i], packets.dst_low[i]
    table.qpn[f] = packets.qpn[i]
    table.responses[f] = responses
    table.next_psn[f] = packets.psn[i]
    table.row[f] = -1
    return int(f)


@inlined
def _expected(table: _FlowTable, messages: _MessageTable, f: int) -> int:
    """Return how many packets the newest message of a flow should have, 0 if nothing tells."""
    whole, length = table.whole_packets[f], messages.length[table.row[f]]
    if whole and length >= 0 and table.whole_length[f] > 0:
        return int(max(1, -(-length * whole // table.whole_length[f])))
    return int(whole)


@inlined
def _resend(table: _FlowTable, messages: _MessageTable, f: int, psn: int, kind: int, length: int) -> int:
    """Count a packet whose PSN goes back; return the message that it belongs to."""
    table.retransmitted[f] += 1
    row = table.row[f]
    for _ in range(_WALK):
        if messages.psn[row] <= psn or messages.previous[row] < 0:
            break
        row = messages.previous[row]
    if kind & _STARTS and messages.psn[row] == psn:  # its first packet was lost ahead of the capture point
        messages.flags[row] |= START_SEEN
        messages.length[row] = max(messages.length[row], length)
    return int(row)


@inlined
def _start_of_unseen(table: _FlowTable, messages: _MessageTable, f: int, psn: int, gap: int) -> int:
    """Return the PSN at which a message started whose first packet was not seen."""
    whole = table.whole_packets[f]
    if gap == 0 or whole == 0:
        return psn
    start = psn - gap
    if table.open[f]:
        start = messages.psn[table.row[f]] + max(_expected(table, messages, f), 1)
    return int(start + (psn - start) // whole * whole) if start <= psn else psn


@loop
def _collect(
    records: Records, packets: Packets, n: int, table: _FlowTable, messages: _MessageTable, message_of: Ints
) -> None:
    """Take ``n`` packets in.

    Args:
        records: their records.
        packets: their headers.
        n: how many.
        table: the flows.
        messages: with room for ``n`` more, or ``MAX_MESSAGES`` long.
        message_of: int64[>= n], the message of each packet; -1: of none.
    """
    for i in range(n):
        message_of[i] = -1
        if packets.outcome[i] != ROCE:
            continue
        kind = _KINDS[packets.opcode[i]]
        if kind == 0:
            continue
        f = _flow_of(table, packets, i, 1 if kind & _READ_RESPONSE else 0)
        if f < 0:
            table.counts[1] += 1
            continue
        next_psn = table.next_psn[f]
        gap = ((packets.psn[i] - next_psn + _PSN_HALF) & _PSN_MASK) - _PSN_HALF
        table.packets[f] += 1
        epoch = 0
        psn = next_psn + gap
        if gap >= _RESTART or gap <= -_RESTART:
            epoch = EPOCH
            psn = ((next_psn + _NEW_EPOCH) & ~_PSN_MASK) | packets.psn[i]
            gap = 0
        row = table.row[f]
        if gap < 0:
            if row >= 0:
                message_of[i] = _resend(table, messages, f, psn, kind, packets.dma_length[i])
            continue
        if table.loose[f]:
            table.loose[f] = 0
        else:
            table.missing[f] += gap
        table.next_psn[f] = psn + 1
        if kind & _OTHER:
            table.loose[f] = 1 if packets.opcode[i] == _READ_REQUEST else 0
            continue
        starts = kind & _STARTS or epoch or not table.open[f]
        if not starts and gap > 0:
            expected = _expected(table, messages, f)
            starts = expected > 0 and psn - messages.psn[row] >= expected
        if starts:
            new = table.counts[2]
            if new == messages.flow.shape[0]:
                table.counts[1] += 1
                continue
            seen = kind & _STARTS
            start = psn if seen or epoch else _start_of_unseen(table, messages, f, psn, gap)
            if table.open[f] and not epoch:
                messages.packets[row] = start - messages.psn[row]
            table.counts[2] += 1
            messages.flow[new] = f
            messages.start_ns[new] = records.time_ns[i]
            messages.psn[new] = start
            messages.length[new] = packets.dma_length[i]
            messages.octets[new] = 0
            messages.flags[new] = (START_SEEN if seen else 0) | (SEND if kind & _SEND else 0) | epoch
            messages.previous[new] = row
            table.row[f] = row = new
            table.open[f] = 1
        messages.end_ns[row] = max(records.time_ns[i], messages.start_ns[row])
        messages.octets[row] += records.length[i]
        messages.packets[row] = psn + 1 - messages.psn[row]
        message_of[i] = row
        if kind & _ENDS:
            table.open[f] = 0
            messages.flags[row] |= END_SEEN | (IMMEDIATE if kind & _IMMEDIATE else 0)
            if messages.flags[row] & START_SEEN:
                table.whole_packets[f] = messages.packets[row]
                table.whole_length[f] = messages.length[row]


class MessageLog:
    """The messages of a capture.

    Attributes:
        message_of: the message of each packet of the newest piece, -1: of none.
    """

    def __init__(self) -> None:
        self._flows = _new_flow_table()
        self._messages = _new_messages(1 << 12)
        self.message_of = np.zeros(BATCH, np.int64)

    def feed(self, piece: Piece) -> None:
        """Take packets in."""
        if len(self.message_of) < piece.n:
            self.message_of = np.zeros(piece.n, np.int64)
        self._messages = _grown(self._messages, int(self._flows.counts[2]) + piece.n)
        _collect(piece.records, piece.packets, piece.n, self._flows, self._messages, self.message_of)

    @property
    def left_out(self) -> int:
        """Packets of flows and messages for which there was no room."""
        return int(self._flows.counts[1])

    def messages(self) -> Messages:
        """Return the messages so far."""
        return Messages(*(column[: int(self._flows.counts[2])] for column in self._messages[: len(Messages._fields)]))

    def flows(self) -> list[Flow]:
        """Return the flows that ``messages().flow`` is an index into."""
        columns = (column[: int(self._flows.counts[0])].tolist() for column in self._flows[2:])
        names = _FlowTable._fields[2:]
        return [_flow(dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)]


def _flow(row: dict[str, int]) -> Flow:
    return Flow(
        src=_address(row["version"], row["src_high"], row["src_low"]),
        dst=_address(row["version"], row["dst_high"], row["dst_low"]),
        qpn=row["qpn"],
        packets=row["packets"],
        retransmitted=row["retransmitted"],
        missing=row["missing"],
    )


def _address(version: int, high: int, low: int) -> str:
    if version == 6:
        half = (1 << 64) - 1
        return str(ipaddress.IPv6Address((high & half) << 64 | low & half))
    return str(ipaddress.IPv4Address(low)) if version == 4 else f"LID {low}"
