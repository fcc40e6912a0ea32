# SPDX-License-Identifier: Apache-2.0
"""The jobs of one switch: admitted, written, read back, saved; in this order, or not at all.

A change counts when the switch has confirmed it by a read-back from hardware and it is on disk. When any of
it fails the desired state stays as it was, and what may have been half written is put right by the next
reconcile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import grpc

from switch_agent import bfrt_proto as proto
from switch_agent.agent.capacity import Usage
from switch_agent.agent.entries import (
    classify_entries,
    classify_table,
    gain_resets,
    params_entry,
    write_initial_state,
)
from switch_agent.agent.locks import JobLocks
from switch_agent.agent.models import Job, JobSpec, SymphonySettings
from switch_agent.agent.store import Store
from switch_agent.agent.tables import Tables
from switch_agent.bfrt.client import Client
from switch_agent.bfrt.requests import Entry, delete_update, describe, upsert_update
from switch_agent.bfrt.schema import Table
from switch_agent.bfrt.session import Session
from switch_agent.errors import (
    BfrtError,
    CapacityError,
    InvalidJobError,
    JobConflictError,
    JobNotFoundError,
    ReconcileError,
    WriteError,
)

__all__ = ["Jobs"]

log = logging.getLogger(__name__)


class Jobs:
    """All jobs of the agent. ``ports`` state blocks are reserved for a job of scope ``port``.

    ``usage`` learns how full tables are; ``port_index()`` gives the highest one of the switch's next hops, if known.
    ``on_reset(job_id, history)`` is called when a job's counters and state start afresh; ``history`` is
    True when it is another job from now on, or none. ``seed()`` gives the start value of ``window_start``,
    ``step_of(job)`` the step that a running job is at.
    """

    def __init__(
        self,
        session: Session,
        store: Store,
        *,
        ports: int,
        job_ids: range,
        step_of: Callable[[Job], int],
        seed: Callable[[], int],
        on_reset: Callable[[int, bool], None],
        usage: Usage,
        port_index: Callable[[], int | None],
    ) -> None:
        self.locks = JobLocks()
        self.version = 0
        """Changes whenever the set of jobs or their places change."""
        self._session = session
        self._store = store
        self._ports = ports
        self._job_ids = job_ids
        self._step_of = step_of
        self._seed = seed
        self._on_reset = on_reset
        self._usage = usage
        self._port_index = port_index
        self._jobs: dict[int, Job] = {job.job_id: job for job in store.load()}
        self._pending: dict[int, Job] = {}

    def all(self) -> list[Job]:
        """Return the jobs by id."""
        return [self._jobs[job_id] for job_id in sorted(self._jobs)]

    def get(self, job_id: int) -> Job:
        """Return one job; JobNotFoundError when there is none."""
        try:
            return self._jobs[job_id]
        except KeyError:
            raise JobNotFoundError(
                f"there is no job {job_id} on this switch; GET /api/v1/jobs lists those there are"
            ) from None

    # -------------------------------------------------------------------------------- changes

    async def put(self, job_id: int, spec: JobSpec) -> Job:
        """Add a job, or replace the one with that id.

        Replacing a job by one with the same traffic and scope changes its settings only; anything else
        starts its state afresh. Raises the errors of the tree's JobError part, NotReadyError,
        ReadOnlyError, WriteError.
        """
        async with self.locks.job(job_id):
            client, tables = self._writer()
            old = self._jobs.get(job_id)
            if old is not None and old.spec.same_traffic(spec):
                return await self._change(client, tables, old, spec.symphony)
            job = self._admit(job_id, spec, tables, old)
            with self._reserved(job):
                use = await self._check_room(client, tables, job, old)
                try:
                    if old is not None:
                        await self._remove_entries(client, tables, old)
                    await self._install(client, tables, job)
                except BaseException:
                    await self._put_back(client, tables, job, old)
                    raise
                self._commit(job)
            for table, entries in use.items():
                self._usage.note(table, entries)
            self._on_reset(job_id, True)
            return job

    async def patch(self, job_id: int, change: SymphonySettings) -> Job:
        """Change Symphony's settings of a job; what ``change`` does not set stays."""
        async with self.locks.job(job_id):
            job = self.get(job_id)
            client, tables = self._writer()
            return await self._change(client, tables, job, job.spec.symphony.merged(change))

    async def delete(self, job_id: int) -> None:
        """Remove a job: its packets become plain traffic, its state blocks are free."""
        async with self.locks.job(job_id):
            job = self.get(job_id)
            client, tables = self._writer()
            await self._remove_entries(client, tables, job)
            self._store.delete(job_id)
            del self._jobs[job_id]
            self._usage.removed(tables.params, 1)
            for table, _ in classify_entries(job, tables):
                self._usage.removed(table, 1)
            self.version += 1
            self._on_reset(job_id, True)

    # -------------------------------------------------------------------------------- details

    def _writer(self) -> tuple[Client, Tables]:
        client = self._session.writer()
        assert client.schema is not None
        return client, Tables.of(client.schema)

    async def _change(self, client: Client, tables: Tables, job: Job, settings: SymphonySettings) -> Job:
        changed = job.with_settings(settings)
        if settings.params().scope != job.spec.symphony.params().scope:
            return await self._move(client, tables, job, changed)
        # Enabling starts the controller afresh: whatever alpha did while nothing was marked is void.
        updates = gain_resets(changed, tables) if changed.enabled and not job.enabled else []
        before, entry = params_entry(job), params_entry(changed)
        updates.append(upsert_update(tables.params, entry))
        if entry == before:  # then a read-back would show it written or not
            await client.write(updates)
            await self._verify(client, tables.params, [entry])
        else:
            await self._write_reading_back(client, tables.params, entry, updates)
        self._commit(changed, moved=False)
        return changed

    async def _move(self, client: Client, tables: Tables, old: Job, changed: Job) -> Job:
        """Change a job's scope: other state blocks, so state starts afresh, at the step the job is at."""
        job = self._admit(old.job_id, changed.spec, tables, old)
        job = replace(job, revision=changed.revision)
        with self._reserved(job):
            step = self._step_of(old)
            try:
                await self._remove_entries(client, tables, old)
                await self._install(client, tables, job, step=step)
            except BaseException:
                await self._put_back(client, tables, job, old)
                raise
            self._commit(job)
        self._on_reset(job.job_id, False)
        return job

    async def _install(self, client: Client, tables: Tables, job: Job, *, step: int | None = None) -> None:
        """State first, then parameters, then the entries that send packets there; then read it back."""
        at = job.spec.first_step if step is None else step
        await write_initial_state(client, tables, [(job, at)], seed=self._seed())
        entries = list(classify_entries(job, tables))
        params = params_entry(job)
        try:
            await client.write(
                [
                    upsert_update(tables.params, params),
                    *(upsert_update(table, entry) for table, entry in entries),
                ],
                rollback=True,
            )
        except WriteError as error:
            raise _full(error, job) or error from error
        await self._verify(client, tables.params, [params])
        for table in (tables.classify, tables.classify6):
            await self._verify(client, table, [entry for where, entry in entries if where is table])

    async def _remove_entries(self, client: Client, tables: Tables, job: Job) -> None:
        """Delete a job's entries, packets first; those that are gone already are no error."""
        updates = [delete_update(table, entry.key) for table, entry in classify_entries(job, tables)]
        updates.append(delete_update(tables.params, params_entry(job).key))
        try:
            await client.write(updates)
        except WriteError as error:
            if error.statuses() != {grpc.StatusCode.NOT_FOUND}:
                raise

    async def _put_back(self, client: Client, tables: Tables, job: Job, old: Job | None) -> None:
        """Undo a change that failed half way, as far as the switch lets us."""
        with contextlib.suppress(BfrtError, ReconcileError):
            await self._remove_entries(client, tables, job)
            if old is not None:
                await self._install(client, tables, old, step=self._step_of(old))
            return
        log.warning("job %d was left half changed; the next reconcile repairs it", job.job_id)

    async def _verify(self, client: Client, table: Table, entries: list[Entry]) -> None:
        """Read entries back from hardware and compare."""
        found = await client.read_keys(table, [entry.key for entry in entries], from_hw=True)
        for entry, current in zip(entries, found, strict=True):
            if not _holds(current, entry):
                state = "is missing" if current is None else f"reads {current.action} {dict(current.data)}"
                raise ReconcileError(
                    f"{describe(table, entry.key)} on switch {client.address} {state} after it was written; "
                    "is another program changing the tables?"
                )

    async def _write_reading_back(
        self, client: Client, table: Table, entry: Entry, updates: list[proto.Update]
    ) -> None:
        """Write, with the read-back already under way, which spares a round trip.

        When the switch takes the read first it shows the values of before, and is repeated.
        """
        reading = asyncio.create_task(client.read_keys(table, [entry.key], from_hw=True))
        try:
            await client.write(updates)
            (found,) = await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        if not _holds(found, entry):
            await self._verify(client, table, [entry])

    def _commit(self, job: Job, *, moved: bool = True) -> None:
        self._store.save(job)
        self._jobs[job.job_id] = job
        if moved:
            self.version += 1

    @contextmanager
    def _reserved(self, job: Job) -> Iterator[None]:
        """Keep a job's name, tag and state blocks from being given away while it is being written."""
        self._pending[job.job_id] = job
        try:
            yield
        finally:
            del self._pending[job.job_id]

    # ------------------------------------------------------------------------------ admission

    def _admit(self, job_id: int, spec: JobSpec, tables: Tables, old: Job | None) -> Job:
        """Check a job against the switch and the other jobs and give it state blocks."""
        if job_id not in self._job_ids or job_id >= tables.n_job:
            last = min(self._job_ids[-1], tables.n_job - 1)
            raise InvalidJobError(f"job id {job_id} is out of range: this agent manages {self._job_ids[0]} to {last}")
        others = {**self._jobs, **self._pending}
        others.pop(job_id, None)
        for other in others.values():
            if other.name == spec.name:
                raise JobConflictError(
                    f"job {other.job_id} is named {spec.name} already; names label metrics and must differ"
                )
            if other.spec.job_tag == spec.job_tag:
                for flow in spec.flows:
                    if any(flow.overlaps(taken) for taken in other.spec.flows):
                        raise JobConflictError(
                            f"flow {flow.src} -> {flow.dst or 'any'} with job_tag {spec.job_tag} belongs to "
                            f"job {other.job_id} ({other.name}): give the new job another job_tag"
                        )
        n_states = self._ports if spec.symphony.params().scope == "port" else 1
        highest = self._port_index()
        if n_states > 1 and highest is not None and highest >= n_states:
            raise InvalidJobError(
                f"scope port needs a state block per port: a next hop of this switch has port_index {highest}, the "
                f"agent was started with --ports {self._ports}; start it with --ports {highest + 1} or more"
            )
        taken = [*others.values(), *([old] if old else [])]
        state = _first_fit(taken, n_states, tables.n_state)
        if state is None:
            raise CapacityError(
                tables.steps.short_name,
                f"no {n_states} consecutive state blocks are free of the switch's {tables.n_state} "
                "(register steps): delete a job, or use scope job instead of port",
            )
        revision = old.revision + 1 if old else 1
        return Job(job_id, spec, state, n_states, revision)

    async def _check_room(self, client: Client, tables: Tables, job: Job, old: Job | None) -> dict[Table, int]:
        """Refuse a job that the tables have no room for, before anything is written.

        Returns how many entries each table will hold with the job.
        """
        needed = {tables.params: 1 if old is None else 0}
        for flow in job.spec.flows:
            table = classify_table(tables, flow)
            needed[table] = needed.get(table, 0) + 1
        for flow in old.spec.flows if old else ():
            table = classify_table(tables, flow)
            needed[table] = needed.get(table, 0) - 1
        usages = await client.usage(list(needed), from_hw=False)
        for (table, count), used in zip(needed.items(), usages, strict=True):
            if used + count > table.size:
                raise CapacityError(
                    table.short_name,
                    f"table {table.short_name} has room for {table.size - used} more entries, job "
                    f"{job.job_id} needs {count}: delete a job, or use flows with dst null",
                )
        return {table: used + count for (table, count), used in zip(needed.items(), usages, strict=True)}


def _holds(current: Entry | None, wanted: Entry) -> bool:
    return current is not None and (current.action, dict(current.data)) == (wanted.action, dict(wanted.data))


def _first_fit(jobs: list[Job], length: int, size: int) -> int | None:
    """Return the first index where ``length`` consecutive blocks are free, None when there is none."""
    start = 0
    for job in sorted(jobs, key=lambda job: job.state):
        if start + length <= job.state:
            break
        start = max(start, job.state + job.n_states)
    return start if start + length <= size else None


def _full(error: WriteError, job: Job) -> CapacityError | None:
    for failure in error.errors:
        if failure.status is grpc.StatusCode.RESOURCE_EXHAUSTED:
            table = failure.what.partition(" ")[2].partition("[")[0] or "a table"
            return CapacityError(
                table,
                f"the switch has no room for job {job.job_id} in {table} ({failure.message}): delete a job",
            )
    return None
