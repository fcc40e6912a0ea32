# SPDX-License-Identifier: Apache-2.0
"""Who sends to whom, and one origin for the counts of all lanes by who has to wait for whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from switch_agent.replay.steps.lanes import Track, step_times
from switch_agent.replay.steps.model import Messages

__all__ = ["align", "components", "shape_of"]

Ints = npt.NDArray[np.int64]

_VIOLATIONS = 0.02
_PAUSES_TRIED = 8
_MAX_LANES = 1024
_NS = 1e9


def components(tracks: Sequence[Track]) -> list[list[int]]:
    """Return the tracks of each connected part of who sends to whom."""
    part = {name: name for track in tracks for name in (track.src, track.dst)}

    def root(name: str) -> str:
        while part[name] != name:
            part[name] = part[part[name]]
            name = part[name]
        return name

    for track in tracks:
        part[root(track.src)] = root(track.dst)
    groups: dict[str, list[int]] = {}
    for i, track in enumerate(tracks):
        groups.setdefault(root(track.src), []).append(i)
    return list(groups.values())


def shape_of(tracks: Sequence[Track]) -> tuple[str, list[str], str | None]:
    """Return (ring, chain, pair or mesh), its members in the order of sending, and why it is no ring."""
    successor: dict[str, set[str]] = {}
    for track in tracks:
        successor.setdefault(track.src, set()).add(track.dst)
    senders = Counter(name for names in successor.values() for name in names)
    members = sorted({*successor, *senders})
    busy = next((name for name, names in successor.items() if len(names) > 1), None)
    fed = next((name for name, n in senders.items() if n > 1), None)
    if busy or fed:
        what = f"{busy} sends to {len(successor[busy])}" if busy else f"{fed} receives from {senders[fed or '']}"
        return "mesh", members, f"no ring: {what} others, so steps are counted for each QP only"
    starts = [name for name in successor if name not in senders]
    order = [starts[0] if starts else members[0]]
    while order[-1] in successor and (following := next(iter(successor[order[-1]]))) != order[0]:
        order.append(following)
    if not starts:
        return "ring", order, None if len(order) > 2 else "two ranks: a ring of two, or traffic in both directions"
    if len(order) > 2:
        return "chain", order, "part of a ring at most: the capture has not all of its links"
    return "pair", order, "one sender and one receiver: no ring to be seen"


class _Aligner:
    """Finds the ordinal at which each lane's common step 0 starts, and checks it by who has to wait for whom."""

    def __init__(self, messages: Messages, tracks: Sequence[Track], per_step: int) -> None:
        self._messages = messages
        self._tracks = tracks
        self._per_step = per_step
        towards: dict[str, list[int]] = {}
        for i, track in enumerate(tracks):
            towards.setdefault(track.dst, []).append(i)
        self._inputs = [towards.get(track.src, []) for track in tracks]
        self.checkable = any(self._inputs)

    def violations(self, origins: Sequence[int]) -> float:
        """Return the share of steps sent before any lane towards the sender had brought the step before."""
        times = [
            step_times(self._messages, track, self._per_step, origin)
            for track, origin in zip(self._tracks, origins, strict=True)
        ]
        broken = checked = 0
        for down, inputs in enumerate(self._inputs):
            step, start, _ = times[down]
            earliest = np.full(len(step), np.iinfo(np.int64).max)
            known = np.zeros(len(step), bool)
            for up in inputs:
                up_step, _, up_end = times[up]
                at = np.searchsorted(up_step, step - 1)
                there = (at < len(up_step)) & (up_step[np.minimum(at, len(up_step) - 1)] == step - 1)
                ends = up_end[np.minimum(at, len(up_step) - 1)]
                earliest = np.where(there, np.minimum(earliest, ends), earliest)
                known |= there
            broken += int(np.sum(start[known] < earliest[known]))
            checked += int(np.sum(known))
        return broken / checked if checked else 0.0

    def at_pauses(self) -> list[tuple[list[int], int]]:
        """Return origins that put step 0 behind each of the longest times in which no lane sends, and when that is."""
        rows = np.concatenate([track.rows for track in self._tracks])
        order = np.argsort(self._messages.start_ns[rows])
        start = self._messages.start_ns[rows][order]
        busy_until = np.maximum.accumulate(self._messages.end_ns[rows][order])
        idle = start[1:] - busy_until[:-1]
        found = []
        for i in np.argsort(-idle)[:_PAUSES_TRIED].tolist():
            if idle[i] <= 0:
                break
            found.append((self._origins_at(int(start[i + 1])), int(start[i + 1])))
        return found

    def _origins_at(self, time_ns: int) -> list[int]:
        origins = []
        for track in self._tracks:
            begun = np.maximum.accumulate(self._messages.start_ns[track.rows])
            at = int(np.searchsorted(begun, time_ns))
            origins.append(int(track.ordinal[at]) if at < len(track.rows) else int(track.ordinal[-1]) + 1)
        return origins

    def by_waiting(self, order: Sequence[int]) -> list[int] | None:
        """Return origins by which each lane (in the ring's order) is as close to the one before as it ever was.

        A lane that waits for its input starts a step when the step before has come in: that ties it to the one before.
        The link whose lane waits least often is left out; around the ring the others determine it.
        """
        links = []
        for i, down in enumerate(order):
            up = order[i - 1]
            _, _, up_end = step_times(self._messages, self._tracks[up], self._per_step, 0)
            step, start, _ = step_times(self._messages, self._tracks[down], self._per_step, 0)
            up_step, _, _ = step_times(self._messages, self._tracks[up], self._per_step, 0)
            done = np.searchsorted(np.maximum.accumulate(up_end), start, side="right")
            arrived = np.where(done > 0, up_step[np.maximum(done - 1, 0)], -1) + 1
            lead = step - arrived
            most = int(np.quantile(lead, 0.995, method="lower"))
            links.append((most, float(np.mean(lead == most))))
        loosest = min(range(len(links)), key=lambda i: links[i][1])
        origins = [0] * len(self._tracks)
        steps = 0
        for i in range(loosest + 1, loosest + len(order)):
            steps += links[i % len(order)][0]
            origins[order[i % len(order)]] = steps * self._per_step
        return origins


