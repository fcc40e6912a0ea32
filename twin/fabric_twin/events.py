# SPDX-License-Identifier: Apache-2.0
"""What can happen to a fabric while it runs, as data: the entries of an events file, of a scenario, of a REST call.

Every event has a `kind` and a time: `at_ms` since the run began (a seeded start), or `clock_ns`, a reading of the
twin's clock. `fabric_twin.timeline` carries them out. A file is TOML with one ``[[events]]`` table for each.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from fabric_twin.errors import ConfigError

__all__ = [
    "BackgroundConstant",
    "BackgroundIncast",
    "BackgroundOnOff",
    "Event",
    "HostSlow",
    "Jitter",
    "LinkDown",
    "LinkFlap",
    "LinkLoss",
    "LinkRate",
    "LinkUp",
    "SwitchRestart",
    "load_events",
    "problems",
]

MAX_MS = 1e9
"""Eleven days of virtual time."""
BOTH = "<->"

Milliseconds = Annotated[float, Field(ge=0, le=MAX_MS, allow_inf_nan=False)]
Duration = Annotated[float, Field(ge=0.001, le=MAX_MS, allow_inf_nan=False)]
Gbps = Annotated[float, Field(ge=0.01, le=800, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=1, le=1 << 30)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Event(_Model):
    at_ms: Annotated[Milliseconds | None, Field(description="since the run's start")] = None
    clock_ns: Annotated[int | None, Field(ge=0, le=10**15, description="a reading of the twin's clock")] = None

    @model_validator(mode="after")
    def _one_time(self) -> Self:
        if self.at_ms is not None and self.clock_ns is not None:
            raise ValueError("give at_ms (since the run's start) or clock_ns (the twin's clock), not both")
        return self

    def links(self) -> list[str]:
        """Directed links that it names."""
        return []

    def hosts(self) -> list[str]:
        """Hosts that it names."""
        return []


class _Lasting(_Event):
    for_ms: Annotated[Duration | None, Field(description="it ends after this; left out: it stays")] = None


class _OnLink(_Model):
    link: Annotated[str, Field(description="tor0->spine1: one direction; tor0<->spine1: both")]

    def links(self) -> list[str]:
        """Directed links that it names."""
        a, both, b = self.link.partition(BOTH)
        return [f"{a}->{b}", f"{b}->{a}"] if both else [self.link]


class LinkDown(_OnLink, _Lasting):
    """The link carries nothing: what is on it, and what is still sent into it, is lost.

    Routing avoids it (and takes it back) after `reroute_ms`; null: never.
    """

    kind: Literal["link-down"]
    reroute_ms: Milliseconds | None = 1.0


class LinkUp(_OnLink, _Event):
    """The link is as before: ends whatever events have done to it."""

    kind: Literal["link-up"]


class LinkFlap(_OnLink, _Event):
    """The link goes down and comes back, `times` times."""

    kind: Literal["link-flap"]
    down_ms: Duration
    up_ms: Duration
    times: Annotated[int, Field(ge=1, le=100_000)]
    reroute_ms: Milliseconds | None = 1.0


class LinkRate(_OnLink, _Lasting):
    """The link serialises at another rate."""

    kind: Literal["link-rate"]
    gbps: Gbps


class LinkLoss(_OnLink, _Lasting):
    """The link loses each packet with probability `drop`, independently."""

    kind: Literal["link-loss"]
    drop: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Jitter(_Model):
    """A distribution of compute time: `mean_us`; `std_us` for normal and lognormal (normal is cut off at 0)."""

    distribution: Literal["none", "constant", "normal", "lognormal", "exponential"]
    mean_us: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = 0.0
    std_us: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = 0.0

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.distribution == "lognormal" and self.mean_us == 0:
            raise ValueError("a lognormal distribution needs mean_us above 0")
        if self.std_us and self.distribution not in ("normal", "lognormal"):
            raise ValueError(f"{self.distribution} has no std_us")
        if self.mean_us and self.distribution == "none":
            raise ValueError("none has no mean_us")
        return self

    def draw(self, stream: np.random.Generator, count: int) -> list[int]:
        """The next `count` compute times, picoseconds."""
        mean = self.mean_us
        if self.distribution == "exponential":
            values = stream.exponential(mean, count)
        elif self.distribution == "normal":
            values = np.maximum(stream.normal(mean, self.std_us, count), 0.0)
        elif self.distribution == "lognormal":
            variance = np.log1p((self.std_us / mean) ** 2)
            values = stream.lognormal(np.log(mean) - variance / 2, np.sqrt(variance), count)
        else:
            values = np.full(count, mean)
        picoseconds: list[int] = np.rint(values * 1e6).astype(np.int64).tolist()
        return picoseconds

    @staticmethod
    def stream(seed: int, host: int) -> np.random.Generator:
        """The random stream of a host's compute times: its own, so that no other coin changes."""
        return np.random.default_rng([seed, 0x6A697474, host])


