# SPDX-License-Identifier: Apache-2.0
"""The background sampler: reads the registers, keeps history, tells listeners.

Ticks lie on multiples of the interval of the wall clock, so that the agents of all switches sample together;
``seq`` is the tick's number and the same on all of them. What has to be written back now and then is in
:mod:`switch_agent.agent.upkeep`.

**A step_min that is ahead of itself.** The last packet of a flow that outpaces the others sets step_min to
its own next step until the next packet of a slower step puts it right (``p4-findings.md`` §10), which takes
hundreds of microseconds when the slow flows are throttled. A sample that falls into such a moment would
show no overlap where there is much. So when step_min has jumped by more than one step since the last
sample, or has passed step_max while packets flow, the steps are read again until the switch's clock has
moved on by a millisecond (or half the sampling interval has passed), and the extremes of the readings
count.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np
from numpy.typing import NDArray

from switch_agent.agent.history import ROW, Frame, History
from switch_agent.agent.sampling import Plan, Reading, SampledJob, serial_steps
from switch_agent.agent.tables import Tables
from switch_agent.agent.upkeep import Upkeep, seed_behind
from switch_agent.bfrt.client import Client
from switch_agent.bfrt.session import Session
from switch_agent.dataplane.constants import STEP_SHIFT, TIME_UNIT_NS
from switch_agent.errors import BfrtError, NotReadyError, WriteError

__all__ = ["Sampler"]

log = logging.getLogger(__name__)

_QUEUE: Final = 256
_REREAD_PAUSE_S: Final = 0.002
_REREAD_LIMIT_S: Final = 0.05
_SETTLED_NS: Final = 1_000_000
_COUNTER_COLUMNS: Final = ("packets", "outpacing", "marked_symphony", "marked_queue")  # as COUNTERS


class _Totals:
    """64-bit totals of counters that may restart from 0: with a session, or when somebody clears them.

    Arrays have shape (counters, jobs). A job that is new here starts with what its counters show.
    """

    def __init__(self) -> None:
        self._columns: dict[int, int] = {}
        self._last: NDArray[np.uint64] = np.zeros((0, 0), np.uint64)
        self._total: NDArray[np.int64] = np.zeros((0, 0), np.int64)

    def advance(self, job_ids: NDArray[np.int32], counters: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Add what the counters gained since the last call; returns the totals of ``job_ids``."""
        ids = job_ids.tolist()
        if list(self._columns) != ids:
            last, total = np.zeros_like(counters), np.zeros(counters.shape, np.int64)
            for column, job_id in enumerate(ids):
                old = self._columns.get(job_id)
                if old is not None:
                    last[:, column], total[:, column] = self._last[:, old], self._total[:, old]
            self._columns = {job_id: column for column, job_id in enumerate(ids)}
            self._last, self._total = last, total
        gained = np.where(counters >= self._last, counters - self._last, counters)
        self._total = self._total + gained.astype(np.int64)
        self._last = counters
        return self._total

    def forget(self, job_id: int) -> None:
        """Start a job's totals afresh."""
        column = self._columns.get(job_id)
        if column is not None:
            self._last = self._last.copy()
            self._last[:, column] = 0
            self._total[:, column] = 0


