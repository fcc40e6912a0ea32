# SPDX-License-Identifier: Apache-2.0
"""What a run leaves behind: the models of the JSON result, its schema, and writing it safely.

The schema is published as ``docs/ring-bench.schema.json`` (a test keeps it equal to these models). "results"
holds nothing that depends on wall-clock time: on the twin, equal seeds give equal bytes there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from ring_bench.output import write_result_file

__all__ = [
    "SCHEMA_VERSION",
    "CallResult",
    "Failure",
    "HostClock",
    "Overlap",
    "Parameters",
    "Percentiles",
    "PortCounters",
    "RunCounters",
    "RunResult",
    "SizeResult",
    "Totals",
    "TrainingResult",
    "Verdicts",
    "Versions",
    "json_schema",
    "percentiles",
    "write_result",
]

SCHEMA_VERSION = 1


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_serialization_defaults_required=True)


class Percentiles(_Model):
    """Nearest-rank percentiles of a sample, in the unit of the field's name."""

    p50: float
    p95: float
    p99: float
    max: float


class Overlap(_Model):
    """Degree of step overlap over all rings and ranks of the job."""

    max: int | None = Field(description="largest that lasted longer than uncertainty_us; null: indeterminate, none did")
    seen: int = Field(description="largest seen; more than max: for a time that the clocks cannot resolve")
    mean: float = Field(description="time-weighted, from the first post to the last completion of the size")


class SizeResult(_Model):
    """One row of the table: one message size of one cycle, timed iterations only."""

    cycle: int = Field(description="0 .. run_cycles - 1")
    size_bytes: int = Field(description="bytes of the AllReduce on the wire's scale (payload_scale included)")
    count: int = Field(description="elements, on the same scale")
    type: str
    redop: str
    root: int = Field(description="of a broadcast, rank within the group; -1: there is none")
    time_us: float | None = Field(
        description="time of one iteration: first post to last completion over all timed iterations of "
        "a group, divided by their number, mean over the groups; null when no time passed (one rank)"
    )
    algbw_gbps: float | None = Field(description="size / time in GB/s (10^9 bytes per second), as nccl-tests")
    busbw_gbps: float | None = Field(description="algbw x 2(N-1)/N, N = ranks of a group, in GB/s")
    wrong: int | None = Field(
        description="elements with a wrong value, all ranks, warm-up included; null when check is 0"
    )
    iterations: int = Field(description="timed iterations that every covered rank completed")
    cct_us: Percentiles | None = Field(
        description="collective completion time per group and iteration: first post to last completion"
    )
    step_us: Percentiles | None = Field(description="sender's first post to receiver's completion of a step")
    steps_indeterminate: int = Field(description="step durations in step_us smaller than uncertainty_us, or negative")
    step_overlap: Overlap | None
    uncertainty_us: float = Field(description="how far a time between two hosts may be off; 0: all share one clock")
    cct_ns: list[list[int]] = Field(description="the samples behind cct_us: [group][iteration]")


class CallResult(_Model):
    """A collective of a training step: a bucket of gradients, or a call of model parallelism."""

    name: str
    collective: str
    along: list[str] = Field(description="dimensions of the grid")
    ranks: int = Field(description="that take part together")
    size_bytes: int = Field(description="of the whole buffer on the wire's scale")
    cct_us: Percentiles | None = Field(
        description="first post to last completion, of each set of ranks and timed step; null when nothing was sent"
    )
    busbw_gbps: float | None = Field(description="size / median CCT times the collective's factor, in GB/s")
    wrong: int | None = Field(description="elements with a wrong value in the timed steps; null when check is 0")


class TrainingResult(_Model):
    """The timed steps of a training."""

    trace: str
    source: str = Field(description="where the trace's layers, bytes and times come from")
    dimensions: dict[str, int] = Field(description="ranks along each dimension")
    steps: int = Field(description="timed steps that every covered rank ended")
    jct_us: float = Field(description="job completion time: first rank's begin to last rank's end of the timed steps")
    step_ns: list[int] = Field(description="last rank's end of each step after that of the one before; sum: jct_us")
    compute_us: float = Field(description="computation per step, jitter included, mean over ranks and steps")
    exposed_us: float = Field(
        description="communication that computation did not hide: a rank's step less its computation, mean"
    )
    exposed_percentiles_us: Percentiles | None = Field(description="of exposed_us over ranks and steps")
    wrong: int | None = Field(description="elements with a wrong value, all ranks; null when check is 0")
    step_overlap: Overlap | None = Field(description="from the first post of the timed steps to their last completion")
    uncertainty_us: float = Field(description="how far a time between two hosts may be off; 0: all share one clock")
    calls: list[CallResult] = Field(description="in the order in which they are issued")


class Parameters(_Model):
    """The options of the run, as they were used."""

    world: int
    collective: str | None = Field(description="null: a training, which calls several")
    root: int = Field(description="of a broadcast, rank within the group")
    dims: list[int] = Field(description="grid of a group, fastest dimension first")
    compute_ns: int = Field(description="computation before each iteration; a training has its own")
    compute_jitter: str
    jitter_seed: int
    split: str | None
    rings: int
    minbytes: int
    maxbytes: int
    stepbytes: int | None
    stepfactor: int | None
    iters: int
    warmup_iters: int
    run_cycles: int
    check: int
    datatype: str
    op: str
    slots: int
    job_tag: int
    step_bits: int
    segment_bytes: int
    mtu: int | None = Field(description="path MTU in bytes; null when the run failed before it was agreed on")
    traffic_class: int
    payload_scale: int
    seed: int


