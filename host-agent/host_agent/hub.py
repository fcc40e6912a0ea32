# SPDX-License-Identifier: Apache-2.0
"""What host-agent does: start and stop jobs, switch Symphony, collect figures. REST and the live page both
call this.

One asyncio loop, one process. State changes of a job run under its lock; a job's identity (Job_ID, job_tag)
stays reserved until the switches have let go of it. What a switch did not do when it was asked (take a job off,
change its settings) is remembered, on disk too, and done by its poller once its agent answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx

from host_agent.errors import (
    BadInputError,
    ConflictError,
    HostAgentError,
    PartialUpdateError,
    ResultNotReadyError,
    StorageError,
    SwitchError,
    SwitchRefusedError,
    SwitchUnreachableError,
    UnauthorizedError,
)
from host_agent.fabric_events import FabricLog
from host_agent.jobs import Job, JobList, Toggle
from host_agent.launcher import BenchProcess, bench_command, end_leftover, find_program, tail
from host_agent.limits import check_bench
from host_agent.models import EventBatch, JobRequest, JobState, SymphonySettings
from host_agent.placement import flows_by_switch
from host_agent.store import Store
from host_agent.switches import SwitchClient, each
from host_agent.testbed import SwitchEntry, Testbed

__all__ = ["CollectorStatus", "Hub"]

POLL_S: Final = 0.5
"""How often the switch agents are asked for new samples."""
LATE_READ_S: Final = 3.0
"""How long a switch that is back after a job's end is waited for until it has taken a sample, s."""
DRAIN_S: Final = 0.2
"""Wait after a job's end for its last register samples."""
SHUTDOWN_S: Final = 3.0
"""Time that processes and switches get at shutdown (uvicorn's own limit is 5 s)."""
SECRETS: Final = ("HOST_AGENT_TOKEN", "SWITCH_AGENT_TOKEN")

log = logging.getLogger("host_agent")


@dataclass
class CollectorStatus:
    """Whether the last poll of one switch agent worked."""

    success: bool | None = None
    last_success_unix_s: float | None = None
    error: str | None = None


