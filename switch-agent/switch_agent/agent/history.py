# SPDX-License-Identifier: Apache-2.0
"""Samples of all jobs, tick by tick, in bounded memory.

A tick is one structured array with a row per job, so that keeping a thousand jobs costs little more than
keeping one; dictionaries are made for what somebody asks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["ROW", "Frame", "History"]

ROW: Final = np.dtype(
    [
        ("job_id", np.int32),
        ("switch_time_ns", np.int64),  # -1: no packet seen
        ("step_min", np.int32),  # -1: no packet seen
        ("step_max", np.int32),
        ("overlap", np.int32),
        ("alpha", np.int32),
        ("psn_recorded", np.int32),
        ("score", np.int64),  # of the window that runs: 256 (outpacing - tau all) packets
        ("window_packets", np.int64),
        ("packets", np.int64),
        ("outpacing", np.int64),
        ("marked_symphony", np.int64),
        ("marked_queue", np.int64),
        ("live_pipes", np.uint64),  # bit p: pipe p
    ]
)
"""One job in one tick."""


@dataclass(frozen=True)
class Frame:
    """One tick: ``seq`` is its number on the wall clock (time / interval), rows are ordered by job id."""

    seq: int
    time_unix_s: float
    rows: NDArray[np.void]
    names: tuple[str, ...]

    def find(self, job_id: int) -> int | None:
        """Return the row number of a job, None when it was not sampled."""
        ids = self.rows["job_id"]
        at = int(np.searchsorted(ids, job_id))
        return at if at < len(ids) and int(ids[at]) == job_id else None

    def view(self, at: int) -> dict[str, Any]:
        """Return row ``at`` as REST shows it."""
        row = self.rows[at]

        def known(name: str) -> int | None:
            value = int(row[name])
            return value if value >= 0 else None

        pipes = int(row["live_pipes"])
        return {
            "seq": self.seq,
            "job_id": int(row["job_id"]),
            "name": self.names[at],
            "time_unix_s": self.time_unix_s,
            "switch_time_ns": known("switch_time_ns"),
            "step_min": known("step_min"),
            "step_max": known("step_max"),
            "overlap": int(row["overlap"]),
            "alpha": int(row["alpha"]),
            "psn_recorded": int(row["psn_recorded"]),
            "score": int(row["score"]),
            "window_packets": int(row["window_packets"]),
            "packets": {"all": int(row["packets"]), "outpacing": int(row["outpacing"])},
            "marked": {"symphony": int(row["marked_symphony"]), "queue": int(row["marked_queue"])},
            "live_pipes": [pipe for pipe in range(pipes.bit_length()) if pipes >> pipe & 1],
        }


class History:
    """The newest frames: at most ``max_frames``, and at most ``max_rows`` job rows in all."""

    def __init__(self, max_frames: int = 24_000, max_rows: int = 400_000) -> None:
        self._max_frames = max_frames
        self._max_rows = max_rows
        self._frames: deque[Frame] = deque()
        self._rows = 0
        self._forgotten: dict[int, int] = {}

    def forget(self, job_id: int) -> None:
        """Show no sample of that id taken so far: the id may get a new job."""
        if self._frames:
            self._forgotten[job_id] = self._frames[-1].seq

    @property
    def latest(self) -> Frame | None:
        """The newest frame."""
        return self._frames[-1] if self._frames else None

    def append(self, frame: Frame) -> None:
        """Add a frame and drop the oldest ones that no longer fit (the newest always stays)."""
        self._frames.append(frame)
        self._rows += len(frame.rows)
        while len(self._frames) > 1 and (len(self._frames) > self._max_frames or self._rows > self._max_rows):
            self._rows -= len(self._frames.popleft().rows)

    def since(self, job_id: int, seq: int, limit: int) -> Iterator[dict[str, Any]]:
        """Yield up to ``limit`` samples of a job with a number above ``seq``, oldest first."""
        seq = max(seq, self._forgotten.get(job_id, 0))
        frames = list(self._frames)
        for frame in frames[bisect_right(frames, seq, key=lambda frame: frame.seq) :]:
            if limit <= 0:
                return
            at = frame.find(job_id)
            if at is not None:
                limit -= 1
                yield frame.view(at)
