# SPDX-License-Identifier: Apache-2.0
"""Overlap, laggards and collectives, once steps are known."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from switch_agent.replay.steps.lanes import Track
from switch_agent.replay.steps.model import Candidate, Messages, OverlapWindow

__all__ = ["find_candidates", "overlap"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_MAX_SAMPLES, _MAX_CELLS = 20_000, 4_000_000  # instants looked at; instants times lanes
_MAX_WINDOWS = 1000
_MAX_CANDIDATES = 1000
_NS = 1e9
_DONE = 1 << 62


def overlap(
    tracks: Sequence[Track], messages: Messages, steps: Sequence[Ints], base_ns: int, window_ns: int
) -> tuple[list[OverlapWindow], Floats]:
    """Return the timeline, and for each lane the share of instants at which it was at the lowest of several steps.

    As in the switch's registers, the lowest step is the lowest that a lane has yet to finish, the highest is the
    highest that a lane has started: a lane counts while it waits for its next step, not when it has no more to send.
    """
    starts = [np.maximum.accumulate(messages.start_ns[track.rows]) for track in tracks]
    ends = [messages.end_ns[track.rows] for track in tracks]
    instants = np.unique(np.concatenate(starts))
    most_instants = min(_MAX_SAMPLES, _MAX_CELLS // len(tracks))
    if len(instants) > most_instants:
        instants = instants[np.linspace(0, len(instants) - 1, most_instants).astype(np.int64)]
    due = np.empty((len(tracks), len(instants)), np.int64)
    high = np.full(len(instants), -1)
    for i, step in enumerate(steps):
        at = np.searchsorted(starts[i], instants, "right") - 1
        last = len(step) - 1
        ended = (at >= 0) & (ends[i][np.maximum(at, 0)] < instants)
        due[i] = step[np.clip(at + ended, 0, last)]
        due[i][ended & (at == last)] = _DONE
        high = np.where(at >= 0, np.maximum(high, step[np.maximum(at, 0)]), high)
    low = np.minimum(due.min(axis=0), high + 1)
    spread = high > low
    last_share = np.mean(due[:, spread] == low[spread], axis=1) if np.any(spread) else np.zeros(len(tracks))
    span = int(instants[-1]) - base_ns
    window_ns = max(window_ns, -(-span // _MAX_WINDOWS), 1)
    window = (instants - base_ns) // window_ns
    first = np.concatenate([[0], np.flatnonzero(np.diff(window)) + 1])
    timeline = []
    for begin, end in zip(first.tolist(), [*first[1:].tolist(), len(instants)], strict=True):
        most = begin + int(np.argmax(high[begin:end] - low[begin:end]))
        lowest, highest = int(low[most]), int(high[most])
        timeline.append(OverlapWindow(int(window[begin]) * window_ns / _NS, lowest, highest, highest - lowest + 1))
    return timeline, last_share


def find_candidates(
    tracks: Sequence[Track], messages: Messages, steps: Sequence[Ints], base_ns: int, ring: int, origin: int
) -> list[Candidate]:
    """Return runs of steps that may be one collective each, from phases of one step size; one starts at ``origin``."""
    low, high = max(int(step[0]) for step in steps), min(int(step[-1]) for step in steps)
    if high < low:
        return []
    n = high - low + 1
    start, end = np.full(n, np.iinfo(np.int64).max), np.zeros(n, np.int64)
    size = np.zeros(n)
    for track, step in zip(tracks, steps, strict=True):
        inside = (step >= low) & (step <= high)
        rows, at = track.rows[inside], step[inside] - low
        np.minimum.at(start, at, messages.start_ns[rows])
        np.maximum.at(end, at, messages.end_ns[rows])
        np.add.at(size, at, messages.octets[rows].astype(np.float64))
    seen = end > 0
    size = np.where(size > 0, size, 1.0)
    end = np.maximum.accumulate(end)  # of steps that were not seen: nothing in no time
    start = np.where(seen, start, end)
    edges = {0, n, *(np.flatnonzero(np.abs(np.diff(np.log2(size))) > 1.0) + 1).tolist()}
    if low < origin <= high:
        edges.add(origin - low)
    found: list[Candidate] = []
    for begin, stop in pairwise(sorted(edges)):
        for first, last, kind in _runs(begin, stop, _long_pauses(start[begin:stop], end[begin:stop]), ring):
            if len(found) < _MAX_CANDIDATES and np.any(seen[first:last]):
                begun, ended = int(start[first:last].min()), int(end[first:last].max())
                found.append(Candidate((begun - base_ns) / _NS, (ended - begun) / 1e6, low + first, last - first, kind))
    return found


def _long_pauses(start: Ints, end: Ints) -> list[int]:
    """Return the steps ahead of which nothing is sent for more than three usual steps."""
    usual = float(np.median(end - start))
    return (np.flatnonzero(start[1:] - end[:-1] > 3 * usual) + 1).tolist()


def _runs(begin: int, stop: int, pauses: list[int], ring: int) -> list[tuple[int, int, str]]:
    """Return (first step, step behind the last, kind) of the collectives in a phase of one step size.

    Pauses separate them if what lies between pauses are whole collectives; a phase's ends may be cut.
    """
    parts = list(pairwise([begin, *(begin + at for at in pauses), stop]))
    if ring <= 2 or all((last - first) % (ring - 1) == 0 for first, last in parts[1:-1]):
        edges = parts
    else:
        edges = [(begin, stop)]
    found = []
    for first, last in edges:
        length, kind = _collective(last - first, ring)
        found += [(at, min(at + length, last), kind) for at in range(first, last, length)]
    return found


def _collective(steps: int, ring: int) -> tuple[int, str]:
    """Return how many steps one collective of a phase has, and what it may be."""
    if ring > 2 and steps % (2 * (ring - 1)) == 0:
        return 2 * (ring - 1), f"AllReduce: 2 * ({ring} - 1) steps"
    if ring > 2 and steps % (ring - 1) == 0:
        return ring - 1, f"ReduceScatter or AllGather: {ring} - 1 steps"
    return steps, "steps of one size; their number is that of no ring collective"
