# SPDX-License-Identifier: Apache-2.0
"""Lanes: what counts steps. Which QPs carry data, which of them take turns, what number each message has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from switch_agent.replay.steps.model import END_SEEN, EPOCH, SEND, START_SEEN, Flow, Messages

__all__ = ["DATA_SHARE", "Track", "data_flows", "find_tracks", "step_times"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

DATA_SHARE = 0.02
"""A flow with less than this share of the bytes of the busiest carries no data."""
_EMPTY_SEND = 100  # bytes on the wire, headers of IPv6 and a VLAN tag included
_ALIKE = 0.97


@dataclass
class Track:
    """A lane at work: its messages (rows of the table) in the order of their ordinals, which may have holes."""

    src: str
    dst: str
    flows: list[int]
    rows: Ints
    ordinal: Ints
    missing: int
    clean: bool


def _ordinals(messages: Messages, rows: Ints) -> tuple[Ints, int]:
    """Return the number of each message of one flow, counting those that PSNs say are missing; and how many are.

    Where more are missing than are there, they are not counted.
    """
    psn, packets = messages.psn[rows], messages.packets[rows]
    typical = max(1.0, float(np.median(packets)))
    extra = np.zeros(len(rows), np.int64)
    hole = psn[1:] - (psn + packets)[:-1]
    unended = messages.flags[rows[:-1]] & END_SEEN == 0
    swallowed = np.where(unended, np.maximum(0, np.round(packets[:-1] / typical) - 1), 0)
    whole_lost = np.maximum(0, np.round(hole / typical))
    extra[1:] = np.where(messages.flags[rows[1:]] & EPOCH, 0, swallowed + whole_lost).astype(np.int64)
    numbers = np.arange(len(rows), dtype=np.int64)
    missing = int(extra.sum())
    return numbers + np.cumsum(extra) if missing <= len(rows) else numbers, missing


def _take_turns(messages: Messages, flows: Sequence[Ints]) -> bool:
    """Say whether QPs of one edge send one after the other: each starts in its turn, and few are under way at once."""
    width = len(flows)
    rows = np.concatenate(flows)
    owner = np.repeat(np.arange(width), [len(part) for part in flows])
    order = np.argsort(messages.start_ns[rows], kind="stable")
    owner, rows = owner[order], rows[order]
    if len(rows) < 3 * width or max(map(len, flows)) - min(map(len, flows)) > 1:
        return False
    in_turn = np.mean(owner[width:] == owner[:-width])
    overlapping = np.mean(messages.start_ns[rows[1:]] < messages.end_ns[rows[:-1]])
    return bool(len(set(owner[:width].tolist())) == width and in_turn >= _ALIKE and overlapping < 0.5)


def find_tracks(flows: Sequence[Flow], messages: Messages, data: Sequence[int], turns: int | None) -> list[Track]:
    """Return the lanes of the flows that carry data; ``turns`` as for ``infer``."""
    order = np.argsort(messages.flow, kind="stable")
    edge_of = np.searchsorted(messages.flow[order], np.arange(len(flows) + 1))
    rows_of = {f: order[edge_of[f] : edge_of[f + 1]] for f in data}
    edges: dict[tuple[str, str], list[int]] = {}
    for f in sorted(data, key=lambda f: int(messages.start_ns[rows_of[f][0]])):
        edges.setdefault((flows[f].src, flows[f].dst), []).append(f)
    tracks = []
    for (src, dst), members in edges.items():
        width = turns or 1
        if turns is None and len(members) > 1 and _take_turns(messages, [rows_of[f] for f in members]):
            width = len(members)
        for first in range(0, len(members), width):
            lane = members[first : first + width]
            parts, ordinals, missing = [], [], 0
            for turn, f in enumerate(lane):
                ordinal, lost = _ordinals(messages, rows_of[f])
                parts.append(rows_of[f])
                ordinals.append(ordinal * len(lane) + turn)
                missing += lost
            rows, ordinal = np.concatenate(parts), np.concatenate(ordinals)
            by_number = np.argsort(ordinal, kind="stable")
            clean = all(messages.flags[rows_of[f][0]] & START_SEEN for f in lane)
            tracks.append(Track(src, dst, lane, rows[by_number], ordinal[by_number], missing, clean))
    return tracks


def step_times(messages: Messages, track: Track, per_step: int, origin: int) -> tuple[Ints, Ints, Ints]:
    """Return the lane's steps and when each started and ended, by the messages that were seen."""
    step = (track.ordinal - origin) // per_step
    first = np.concatenate([[0], np.flatnonzero(np.diff(step)) + 1])
    start = np.minimum.reduceat(messages.start_ns[track.rows], first)
    end = np.maximum.reduceat(messages.end_ns[track.rows], first)
    return step[first], start, end


def data_flows(flows: Sequence[Flow], messages: Messages, octets: Floats) -> list[int]:
    """Return the flows that carry data: not credits, the small SENDs against the direction of WRITEs."""
    busy = np.flatnonzero((octets > 0) & (octets >= DATA_SHARE * octets.max(initial=0))).tolist()
    sends = np.bincount(messages.flow, messages.flags & SEND != 0, len(flows))
    n = np.bincount(messages.flow, minlength=len(flows))
    writing = {(flows[f].src, flows[f].dst) for f in busy if not sends[f]}
    return [
        f
        for f in busy
        if not (sends[f] == n[f] and octets[f] <= _EMPTY_SEND * n[f] and (flows[f].dst, flows[f].src) in writing)
    ]