class Versions(_Model):
    """What ran."""

    ring_bench: str
    python: str
    numpy: str


class Failure(_Model):
    """The first failure of a run that did not end well."""

    kind: str
    message: str
    rank: int | None = None
    host: str | None = None
    step: int | None = Field(
        default=None,
        description="where it happened; if nobody can say (a process died): the first that had not arrived here",
    )
    status: str | None = Field(default=None, description="name of the ibv_wc_status, if a completion failed")


class HostClock(_Model):
    """How the times of some ranks were brought onto rank 0's clock."""

    host: str
    ranks: list[int]
    offset_ns: int = Field(description="rank 0's clock ahead of this host's, before the run")
    uncertainty_ns: int = Field(description="largest error of an aligned time")
    drift_ppm: float | None = Field(description="rank 0's clock faster than this host's; null: not measured again")


class Verdicts(_Model):
    """What the change of counters over the run says; null: not known, the NIC does not count it or cannot be asked."""

    flap: bool | None = Field(description="a link went down, or the driver was reloaded")
    gid_changed: bool | None = Field(
        description="a GID of the port's network device came, went or moved: addresses or links were changed"
    )
    rnr: bool | None = Field(description="a receiver was not ready (receiver-not-ready NAKs, no buffer)")
    loss: bool | None = Field(description="packets lost, damaged or so late that they were sent again")
    wrong_priority: bool | None = Field(description="over 10 % of the bytes left on another priority than DSCP / 8")
    pause: bool | None = Field(description="pause frames were sent or received; normal where PFC is on")


class PortCounters(_Model):
    """How the counters of one RDMA port changed from before the first to after the last step."""

    host: str
    device: str
    port: int
    netdev: str
    deltas: dict[str, int] = Field(
        description="by the kernel's names and in its units; those that did not change are left out"
    )
    unreadable: list[str] = Field(description="counters that could not be read at both ends of the run, with folder")
    verdicts: Verdicts
    remarks: list[str] = Field(description="the evidence, for people")


class RunCounters(_Model):
    """The ports of all hosts of the run (of this process only, if the run failed)."""

    valid: bool | None = Field(
        description="the times are those of the fabric: no flap, RNR, loss, wrong priority or change of GIDs was seen; "
        "null: none was seen, but flap, RNR or loss could not be looked at everywhere"
    )
    verdicts: Verdicts = Field(description="over all ports")
    ports: list[PortCounters]


class Totals(_Model):
    """Over all sizes."""

    wrong: int | None
    avg_busbw_gbps: float | None
    step_overlap_max: int | None


class RunResult(_Model):
    """The whole file."""

    schema_version: Literal[1] = 1
    complete: bool = Field(description="false: the run failed or was stopped; results hold what was finished")
    failure: Failure | None
    job: str
    provider: str
    clock: Literal["twin", "monotonic"] | None = Field(
        description="twin: virtual nanoseconds; null when the provider could not be opened"
    )
    preset: str | None = Field(description="parameter preset of the fabric, where it has one")
    tagging: Literal["per-step", "retag", "static"]
    tagging_mechanism: str | None = Field(
        description="how the UDP source port got its value; null when the provider could not be opened"
    )
    qp_mode: Literal["per-step", "persistent"]
    release_rule: Literal["in-order", "independent", "count"]
    hosts: list[str] = Field(description="host of each world rank; empty when the run failed before they were known")
    ranks_covered: list[int] = Field(description="world ranks whose records went into this file")
    groups: list[list[int]] = Field(description="world ranks of each group in ring order")
    steps_total: int = Field(description="steps of every ring, warm-up included; the step index runs on")
    parameters: Parameters
    versions: Versions
    fabric: dict[str, JsonValue] = Field(description="what the fabric says about itself")
    started_unix_s: float
    wall_s: float
    clocks: list[HostClock] = Field(description="hosts with another clock than rank 0's; empty: there is one clock")
    counters: RunCounters | None = Field(description="null: the fabric has no counters, or no device was opened")
    results: list[SizeResult] = Field(description="of a sweep of sizes")
    training: TrainingResult | None = Field(description="null: the run was a sweep, or no timed step ended")
    totals: Totals


def percentiles(samples: list[float]) -> Percentiles | None:
    """Give nearest-rank p50, p95, p99 and the largest of a sample; None of an empty one."""
    if not samples:
        return None
    ordered = sorted(samples)

    def rank(percent: int) -> float:
        return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]

    return Percentiles(p50=rank(50), p95=rank(95), p99=rank(99), max=ordered[-1])


def json_schema() -> dict[str, Any]:
    """Give the JSON schema (draft 2020-12) of the result file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "ring-bench.schema.json",
        **RunResult.model_json_schema(mode="serialization"),
    }


def write_result(result: RunResult, path: Path) -> None:
    """Write the result as JSON, whole or not at all (see `write_result_file`).

    Raises:
        ResultWriteError: It could not be written; an old file is untouched.
    """
    data = result.model_dump(mode="json")
    write_result_file(path, json.dumps(data, sort_keys=True, indent=2, allow_nan=False) + "\n")
