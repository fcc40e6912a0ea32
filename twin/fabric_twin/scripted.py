# SPDX-License-Identifier: Apache-2.0
"""Scripted ranks: whole workloads in one call, at engine speed.

    result = simulate("demo", [Job(config=Config(world=32, rings=4, iters=2))], seed=1)
    result.cct_ns("job")          # completion time of each collective, ns
    result.overlap("job")         # degree of step overlap over time
    result.trace_hash             # equal for equal runs

The steps of scripted ranks are those of ring-bench ranks over the verbs service, to the nanosecond: same order of
posts, queue pairs, credits and completions (tests compare the traces). Inputs and results can be pickled: sweeps call
`simulate` in many processes.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from fabric_twin.engine import kernel, script
from fabric_twin.entries import JobEntries
from fabric_twin.errors import ConfigError
from fabric_twin.events import Event
from fabric_twin.fabric import Fabric, Stats
from fabric_twin.presets import Preset, get_preset
from fabric_twin.script_layout import PlacedJob, ScriptedRanks, hosts_of, links_of, plan_of
from fabric_twin.timeline import Timeline
from fabric_twin.topology import Host
from fabric_twin.workload import Job
from ring_bench.overlap import StepChange, overlap_history, summarise
from ring_bench.schedule import Schedule
from ring_bench.workload import Do
from switch_agent.dataplane.params import SymphonyParams

__all__ = ["STEP", "At", "JobResult", "RunResult", "Simulation", "simulate"]

Times = npt.NDArray[np.int64]
PS_PER_NS = 1000

STEP = np.dtype(
    [
        ("job", "<i4"),
        ("ring", "<i4"),
        ("rank", "<i4"),
        ("step", "<i4"),
        ("posted_ns", "<i8"),
        ("delivered_ns", "<i8"),
    ]
)
"""A step of the trace: its sender, and virtual times from the run's start. -1: did not happen."""


@dataclass(frozen=True)
class At:
    """Something done to the running twin at a virtual time.

    Attributes:
        t_ns: from the run's start.
        action: called with the `Simulation` once all events up to that time have happened.
    """

    t_ns: int
    action: Callable[[Simulation], None]


@dataclass(frozen=True)
class JobResult:
    """What became of one job. Times are ns from the run's start; -1: did not happen.

    Attributes:
        name: of the job.
        groups: world ranks of each group, in ring order.
        operations: [collective, 2]: first step and number of steps of each collective, in the order of the run.
        posted_ns: [ring, rank, step]: first post by the sending rank.
        delivered_ns: [ring, rank, step]: completion at the receiver of what `rank` sent.
        complete_ns: [rank, collective]: when it was complete there.
        mark_ns: [rank, i]: when the rank started, and when each iteration of a trace had ended there.
        packets: packets of it that the switches saw: "all", "outpacing"; empty without entries.
        marked: ... that they marked: "symphony", "queue".
        failure: why the job did not complete; None: it did.
    """

    name: str
    groups: list[list[int]]
    operations: Times
    posted_ns: Times
    delivered_ns: Times
    complete_ns: Times
    mark_ns: Times
    packets: dict[str, int]
    marked: dict[str, int]
    failure: str | None

    @property
    def collectives(self) -> Times:
        """[collective, group, 2]: first post and last completion over all ranks and rings; -1: not complete."""
        times = np.full((len(self.operations), len(self.groups), 2), -1, dtype=np.int64)
        for number, (first, steps) in enumerate(self.operations.tolist()):
            for place, group in enumerate(self.groups):
                posted = self.posted_ns[:, group, first : first + steps]
                delivered = self.delivered_ns[:, group, first : first + steps]
                if self.complete_ns[group, number].min() >= 0 and (posted >= 0).any():
                    times[number, place] = posted[posted >= 0].min(), delivered.max()
        return times

    @property
    def cct_ns(self) -> Times:
        """Completion time of each collective, [collective, group]; -1: not complete."""
        begin, end = np.moveaxis(self.collectives, -1, 0)
        return np.where(end < 0, -1, end - begin)

    def overlap(self) -> list[tuple[int, int]]:
        """Degree of step overlap as (time in ns, overlap from then on); see `ring_bench.overlap`."""
        return overlap_history(self._changes())

    def overlap_summary(self) -> tuple[int, float]:
        """(largest, time-weighted mean) overlap."""
        return summarise(self.overlap())

    def _changes(self) -> Iterator[StepChange]:
        for times, enters in ((self.posted_ns, True), (self.delivered_ns, False)):
            for row in times.reshape(-1, times.shape[-1]):
                yield from (StepChange(t, step, enters) for step, t in enumerate(row.tolist()) if t >= 0)


