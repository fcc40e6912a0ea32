# SPDX-License-Identifier: Apache-2.0
"""Several captures as one, merged by time; a packet that passed two capture points is counted once.

Only what is needed is in memory: a batch of each capture. Captures should be sorted by time and their clocks agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from switch_agent.replay.capture import BATCH, Capture
from switch_agent.replay.frames import Packets, decode, new_packets
from switch_agent.replay.jit import inlined, loop
from switch_agent.replay.outcomes import DUPLICATE, ROCE
from switch_agent.replay.records import Records, new_records

__all__ = ["MAX_CAPTURES", "Piece", "decoded", "merged"]

Ints = npt.NDArray[np.int64]

MAX_CAPTURES = 63
_SEEN_SLOTS = 1 << 18
_SAME_PACKET_NS = 10_000_000  # between two capture points; a retransmission passes the first one again


class Piece(NamedTuple):
    """The first ``n`` of ``records`` and ``packets``; valid until the next piece is asked for."""

    records: Records
    packets: Packets
    n: int


class _Seen(NamedTuple):
    """The last packet in each slot, int64[n_slots]: a digest of its headers, its time, the captures that have it."""

    digest: Ints
    time_ns: Ints
    taps: Ints


def decoded(capture: Capture) -> Iterator[Piece]:
    """Yield the decoded records of one capture; an empty piece where a live one is quiet."""
    packets = new_packets(BATCH)
    for data, records, n in capture.batches():
        decode(data, records, n, packets)
        yield Piece(records, packets, n)


class _Tap:
    """One capture on its way through the merge: what of its current piece is not yet given on."""

    def __init__(self, capture: Capture) -> None:
        self._pieces = decoded(capture)
        self._latest = 0
        self.piece: Piece | None = None
        self.at = 0
        self.times = np.zeros(0, np.int64)
        self.refill()

    def refill(self) -> None:
        """Take the next piece; its times never go back, and what has no time has that of the packet before."""
        self.piece, self.at = next(self._pieces, None), 0
        if self.piece:
            records, packets, n = self.piece
            times = np.where(packets.outcome[:n] == ROCE, records.time_ns[:n], 0)
            self.times = np.maximum(np.maximum.accumulate(times), self._latest)
            self._latest = int(self.times[-1])


def merged(captures: Sequence[Capture]) -> Iterator[Piece]:
    """Yield the decoded records of several captures in the order of their times.

    Records that are of no use come where they stand in their file. The second and later copies of a packet, each from
    another capture, have the outcome ``DUPLICATE``.
    """
    taps = [_Tap(capture) for capture in captures]
    capacity = len(taps) * BATCH
    records, packets, source = new_records(capacity), new_packets(capacity), np.zeros(capacity, np.int64)
    seen = _Seen(*(np.zeros(_SEEN_SLOTS, np.int64) for _ in _Seen._fields))
    while True:
        active = [(number, tap, tap.piece) for number, tap in enumerate(taps) if tap.piece]
        if not active:
            return
        horizon = min(int(tap.times[-1]) for _, tap, _ in active)
        ends = [int(np.searchsorted(tap.times, horizon, "right")) for _, tap, _ in active]
        n = sum(end - tap.at for (_, tap, _), end in zip(active, ends, strict=True))
        times = np.concatenate([tap.times[tap.at : end] for (_, tap, _), end in zip(active, ends, strict=True)])
        order = np.argsort(times, kind="stable")
        for target, which in ((records, 0), (packets, 1)):
            for name, column in zip(target._fields, target, strict=True):
                parts = [
                    getattr(piece[which], name)[tap.at : end] for (_, tap, piece), end in zip(active, ends, strict=True)
                ]
                np.take(np.concatenate(parts), order, out=column[:n])
        counts = [end - tap.at for (_, tap, _), end in zip(active, ends, strict=True)]
        source[:n] = np.repeat([number for number, _, _ in active], counts)[order]
        for (_, tap, _), end in zip(active, ends, strict=True):
            tap.at = end
            if end == len(tap.times):
                tap.refill()
        _find_duplicates(records, packets, source, n, seen)
        yield Piece(records, packets, n)


@inlined
def _mix(digest: int, value: int) -> int:
    x = (np.uint64(digest) ^ np.uint64(value)) * np.uint64(0x9E3779B97F4A7C15)
    return int(np.int64(x ^ (x >> np.uint64(29))))


@loop
def _find_duplicates(records: Records, packets: Packets, source: Ints, n: int, seen: _Seen) -> None:
    for i in range(n):
        if packets.outcome[i] != ROCE:
            continue
        digest = _mix(_mix(0, packets.src_low[i]), packets.src_high[i])
        digest = _mix(_mix(digest, packets.dst_low[i]), packets.dst_high[i])
        digest = _mix(digest, packets.opcode[i] << 48 | packets.qpn[i] << 24 | packets.psn[i])
        digest = _mix(_mix(digest, packets.sport[i]), packets.syndrome[i])
        slot = digest & (seen.digest.shape[0] - 1)
        tap = np.int64(1) << source[i]
        known = seen.digest[slot] == digest and records.time_ns[i] - seen.time_ns[slot] <= _SAME_PACKET_NS
        if known and not seen.taps[slot] & tap:
            packets.outcome[i] = DUPLICATE
            seen.taps[slot] |= tap
            continue
        seen.digest[slot] = digest
        seen.time_ns[slot] = records.time_ns[i]
        seen.taps[slot] = tap
