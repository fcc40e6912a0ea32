# SPDX-License-Identifier: Apache-2.0
"""What the switch's program cannot do alone, done between two samples with as few writes as possible.

A register write races with packets: one that passes between the read and the write is undone. So a job that
runs normally is **never written to**; both duties below wait until there is a reason.

**step_max never falls by itself.** The paper's switch has no step_max; ours keeps it for the overlap, and it
shares a register entry with step_min, so that lowering it writes step_min back as it was read. Were this
done after each sample (``p4-findings.md`` §3 suggests so), a packet of the next step that passes meanwhile
would be forgotten and its successors would look ahead, and be marked, until the end of that step. So step_max
is brought back only when it is *stale*: not moved for :data:`STALE_SAMPLES` samples and :data:`STALE_S`, while

- the job sends nothing: nothing can be undone (seconds are wall clock), or
- the job sends and never gets further (seconds are the switch's clock: the twin's may be slow), or
- the job had ended and has begun again with lower steps: the old step_max means nothing any more.

**Windows that look like the future.** The switch compares its 32-bit clock with window_start in serial
arithmetic: a start that lies 9 to 18 minutes back looks as if it were yet to come, and the window would not
end for minutes. Starts of silent jobs are therefore moved on when they get old, as far as other jobs' windows
tell the time. Where nothing told it (a switch with a single job, a first job), the job is helped when it
sends again: packets increase, but no window ends; then the starts are moved by half the clock's circle.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from switch_agent.agent.entries import SEED, SEED_OPPOSITE
from switch_agent.agent.sampling import Plan, Reading
from switch_agent.bfrt.bulk import encode_register_updates
from switch_agent.bfrt.requests import ALL_PIPES
from switch_agent.bfrt.schema import Table
from switch_agent.dataplane.constants import TIME_UNIT_NS

__all__ = ["STALE_S", "STALE_SAMPLES", "Upkeep", "seed_behind"]

STALE_SAMPLES: Final = 3
"""Samples without a change after which step_max counts as stale: one is chance, a ring's hiccup lasts two."""
STALE_S: Final = 1.0
"""And no less than this: steps may be longer than three sampling intervals, ranks may pause to compute."""

_SILENCE_S: Final = 240.0
"""A live window may be stuck after half the clock's circle (550 s); nothing shorter is looked at."""
_STUCK_S: Final = 1.0
_STUCK_PACKETS: Final = 1000
_OLD_UNITS: Final = 1 << 30
"""A quarter of the clock's circle, 275 s: starts of silent jobs this old are moved on."""
_BEHIND_UNITS: Final = 1 << 22
"""Moved starts lie 1.07 s behind the clock: longer than any window, so the next packet ends them."""
_HALF_CIRCLE: Final = np.uint32(1 << 31)
_BULK: Final = 512  # register entries per Write

_Write = tuple[int, NDArray[np.uint32], dict[str, NDArray[np.uint32]]]


def seed_behind(clock: int | None) -> int:
    """Return a ``window_start`` for untouched state that lies behind the switch's clock.

    ``clock`` is the switch's 32-bit clock in units of 256 ns, None when it is not known.
    """
    return SEED_OPPOSITE if clock is not None and clock >> 31 & 1 else SEED


@dataclass
class _Seen:
    """What earlier samples of a plan showed. Arrays named ``cells`` are (state blocks, pipes), others (jobs,).

    ``..._samples`` count samples since the last change; ``..._at`` is its time in seconds (wall clock),
    ``max_clock`` in units of the switch's clock (-1: not known then).
    """

    plan: Plan
    max_cells: NDArray[np.uint32]
    max_samples: NDArray[np.int64]
    max_clock: NDArray[np.int64]
    packets: NDArray[np.uint64]
    quiet_samples: NDArray[np.int64]
    quiet_at: NDArray[np.float64]
    ended: NDArray[np.bool_]
    window_cells: NDArray[np.uint32]
    window_at: NDArray[np.float64]
    window_packets: NDArray[np.uint64]

    @classmethod
    def first(cls, plan: Plan, reading: Reading, clock: int, now: float) -> _Seen:
        jobs, packets = len(plan.jobs), reading.counters[0]
        shape = reading.max_cells.shape
        return cls(
            plan=plan,
            max_cells=reading.max_cells,
            max_samples=np.zeros(shape, np.int64),
            max_clock=np.full(shape, clock, np.int64),
            packets=packets,
            quiet_samples=np.zeros(jobs, np.int64),
            quiet_at=np.full(jobs, now),
            ended=np.zeros(jobs, np.bool_),
            window_cells=reading.window_cells,
            window_at=np.full(jobs, now),
            window_packets=packets,
        )


