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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fabric_twin.fabric import Fabric, Stats
from fabric_twin.presets import Preset
from fabric_twin.workload import Job
from ring_bench.overlap import StepChange, overlap_history, summarise
from switch_agent.dataplane.params import SymphonyParams

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["STEP", "At", "JobResult", "RunResult", "Simulation", "simulate"]

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
    """What became of one job.

    Attributes:
        name: of the job.
        steps: of one collective, in each ring.
        groups: world ranks of each group.
        collectives: int64 [collective, group, 2]: first post and last completion over all ranks, ns from the run's
            start; -1: not complete.
        marked: packets that the ToRs marked for it, by reason: "symphony", "queue"; empty without entries.
        packets: packets of it that the ToRs saw: "all", "outpacing".
        failure: why it did not complete; None: it did.
    """

    name: str
    steps: int
    groups: list[list[int]]
    collectives: npt.NDArray[np.int64]
    marked: Mapping[str, int]
    packets: Mapping[str, int]
    failure: str | None


@dataclass(frozen=True)
class RunResult:
    """A finished simulation.

    Attributes:
        fabric: name of the preset, with its changes.
        seed: of the run.
        jobs: in the order given to `simulate`.
        trace: array of `STEP`, ordered by job, ring, rank, step.
        stats: of the engine.
        end_ns: virtual time at the end, from the run's start.
        cpu_s: processor time of the run, set-up excluded.
        setup_cpu_s: processor time of building fabric, queue pairs and schedules.
    """

    fabric: str
    seed: int
    jobs: list[JobResult]
    trace: npt.NDArray[np.void]
    stats: Stats
    end_ns: int
    cpu_s: float
    setup_cpu_s: float

    @property
    def trace_hash(self) -> str:
        """SHA-256 of the trace's bytes (`STEP`, little-endian)."""
        return hashlib.sha256(np.ascontiguousarray(self.trace).tobytes()).hexdigest()

    def job(self, name: str) -> JobResult:
        """The job called `name`."""
        return next(job for job in self.jobs if job.name == name)

    def cct_ns(self, name: str) -> npt.NDArray[np.int64]:
        """Completion time of each collective of a job, [collective, group]; -1: not complete."""
        times = self.job(name).collectives
        return np.where(times[..., 1] < 0, -1, times[..., 1] - times[..., 0])

    def overlap(self, name: str) -> list[tuple[int, int]]:
        """Degree of step overlap of a job as (time in ns, overlap from then on); see `ring_bench.overlap`."""
        index = self.jobs.index(self.job(name))
        rows = self.trace[self.trace["job"] == index]
        changes = [
            StepChange(int(t), int(s), True) for t, s in zip(rows["posted_ns"], rows["step"], strict=True) if t >= 0
        ]
        changes += [
            StepChange(int(t), int(s), False) for t, s in zip(rows["delivered_ns"], rows["step"], strict=True) if t >= 0
        ]
        return overlap_history(changes)

    def overlap_summary(self, name: str) -> tuple[int, float]:
        """(largest, time-weighted mean) overlap of a job."""
        return summarise(self.overlap(name))


class Simulation:
    """A fabric with scripted ranks; what an `At` action gets to work on.

    Attributes:
        fabric: links, switches, counters; may be changed between events.
        jobs: as given.
    """

    def __init__(self, fabric: Preset | str, jobs: Sequence[Job], seed: int = 1, events: Sequence[At] = ()) -> None:
        raise NotImplementedError

    fabric: Fabric
    jobs: list[Job]

    def set_symphony(self, job: str, params: SymphonyParams | None) -> None:
        """Start or stop Symphony for a job in every ToR, as the switch-agent's toggle does."""
        raise NotImplementedError

    def run(self, until_ns: int | None = None) -> RunResult:
        """Run to the end of all jobs, or to `until_ns` from the start."""
        raise NotImplementedError


def simulate(
    fabric: Preset | str,
    jobs: Sequence[Job],
    *,
    seed: int = 1,
    events: Sequence[At] = (),
    until_ns: int | None = None,
    **changes: Any,
) -> RunResult:
    """Run jobs on a fabric in virtual time.

    Args:
        fabric: a preset or its name.
        jobs: what runs; all start at their `start_ns`.
        seed: of the run, as ring-bench's `--seed`: everything that is random depends on it alone.
        events: what happens at which virtual time.
        until_ns: end here even if jobs are not finished (their `failure` then says so).
        changes: fields of the preset that are to be different, as in `get_preset`.

    Raises:
        ConfigError: an unknown preset, host or job, or options that cannot work together; nothing has started.
    """
    raise NotImplementedError