class HostSlow(_Lasting):
    """The hosts' processes compute for a while after each step they receive, and see what comes meanwhile later."""

    kind: Literal["host-slow"]
    host: Annotated[list[str] | Literal["all"], Field(description="names of hosts, or all")]
    compute: Jitter

    def hosts(self) -> list[str]:
        """Hosts that it names."""
        return [] if self.host == "all" else list(self.host)


class _Background(_Lasting):
    """Flows of no job. `dcqcn` false: not ECN capable, so nothing slows them but PFC."""

    dcqcn: bool = True


class BackgroundConstant(_Background):
    """A flow of `gbps` payload from `source` to `target`: messages of `message_bytes` at equal distances."""

    kind: Literal["background-constant"]
    source: str
    target: str
    gbps: Gbps
    message_bytes: Annotated[int, Field(ge=4096, le=1 << 30)] = 65_536

    def hosts(self) -> list[str]:
        """Hosts that it names."""
        return [self.source, self.target]


class BackgroundOnOff(BackgroundConstant):
    """The same, but on and off in turn; the lengths are drawn, or (`constant`) are the means."""

    kind: Literal["background-on-off"]  # type: ignore[assignment]
    on_ms: Duration
    off_ms: Duration
    distribution: Literal["exponential", "constant"] = "exponential"


class BackgroundIncast(_Background):
    """All `sources` send `size_bytes` to `target` at the same moment, `times` times, every `every_ms`."""

    kind: Literal["background-incast"]
    sources: Annotated[list[str], Field(min_length=1, max_length=4096)]
    target: str
    size_bytes: Bytes
    times: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    every_ms: Duration = 1.0

    def hosts(self) -> list[str]:
        """Hosts that it names."""
        return [*self.sources, self.target]


class SwitchRestart(_Event):
    """The ToR's control plane restarts: tables and registers are empty, packets are forwarded all the same.

    On a running twin the BF-Runtime server is away for `down_ms` of wall-clock time, and its agent fills it again
    when it sees it; in a simulation what was installed is back after `down_ms` of virtual time.
    """

    kind: Literal["switch-restart"]
    switch: str
    down_ms: Annotated[float, Field(ge=0, le=60_000, allow_inf_nan=False)] = 500.0


Event = Annotated[
    LinkDown | LinkUp | LinkFlap | LinkRate | LinkLoss | HostSlow | BackgroundConstant | BackgroundOnOff
    | BackgroundIncast | SwitchRestart,
    Field(discriminator="kind"),
]  # fmt: skip
"""Any of them; `kind` tells which."""


class _File(_Model):
    events: list[Event]


def problems(error: ValidationError) -> str:
    """What is wrong with events, in one line."""
    return "; ".join(_problem(e["loc"], e["msg"]) for e in error.errors(include_url=False))


def _problem(loc: Sequence[int | str], message: str) -> str:
    words = [str(word) for word in loc]
    if len(loc) > 1 and isinstance(loc[1], int):
        words[:2] = [f"event {loc[1] + 1}"]
    return ": ".join([*words, message.removeprefix("Value error, ")])


def load_events(path: Path) -> list[Event]:
    """The events of a TOML file.

    Raises:
        ConfigError: it cannot be read, is no TOML, or has an event that is not valid; says which and why.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        return TypeAdapter(_File).validate_python(content).events
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is no TOML: {error}") from None
    except ValidationError as error:
        raise ConfigError(f"{path}: {problems(error)}") from None


def describe(event: Event) -> str:
    """What it does, in a few words for people."""
    match event:
        case LinkDown() | LinkUp():
            return f"{event.link} {event.kind.removeprefix('link-')}"
        case LinkFlap():
            return f"{event.link} down (flap)"
        case LinkRate():
            return f"{event.link} {event.gbps:g}G"
        case LinkLoss():
            return f"{event.link} loses {event.drop:g}"
        case HostSlow():
            who = "all hosts" if event.host == "all" else _names(event.host)
            return f"{who} slow: {event.compute.distribution} {event.compute.mean_us:g} us"
        case BackgroundIncast():
            return f"incast {len(event.sources)}:1 to {event.target}"
        case BackgroundConstant():
            shape = "on-off " if isinstance(event, BackgroundOnOff) else ""
            return f"{shape}{event.gbps:g}G {event.source} to {event.target}"
        case SwitchRestart():
            return f"{event.switch} restarts"


def _names(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")