class Upkeep:
    """Keeps step_max and windows usable. ``still(plan)`` says whether the jobs are still those of the plan;
    ``clock`` is a monotonic wall clock in seconds.
    """

    def __init__(self, still: Callable[[Plan], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self.step_max_resets = 0
        """State blocks whose step_max was brought back."""
        self.windows_refreshed = 0
        """Jobs whose windows were moved on."""
        self._still = still
        self._now = clock
        self._seen: _Seen | None = None
        self._moved: NDArray[np.uint32] | None = None

    def forget(self) -> None:
        """Start afresh: the switch may have restarted."""
        self._seen = self._moved = None

    def trusted(self, plan: Plan, cells: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Say which window starts were written by packets; the others are ours and tell no time."""
        if self._moved is None or self._seen is None or self._seen.plan is not plan:
            self._moved = np.zeros_like(cells)
        trusted: NDArray[np.bool_] = cells != self._moved
        self._moved[trusted] = 0
        return trusted

    async def after(self, plan: Plan, reading: Reading, clock_units: int | None) -> None:
        """Look at a reading and do what is due.

        ``clock_units`` is the switch's clock as far as the windows of all jobs tell it, unwrapped, in units of
        256 ns. Raises BfrtError when the switch does not take a write.
        """
        now = self._now()
        if self._seen is None or self._seen.plan is not plan:
            self._seen = _Seen.first(plan, reading, -1 if clock_units is None else clock_units, now)
            return
        seen = self._seen
        self._note(seen, reading, clock_units, now)
        await self._lower_step_max(seen, reading, clock_units, now)
        await self._move_windows(seen, reading, clock_units, now)

    def _note(self, seen: _Seen, reading: Reading, clock: int | None, now: float) -> None:
        packets = reading.counters[0]
        sent = packets != seen.packets
        seen.packets = packets
        seen.quiet_samples = np.where(sent, 0, seen.quiet_samples + 1)
        seen.quiet_at[sent] = now
        raised = reading.max_cells != seen.max_cells
        seen.max_cells = reading.max_cells
        seen.max_samples = np.where(raised, 0, seen.max_samples + 1)
        seen.max_clock[raised | (seen.max_clock < 0)] = -1 if clock is None else clock
        seen.ended &= ~np.logical_or.reduceat(raised.any(axis=1), seen.plan.starts)
        quiet = self._quiet(seen, now)
        seen.ended[quiet] = (reading.distance < 0)[quiet]

    def _quiet(self, seen: _Seen, now: float) -> NDArray[np.bool_]:
        """Jobs that have sent nothing for a while."""
        quiet: NDArray[np.bool_] = (seen.quiet_samples >= STALE_SAMPLES) & (now - seen.quiet_at >= STALE_S)
        return quiet

    async def _lower_step_max(self, seen: _Seen, reading: Reading, clock: int | None, now: float) -> None:
        plan, low, high = seen.plan, reading.min_cells, reading.max_cells
        ahead = reading.live_cells & ((high - low).view(np.int32) > 0)
        unmoved = ahead & (seen.max_samples >= STALE_SAMPLES)
        if not unmoved.any():
            return
        stale = unmoved & (self._quiet(seen, now) | seen.ended)[plan.job_of_state][:, None]
        if clock is not None:
            stale |= unmoved & (seen.max_clock >= 0) & (clock - seen.max_clock >= STALE_S * 1e9 / TIME_UNIT_NS)
        rows = np.flatnonzero(stale.any(axis=1))
        if not len(rows):
            return
        live, low = reading.live_cells[rows], low[rows]
        first = low[np.arange(len(rows)), live.argmax(axis=1)]
        # Where all live pipes are stale and agree (mostly there is only one) one write serves all of them.
        alike = (~live | (low == first[:, None])).all(axis=1) & (~ahead | stale)[rows].all(axis=1)
        writes = [_steps_write(ALL_PIPES, plan.states[rows[alike]], first[alike])]
        for pipe in range(low.shape[1]):
            mine = ~alike & stale[rows, pipe]
            writes.append(_steps_write(pipe, plan.states[rows[mine]], low[mine, pipe]))
        self.step_max_resets += await self._write(plan, plan.tables.steps, writes)

    async def _move_windows(self, seen: _Seen, reading: Reading, clock: int | None, now: float) -> None:
        plan, cells, packets = seen.plan, reading.window_cells, reading.counters[0]
        moved = np.logical_or.reduceat((cells != seen.window_cells).any(axis=1), plan.starts)
        seen.window_cells = cells
        seen.window_at[moved] = now
        seen.window_packets = np.where(moved, packets, seen.window_packets)
        still = now - seen.window_at
        sends = packets - seen.window_packets > _STUCK_PACKETS
        stuck = sends & ((still >= _SILENCE_S) | ~reading.live & (still >= _STUCK_S))
        wanted = cells.copy()
        if stuck.any():
            rows = stuck[plan.job_of_state][:, None]
            touched = rows & (reading.live_cells | ~reading.live[plan.job_of_state][:, None])
            wanted[touched] ^= _HALF_CIRCLE
            seen.window_at[stuck] = now
            seen.window_packets = np.where(stuck, packets, seen.window_packets)
        if clock is not None:
            quiet = self._quiet(seen, now)[plan.job_of_state][:, None]
            age = np.full_like(cells, clock & 0xFFFFFFFF) - cells
            wanted[quiet & reading.live_cells & (age >= _OLD_UNITS)] = (clock - _BEHIND_UNITS) & 0xFFFFFFFF | 1
            wanted[quiet & ~reading.live_cells] = seed_behind(clock)
        changed = wanted != cells
        if not changed.any():
            return
        assert self._moved is not None
        ours = changed & (wanted != SEED) & (wanted != SEED_OPPOSITE)
        self._moved[ours] = wanted[ours]
        alike = changed.all(axis=1) & (wanted == wanted[:, :1]).all(axis=1)
        writes = [_window_write(ALL_PIPES, plan.states[alike], wanted[alike, 0])]
        for pipe in range(cells.shape[1]):
            mine = changed[:, pipe] & ~alike
            writes.append(_window_write(pipe, plan.states[mine], wanted[mine, pipe]))
        self.windows_refreshed += int(np.logical_or.reduceat(changed.any(axis=1), plan.starts).sum())
        await self._write(plan, plan.tables.window_start, writes)

    async def _write(self, plan: Plan, table: Table, writes: Sequence[_Write]) -> int:
        """Write until done, or until the jobs have changed: the state blocks may be others' then."""
        header = plan.client.write_header().SerializeToString()
        written = 0
        for pipe, index, fields in writes:
            for start in range(0, len(index), _BULK):
                if not self._still(plan):
                    return written
                part = slice(start, start + _BULK)
                values = {name: value[part] for name, value in fields.items()}
                await plan.client.write_raw(header + encode_register_updates(table, index[part], values, pipe))
                written += len(index[part])
        return written


def _steps_write(pipe: int, states: NDArray[np.uint32], word: NDArray[np.uint32]) -> _Write:
    return pipe, states, {"Ingress.steps.mn": word, "Ingress.steps.mx": word}


def _window_write(pipe: int, states: NDArray[np.uint32], start: NDArray[np.uint32]) -> _Write:
    return pipe, states, {"Ingress.window_start.f1": start}