@dataclass(frozen=True)
class RunResult:
    """A finished simulation.

    Attributes:
        fabric: name of the preset, with its changes.
        seed: of the run.
        jobs: in the order given to `simulate`.
        stats: of the engine.
        end_ns: virtual time at the end, from the run's start.
        cpu_s: processor time of the run, set-up excluded.
        setup_cpu_s: processor time of building fabric, queue pairs and schedules.
    """

    fabric: str
    seed: int
    jobs: list[JobResult]
    stats: Stats
    end_ns: int
    cpu_s: float
    setup_cpu_s: float

    def job(self, name: str) -> JobResult:
        """The job called `name`.

        Raises:
            ConfigError: there is none.
        """
        for job in self.jobs:
            if job.name == name:
                return job
        raise ConfigError(f"no job {name!r} in this run; there are {', '.join(job.name for job in self.jobs)}")

    def cct_ns(self, name: str) -> Times:
        """Completion times of a job's collectives, see `JobResult.cct_ns`."""
        return self.job(name).cct_ns

    def overlap(self, name: str) -> list[tuple[int, int]]:
        """Degree of step overlap of a job, see `JobResult.overlap`."""
        return self.job(name).overlap()

    def overlap_summary(self, name: str) -> tuple[int, float]:
        """(largest, time-weighted mean) overlap of a job."""
        return self.job(name).overlap_summary()

    def _traces(self) -> Iterator[npt.NDArray[np.void]]:
        for index, job in enumerate(self.jobs):
            rings, ranks, steps = job.posted_ns.shape
            for ring in range(rings):
                rows = np.empty(ranks * steps, dtype=STEP)
                rows["job"], rows["ring"] = index, ring
                rows["rank"] = np.repeat(np.arange(ranks), steps)
                rows["step"] = np.tile(np.arange(steps), ranks)
                rows["posted_ns"] = job.posted_ns[ring].reshape(-1)
                rows["delivered_ns"] = job.delivered_ns[ring].reshape(-1)
                yield rows

    @property
    def trace(self) -> npt.NDArray[np.void]:
        """All steps, an array of `STEP` in order of job, ring, rank, step."""
        return np.concatenate(list(self._traces()))

    @property
    def trace_hash(self) -> str:
        """SHA-256 of the bytes of `trace` (little-endian, packed)."""
        digest = hashlib.sha256()
        for rows in self._traces():
            digest.update(rows.tobytes())
        return digest.hexdigest()


