# SPDX-License-Identifier: Apache-2.0
"""What REST clients send and get, and a job as the agent keeps it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from switch_agent.dataplane.constants import STEP_BITS
from switch_agent.dataplane.params import PARAM_RANGES, VARIANTS, SymphonyParams

__all__ = ["Flow", "Job", "JobSpec", "SymphonySettings"]

TAG_BITS = 14
"""Bits of the UDP source port that job_tag and step share (``design.md`` §3)."""


def _range(name: str) -> Any:
    allowed = PARAM_RANGES[name]
    return Field(default=None, ge=allowed.low, le=allowed.high, description=allowed.unit or None)


class SymphonySettings(BaseModel):
    """Symphony for one job. Fields that are left out take their value from ``variant``.

    ``enabled`` false keeps the job tracked (steps, overlap, counters) and marks nothing. ``ratio_floor`` 0
    means no floor, which is how to take back the floor of the ``refined`` variant. Ranges are those of
    :data:`switch_agent.dataplane.params.PARAM_RANGES`. null is refused: leave the field out instead.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    enabled: bool = False
    variant: Literal["paper", "refined"] = "paper"
    k: float | None = _range("k")
    tau: float | None = _range("tau")
    window_us: float | None = _range("window_us")
    n_warmup: int | None = _range("n_warmup")
    n_sample: int | None = _range("n_sample")
    gate: bool | None = None
    alpha_max: int | None = _range("alpha_max")
    ratio_floor: float | None = Field(default=None, ge=0, le=PARAM_RANGES["ratio_floor"].high)
    scope: Literal["job", "port"] | None = None

    @field_validator("*", mode="before")
    @classmethod
    def _no_null(cls, value: Any) -> Any:
        if value is None:
            raise ValueError("null is no value here: leave the field out to keep what it is")
        return value

    @field_validator("ratio_floor")
    @classmethod
    def _floor_in_range(cls, value: float | None) -> float | None:
        low = PARAM_RANGES["ratio_floor"].low
        if value is not None and 0 < value < low:
            raise ValueError(f"give 0 for no floor, or at least {low:g}")
        return value

    def given(self) -> dict[str, Any]:
        """Return only the fields that were set."""
        return self.model_dump(exclude_unset=True)

    def params(self) -> SymphonyParams:
        """Return the parameters these settings stand for, ``enabled`` apart."""
        chosen = {name: value for name, value in self.given().items() if name not in ("enabled", "variant")}
        if chosen.get("ratio_floor") == 0:
            chosen["ratio_floor"] = None
        return replace(VARIANTS[self.variant], **chosen)

    def merged(self, change: SymphonySettings) -> SymphonySettings:
        """Return these settings with the fields that ``change`` sets taken from it."""
        return SymphonySettings(**(self.given() | change.given()))

    def effective(self) -> dict[str, Any]:
        """Return all fields with the values in force; it can be sent back as settings."""
        values = asdict(self.params())
        values["ratio_floor"] = values["ratio_floor"] or 0.0
        return {"enabled": self.enabled, "variant": self.variant, **values}


def _to_address(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return ip_address(value)
        except ValueError:
            pass
    if isinstance(value, IPv4Address | IPv6Address):
        return value
    raise ValueError("no IPv4 or IPv6 address: write it as a string, such as 10.0.0.1")


Address = Annotated[IPv4Address | IPv6Address, BeforeValidator(_to_address)]
"""Of either family. Checked in one go: a union would report what each of its members thinks of a bad one."""


class Flow(BaseModel):
    """Packets from ``src`` to ``dst``; ``dst`` null (or left out) means to anybody. One address family."""

    model_config = ConfigDict(extra="forbid")

    src: Address
    dst: Address | None = None

    @model_validator(mode="after")
    def _one_family(self) -> Flow:
        if self.dst is not None and self.dst.version != self.src.version:
            raise ValueError(f"src {self.src} and dst {self.dst} are of different address families")
        return self

    def overlaps(self, other: Flow) -> bool:
        """Whether some packet could belong to both."""
        return self.src == other.src and (self.dst is None or other.dst is None or self.dst == other.dst)


class JobSpec(BaseModel):
    """Body of ``PUT /api/v1/jobs/{job_id}``: what to recognise, and Symphony's settings for it.

    ``first_step`` is the first step the job will send (32 bits, taken modulo 2^step_bits).
    """

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
    job_tag: Annotated[int, Field(ge=0)]
    step_bits: int = STEP_BITS
    first_step: Annotated[int, Field(ge=0, lt=1 << 32)] = 0
    flows: Annotated[list[Flow], Field(min_length=1, max_length=2048)]
    symphony: SymphonySettings = Field(default_factory=SymphonySettings)

    @model_validator(mode="after")
    def _check(self) -> JobSpec:
        if self.step_bits != STEP_BITS:
            raise ValueError(
                f"step_bits {self.step_bits}: the switch program reads {STEP_BITS} bits of step from the tag"
            )
        if self.job_tag >= 1 << (TAG_BITS - self.step_bits):
            raise ValueError(
                f"job_tag {self.job_tag} does not fit: with step_bits {self.step_bits} give 0 to "
                f"{(1 << (TAG_BITS - self.step_bits)) - 1}"
            )
        for index, flow in enumerate(self.flows):
            for other in self.flows[:index]:
                if flow.overlaps(other):
                    raise ValueError(f"flow {flow.src} -> {flow.dst or 'any'} overlaps another of this job")
        return self

    def same_traffic(self, other: JobSpec) -> bool:
        """Whether both describe the same packets from the same step on, whatever the settings."""
        return self.model_dump(exclude={"symphony"}) == other.model_dump(exclude={"symphony"})


@dataclass(frozen=True)
class Job:
    """A job with its place in the switch: state blocks ``state`` .. ``state + n_states - 1``.

    ``revision`` counts the changes that were confirmed by the switch.
    """

    job_id: int
    spec: JobSpec
    state: int
    n_states: int
    revision: int = 1

    @property
    def name(self) -> str:
        """The job's name, which labels its metrics."""
        return self.spec.name

    @property
    def enabled(self) -> bool:
        """Whether Symphony marks packets of the job."""
        return self.spec.symphony.enabled

    def with_settings(self, settings: SymphonySettings) -> Job:
        """Return the job with other settings, one revision later."""
        spec = self.spec.model_copy(update={"symphony": settings})
        return replace(self, spec=spec, revision=self.revision + 1)

    def view(self) -> dict[str, Any]:
        """Return the job as REST shows it."""
        spec = self.spec.model_dump(mode="json", exclude={"symphony"})
        return {
            "job_id": self.job_id,
            **spec,
            "symphony": self.spec.symphony.effective(),
            "state_index": self.state,
            "state_count": self.n_states,
            "revision": self.revision,
        }
