# SPDX-License-Identifier: Apache-2.0
"""One run: a case and a seed become a simulation on the twin, and its result becomes rows."""

from __future__ import annotations

import math
from typing import Any

from fabric_twin.errors import TwinError
from fabric_twin.presets import Preset, get_preset
from fabric_twin.scripted import At, RunResult, Simulation, simulate
from fabric_twin.workload import Job
from ring_bench.config import Config
from ring_bench.errors import RingBenchError
from ring_bench.units import parse_size
from switch_agent.dataplane.errors import ParameterError
from switch_agent.dataplane.params import SymphonyParams
from symphony_experiments.errors import ScenarioError
from symphony_experiments.scenario import Case, JobSpec, WorkloadSpec
from symphony_experiments.store import Finished

__all__ = ["run_case"]

Table = dict[str, Any]


def run_case(key: str, case: Table, columns: Table) -> Finished:
    """Run one case.

    Args:
        key: the run's key.
        case: what `Planned.to_case` gives: a `Case` and the seed.
        columns: what else the rows say of it (variant, values of the axes).

    Raises:
        ScenarioError: the twin refuses it: says why.
    """
    seed = case["seed"]
    spec = Case.model_validate({name: value for name, value in case.items() if name != "seed"})
    try:
        fabric = _fabric(spec)
        jobs = [_job(spec, job, fabric) for job in spec.jobs or [JobSpec(name="job")]]
        result = simulate(fabric, jobs, seed=seed, events=_events(spec, jobs))
    except (TwinError, RingBenchError, ParameterError, ValueError) as error:
        raise ScenarioError(str(error)) from None
    rows = [{**columns, "key": key, "seed": seed, **_figures(result, job.name)} for job in jobs]
    engine = {
        "data_packets": result.stats.data_packets,
        "events": result.stats.events,
        "cpu_s": round(result.cpu_s, 3),
        "setup_cpu_s": round(result.setup_cpu_s, 3),
    }
    return Finished(key, rows, _curves(spec, result), result.trace_hash, engine)


def _fabric(spec: Case) -> Preset:
    return get_preset(spec.fabric.preset, **spec.fabric.changes())


def _job(spec: Case, job: JobSpec, fabric: Preset) -> Job:
    work = WorkloadSpec.model_validate({**spec.workload.model_dump(exclude_unset=True), **job.workload})
    ranks = work.ranks or fabric.n_hosts * job.block // job.stride
    config = _config(work, ranks)
    hosts = tuple(job.first_host + rank // job.block * job.stride + rank % job.block for rank in range(ranks))
    algorithm = job.algorithm or spec.algorithm
    params = None if algorithm in ("off", "late-start") else _params(spec)
    return Job(config=config, hosts=hosts, name=job.name, start_ns=round(job.start_ms * 1e6), symphony=params)


def _config(work: WorkloadSpec, ranks: int) -> Config:
    draft = Config(world=ranks, split=work.split)
    size = parse_size(str(work.chunk)) * work.rings * len(draft.groups[0])
    return Config(
        world=ranks,
        split=work.split,
        rings=work.rings,
        minbytes=size,
        maxbytes=size,
        iters=work.iterations,
        warmup_iters=0,
        check=0,
        tagging=work.tagging,
        release=work.release,
        slots=1 << work.step_bits if work.tagging == "static" else work.slots,
        step_bits=work.step_bits,
    )


def _params(spec: Case) -> SymphonyParams:
    given = {k: v for k, v in spec.symphony.model_dump().items() if k != "variant" and v is not None}
    base = SymphonyParams.variant(spec.symphony.variant)
    return SymphonyParams(**{**{name: getattr(base, name) for name in base.__dataclass_fields__}, **given})


def _events(spec: Case, jobs: list[Job]) -> list[At]:
    late = [
        job.name
        for job, wanted in zip(jobs, spec.jobs or [JobSpec(name="job")], strict=True)
        if (wanted.algorithm or spec.algorithm) == "late-start"
    ]
    params = _params(spec)

    def turn_on(running: Simulation) -> None:
        for name in late:
            running.set_symphony(name, params)

    return [At(round(spec.late_start_ms * 1e6), turn_on)] if late else []


def _figures(result: RunResult, name: str) -> Table:
    """The row of one job. CCT is that of the whole run of collectives: first post to last completion."""
    job = result.job(name)
    times = job.collectives
    complete = job.failure is None and bool((times >= 0).all())
    largest, mean = result.overlap_summary(name)
    return {
        "job": name,
        "failure": job.failure,
        "cct_ms": float(times[..., 1].max() - times[..., 0].min()) / 1e6 if complete else None,
        "max_overlap": largest,
        "mean_overlap": round(mean, 4) if math.isfinite(mean) else None,
        "marked_symphony": job.marked.get("symphony"),
        "marked_queue": job.marked.get("queue"),
        "packets_all": job.packets.get("all"),
        "packets_outpacing": job.packets.get("outpacing"),
        "trace_hash": result.trace_hash,
    }


def _curves(spec: Case, result: RunResult) -> dict[str, list[float]]:
    curves: dict[str, list[float]] = {}
    for job in result.jobs if spec.keep else []:
        prefix = "" if len(result.jobs) == 1 else f"{job.name}."
        if "overlap" in spec.keep:
            history = result.overlap(job.name)
            curves[f"{prefix}overlap.t_ms"] = [t / 1e6 for t, _ in history]
            curves[f"{prefix}overlap"] = [float(value) for _, value in history]
    return curves
