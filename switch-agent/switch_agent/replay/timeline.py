# SPDX-License-Identifier: Apache-2.0
"""The windows of all jobs' timelines, of which there are never more than fit: else two become one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from switch_agent.replay.loop import SAMPLE_FIELDS

__all__ = ["MAX_WINDOWS", "Timeline"]

Ints = npt.NDArray[np.int64]

MAX_WINDOWS = 100_000
_JOB, _WINDOW, _OVERLAP = (SAMPLE_FIELDS.index(name) for name in ("job", "window", "overlap"))
_SUMS = [SAMPLE_FIELDS.index(name) for name in ("packets", "outpacing", "would_mark")]


class Timeline:
    """Collects the samples that ``follow`` makes.

    Attributes:
        shift: windows are 2^shift times as long as asked for.
    """

    def __init__(self) -> None:
        self.shift = 0
        self._parts: list[Ints] = []
        self._size = 0

    def add(self, samples: Ints) -> None:
        """Take samples (their windows are counted in the length asked for), which may be overwritten afterwards."""
        self._parts.append(samples.copy())
        self._size += len(samples)
        if self._size > MAX_WINDOWS:
            rows = self.rows()
            while len(rows) > MAX_WINDOWS // 2 and self.shift < 62:
                self.shift += 1
                rows = self._folded(rows)
            self._parts, self._size = [rows], len(rows)

    def rows(self) -> Ints:
        """Return a row for each job and window that had packets, by job, then by time."""
        return self._folded(np.concatenate(self._parts)) if self._parts else np.zeros((0, len(SAMPLE_FIELDS)), np.int64)

    def _folded(self, rows: Ints) -> Ints:
        """Windows that have become one: counts are added up, the overlap is the largest, the rest that of the end."""
        window = rows[:, _WINDOW] >> self.shift
        order = np.lexsort((window, rows[:, _JOB]))
        rows, window = rows[order], window[order]
        if not len(rows):
            return rows
        new = (np.diff(window) != 0) | (np.diff(rows[:, _JOB]) != 0)
        starts = np.concatenate([[0], np.flatnonzero(new) + 1])
        folded: Ints = rows[np.concatenate([starts[1:] - 1, [len(rows) - 1]])].copy()
        folded[:, _WINDOW] = window[starts] << self.shift
        folded[:, _SUMS] = np.add.reduceat(rows[:, _SUMS], starts, axis=0)
        folded[:, _OVERLAP] = np.maximum.reduceat(rows[:, _OVERLAP], starts)
        return folded