class Sampler:
    """Samples the jobs that ``jobs()`` returns (ordered by id) every ``interval`` seconds.

    ``version()`` must change whenever ``jobs()`` does. Nothing is written while another client owns the
    program.
    """

    def __init__(
        self,
        session: Session,
        *,
        interval: float,
        jobs: Callable[[], Sequence[SampledJob]],
        version: Callable[[], object],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.interval = interval
        self.history = History()
        self.last_success_unix_s: float | None = None
        self.last_duration_s = 0.0
        self.samples = 0
        self.failures = 0
        self.skipped_ticks = 0
        self.upkeep = Upkeep(lambda plan: self._plan_of == (plan.client, self._version()))
        self.upkeep_failures = 0
        self.rereads = 0
        self.dropped_frames = 0
        self.last_error: str | None = None
        self._session = session
        self._jobs = jobs
        self._version = version
        self._clock = clock
        self._listeners: set[asyncio.Queue[Frame]] = set()
        self._plan: Plan | None = None
        self._last_plan: Plan | None = None
        self._plan_of: tuple[Client, object] | None = None
        self._totals = _Totals()
        self._generation = -1
        self._time_raw: int | None = None
        self._time_units = 0
        self._last_steps: tuple[Plan, NDArray[np.int64], NDArray[np.uint64], NDArray[np.bool_]] | None = None

    # ------------------------------------------------------------------------------- for users

    @property
    def stale_after_s(self) -> float:
        """Samples older than this say nothing about now: metrics leave them out."""
        return max(3 * self.interval, 2.0)

    def fresh(self) -> Frame | None:
        """Return the newest frame, None when it is stale or there is none."""
        frame = self.history.latest
        if frame is None or self._clock() - frame.time_unix_s > self.stale_after_s:
            return None
        return frame

    def step_of(self, job_id: int) -> int | None:
        """Return the last sampled step_min of a job, None before its first packet."""
        frame = self.history.latest
        at = frame.find(job_id) if frame else None
        if frame is None or at is None or frame.rows[at]["step_min"] < 0:
            return None
        return int(frame.rows[at]["step_min"])

    def seed(self) -> int:
        """Return a ``window_start`` that lies behind the switch's clock, as far as the clock is known."""
        return seed_behind(self._time_raw)

    def forget(self, job_id: int, history: bool) -> None:
        """Start the totals of a job afresh, and with ``history`` forget its samples.

        A sample in flight is discarded.
        """
        self._totals.forget(job_id)
        if history:
            self.history.forget(job_id)
        self._plan = self._plan_of = None

    @contextmanager
    def listen(self) -> Iterator[asyncio.Queue[Frame]]:
        """Get every frame from now on; a listener that does not keep up loses the oldest ones."""
        queue: asyncio.Queue[Frame] = asyncio.Queue(_QUEUE)
        self._listeners.add(queue)
        try:
            yield queue
        finally:
            self._listeners.discard(queue)

    # ---------------------------------------------------------------------------------- ticks

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            tick = math.floor(self._clock() / self.interval) + 1
            await asyncio.sleep(max(0.0, tick * self.interval - self._clock()))
            late = self._clock() - tick * self.interval
            if late > self.interval / 2:
                # A reading this late would belong to no tick of the other switches.
                self.skipped_ticks += 1
                continue
            await self.sample(tick)

    async def sample(self, seq: int) -> Frame | None:
        """Take one sample; None (and a counted failure) when there is nothing to read or it failed."""
        started = time.monotonic()
        try:
            client = self._session.reader()
            plan = self._current_plan(client)
            if plan is None:
                self.last_success_unix_s = self._clock()
                self.last_error = None
                return None
            at = self._clock()
            reading = await self._settled(plan, min(client.timeout, max(1.0, 4 * self.interval)))
        except NotReadyError as error:
            self.last_error = str(error)
            return None
        except BfrtError as error:
            self.failures += 1
            self.last_error = str(error)
            log.warning("sample failed: %s", error)
            return None
        if self._plan is not plan:  # the jobs changed meanwhile: these rows may belong to others
            return None
        frame = self._frame(seq, at, plan, reading)
        self.history.append(frame)
        self.samples += 1
        self.last_success_unix_s = at
        self.last_error = None
        for queue in self._listeners:
            if queue.full():
                queue.get_nowait()
                self.dropped_frames += 1
            queue.put_nowait(frame)
        if self._session.owned:
            await self._maintain(plan, reading)
        self.last_duration_s = time.monotonic() - started
        return frame

    async def _settled(self, plan: Plan, timeout: float) -> Reading:
        """Read everything, and the steps again where step_min may be ahead of itself."""
        reading = await plan.read(timeout)
        packets = reading.counters[0]
        if self._last_steps is not None and self._last_steps[0] is plan:
            _, step_min, before, was_live = self._last_steps
            flowing = reading.live & was_live & (packets != before)
            settled = np.zeros(len(packets), np.bool_)
            give_up = time.monotonic() + min(self.interval / 2, _REREAD_LIMIT_S)
            pause = min(_REREAD_PAUSE_S, self.interval / 10)
            while time.monotonic() + pause < give_up:
                jumped = serial_steps(reading.step_min, step_min) > 1
                doubtful = flowing & ~settled & (jumped | (reading.distance < 0))
                if not doubtful.any():
                    break
                self.rereads += 1
                await asyncio.sleep(pause)
                pause *= 2
                reading, moved = await plan.reread_steps(reading, doubtful, timeout)
                settled |= moved * TIME_UNIT_NS >= _SETTLED_NS
        self._last_steps = (plan, reading.step_min, packets, reading.live)
        return reading

    def _current_plan(self, client: Client) -> Plan | None:
        now = (client, self._version())
        if self._plan_of != now:
            jobs = self._jobs()
            assert client.schema is not None
            if jobs:
                self._plan = self._last_plan = Plan(client, Tables.of(client.schema), jobs, self._last_plan)
            else:
                self._plan = None
            self._plan_of = now
        return self._plan

    # --------------------------------------------------------------------------------- frames

    def _frame(self, seq: int, at: float, plan: Plan, reading: Reading) -> Frame:
        if self._generation != self._session.generation:
            self._generation = self._session.generation
            self._time_raw = None  # the switch's clock may have restarted
            self.upkeep.forget()
        previous = self.history.latest
        rows = np.zeros(len(plan.jobs), ROW)
        rows["job_id"] = plan.job_ids
        rows["switch_time_ns"] = self._switch_time(plan, reading)
        rows["step_min"] = np.where(reading.live, reading.step_min >> STEP_SHIFT, -1)
        rows["step_max"] = np.where(reading.live, reading.step_max >> STEP_SHIFT, -1)
        rows["overlap"] = reading.overlap
        rows["alpha"] = reading.alpha
        rows["psn_recorded"] = reading.psn_recorded
        rows["score"] = reading.score
        rows["window_packets"] = reading.window_packets
        rows["live_pipes"] = reading.live_pipes
        totals = self._totals.advance(plan.job_ids, reading.counters)
        for total, name in zip(totals, _COUNTER_COLUMNS, strict=True):
            rows[name] = total
        return Frame(max(seq, previous.seq + 1 if previous else 0), at, rows, plan.names)

    def _switch_time(self, plan: Plan, reading: Reading) -> NDArray[np.int64]:
        """Unwrap the jobs' window starts into one 64-bit clock in ns; -1 where no packet was seen."""
        window, known = plan.windows(reading, self.upkeep.trusted(plan, reading.window_cells))
        if not known.any():
            return np.full(len(window), -1, np.int64)
        raw = window.astype(np.uint32)
        anchor = np.uint32(self._time_raw if self._time_raw is not None else raw[known][0])
        distance = (raw - anchor).view(np.int32).astype(np.int64)
        if self._time_raw is None:
            self._time_units = int(anchor)
        units = self._time_units + distance
        newest = int(distance[known].max())
        if newest > 0 or self._time_raw is None:
            self._time_units += newest
            self._time_raw = (int(anchor) + newest) & 0xFFFFFFFF
        return np.where(known, np.maximum(units, 0) * TIME_UNIT_NS, -1)

    async def _maintain(self, plan: Plan, reading: Reading) -> None:
        try:
            await self.upkeep.after(plan, reading, None if self._time_raw is None else self._time_units)
        except BfrtError as error:
            self.upkeep_failures += 1
            if self.upkeep_failures == 1 or not isinstance(error, WriteError):
                log.warning("registers could not be written back: %s", error)
