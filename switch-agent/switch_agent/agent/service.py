# SPDX-License-Identifier: Apache-2.0
"""One agent for one switch: session, jobs, reconcile and sampler put together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from switch_agent.agent.capacity import Usage, highest_port_index, misplaced
from switch_agent.agent.config import SwitchConfig
from switch_agent.agent.entries import job_of_classify_entry
from switch_agent.agent.jobs import Jobs
from switch_agent.agent.models import Job
from switch_agent.agent.reconcile import Drift, Reconciler
from switch_agent.agent.sampler import Sampler
from switch_agent.agent.sampling import SampledJob
from switch_agent.agent.store import Store
from switch_agent.agent.tables import P4_NAME, Tables, check_schema, signed_fields
from switch_agent.bfrt.client import Client
from switch_agent.bfrt.requests import single_pipe_scope_update
from switch_agent.bfrt.session import Session, SessionOptions, SessionState
from switch_agent.errors import (
    BfrtError,
    ReconcileError,
    RpcError,
    SwitchBusyError,
    SwitchUnavailableError,
    WriteError,
)

__all__ = ["Agent", "AgentOptions"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AgentOptions:
    """Options of ``switch-agent serve``. Times are in seconds.

    ``ports``: state blocks of a job with scope ``port``; more than the highest port index of the next hops.
    ``drift_interval``: how often the switch is compared with the desired state.
    ``job_ids``: the Job_IDs that this agent manages; entries of others are none of its business.
    """

    bfrt: str
    state_dir: Path
    name: str = "switch"
    sample_interval: float = 0.05
    p4_name: str = P4_NAME
    client_id: int = 101
    rpc_timeout: float = 5.0
    ports: int = 64
    drift_interval: float = 60.0
    job_ids: range = range(1, 1 << 16)
    config: SwitchConfig = field(default_factory=SwitchConfig)


class Agent:
    """The running agent. Use :meth:`running` as a context; everything else is for REST and metrics."""

    def __init__(self, options: AgentOptions) -> None:
        self.options = options
        self.name = options.name
        self.drift: Drift | None = None
        """The last comparison of switch and desired state; None when there is none, or it failed."""
        self.reconcile_seconds: float | None = None
        self.repairs = 0
        """Entries that reconciles had to add, modify or delete."""
        self.reconcile_error: str | None = None
        self.usage = Usage()
        self.misplaced: dict[int, str] = {}
        """Jobs that are kept off the switch because their place does not suit it, with the reason."""
        self.port_index: int | None = None
        """The highest port_index of the switch's next hops, as far as known."""
        self.stopping = asyncio.Event()
        self.per_pipe_writes: bool | None = None
        self._foreign: list[SampledJob] = []
        self._foreign_version = 0
        self._store = Store(options.state_dir)
        self.session = Session(
            SessionOptions(
                address=options.bfrt,
                p4_name=options.p4_name,
                client_id=options.client_id,
                rpc_timeout=options.rpc_timeout,
                signed=signed_fields(),
            ),
            check=check_schema,
            on_up=self._on_up,
        )
        self.sampler = Sampler(
            self.session,
            interval=options.sample_interval,
            jobs=self._sampled_jobs,
            version=lambda: (self.session.owned, self.jobs.version, self._foreign_version, tuple(self.misplaced)),
        )
        self.jobs = Jobs(
            self.session,
            self._store,
            ports=options.ports,
            job_ids=options.job_ids,
            step_of=self._step_of,
            seed=self.sampler.seed,
            on_reset=self.sampler.forget,
            usage=self.usage,
            port_index=lambda: self.port_index,
        )
        self._reconciler = Reconciler(
            options.config, job_ids=options.job_ids, step_of=self._step_of, seed=self.sampler.seed
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Agent]:
        """Run session and sampler in the background; on exit stop them and close the store."""
        tasks = [
            asyncio.create_task(_kept_running("session", self.session.run)),
            asyncio.create_task(_kept_running("sampler", self.sampler.run)),
            asyncio.create_task(_kept_running("read-only watch", self._follow_owner)),
            asyncio.create_task(_kept_running("drift watch", self._watch_drift)),
        ]
        try:
            yield self
        finally:
            self.stopping.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._store.close()

    # ------------------------------------------------------------------------------ reconcile

    async def reconcile(self) -> Drift:
        """Compare switch and desired state now, and repair."""
        async with self.jobs.locks.all():
            return await self._reconcile(self.session.writer())

    async def compare(self) -> Drift:
        """Compare switch and desired state now; changes nothing, and holds up changes only when it must.

        A change that is under way looks like drift, so drift is looked at again with changes held back.
        """
        client = self.session.reader()
        drift = await self._reconciler.compare(client, *await self._wanted(client))
        if drift.total:
            async with self.jobs.locks.all():
                client = self.session.reader()
                drift = await self._reconciler.compare(client, *await self._wanted(client))
        self.drift = drift
        return drift

    async def _reconcile(self, client: Client) -> Drift:
        tables, jobs = await self._wanted(client)
        self.drift = await self._reconciler.apply(client, tables, jobs)
        self.reconcile_seconds = self.drift.seconds
        self.repairs += self.drift.total if self.drift.repaired else 0
        await self.usage.read(client, tables.match_tables)
        self.reconcile_error = None
        return self.drift

    async def _wanted(self, client: Client) -> tuple[Tables, list[Job]]:
        """Return the tables, and the jobs that may be on this switch."""
        assert client.schema is not None
        tables = Tables.of(client.schema)
        self.port_index = await highest_port_index(client, client.schema)
        reasons = misplaced(self.jobs.all(), tables, self.port_index)
        for job_id in reasons.keys() - self.misplaced.keys():
            log.error("job %d is kept off the switch: %s; delete it and put it again", job_id, reasons[job_id])
        self.misplaced = reasons
        return tables, [job for job in self.jobs.all() if job.job_id not in reasons]

    async def _watch_drift(self) -> None:
        """Compare every now and then: somebody else may change the tables."""
        while True:
            await asyncio.sleep(self.options.drift_interval)
            if not self.session.owned:
                continue
            try:
                drift = await self.compare()
            except (BfrtError, ReconcileError) as error:
                self.drift = None
                log.warning("comparing switch and desired state failed: %s", error)
            else:
                if drift.total:
                    log.warning("the switch differs from the desired state: %s", "; ".join(drift.details))

    async def _on_up(self, client: Client, owned: bool) -> None:
        """The session is up: repair the switch when we own it, look around when we do not."""
        assert client.schema is not None
        tables = Tables.of(client.schema)
        if not owned:
            await self._discover(client, tables)
            return
        async with self.jobs.locks.all():
            await self._scope_pipes(client, tables)
            try:
                await self._reconcile(client)
            except (SwitchUnavailableError, SwitchBusyError):
                raise
            except (BfrtError, ReconcileError) as error:
                # The switch refuses something: the rest of it works, and this is shown until it is solved.
                self.drift = None
                self.reconcile_error = str(error)
                log.error("reconcile failed: %s", error)  # noqa: TRY400 - the text says it all

    async def _scope_pipes(self, client: Client, tables: Tables) -> None:
        """Ask for registers that can be written pipe by pipe; drivers that do not know that are no problem
        as long as a job's packets come in by one pipe.
        """
        try:
            await client.write([single_pipe_scope_update(table) for table in (tables.steps, tables.window_start)])
        except SwitchUnavailableError:
            raise
        except (WriteError, RpcError) as error:
            self.per_pipe_writes = False
            log.warning("registers cannot be written pipe by pipe: %s", error)
        else:
            self.per_pipe_writes = True

    # ------------------------------------------------------------------------------- read-only

    async def _discover(self, client: Client, tables: Tables) -> None:
        """Find the jobs that somebody else has put on the switch, so that they can be sampled."""
        places: dict[int, int] = {}
        for table in (tables.classify, tables.classify6):
            for entry in await client.read_entries(table, from_hw=False):
                job_id, state = job_of_classify_entry(entry), entry.data.get("state")
                if job_id is not None and isinstance(state, int):
                    places[job_id] = state
        scopes = {}
        for entry in await client.read_entries(tables.params, from_hw=False):
            if not entry.is_default:
                scopes[entry.key.get("ig_md.job")] = entry.data.get("scope_mask")
        names = {job.job_id: job.name for job in self.jobs.all()}
        found = [
            SampledJob(
                job_id,
                names.get(job_id, f"job-{job_id}"),
                state,
                min(self.options.ports, tables.n_state - state) if scopes.get(job_id) else 1,
            )
            for job_id, state in sorted(places.items())
            if job_id < tables.n_job and state < tables.n_state
        ]
        if found != self._foreign:
            self._foreign = found
            self._foreign_version += 1

    async def _follow_owner(self) -> None:
        """While another client owns the program, keep up with the jobs that it adds and removes."""
        while True:
            await self.session.wait_for(SessionState.READ_ONLY)
            await asyncio.sleep(2.0)
            with contextlib.suppress(BfrtError):
                client = self.session.reader()
                assert client.schema is not None
                await self._discover(client, Tables.of(client.schema))

    # --------------------------------------------------------------------------------- helpers

    def _sampled_jobs(self) -> list[SampledJob]:
        if not self.session.owned:
            return self._foreign
        placed = (job for job in self.jobs.all() if job.job_id not in self.misplaced)
        return [SampledJob(job.job_id, job.name, job.state, job.n_states) for job in placed]

    def _step_of(self, job: Job) -> int:
        step = self.sampler.step_of(job.job_id)
        return job.spec.first_step if step is None else step

    def samples(self) -> list[dict[str, Any]]:
        """Return the newest sample of every job that exists, [] when it is too old to say anything."""
        frame = self.sampler.fresh()
        if frame is None:
            return []
        present = {(job.job_id, job.name) for job in self._sampled_jobs()}
        rows = zip(frame.rows["job_id"].tolist(), frame.names, strict=True)
        return [frame.view(at) for at, row in enumerate(rows) if row in present]

    def view(self) -> dict[str, Any]:
        """Return session, program and drift as ``GET /api/v1/switch`` shows them."""
        session, schema = self.session, self.session.schema
        mode = {SessionState.READY: "read-write", SessionState.READ_ONLY: "read-only"}.get(session.state)
        found: dict[str, int] = {}
        if schema is not None:
            tables = Tables.of(schema)
            for table in (
                *(tables.classify, tables.classify6, tables.params, tables.ecmp_config, tables.red_profile),
                *tables.lookups.values(),
                *(tables.steps, tables.psn_rec, tables.window_start, tables.score, tables.alpha),
                *tables.counters.values(),
            ):
                found[table.name] = table.size
        return {
            "name": self.name,
            "bfrt": self.options.bfrt,
            "state": session.state.value,
            "mode": mode,
            "last_error": session.last_error,
            "client_id": session.client_id,
            "owner": "this agent" if session.owned else (session.owner_name if mode == "read-only" else None),
            "program": self.options.p4_name,
            "programs_on_switch": list(session.programs),
            "schema_sha256": schema.digest if schema else None,
            "tables": found,
            "sessions": session.generation,
            "reconnects": session.reconnects,
            "per_pipe_writes": self.per_pipe_writes,
            "drift": self.drift.view() if self.drift else None,
            "reconcile_error": self.reconcile_error,
            "sampler": {
                "interval_ms": self.options.sample_interval * 1000,
                "last_success_unix_s": self.sampler.last_success_unix_s,
                "last_duration_ms": round(self.sampler.last_duration_s * 1000, 3),
                "samples": self.sampler.samples,
                "failures": self.sampler.failures,
                "skipped_ticks": self.sampler.skipped_ticks,
                "last_error": self.sampler.last_error,
            },
            "usage": self.usage.view(),
            "jobs": len(self.jobs.all()),
            "misplaced_jobs": {str(job_id): reason for job_id, reason in self.misplaced.items()},
            "ports": {"state_blocks": self.options.ports, "highest_port_index": self.port_index},
        }


async def _kept_running(name: str, run: Callable[[], Awaitable[None]]) -> None:
    """Run a background task until cancelled: nobody awaits it, so a mistake of ours in it would end it in silence."""
    while True:
        try:
            await run()
        except Exception:
            log.exception("the %s failed and is started again; please report this", name)
            await asyncio.sleep(1.0)
