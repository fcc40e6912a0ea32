# SPDX-License-Identifier: Apache-2.0
"""One run: a case and a seed become a simulation on the twin, and its result becomes rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from fabric_twin import algorithms
from fabric_twin.algorithms import Algorithm, named
from fabric_twin.bound import busiest_link_ns
from fabric_twin.errors import TwinError
from fabric_twin.presets import Preset, get_preset
from fabric_twin.scripted import RunResult
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
        fabric = get_preset(spec.fabric.preset, **spec.fabric.changes())
        jobs = [_job(spec, job, fabric) for job in spec.jobs or [JobSpec(name="job")]]
        result = algorithms.run(fabric, jobs, seed=seed, events=spec.events)
    except (TwinError, RingBenchError, ParameterError, ValueError) as error:
        raise ScenarioError(str(error)) from None
    rows = [{**columns, "key": key, "seed": seed, **_figures(result, fabric, job)} for job, _ in jobs]
    engine = {
        "data_packets": result.stats.data_packets,
        "events": result.stats.events,
        "cpu_s": round(result.cpu_s, 3),
        "setup_cpu_s": round(result.setup_cpu_s, 3),
    }
    return Finished(key, rows, _curves(spec, result), result.trace_hash, engine)


def _job(spec: Case, job: JobSpec, fabric: Preset) -> tuple[Job, Algorithm]:
    work = WorkloadSpec.model_validate({**spec.workload.model_dump(exclude_unset=True), **job.workload})
    ranks = work.ranks or fabric.n_hosts * job.block // job.stride
    hosts = tuple(job.first_host + rank // job.block * job.stride + rank % job.block for rank in range(ranks))
    placed = Job(config=_config(work, ranks), hosts=hosts, name=job.name, start_ns=round(job.start_ms * 1e6))
    return placed, named(job.algorithm or spec.algorithm, _params(spec), round(spec.late_start_ms * 1e6))


def _config(work: WorkloadSpec, ranks: int) -> Config:
    dims = tuple(int(side) for side in work.dims.split("x")) if work.dims else None
    ring = dims[0] if dims else len(Config(world=ranks, split=work.split).groups[0])
    size = parse_size(str(work.chunk)) * work.rings * ring
    return Config(
        world=ranks,
        split=work.split,
        collective=work.collective,
        dims=dims,
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


def _figures(result: RunResult, fabric: Preset, placed: Job) -> Table:
    """The row of one job.

    CCT is that of the whole run of collectives, first post to last completion; JCT is from the job's start to its end,
    computation included; the span of the last step is the time between its first and its last completion.
    """
    job = result.job(placed.name)
    times = job.collectives
    complete = job.failure is None and bool((times >= 0).all())
    largest, mean = job.overlap_summary()
    last = job.delivered_ns[..., -1]
    bound = busiest_link_ns(fabric, placed) / 1e6
    cct_ms = float(times[..., 1].max() - times[..., 0].min()) / 1e6 if complete else None
    return {
        "job": placed.name,
        "ranks": placed.config.world,
        "failure": job.failure,
        "cct_ms": cct_ms,
        "jct_ms": float(times[..., 1].max() - placed.start_ns) / 1e6 if complete else None,
        "x_ideal": cct_ms / bound if cct_ms is not None and not placed.config.trace else None,
        "last_span_ms": float(last.max() - last.min()) / 1e6 if complete and (last >= 0).all() else None,
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
            history = job.overlap()
            curves[f"{prefix}overlap.t_ms"] = [t / 1e6 for t, _ in history]
            curves[f"{prefix}overlap"] = [float(value) for _, value in history]
        if "completion" in spec.keep:
            edges, share = completion_rate(job.delivered_ns)
            curves[f"{prefix}completion.t_ms"] = edges
            curves[f"{prefix}completion"] = share
    return curves


def completion_rate(delivered_ns: npt.NDArray[np.int64], bin_ms: float = 50.0) -> tuple[list[float], list[float]]:
    """Step completions per millisecond, in bins of `bin_ms`: (begin of each bin in ms, rate)."""
    done = np.sort(delivered_ns[delivered_ns >= 0]) / 1e6
    if len(done) == 0:
        return [], []
    edges = np.arange(0.0, done[-1] + bin_ms, bin_ms)
    counts, _ = np.histogram(done, bins=np.append(edges, edges[-1] + bin_ms))
    return edges.tolist(), (counts / bin_ms).tolist()
