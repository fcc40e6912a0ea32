# SPDX-License-Identifier: Apache-2.0
"""What may keep the steps of a job together, side by side: chosen per job of a simulation.

An algorithm acts at up to three places: it may want another fabric, it may change the job before it is placed, and it
may act on the running simulation. The docstring of each says where it comes from.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

from fabric_twin.errors import ConfigError
from fabric_twin.events import Event
from fabric_twin.presets import Preset, changed
from fabric_twin.processes import Processes
from fabric_twin.rate_split import RateSplit
from fabric_twin.scripted import At, RunResult, Simulation
from fabric_twin.workload import Job
from switch_agent.dataplane.params import SymphonyParams

__all__ = ["ALGORITHMS", "Algorithm", "describe", "named", "run"]


@dataclass(frozen=True)
class Algorithm:
    """Base of all algorithms: changes nothing.

    Attributes:
        params: Symphony's parameters, for those that use them.
        start_ns: when ``late-start`` begins, virtual time from the run's start.
    """

    params: SymphonyParams = field(default_factory=SymphonyParams)
    start_ns: int = 500_000_000

    def fabric(self, spec: Preset) -> Preset:
        """The fabric that it runs on."""
        return spec

    def job(self, job: Job) -> Job:
        """The job as it is placed."""
        return replace(job, symphony=None)

    def events(self, job: Job) -> list[At]:
        """What it does while the job runs."""
        return []


class Off(Algorithm):
    """DCQCN alone, the paper's baseline (section 4.1: "a standard DCQCN-enabled RoCEv2 baseline")."""


class Symphony(Algorithm):
    """Symphony from the start, with the parameters given (paper, section 3; variants in docs/p4.md)."""

    def job(self, job: Job) -> Job:
        """The job with its parameters in the switches."""
        return replace(job, symphony=self.params)


class LateStart(Algorithm):
    """Symphony from `start_ns` on (paper, figure 4a: "Symphony (Late-Start)", 500 ms)."""

    def events(self, job: Job) -> list[At]:
        """Turns it on."""
        return [At(max(self.start_ns, job.start_ns + 1), partial(_turn_on, job.name, self.params))]


class Priority(Algorithm):
    """Strict priority for lagging steps in the switch (the paper's PQ, sections 2.3 and 4.3).

    A packet whose step is not ahead of its job's step_min in a switch with Symphony goes before all others in the
    egress queue; nothing is marked but by RED. No flow overtakes itself. The paper gives no details; this is ours.
    """

    def job(self, job: Job) -> Job:
        """The job, ranked."""
        return replace(job, symphony=None, tracked=True, ranked=True)


class Theoretical(Algorithm):
    """Lock-step on balanced paths (the paper's "Theoretical", section 2.2): static routes, and no congestion control.

    With PFC and nothing that slows single flows down, flows of a step share every link packet by packet and end
    together, so that the run takes as long as its busiest link is busy (`fabric_twin.bound`).
    """

    def fabric(self, spec: Preset) -> Preset:
        """Static routes, no DCQCN, lossless."""
        return changed(spec, routing="static", dcqcn="off", pfc=True)

    def job(self, job: Job) -> Job:
        """The job without entries in the switches."""
        return replace(job, symphony=None, tracked=False)


class ProcessCentric(Algorithm):
    """Process-centric rate control (PRC), in the spirit of Proc. ACM Netw. 4, CoNEXT2 (2026), doi 10.1145/3808669.

    Only its abstract is public; this is our reading of it: the sending NIC infers from its own process's progress
    against its peers that it lags and raises its share, others give way. How: `fabric_twin.engine.progress`.
    """

    def events(self, job: Job) -> list[At]:
        """Tells the NICs which queue pairs belong together."""
        return [At(job.start_ns + 1, partial(_weigh, job.name))]


class Coordinated(Algorithm):
    """Coordination of tenants, in the spirit of *Symphony* (ICNP 2025), doi 10.1109/icnp65844.2025.11192450.

    Only title and references are public; this is ours: a controller that knows the demands of all jobs that chose it
    and the links they share gives each job its max-min fair rate and caps the NICs at it, anew when a job comes or goes
    (it looks once a millisecond). See `fabric_twin.rate_split`.
    """

    def events(self, job: Job) -> list[At]:
        """Has the controller look after this job too."""
        return [At(job.start_ns + 1, partial(_coordinate, job.name))]


ALGORITHMS: Mapping[str, type[Algorithm]] = MappingProxyType(
    {
        "off": Off,
        "symphony": Symphony,
        "late-start": LateStart,
        "priority": Priority,
        "theoretical": Theoretical,
        "prc": ProcessCentric,
        "coordinated": Coordinated,
    }
)


def named(name: str, params: SymphonyParams | None = None, start_ns: int | None = None) -> Algorithm:
    """The algorithm of that name.

    Raises:
        ConfigError: there is none; names those there are.
    """
    if name not in ALGORITHMS:
        raise ConfigError(f"no algorithm {name!r}; there are {', '.join(ALGORITHMS)}")
    algorithm = ALGORITHMS[name]()
    return replace(
        algorithm,
        params=algorithm.params if params is None else params,
        start_ns=algorithm.start_ns if start_ns is None else start_ns,
    )


def describe() -> list[tuple[str, str]]:
    """Name and first line of the docstring of each algorithm."""
    return [(name, (inspect.getdoc(kind) or "").splitlines()[0]) for name, kind in ALGORITHMS.items()]


def run(
    fabric: Preset,
    jobs: Sequence[tuple[Job, Algorithm]],
    *,
    seed: int = 1,
    events: Sequence[At | Event] = (),
    until_ns: int | None = None,
) -> RunResult:
    """Simulate jobs, each with an algorithm of its own; arguments as `simulate`'s.

    Raises:
        ConfigError: as `simulate`; or two jobs want fabrics that exclude each other.
    """
    fabrics = {algorithm.fabric(fabric).name: algorithm.fabric(fabric) for _, algorithm in jobs}
    if len(fabrics) > 1:
        raise ConfigError(f"these algorithms want different fabrics: {' and '.join(fabrics)}; run them one by one")
    (wanted,) = fabrics.values() or [fabric]
    acts = [at for job, algorithm in jobs for at in algorithm.events(job)]
    placed = [algorithm.job(job) for job, algorithm in jobs]
    return Simulation(wanted, placed, seed, [*acts, *events]).run(until_ns)


def _turn_on(job: str, params: SymphonyParams, simulation: Simulation) -> None:
    simulation.set_symphony(job, params)


def _weigh(job: str, simulation: Simulation) -> None:
    processes = Processes(simulation.fabric)
    for qps in simulation.queue_pairs(job):
        processes.add(qps, weighed=True)


def _coordinate(job: str, simulation: Simulation) -> None:
    controller = simulation.helpers.setdefault("rate-split", RateSplit(simulation.fabric))
    assert isinstance(controller, RateSplit)
    controller.add(job, simulation.flows(job), simulation.queue_pairs(job))
    if len(controller.jobs) == 1:
        _look(controller, simulation)


def _look(controller: RateSplit, simulation: Simulation) -> None:
    for job in [job for job in controller.jobs if simulation.is_over(job)]:
        controller.remove(job)
    if controller.jobs:
        again: Callable[[], None] = partial(_look, controller, simulation)
        simulation.timeline.at(simulation.fabric.now_ps + RateSplit.PERIOD_PS, again)
