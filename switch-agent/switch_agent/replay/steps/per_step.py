# SPDX-License-Identifier: Apache-2.0
"""How many messages a step has: given, by the immediates, the lengths or the pauses between messages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from switch_agent.replay.steps.lanes import Track
from switch_agent.replay.steps.model import END_SEEN, IMMEDIATE, START_SEEN, Messages

__all__ = ["find_messages_per_step"]

Floats = npt.NDArray[np.float64]

_ALIKE = 0.97
_MAX_PERIOD = 64
_GAP_RATIO = 4.0


def _sizes_of(messages: Messages, track: Track) -> Floats:
    """Return the messages' sizes by ordinal, NaN where unknown: lengths if most are known, else bytes on the wire."""
    length = messages.length[track.rows].astype(np.float64)
    length[length < 0] = np.nan
    if np.mean(np.isnan(length)) > 0.2:
        length = messages.octets[track.rows].astype(np.float64)
        length[messages.flags[track.rows] & (START_SEEN | END_SEEN) != START_SEEN | END_SEEN] = np.nan
    sizes = np.full(int(track.ordinal[-1]) + 1, np.nan)
    sizes[track.ordinal] = length
    return sizes


def _run_length(marks: npt.NDArray[np.bool_]) -> int | None:
    """Return the distance of the marks if it is the same nearly everywhere."""
    where = np.flatnonzero(marks)
    if len(where) < 3:
        return None
    distances = np.diff(where)
    typical = int(np.median(distances))
    return typical if np.mean(distances == typical) >= 0.9 else None


def _period_of_lengths(sizes: Floats) -> int | None:
    """Return p if p - 1 messages of one length are followed by a clearly shorter one, again and again."""
    known = sizes[~np.isnan(sizes)]
    if len(known) < 6 or np.max(known) == np.min(known):
        return None
    usual = float(np.median(known))
    period = _run_length(sizes < 0.9 * usual)
    if period is None or not 2 <= period <= _MAX_PERIOD:
        return None
    longer = sizes >= 0.9 * usual
    alike = np.abs(sizes[longer] - usual) <= 0.01 * usual
    return period if np.mean(alike) >= _ALIKE else None


def _steps_end_short(messages: Messages, tracks: Sequence[Track], period: int) -> bool:
    """Say whether the short messages end steps: chunks of unequal length look alike, but each rank starts elsewhere.

    Only lanes that are seen from their first message on can tell. Without one, a period as long as the ring is not
    trusted.
    """
    clean = [track for track in tracks if track.clean]
    if not clean:
        return period != len({name for track in tracks for name in (track.src, track.dst)})
    short = [_sizes_of(messages, track) for track in clean]
    first = [int(np.argmax(sizes < 0.9 * float(np.nanmedian(sizes)))) for sizes in short]
    return first.count(period - 1) >= 0.8 * len(first)


def _period_of_pauses(messages: Messages, track: Track) -> int | None:
    """Return p if every p-th message starts after a pause that is much longer than the others."""
    if len(track.rows) < 12 or track.missing:
        return None
    pause = messages.start_ns[track.rows[1:]] - messages.end_ns[track.rows[:-1]]
    ranked = np.sort(pause)
    best: tuple[float, int] | None = None
    for period in range(2, min(_MAX_PERIOD, len(pause) // 3) + 1):
        threshold = ranked[-(len(pause) // period)]
        long = pause >= threshold
        usual = float(np.median(pause[~long])) if np.any(~long) else 0.0
        if _run_length(long) == period and np.min(pause[long]) >= _GAP_RATIO * max(
            usual, float(np.max(pause[~long])) / 2
        ):
            ratio = float(np.median(pause[long])) / max(usual, 1.0)
            if best is None or ratio > best[0]:
                best = ratio, period
    return best[1] if best else None


def find_messages_per_step(
    messages: Messages, tracks: Sequence[Track], given: int | None
) -> tuple[int | None, float, str]:
    """Return messages per step, a confidence and how it was found."""
    if given:
        return given, 1.0, f"{given} messages per step were given"
    immediates = [messages.flags[track.rows] & IMMEDIATE > 0 for track in tracks]
    share = float(np.mean(np.concatenate(immediates)))
    if 0.0 < share < _ALIKE:
        found = [_run_length(marks) for marks in immediates]
        if found[0] and found.count(found[0]) >= 0.8 * len(found):
            return found[0], 0.95, f"every {found[0]}th message carries an immediate: it ends a step"
    votes = [_period_of_lengths(_sizes_of(messages, track)) for track in tracks]
    period = max(set(votes), key=votes.count)
    if period and votes.count(period) >= 0.8 * len(votes) and _steps_end_short(messages, tracks, period):
        return period, 0.85, f"{period - 1} messages of one length and a shorter one follow each other: they are a step"
    if share >= _ALIKE:
        return 1, 0.9, "every message carries an immediate: each is taken for a step"
    pauses = [_period_of_pauses(messages, track) for track in tracks]
    period = max(set(pauses), key=pauses.count)
    if period and pauses.count(period) >= 0.8 * len(pauses):
        return period, 0.7, f"every {period} messages there is a pause: they are taken for a step"
    return 1, 0.6, "messages look alike: each is taken for a step (else give --messages-per-step)"
