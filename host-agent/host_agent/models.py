# SPDX-License-Identifier: Apache-2.0
"""What goes over host-agent's REST interface, as pydantic models (unknown fields are refused everywhere)."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = [
    "MAX_EVENTS_PER_BATCH",
    "BenchSpec",
    "EventBatch",
    "JobRequest",
    "JobState",
    "Provider",
    "SymphonySettings",
    "parse_bytes",
]

JobState = Literal["registered", "running", "finished", "failed", "stopped"]
Provider = Literal["twin", "pyverbs", "external"]

MAX_EVENTS_PER_BATCH = 100_000

_SIZE = re.compile(r"([0-9]{1,18})([KMG]?)B?", re.IGNORECASE)
_UNIT = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


def parse_bytes(text: str | int) -> int:
    """Bytes of a size as nccl-tests writes it: "32M" = 32 * 1024^2. Raises ValueError for anything else."""
    match = _SIZE.fullmatch(str(text).strip())
    if match is None:
        raise ValueError(f"{text!r} is no size; write bytes, or a number with K, M or G, like 32M")
    return int(match[1]) * _UNIT[match[2].upper()]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SymphonySettings(_Strict):
    """Symphony's parameters of one job; what is not sent keeps its value (PATCH) or the variant's (POST).

    Names and meanings are the switch agent's; k and tau as in the paper (eq. 4 and 5), windows in
    microseconds. An explicit null is refused: leave a field out instead.
    """

    enabled: bool = False
    variant: Literal["paper", "refined"] = "paper"
    k: Annotated[float, Field(ge=1e-6, le=1)] = 0.01
    tau: Annotated[float, Field(ge=1 / 256, le=1)] = 0.25
    window_us: Annotated[float, Field(ge=0.256, le=10_000)] = 100.0
    n_warmup: Annotated[int, Field(ge=0, lt=1 << 24)] = 16
    n_sample: Annotated[int, Field(ge=0, lt=1 << 31)] = 8
    gate: bool = False
    alpha_max: Annotated[int, Field(ge=1, le=65535)] = 65535
    ratio_floor: Annotated[float, Field(ge=0, le=1024)] = 0.0
    """0: no floor."""
    scope: Literal["job", "port"] = "job"

    def sent(self) -> dict[str, Any]:
        """Only what the client wrote: defaults are the switch agent's business."""
        return self.model_dump(exclude_unset=True)


class BenchSpec(_Strict):
    """A ring-bench run; the fields are ring-bench's options (nccl-tests' where those have one).

    One size is moved `iterations` times. `split` groups the ranks as NCCL_TESTS_SPLIT does.
    """

    size: str | int = "32M"
    """Bytes per rank (-b and -e)."""
    iterations: Annotated[int, Field(ge=1, le=100_000)] = 20
    warmup: Annotated[int, Field(ge=0, le=10_000)] = 0
    rings: Annotated[int, Field(ge=1, le=64)] = 1
    split: str | None = None
    """ "MOD 8": ranks equal modulo 8 form a group; "DIV 8": 8 neighbouring ranks form one; null: one
    group.
    """
    datatype: Annotated[str, Field(pattern=r"^[a-z0-9]+$")] = "float"
    redop: Annotated[str, Field(pattern=r"^[a-z]+$")] = "sum"
    check: bool = True
    tagging: Literal["per-step", "retag"] = "per-step"
    """How QPs get their step tag: a fresh QP per step, or persistent ones that are retagged when drained."""
    release: Literal["in-order", "independent", "count"] = "in-order"
    """When a rank may send step s+1: once all steps <= s have arrived; or see ring-bench."""
    payload_scale: Annotated[int, Field(ge=1)] = 1

    @property
    def qp_mode(self) -> str:
        """Whether congestion control starts afresh with each step: "per-step" or "persistent"."""
        return "per-step" if self.tagging == "per-step" else "persistent"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if parse_bytes(self.size) < 1:
            raise ValueError("size must be at least one byte")
        if self.split is not None and not re.fullmatch(r"(MOD|DIV) [1-9]\d{0,5}", self.split):
            raise ValueError(f'split {self.split!r} is not understood; write "MOD n" or "DIV n"')
        if self.release == "count" and self.check:
            raise ValueError('release rule "count" sends what has not arrived, so sums are wrong: set check to false')
        return self


class JobRequest(_Strict):
    """Body of POST /api/v1/jobs. Without `bench` the job is only registered: somebody else starts its
    ranks.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
    provider: Provider = "twin"
    world: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Number of ranks on the testbed's first hosts; or name the hosts, or neither for all of them."""
    hosts: Annotated[list[str], Field(min_length=1, max_length=4096)] | None = None
    bench: BenchSpec | None = None
    symphony: SymphonySettings = Field(default_factory=SymphonySettings)
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.world is not None and self.hosts is not None:
            raise ValueError("give either world or hosts, not both")
        if self.provider == "external" and self.bench is not None:
            raise ValueError('an external job is started by somebody else: leave "bench" out')
        if self.provider == "pyverbs" and self.bench is not None:
            raise ValueError(
                "host-agent starts ranks on the twin only; start them with mpirun or srun on the hosts and "
                'register the job with provider "external" or without "bench"'
            )
        return self


EventRow = tuple[int, int, int, int, int, Literal["post", "done"], int]
CollectiveRow = tuple[int, int, int, int, float | None]


class EventBatch(_Strict):
    """Body of POST /api/v1/jobs/{id}/events, sent by ring-bench.

    events: [rank, group, ring, iteration, step, kind, t_ns]; rank is the sender of the step in both kinds,
    step is the running step number (a 32-bit serial number: RFC 1982). collectives: [group, iteration,
    start_ns, end_ns, busbw_gbps].
    """

    run: Annotated[str, Field(max_length=200)]
    clock: Literal["twin", "monotonic"]
    host: Annotated[str, Field(max_length=200)]
    dropped: Annotated[int, Field(ge=0)] = 0
    """Events that this reporter has had to drop so far in this run."""
    events: Annotated[list[EventRow], Field(max_length=MAX_EVENTS_PER_BATCH)] = Field(default_factory=list)
    collectives: Annotated[list[CollectiveRow], Field(max_length=MAX_EVENTS_PER_BATCH)] = Field(default_factory=list)
    result: dict[str, Any] | None = None