class Simulation:
    """A fabric with scripted ranks; what an `At` action gets to work on.

    Args: see `simulate`.

    Attributes:
        fabric: links, switches, counters; may be changed between events.
        jobs: as given.
        timeline: the events.
        helpers: what actions want to find again later, by name.
    """

    def __init__(self, fabric: Preset, jobs: Sequence[Job], seed: int = 1, events: Sequence[At | Event] = ()) -> None:
        began = time.process_time()
        names = [job.name for job in jobs]
        if not jobs or len(set(names)) < len(names):
            raise ConfigError(f"a simulation needs jobs with names of their own, not {', '.join(names) or 'none'}")
        for job in jobs:
            plan_of(job, fabric.mtu)  # raises before anything has happened
        self.jobs = list(jobs)
        self.fabric = Fabric(fabric, seed)
        self.fabric.quiesce(seed)
        self.start_ps = self.fabric.now_ps
        self._ranks = ScriptedRanks(self.fabric)
        self._entries = JobEntries(self.fabric)
        self._placed: dict[str, PlacedJob] = {}
        self.timeline = Timeline(self.fabric, [event for event in events if not isinstance(event, At)])
        self.helpers: dict[str, object] = {}
        for event in events:
            if isinstance(event, At):
                self.timeline.at(self.start_ps + event.t_ns * PS_PER_NS, partial(event.action, self))
        for job in sorted(jobs, key=lambda job: job.name):
            if job.start_ns == 0:
                self._place(job)
        self.setup_cpu_s = time.process_time() - began

    def _place(self, job: Job) -> None:
        if job.tracked or job.symphony is not None:
            plan = plan_of(job, self.fabric.preset.mtu)
            hosts = hosts_of(job, self.fabric.topology)
            flows = {(hosts[link.rank], hosts[link.behind]) for link in links_of(plan)}
            tag = job.config.layout.classify(job.config.job_tag)
            self._ranks.note_sports()
            self._entries.add(job.name, flows, tag, job.symphony, ranked=job.ranked)
        self._placed[job.name] = self._ranks.place(job)

    def queue_pairs(self, job: str) -> list[list[int]]:
        """Rows of the queue pairs of each rank of a job that has started, by world rank."""
        return [
            [q for axes in rings for pairs in axes for q in (*pairs.send, pairs.credit, *pairs.recv, pairs.grant)]
            for rings in self._placed[job].pairs
        ]

    def flows(self, job: str) -> list[tuple[Host, Host]]:
        """Sender and receiver of each edge of the rings of a job that has started."""
        placed = self._placed[job]
        return [(placed.hosts[edge.rank], placed.hosts[edge.behind]) for edge in links_of(placed.plan)]

    def is_over(self, job: str) -> bool:
        """The job has ended, well or not."""
        return self._placed[job].over

    @property
    def now_ns(self) -> int:
        """Virtual time since the run's start."""
        return (self.fabric.now_ps - self.start_ps) // PS_PER_NS

    def set_symphony(self, job: str, params: SymphonyParams | None) -> None:
        """Change Symphony's parameters of a job in all switches, or stop it (None), as the switch-agent's toggle does.

        Raises:
            ConfigError: the job has no entries in the switches, or not the state that the parameters need.
        """
        self._entries.set_params(job, params)

    def run(self, until_ns: int | None = None) -> RunResult:
        """Run to the end of all jobs, or to `until_ns` from the start."""
        began, setup_s = time.process_time(), 0.0
        waiting = sorted(self.jobs, key=lambda job: (job.start_ns, job.name))
        end_ps = None if until_ns is None else self.start_ps + until_ns * PS_PER_NS
        while True:
            now_ps = self.fabric.now_ps
            if self.timeline.next_ps is not None and self.timeline.next_ps <= now_ps:
                self._carry_out_events()
            while waiting and self._start_of(waiting[0]) <= now_ps:
                job = waiting.pop(0)
                if job.name not in self._placed:
                    before = time.process_time()
                    self._place(job)
                    setup_s += time.process_time() - before
                self._ranks.begin(self._placed[job.name])
            over = all(placed.over for placed in self._placed.values())
            if (over and not waiting) or (end_ps is not None and now_ps >= end_ps):
                break
            due = [self._start_of(job) for job in waiting[:1]]
            due += [t for t in (self.timeline.next_ps, end_ps) if t is not None]
            reason = self._ranks.run(min(due, default=None))
            if reason == script.JOB_OVER:
                self._end_job()
            elif reason == kernel.STOPPED:
                self.timeline.take(self.fabric.take_events())
            elif reason == kernel.IDLE:
                for placed in self._placed.values():
                    if not placed.over:
                        placed.failure = "all its ranks wait and nothing is on its way"
                break
        self.setup_cpu_s += setup_s
        return self._result(time.process_time() - began - setup_s)

    def _start_of(self, job: Job) -> int:
        return self.start_ps + job.start_ns * PS_PER_NS

    def _carry_out_events(self) -> None:
        """Events see and may change all queue pairs and routes."""
        self._ranks.note_sports()
        self.timeline.carry_out()
        self._ranks.refresh_paths()

    def _end_job(self) -> None:
        placed = self._ranks.take_over()
        if len(self.jobs) > 1:  # others would meet what it leaves
            self._ranks.remove(placed)

    def _result(self, cpu_s: float) -> RunResult:
        return RunResult(
            fabric=self.fabric.preset.name,
            seed=self.fabric.seed,
            jobs=[self._job_result(job) for job in self.jobs],
            stats=self.fabric.stats(),
            end_ns=self.now_ns,
            cpu_s=cpu_s,
            setup_cpu_s=self.setup_cpu_s,
        )

    def _job_result(self, job: Job) -> JobResult:
        plan = plan_of(job, self.fabric.preset.mtu)
        config = plan.config
        placed = self._placed.get(job.name)
        if placed is None:
            never = np.full((config.rings, config.world, plan.steps_total), -1, dtype=np.int64)
            posted = delivered = never
            complete = mark = np.full((config.world, len(plan.operations)), -1, dtype=np.int64)
            failure: str | None = "it had not started"
        else:
            k = self._ranks.script
            posted, received = placed.by_rank(k.posted), placed.by_rank(k.delivered)
            delivered = np.empty_like(received)
            grid = Schedule(0, config.grid)
            axis_of_shape = [plan.axes_of(shape) for shape in range(len(plan.schedules))]
            axis_of = np.array([axis for operation in plan.operations for axis in axis_of_shape[operation.shape]])
            for axis in plan.axes:
                steps = np.nonzero(axis_of == axis)[0]
                for group in config.groups:
                    for position, number in enumerate(group):
                        receiver = group[grid.next_rank(position, axis)]
                        delivered[:, number, steps] = received[:, receiver, steps]
            complete = placed.events(k.complete, placed.complete, len(plan.operations))
            mark = placed.events(k.mark, placed.marks, 1 + sum(do is Do.MARK for do, _ in plan.actions))
            failure = placed.failure or (None if placed.over else "it had not ended")
        counts = self._entries.counts(job.name)
        return JobResult(
            name=job.name,
            groups=config.groups,
            operations=np.array([operation[1:3] for operation in plan.operations], dtype=np.int64),
            posted_ns=self._since_start(posted),
            delivered_ns=self._since_start(delivered),
            complete_ns=self._since_start(complete),
            mark_ns=self._since_start(mark),
            packets={kind: counts[kind] for kind in ("all", "outpacing") if counts},
            marked={kind: counts[kind] for kind in ("symphony", "queue") if counts},
            failure=failure,
        )

    def _since_start(self, times_ns: Times) -> Times:
        return np.where(times_ns < 0, -1, times_ns - self.start_ps // PS_PER_NS)


def simulate(
    fabric: Preset | str,
    jobs: Sequence[Job],
    *,
    seed: int = 1,
    events: Sequence[At | Event] = (),
    until_ns: int | None = None,
    **changes: Any,
) -> RunResult:
    """Run jobs on a fabric in virtual time.

    Args:
        fabric: a preset or its name.
        jobs: what runs; each starts at its `start_ns`.
        seed: of the run, as ring-bench's `--seed`: everything that is random depends on it alone.
        events: what happens at which virtual time: `At`, or events of a scenario file (`fabric_twin.events`), whose
            times count from the run's start. There are no processes here that could be slowed down.
        until_ns: end here even if jobs are not finished (their `failure` then says so).
        changes: fields of a named preset that are to be different, as in `get_preset`.

    Raises:
        ConfigError: an unknown preset, host or job, or options that cannot work together; nothing has started.
    """
    preset = get_preset(fabric, **changes) if isinstance(fabric, str) else fabric
    return Simulation(preset, jobs, seed, events).run(until_ns)