class Hub:
    """The service behind REST and page. `start` and `close` bracket its life on one running loop."""

    def __init__(
        self,
        testbed: Testbed,
        store: Store,
        *,
        url: str = "http://127.0.0.1:9400",
        ring_bench: str | None = None,
        poll_s: float = POLL_S,
        client_factory: Callable[[SwitchEntry], SwitchClient] = SwitchClient,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.testbed = testbed
        self.store = store
        self.url = url.rstrip("/")
        self.jobs = JobList()
        self.preset = testbed.preset
        """Parameter preset of the fabric: the twin tells its own, testbed.yaml may name that of another one."""
        self.stopping = asyncio.Event()
        """Set when host-agent is told to end: streams watch it."""
        self.collectors = {switch.name: CollectorStatus() for switch in testbed.switches}
        self._switches = {switch.name: client_factory(switch) for switch in testbed.switches}
        self._ring_bench = ring_bench
        self._poll_s = poll_s
        self._environment = dict(os.environ if environment is None else environment)
        self._allocation = asyncio.Lock()
        self._watchers: dict[int, asyncio.Task[None]] = {}
        self._pollers: list[asyncio.Task[None]] = []
        self._twin = httpx.AsyncClient(base_url=testbed.twin.http, timeout=1.0) if testbed.twin else None
        self._fabric_log = FabricLog(self._twin) if self._twin else None

    # -- life

    async def start(self) -> None:
        """Pick up what an earlier host-agent left, and begin to collect."""
        for job in self.store.active_jobs():
            await self._resume(job)
        self._pollers = [asyncio.create_task(self._poll(client)) for client in self._switches.values()]
        self._pollers.append(asyncio.create_task(self._learn_preset()))
        self._pollers.append(asyncio.create_task(self._watch_fabric()))

    def begin_shutdown(self) -> None:
        """From now on streams end and running benchmarks are told to stop. Safe to call twice."""
        self.stopping.set()
        for job in self.jobs:
            if job.process is not None:
                job.process.terminate()

    def kill_processes(self) -> None:
        """Last resort, without waiting: SIGKILL to every process group that was started here."""
        for job in self.jobs:
            if job.process is not None:
                job.process.kill()

    async def close(self) -> None:
        """End every job that was started here; registered jobs stay on the switches. Nothing is deleted on
        disk.
        """
        self.begin_shutdown()
        for task in self._pollers:
            task.cancel()
        await asyncio.gather(*self._pollers, return_exceptions=True)
        running = [job for job in self.jobs if job.process is not None]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SHUTDOWN_S):
                await asyncio.gather(*(self.stop(job.id) for job in running), return_exceptions=True)
        self.kill_processes()
        watchers = list(self._watchers.values())
        if watchers:
            await asyncio.wait(watchers, timeout=1.0)  # the killed ones still write down how they ended
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
        await asyncio.gather(*(client.close() for client in self._switches.values()))
        if self._twin is not None:
            await self._twin.aclose()

    async def _resume(self, job: Job) -> None:
        end_leftover(job.folder, log.warning)
        self.jobs.add(job)
        known = self._switches.keys()
        job.held_by = known & (job.held_by if job.ended else job.flows.keys())
        if not job.ended and job.request.bench is None and known >= job.flows.keys():
            job.state = "registered"
            log.info("job %d (%s) is registered from before", job.id, job.name)
            return
        if not job.ended:
            job.state, job.ended_unix_s = "failed", time.time()
            job.error = "host-agent ended while this job ran"
        self._take_result(job)
        job.final = True  # the pollers take it off the switches
        self._save(job)

    # -- jobs

    async def create(self, request: JobRequest) -> Job:
        """Register a job on its switches and, if it has a benchmark, start that.

        Raises BadInputError, ConflictError, CapacityError, StorageError, or SwitchRefusedError /
        SwitchUnreachableError after having taken back what other switches had accepted. A benchmark that
        cannot be started is no error here: the job is there, with state "failed" and the reason.
        """
        hosts = self.testbed.pick(request.hosts, request.world)
        if request.bench is not None and self.testbed.twin is None:
            raise BadInputError(
                f"testbed {self.testbed.name!r} has no twin to run on; start the ranks yourself and register "
                'the job without "bench"'
            )
        flows = flows_by_switch(hosts, request.bench, self.testbed.switches)
        if request.bench is not None:
            check_bench(request.bench, len(hosts))
        await self._learn_preset()
        async with self._allocation:
            held, failed = await each(self._chosen(flows), SwitchClient.jobs)
            if failed:
                raise _first(failed)
            known = {job.id for job in self.jobs if job.active}
            foreign = [entry for entries in held.values() for entry in entries if entry.get("job_id") not in known]
            job_id, tag = self.jobs.allocate(
                request.name,
                {entry["job_id"] for entry in foreign},
                {entry["job_tag"] for entry in foreign if "job_tag" in entry},
            )
            job = Job(
                id=job_id,
                tag=tag,
                request=request,
                hosts=hosts,
                flows=flows,
                folder=self.store.new_folder(job_id, request.name),
                symphony={"enabled": False, "variant": "paper", **request.symphony.sent()},
                preset=self.preset,
            )
            self.jobs.add(job)
        try:
            self.store.save(job)
            await self._install(job)
        except BaseException as error:
            job.state, job.error, job.ended_unix_s, job.final = "failed", str(error), time.time(), True
            self._save(job)
            if not job.held_by:
                self.jobs.remove(job)
            raise
        if request.bench is not None:
            await self._launch(job)
        job.touch()
        log.info("job %d (%s): %s on switches %s", job.id, job.name, job.state, ", ".join(job.flows) or "none")
        return job

    async def stop(self, job_id: int) -> Job:
        """End a job: its process group, then its entries on the switches. An ended job is left as it is."""
        job = self.jobs.get(job_id)
        if job.ended:
            if watcher := self._watchers.get(job_id):
                await asyncio.shield(watcher)
            return job
        if job.process is not None:
            job.stop_requested = True
            await job.process.stop()
            if watcher := self._watchers.get(job_id):
                await asyncio.shield(watcher)
        else:
            await self._end(job, "stopped")
        return job

    async def delete(self, job_id: int) -> None:
        """Stop a job and forget it; its files stay.

        Raises SwitchUnreachableError or SwitchRefusedError while a switch does not let go of it.
        """
        job = await self.stop(job_id)
        async with job.lock:
            failed = await self._release(job)
        if failed:
            error = _first(failed)
            error.detail = f"job {job_id} ({job.name}) is {job.state} but still on a switch: {error.detail}"
            raise error
        self.jobs.remove(job)

    def events_url(self, job: Job) -> str:
        """Where the ranks of a job report to."""
        return f"{self.url}/api/v1/jobs/{job.id}/events"

    def testbed_view(self) -> dict[str, Any]:
        """The testbed and how the last poll of each switch agent went."""
        return {
            "name": self.testbed.name,
            "preset": self.preset,
            "switches": [
                {"name": switch.name, "url": switch.url, **vars(self.collectors[switch.name])}
                for switch in self.testbed.switches
            ],
            "hosts": [host.model_dump() for host in self.testbed.hosts],
            "twin": self.testbed.twin.model_dump(mode="json") if self.testbed.twin else None,
        }

    def result(self, job_id: int) -> dict[str, Any]:
        """The job's result (ring-bench's JSON). Raises ResultNotReadyError."""
        job = self.jobs.get(job_id)
        result = job.result or job.recorder.result
        if result is None:
            raise ResultNotReadyError(f"job {job_id} ({job.name}) is {job.state} and has no result", state=job.state)
        return result

    def ingest(self, job_id: int, token: str | None, batch: EventBatch) -> None:
        """Take a report of a job's ranks, who prove themselves with the job's own token."""
        job = self.jobs.get(job_id)
        if token is None or not hmac.compare_digest(token.encode(), job.events_token.encode()):
            raise UnauthorizedError(
                f"events of job {job_id} need its token (environment SYMPHONY_EVENTS_TOKEN of the ranks)"
            )
        job.recorder.ingest(batch)
        if job.process is None and not job.ended:
            job.started_unix_s = job.started_unix_s or time.time()
            job.state = "running" if batch.result is None else "registered"
        job.touch()

    async def set_symphony(self, job_id: int, settings: SymphonySettings) -> Job:
        """Change a job's Symphony settings on all its switches at once; returns when all have read them back.

        Raises ConflictError for an ended job, PartialUpdateError when some switches took it and some did not
        (those get it later, see `_catch_up`), SwitchUnreachableError or SwitchRefusedError when none did, which
        leaves the settings as they were. Repeating a change is fine.
        """
        job = self.jobs.get(job_id)
        change = settings.sent()
        async with job.lock:
            if job.ended:
                raise ConflictError(f"job {job_id} ({job.name}) is {job.state}: there is nothing left to switch")
            before = await self._now_ns(job)
            done, failed = await each(self._chosen(job.flows), lambda client: _patch(client, job_id, change))
            after = await self._now_ns(job)
            job.switch_states.update(done)
            for name in done:
                job.switch_errors.pop(name, None)
            job.switch_errors.update({name: error.detail for name, error in failed.items()})
            # One that did not answer may yet have taken it: whatever is wanted now, it is brought to that.
            job.behind = (job.behind - done.keys()) | failed.keys()
            if done or not failed:
                job.symphony = {**job.symphony, **change}
                moment = (before, after) if before is not None and after is not None else None
                job.toggles.append(Toggle(time.time(), moment, job.enabled, job.variant, not failed))
            self._save(job)
            job.touch()
        if not failed:
            log.info("job %d (%s): Symphony %s (%s)", job.id, job.name, "on" if job.enabled else "off", job.variant)
            return job
        if not done and len({type(error) for error in failed.values()}) == 1:
            raise _first(failed)
        raise PartialUpdateError(
            f"job {job_id}: {len(done)} of {len(job.flows)} switches changed; not so "
            + "; ".join(map(str, failed.values())),
            switches={
                name: {"ok": name in done, "detail": failed[name].detail if name in failed else "read back"}
                for name in job.flows
            },
        )

    # -- inside

    def _chosen(self, names: Iterable[str]) -> list[SwitchClient]:
        return [self._switches[name] for name in names if name in self._switches]

    def _attend(self, job: Job, work: Coroutine[Any, Any, None]) -> None:
        """Run what ends a job in the background; `stop` and `close` wait for it."""
        task = asyncio.create_task(work)
        self._watchers[job.id] = task
        task.add_done_callback(lambda _: self._watchers.pop(job.id, None))

    async def _install(self, job: Job) -> None:
        job.held_by = {client.name for client in self._chosen(job.flows)}
        done, failed = await each(
            self._chosen(job.held_by), lambda client: client.put_job(job.id, job.spec_for(client.name))
        )
        if failed:
            await self._release(job)
            # One that said no has nothing; one that did not answer may have taken it all the same.
            job.held_by -= {name for name, error in failed.items() if isinstance(error, SwitchRefusedError)}
            raise _first(failed)
        job.switch_states.update(done)

    async def _launch(self, job: Job) -> None:
        assert job.request.bench is not None
        assert self.testbed.twin is not None
        program = self._ring_bench or find_program()
        try:
            if program is None:
                raise FileNotFoundError(2, "not found beside this Python nor on PATH", "ring-bench")
            command = bench_command(
                program,
                job.request.bench,
                hosts=[host.name for host in job.hosts],
                verbs=self.testbed.twin.verbs,
                job_name=job.name,
                job_tag=job.tag,
                events_url=self.events_url(job),
                result=job.folder / "result.json",
                seed=job.request.seed,
            )
            environment = {k: v for k, v in self._environment.items() if k not in SECRETS}
            environment["SYMPHONY_EVENTS_TOKEN"] = job.events_token
            await self._read_fabric()  # what happened before it does not concern it
            job.state, job.started_unix_s = "running", time.time()
            job.process = await BenchProcess.start(command, job.folder, environment)
        except (OSError, StorageError) as error:
            reason = (
                error.detail if isinstance(error, StorageError) else f"{error.filename or program}: {error.strerror}"
            )
            job.error = f"ring-bench could not be started: {reason}"
            await self._end(job, "failed")
            return
        if self.stopping.is_set():
            job.process.terminate()
        self._save(job)
        self._attend(job, self._watch(job, job.process))

    async def _watch(self, job: Job, process: BenchProcess) -> None:
        code = await process.wait()
        job.process = None
        job.log_tail = tail(process.errors) or tail(process.log)
        state: JobState = "finished"
        if job.stop_requested or self.stopping.is_set():
            state = "stopped"
        elif code != 0:
            state = "failed"
            how = f"exited with code {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"
            job.error = f"ring-bench {how}" + (f": {job.log_tail[-1]}" if job.log_tail else "")
        self._take_result(job)
        await self._end(job, state)

    def _take_result(self, job: Job) -> None:
        job.result = self.store.result(job.folder)
        if job.result is not None:
            job.recorder.conclude(job.result)
            job.preset = job.preset or job.result.get("preset")

    async def _end(self, job: Job, state: JobState) -> None:
        """Last figures, last state; then the switches let go of the job."""
        async with job.lock:
            if job.ended:
                return
            await self._read_fabric()
            job.state, job.ended_unix_s = state, time.time()
            job.recorder.finish()
            job.touch()
            self._save(job)
            log.info("job %d (%s): %s%s", job.id, job.name, state, f": {job.error}" if job.error else "")
            if not self.stopping.is_set():
                await asyncio.sleep(DRAIN_S)
                await asyncio.gather(*(self._fetch(client, job) for client in self._chosen(job.flows)))
            job.check_agreement()
            await self._release(job)
            job.final = True
            job.touch()

    async def _release(self, job: Job, only: str | None = None) -> dict[str, SwitchError]:
        """Take a job off all switches that hold it, or off one; gives those that still do, and why."""
        holders = job.held_by if only is None else job.held_by & {only}
        gone, failed = await each(self._chosen(holders), lambda client: client.delete_job(job.id))
        job.held_by -= gone.keys()
        for name in gone:
            self._note(job, name, None)
        for name, error in failed.items():
            self._note(job, name, f"the job is still on it: {error.detail}")
        if gone:
            self._save(job)
        return failed

    async def _catch_up(self, client: SwitchClient, job: Job) -> None:
        """Bring a switch that missed a change to the settings asked for."""
        before = await self._now_ns(job)
        try:
            job.switch_states[client.name] = await _patch(client, job.id, job.symphony)
        except SwitchError as error:
            self._note(job, client.name, f"it does not have the settings asked for: {error.detail}")
            return
        after = await self._now_ns(job)
        job.behind.discard(client.name)
        self._note(job, client.name, None)
        if not job.behind and job.toggles and not job.toggles[-1].complete:
            moment = (before, after) if before is not None and after is not None else None
            job.toggles.append(Toggle(time.time(), moment, job.enabled, job.variant, complete=True))
        self._save(job)
        log.info("job %d (%s): switch %s has the settings asked for now", job.id, job.name, client.name)

    def _note(self, job: Job, switch: str, problem: str | None) -> None:
        """Show what is wrong with a switch, or that nothing is; logged once."""
        if job.switch_errors.get(switch) == problem:
            return
        if problem is None:
            del job.switch_errors[switch]
        else:
            job.switch_errors[switch] = problem
            log.warning("job %d (%s), switch %s: %s", job.id, job.name, switch, problem)
        job.touch()

    def _save(self, job: Job) -> None:
        try:
            self.store.save(job)
        except StorageError as error:
            log.warning("%s", error)

    async def _learn_preset(self) -> None:
        """Ask the twin for its preset; if it does not answer, what was known before holds."""
        if self._twin is not None:
            with contextlib.suppress(httpx.HTTPError, ValueError, KeyError, TypeError):
                answer = await self._twin.get("/api/v1/topology")
                self.preset = str(answer.raise_for_status().json()["preset"])

    async def _watch_fabric(self) -> None:
        while self._fabric_log is not None:
            await asyncio.sleep(self._poll_s)
            if any(job.on_twin for job in self.jobs):
                await self._read_fabric()

    async def _read_fabric(self) -> None:
        """Ask the twin what happened to its fabric, and tell the jobs that run on it."""
        if self._fabric_log is not None and (fresh := await self._fabric_log.new()) is not None:
            for job in self.jobs:
                if job.on_twin:
                    job.note_fabric(fresh)

    async def _now_ns(self, job: Job) -> int | None:
        """Now on the job's clock: the twin tells its own; otherwise CLOCK_MONOTONIC of this machine."""
        if job.recorder.clock.kind == "monotonic" and job.request.provider != "twin":
            return time.monotonic_ns()
        if self._twin is not None:
            try:
                answer = await self._twin.get("/api/v1/clock")
                return int(answer.raise_for_status().json()["now_ns"])
            except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
                log.warning(
                    "the twin's clock cannot be read (%s): toggle moments are as late as the last event",
                    error,
                )
        return job.recorder.frontier_ns

    async def _poll(self, client: SwitchClient) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            for job in self.jobs.active():
                if client.name in job.flows:
                    try:
                        await self._visit(client, job)
                    except Exception:  # nobody awaits this task: a mistake would end it in silence
                        log.exception("switch %s could not be polled for job %d", client.name, job.id)

    async def _visit(self, client: SwitchClient, job: Job) -> None:
        """Get a job's new samples from a switch, and do what the switch still has to be brought to."""
        if not job.ended:
            if not await self._fetch(client, job):
                return
            job.check_agreement()
        if job.pending(client.name) is None or job.lock.locked():
            return
        if job.ended and not await self._read_late(client, job):
            return
        async with job.lock:
            pending = job.pending(client.name)
            if pending == "removal":
                await self._release(job, client.name)
            elif pending == "settings":
                await self._catch_up(client, job)

    async def _fetch(self, client: SwitchClient, job: Job) -> bool:
        """Whether the switch agent answered."""
        status = self.collectors[client.name]
        try:
            fresh = await client.samples(job.id, job.switch_log.last_seq[client.name])
        except HostAgentError as error:
            status.success, status.error = False, error.detail
            job.switch_errors[client.name] = error.detail
            job.switch_log.silent.add(client.name)
            job.touch()
            return False
        status.success, status.error, status.last_success_unix_s = True, None, time.time()
        job.switch_log.silent.discard(client.name)
        if job.pending(client.name) is None:
            self._note(job, client.name, None)
        _keep(client, job, fresh)
        return True

    async def _read_late(self, client: SwitchClient, job: Job) -> bool:
        """Whether a switch may let go of an ended job: its last counters are here, or will not come.

        An agent that was away at the job's end has them when it is back: registers count on without it. One that has
        just started answers before its first sample, so it gets `LATE_READ_S` for that.
        """
        log_of_job = job.switch_log
        try:
            fresh = await client.samples(job.id, log_of_job.last_seq[client.name])
        except SwitchUnreachableError as error:
            job.answering_since.pop(client.name, None)
            self._note(job, client.name, f"the job is still on it: {error.detail}")
            return False
        except SwitchError:  # it has forgotten the job, and the counters with it
            return True
        was_missing = client.name in job.counters_missing
        if fresh:
            log_of_job.silent.discard(client.name)
        _keep(client, job, fresh)
        if client.name not in job.counters_missing:
            if was_missing:
                log.info("job %d (%s): last counters of switch %s have come late", job.id, job.name, client.name)
            return True
        since = job.answering_since.setdefault(client.name, time.monotonic())
        return time.monotonic() - since > LATE_READ_S


def _keep(client: SwitchClient, job: Job, fresh: list[dict[str, Any]]) -> None:
    for sample in fresh:
        job.switch_log.add(client.name, sample)
    if fresh:
        job.touch()


async def _patch(client: SwitchClient, job_id: int, change: dict[str, Any]) -> dict[str, Any]:
    state = await client.patch_job(job_id, change)
    settings = state.get("symphony", state)
    for key in ("enabled", "variant"):
        if key in change and settings.get(key) != change[key]:
            raise SwitchRefusedError(
                f"switch {client.name} ({client.url}) read back {key} = {settings.get(key)!r} "
                f"instead of {change[key]!r}",
                switch=client.name,
            )
    return state


def _first(failed: Mapping[str, SwitchError]) -> SwitchError:
    """The error to report: one that says most; others are named in its text."""
    errors = sorted(failed.values(), key=lambda error: isinstance(error, SwitchUnreachableError))
    first = errors[0]
    if len(errors) > 1:
        first.detail += f" (and {len(errors) - 1} more: {', '.join(str(e.extra.get('switch')) for e in errors[1:])})"
    return first