def align(
    messages: Messages, tracks: Sequence[Track], per_step: int, members: Sequence[str], shape: str
) -> tuple[list[int] | None, float, str]:
    """Return where each lane's step 0 starts (None: cannot be told), a confidence and how it was found."""
    if len(tracks) == 1:
        return [0], 1.0, "one lane: its steps need no common origin"
    if len(tracks) > _MAX_LANES:
        return None, 0.0, f"{len(tracks)} lanes are more than the {_MAX_LANES} that are compared"
    aligner = _Aligner(messages, tracks, per_step)
    from_the_start = [0] * len(tracks)
    if not aligner.checkable:
        return from_the_start, 0.5, "lanes side by side: nothing checks that they started with the same step"
    checked = aligner.violations(from_the_start)
    if checked <= _VIOLATIONS and all(track.clean for track in tracks):
        return from_the_start, 1.0, "every lane is seen from its first message on, and no step is ahead of its input"
    tried = [(aligner.violations(origins), origins, time_ns) for origins, time_ns in aligner.at_pauses()]
    fitting = [(share, origins, time_ns) for share, origins, time_ns in tried if share <= _VIOLATIONS]
    if fitting:
        _, origins, time_ns = fitting[0]
        seconds = (time_ns - int(messages.start_ns.min())) / _NS
        return origins, 0.85, f"steps are counted from the pause of all lanes that ends at {seconds:.6f} s"
    if shape == "ring" and len(tracks) == len(members):
        order = [next(i for i, track in enumerate(tracks) if track.src == name) for name in members]
        waiting = aligner.by_waiting(order)
        if waiting and aligner.violations(waiting) <= _VIOLATIONS:
            return waiting, 0.7, "steps are aligned by which lane waits for which: the capture starts in the middle"
    why = (
        f"{checked:.0%} of the steps would start ahead of their input: no common origin of the lanes was found. The "
        "capture starts in the middle or lacks packets, a step has another number of messages, or it is no collective"
    )
    return None, 0.0, why
