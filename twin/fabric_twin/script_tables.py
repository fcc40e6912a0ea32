# SPDX-License-Identifier: Apache-2.0
"""A ring-bench plan as the script's arrays: what each rank does in each step, and in which order steps go where."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fabric_twin.engine.script import Step
from fabric_twin.engine.state import I64
from ring_bench.plan import Plan, Planned

__all__ = ["Course", "Tables"]

I32 = npt.NDArray[np.int32]


class Course(NamedTuple):
    """Steps that go one way, as `ring_bench.plan.Course`; `steps` and `following` are places in `Script.steps`."""

    steps: int
    order: I32
    first: list[int]
    """The first step of each slot, or -1."""
    following: int


class Tables:
    """Rows of `Script.step` and `Script.steps` for one job.

    Args:
        plan: of the job.
        row: number of the first row in `Script.step`.
        place: of the first entry in `Script.steps`.
    """

    def __init__(self, plan: Plan, row: int, place: int) -> None:
        self._plan = plan
        self._row = row
        self._lists: list[I32] = []
        self._place = place
        self._tables: dict[tuple[int, int, int], tuple[int, I64]] = {}
        self._starts: dict[tuple[int, int], int] = {}
        self._courses: dict[tuple[int, int | None, bool], Course] = {}
        self._known: dict[int, Course] = {}
        self.segment = 1 << 40
        """Bytes on the wire of a whole segment."""
        self.operation_of = self._add_list(np.array(plan.operation_of, dtype=np.int32))
        """Where the operation of each step is in `Script.steps`."""

    def rows(self) -> I64:
        """All rows of `Script.step`."""
        return np.concatenate([rows.reshape(-1) for _, rows in self._tables.values()])

    def lists(self) -> I32:
        """All entries of `Script.steps`."""
        return np.concatenate(self._lists)

    def _add_list(self, values: I32) -> int:
        at = self._place
        self._lists.append(values)
        self._place += len(values)
        return at

    def steps_of(self, ring: int, position: int) -> int:
        """Where in `Script.steps` the first rows of the tables of each shape are."""
        plan = self._plan
        rings = [self._like(shape, ring) for shape in range(len(plan.schedules))]
        if all(alike == 0 for alike in rings):
            ring = 0
        at = self._starts.get((ring, position))
        if at is None:
            starts = [self._table(shape, like, position)[0] for shape, like in enumerate(rings)]
            at = self._starts[ring, position] = self._add_list(np.array(starts, dtype=np.int32))
        return at

    def _like(self, shape: int, ring: int) -> int:
        """A ring whose steps have the same sizes."""
        schedule = self._plan.schedules[shape]
        pieces = schedule.rings * int(np.prod(schedule.dims))
        return 0 if schedule.count % pieces == 0 else ring

    def _table(self, shape: int, ring: int, position: int) -> tuple[int, I64]:
        """Number of the first row of a collective's steps, and the rows."""
        key = (shape, ring, position)
        if key not in self._tables:
            rows = self._rows_of(self._plan.steps_of(shape, ring, position))
            self._tables[key] = self._row, rows
            self._row += len(rows)
        return self._tables[key]

    def _rows_of(self, steps: list[Planned]) -> I64:
        rows = np.zeros((len(steps), Step.COLUMNS), dtype=np.int64)
        for k, (axis, send, receive) in enumerate(steps):
            row = rows[k]
            row[Step.LINK] = self._plan.axes.index(axis)
            row[Step.BYTES] = -1
            if send is not None:
                row[Step.BYTES] = sum(piece.wire_length for piece in send.segments)
                if send.needs:
                    row[Step.NEEDS], row[Step.NEEDS_END] = send.needs.start, send.needs.stop
                    rows[send.needs.start : send.needs.stop, Step.WAITING] = k + 1
                if len(send.segments) > 1:
                    self.segment = send.segments[0].wire_length
            if receive is not None:
                row[Step.RECEIVES] = 1
                if receive.needs:
                    row[Step.TAKES], row[Step.TAKES_END] = receive.needs.start, receive.needs.stop
        return rows

    def _shapes(self, position: int) -> list[I64]:
        """The rows of each shape in ring 0; other rings differ in bytes only."""
        return [self._table(shape, 0, position)[1] for shape in range(len(self._plan.schedules))]

    def counts(self, position: int) -> tuple[I64, I64]:
        """How many sends and receives a rank has in all rings, by shape."""
        rings = self._plan.config.rings
        shapes = self._shapes(position)
        sends = np.array([rings * int((rows[:, Step.BYTES] >= 0).sum()) for rows in shapes], dtype=np.int64)
        receives = np.array([rings * int(rows[:, Step.RECEIVES].sum()) for rows in shapes], dtype=np.int64)
        return sends, receives

    def course(self, position: int, axis: int | None, *, sends: bool) -> Course:
        """Steps that a rank sends (or receives) along an axis, or along all."""
        key = (position, axis, sends)
        if key not in self._courses:
            link = None if axis is None else self._plan.axes.index(axis)
            local = tuple(
                tuple(
                    np.nonzero(
                        (rows[:, Step.BYTES] >= 0 if sends else rows[:, Step.RECEIVES] == 1)
                        & (True if link is None else rows[:, Step.LINK] == link)
                    )[0].tolist()
                )
                for rows in self._shapes(position)
            )
            course = self._plan.course(local)
            if id(course) not in self._known:  # the plan keeps them, and shares equal ones
                order = np.array(course.steps, dtype=np.int32)
                first = [-1 if step is None else step for step in course.first]
                following = self._add_list(np.array(course.following, dtype=np.int32))
                self._known[id(course)] = Course(self._add_list(order), order, first, following)
            self._courses[key] = self._known[id(course)]
        return self._courses[key]

    def waited_for(self, position: int) -> int:
        """Where in `Script.steps` it says how many steps must have arrived for each that a rank sends (by count)."""
        sends, receives = (self.course(position, None, sends=way).order for way in (True, False))
        return self._add_list(np.searchsorted(receives, sends).astype(np.int32))
