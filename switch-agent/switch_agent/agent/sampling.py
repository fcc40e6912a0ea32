# SPDX-License-Identifier: Apache-2.0
"""One reading of all jobs' registers: the request for it, and what its answer means.

All registers and counters come in one RPC. It names the entries or reads whole registers, whichever is quicker:
that depends on the number of jobs and on the driver, so a plan tries both at first. Everything from the
answer's bytes to the rows of a frame is array arithmetic over (job, state block, pipe).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from switch_agent.agent.entries import SEED, SEED_OPPOSITE
from switch_agent.agent.tables import COUNTERS, Tables
from switch_agent.bfrt.bulk import Block, decode_blocks, encode_keyed_reads
from switch_agent.bfrt.client import Client
from switch_agent.bfrt.reduce import REDUCTIONS, Reduction, reduce_segments
from switch_agent.bfrt.requests import read_all
from switch_agent.bfrt.schema import Table
from switch_agent.dataplane.constants import PSN_SHIFT, STEP_SHIFT
from switch_agent.errors import CodecError

__all__ = ["Plan", "Reading", "SampledJob", "serial_steps"]

_ALWAYS_ALL, _NEVER_ALL = 2, 64
"""From 1/2 of a register on, all of it is read; below 1/64 never; between them the quicker way is found out."""
_TRIALS: Final = 3
_REREAD_ALL: Final = 32
"""From 1/32 of a register on, it is read as a whole when steps are read again: there is no time for trials."""


class SampledJob(NamedTuple):
    """Where a job lives in the registers."""

    job_id: int
    name: str
    state: int
    n_states: int


@dataclass(frozen=True)
class Reading:
    """Decoded registers. Arrays named ``cells`` have shape (state blocks, pipes), the others (jobs,).

    Combined values follow :data:`switch_agent.bfrt.reduce.REDUCTIONS` over the live cells of each job.
    """

    min_cells: NDArray[np.uint32]
    max_cells: NDArray[np.uint32]
    window_cells: NDArray[np.uint32]
    live_cells: NDArray[np.bool_]
    live: NDArray[np.bool_]
    step_min: NDArray[np.int64]  # register words, as step_max: step << 22 | 1
    step_max: NDArray[np.int64]
    window: NDArray[np.int64]
    alpha: NDArray[np.int64]
    psn_recorded: NDArray[np.int64]
    score: NDArray[np.int64]  # of the window that runs: 256 (outpacing - tau all) packets
    window_packets: NDArray[np.int64]
    live_pipes: NDArray[np.uint64]
    counters: NDArray[np.uint64]  # (counters in the order of COUNTERS, jobs): packets

    @property
    def distance(self) -> NDArray[np.int64]:
        """Signed number of steps from step_min to step_max, per job; -1 after the last packet of all."""
        return serial_steps(self.step_max, self.step_min)

    @property
    def overlap(self) -> NDArray[np.int64]:
        """Degree of step overlap: distance + 1, 0 for a job without packets or with nothing in flight."""
        return np.where(self.live, np.maximum(self.distance + 1, 0), 0)


class _Ways:
    """Requests for the same thing: each is tried, then the quickest is used.

    ``like``: those of an earlier plan, whose findings hold when it was of about the same ``size`` (in entries).
    """

    def __init__(self, requests: Sequence[bytes], size: int, like: _Ways | None) -> None:
        self._requests = requests
        self._size = size
        self._trials = 0
        self._best = [math.inf] * len(requests)
        if like is not None and len(like._requests) == len(requests) and size < 2 * like._size < 4 * size:
            self._trials, self._best, self._size = like._trials, like._best, like._size

    @contextmanager
    def next(self) -> Iterator[bytes]:
        """Give the request to use; the time that the block takes is its time, unless it raises."""
        if self._trials < _TRIALS * len(self._requests):
            way = self._trials % len(self._requests)
        else:
            way = self._best.index(min(self._best))
        started = time.perf_counter()
        yield self._requests[way]
        self._trials += 1
        self._best[way] = min(self._best[way], time.perf_counter() - started)


def serial_steps(later: NDArray[np.int64], earlier: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the signed number of steps between register words (RFC 1982), elementwise."""
    return ((later - earlier).astype(np.uint32).view(np.int32) >> STEP_SHIFT).astype(np.int64)


class Plan:
    """How to read one set of jobs through one client; made anew when either changes.

    ``jobs`` must be ordered by job id. ``previous`` is the plan before it, whose experience is of use.
    """

    def __init__(
        self, client: Client, tables: Tables, jobs: Sequence[SampledJob], previous: Plan | None = None
    ) -> None:
        self.client = client
        self.tables = tables
        self.jobs = tuple(jobs)
        self.names = tuple(job.name for job in jobs)
        self.job_ids = np.array([job.job_id for job in jobs], np.int32)
        self.states = np.concatenate([np.arange(job.state, job.state + job.n_states, dtype=np.uint32) for job in jobs])
        lengths = np.array([job.n_states for job in jobs], np.intp)
        self.job_of_state = np.repeat(np.arange(len(jobs)), lengths)
        self.starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.intp)
        size = len(self.states) + len(self.job_ids)
        self._ways: _Ways = _Ways(list(self._requests()), size, previous._ways if previous else None)

    def _requests(self) -> Iterator[bytes]:
        """Yield the requests that may be the quickest: by key, then of whole registers."""
        tables = self.tables
        asked: list[tuple[Table, NDArray[np.uint32] | NDArray[np.int32]]] = [
            *((table, self.states) for table in tables.state_registers),
            *((table, self.job_ids) for table in tables.counters.values()),
        ]
        share = max(len(self.states) / tables.n_state, len(self.job_ids) / tables.n_job)
        if share * _ALWAYS_ALL < 1:
            keyed = [encode_keyed_reads(table, index) for table, index in asked]
            yield b"".join([self.client.read_request([]), *keyed])
        if share * _NEVER_ALL >= 1:
            yield self.client.read_request([read_all(table, from_hw=True) for table, _ in asked])

    async def read(self, timeout: float) -> Reading:
        """Read and decode everything. Raises BfrtError; there is no half a reading."""
        with self._ways.next() as request:
            blocks = decode_blocks(await self.client.read_raw(request, timeout=timeout))
        tables = self.tables
        state_cells = {
            field: _rows(blocks, table, field, self.states).astype(np.uint32)
            for table, field in (
                (tables.steps, "Ingress.steps.mn"),
                (tables.steps, "Ingress.steps.mx"),
                (tables.psn_rec, "Ingress.psn_rec.f1"),
                (tables.window_start, "Ingress.window_start.f1"),
                (tables.score, "Ingress.score.score"),
                (tables.score, "Ingress.score.count"),
                (tables.alpha, "Ingress.alpha.f1"),
            )
        }
        packets = "$COUNTER_SPEC_PKTS"
        counters = np.stack(
            [
                _rows(blocks, tables.counters[name], packets, self.job_ids).sum(axis=1, dtype=np.uint64)
                for name in COUNTERS
            ]
        )
        return self._combine(state_cells, counters)

    def _combine(self, cells: dict[str, NDArray[np.uint32]], counters: NDArray[np.uint64]) -> Reading:
        window_cells = cells["Ingress.window_start.f1"]
        pipes = window_cells.shape[1]
        live_cells = (window_cells != SEED) & (window_cells != SEED_OPPOSITE)
        starts = self.starts * pipes
        live = np.logical_or.reduceat(live_cells.ravel(), starts)
        # A job without any live cell shows its start values.
        considered = live_cells | ~live[self.job_of_state][:, None]

        def combined(field: str) -> NDArray[np.int64]:
            signed = cells[field].view(np.int32) if field == "Ingress.score.score" else cells[field]
            return reduce_segments(signed.astype(np.uint64).ravel(), considered.ravel(), starts, REDUCTIONS[field])

        bits = live_cells * (np.uint64(1) << np.arange(pipes, dtype=np.uint64))
        return Reading(
            min_cells=cells["Ingress.steps.mn"],
            max_cells=cells["Ingress.steps.mx"],
            window_cells=window_cells,
            live_cells=live_cells,
            live=live,
            step_min=combined("Ingress.steps.mn"),
            step_max=combined("Ingress.steps.mx"),
            window=combined("Ingress.window_start.f1"),
            alpha=combined("Ingress.alpha.f1"),
            psn_recorded=combined("Ingress.psn_rec.f1") >> PSN_SHIFT,
            score=combined("Ingress.score.score"),
            window_packets=combined("Ingress.score.count"),
            live_pipes=np.bitwise_or.reduceat(np.bitwise_or.reduce(bits, axis=1), self.starts),
            counters=counters,
        )

    async def reread_steps(
        self, reading: Reading, jobs: NDArray[np.bool_], timeout: float
    ) -> tuple[Reading, NDArray[np.int64]]:
        """Read the step registers of some ``jobs`` again and take the extremes of both readings.

        The step cells become those of the new reading. Also returns by how many clock units the windows of
        each job have moved on since ``reading``, 0 for jobs that were not read.
        """
        rows = np.flatnonzero(jobs[self.job_of_state])
        states = self.states[rows]
        steps, window_start = self.tables.steps, self.tables.window_start
        if len(states) * _REREAD_ALL >= self.tables.n_state:
            request = self.client.read_request([read_all(table, from_hw=True) for table in (steps, window_start)])
        else:
            pieces = [encode_keyed_reads(table, states) for table in (steps, window_start)]
            request = b"".join([self.client.read_request([]), *pieces])
        blocks = decode_blocks(await self.client.read_raw(request, timeout=timeout))
        low, high = reading.min_cells.copy(), reading.max_cells.copy()
        low[rows] = _rows(blocks, steps, "Ingress.steps.mn", states)
        high[rows] = _rows(blocks, steps, "Ingress.steps.mx", states)
        moved = np.zeros_like(reading.window_cells, np.int64)
        now = _rows(blocks, window_start, "Ingress.window_start.f1", states).astype(np.uint32)
        moved[rows] = (now - reading.window_cells[rows]).view(np.int32)
        starts = self.starts * low.shape[1]

        def extreme(cells: NDArray[np.uint32], so_far: NDArray[np.int64], rule: Reduction) -> NDArray[np.int64]:
            flat = cells.astype(np.uint64).ravel()
            again = reduce_segments(flat, reading.live_cells.ravel(), starts, rule)
            ahead = serial_steps(again, so_far) > 0
            return np.where(jobs & (ahead == (rule is Reduction.SERIAL_MAX)), again, so_far)

        again = replace(
            reading,
            min_cells=low,
            max_cells=high,
            step_min=extreme(low, reading.step_min, Reduction.SERIAL_MIN),
            step_max=extreme(high, reading.step_max, Reduction.SERIAL_MAX),
        )
        return again, np.maximum.reduceat(moved.ravel(), starts)

    def windows(self, reading: Reading, trusted: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Combine ``window_start`` over live cells that are ``trusted``; also say which jobs have any."""
        pipes = reading.window_cells.shape[1]
        cells = (reading.live_cells & trusted).ravel()
        flat = reading.window_cells.astype(np.uint64).ravel()
        known = np.logical_or.reduceat(cells, self.starts * pipes)
        return reduce_segments(flat, cells, self.starts * pipes, Reduction.SERIAL_MAX), known


def _rows(
    blocks: dict[int, Block], table: Table, field: str, indexes: NDArray[np.uint32] | NDArray[np.int32]
) -> NDArray[np.uint64]:
    """Pick the rows of ``indexes`` from a table's block: shape (indexes, pipes)."""
    block = blocks.get(table.id)
    place = np.full(table.size, -1, np.intp)
    if block is not None and len(block.index) and int(block.index.max()) < table.size:
        place[block.index.astype(np.intp)] = np.arange(len(block.index))
    rows = place[indexes]
    if block is None or (rows < 0).any():
        raise CodecError(f"the switch answered without some of the entries asked for of {table.name}")
    return block.fields[table.data_field(field).id][rows]
