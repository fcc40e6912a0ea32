# SPDX-License-Identifier: Apache-2.0
"""Scenario files: fabric, workload, algorithm, events and seeds of an experiment, its claims and figures.

A scenario is a TOML file. Its tables ``fabric``, ``workload``, ``symphony``, ``jobs``, ``events`` and the key
``algorithm`` describe one run (`Case`); a list where one value is wanted makes a sweep (`symphony_experiments.sweep`);
``[[variant]]`` tables are named sets of overrides, the curves of a figure. Every combination runs with every seed.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fabric_twin.events import Event
from ring_bench.units import parse_size
from symphony_experiments.claims import Claim
from symphony_experiments.errors import ScenarioError
from symphony_experiments.figures import FigureSpec
from symphony_experiments.sweep import axes, combinations, known_keys, put, unknown_key

__all__ = ["Case", "FabricSpec", "JobSpec", "Planned", "Scenario", "Seeds", "SymphonySpec", "Variant", "WorkloadSpec"]

Table = dict[str, Any]
Size = Annotated[str | int, Field(description="bytes, or a number with K, M or G (powers of 1024)")]
_Model = TypeVar("_Model", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FabricSpec(_Strict):
    """The twin's fabric: a preset with changed fields, or a fabric file (docs/twin.md)."""

    preset: str = "demo"
    oversubscription: str | None = None
    mtu: int | None = None
    buffer_bytes: int | None = None
    kmin: int | None = None
    kmax: int | None = None
    pmax: float | None = None
    pfc: bool | None = None
    routing: str | None = None
    ecmp_sport: bool | None = None
    skew: str | None = None
    """``tor1->spine0=1.13``: this link carries 1.13 times its share."""
    symphony_tiers: str | None = None
    dcqcn: str | None = None
    tors: int | None = None
    hosts_per_tor: int | None = None
    spines: int | None = None
    pods: int | None = None
    cores: int | None = None
    rails: int | None = None
    host_gbps: float | None = None
    uplink_gbps: float | None = None
    core_gbps: float | None = None
    delay_us: float | None = None

    def changes(self) -> Table:
        """What differs from the preset."""
        return {k: v for k, v in self.model_dump().items() if k != "preset" and v is not None}


class WorkloadSpec(_Strict):
    """What the ranks of a job do; names are ring-bench's options."""

    collective: str = "all_reduce"
    dims: str | None = Field(default=None, pattern=r"^[1-9][0-9]*(x[1-9][0-9]*)+$")
    """Rings over a grid of ranks, ``8x4``: the chunk is that of the first dimension."""
    ranks: int | None = Field(default=None, ge=2)
    """Ranks of the job; none: one per host of the fabric."""
    split: str | None = None
    """``MOD 8``: ranks equal modulo 8 form a ring of their own, as NCCL_TESTS_SPLIT has it."""
    rings: int = Field(default=1, ge=1)
    chunk: Size = "8M"
    """Bytes that a rank sends per step and ring."""
    iterations: int = Field(default=20, ge=1)
    tagging: Literal["per-step", "retag", "static"] = "per-step"
    release: Literal["in-order", "independent", "count"] = "in-order"
    slots: int = Field(default=4, ge=1)
    step_bits: int = Field(default=10, ge=2, le=13)

    @field_validator("chunk")
    @classmethod
    def _is_a_size(cls, value: str | int) -> str | int:
        if parse_size(str(value)) < 1:
            raise ValueError("must be at least one byte")
        return value


class SymphonySpec(_Strict):
    """Symphony's parameters: a variant, and what differs from it (docs/p4.md)."""

    variant: Literal["paper", "refined"] = "paper"
    k: float | None = None
    tau: float | None = None
    window_us: float | None = None
    n_warmup: int | None = None
    n_sample: int | None = None
    gate: bool | None = None
    alpha_max: int | None = None
    ratio_floor: float | None = None
    scope: Literal["job", "port"] | None = None


class JobSpec(_Strict):
    """One of several jobs; what is left out is as in ``workload`` and ``algorithm``."""

    name: str
    first_host: int = Field(default=0, ge=0)
    block: int = Field(default=1, ge=1)
    stride: int = Field(default=1, ge=1)
    """Rank r is on host first_host + (r // block) * stride + r % block."""
    start_ms: float = Field(default=0, ge=0)
    algorithm: str | None = None
    workload: Table = Field(default_factory=dict)


class Case(_Strict):
    """One run, without its seed."""

    fabric: FabricSpec = FabricSpec()
    workload: WorkloadSpec = WorkloadSpec()
    jobs: list[JobSpec] = Field(default_factory=list)
    algorithm: str = "symphony"
    symphony: SymphonySpec = SymphonySpec()
    events: list[Event] = Field(default_factory=list)
    """What happens to the fabric, as in the twin's events files."""
    late_start_ms: float = Field(default=500, ge=0)
    """When ``late-start`` turns Symphony on."""
    keep: list[Literal["overlap", "completion"]] = Field(default_factory=list)
    """Curves over time that go into the results."""


class Seeds(_Strict):
    """Seeds first, first + 1, ..."""

    first: int = Field(default=1, ge=0)
    count: int = Field(default=20, ge=1)


class Variant(_Strict):
    """A named set of overrides: dotted key -> value."""

    name: str
    set: Table = Field(default_factory=dict)


class Planned(_Strict):
    """A run to be made."""

    variant: str
    axes: Table
    """Axis key -> value."""
    seed: int
    case: Case

    def to_case(self) -> Table:
        """What decides the run's result, as plain data."""
        return {**self.case.model_dump(mode="json", exclude_unset=True), "seed": self.seed}


class Scenario(_Strict):
    """A scenario file that has been read and checked."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    title: str
    paper: str = ""
    """Which figure, table or section of the paper; empty: beyond the paper."""
    about: str = ""
    seeds: Seeds = Seeds()
    variant: list[Variant] = Field(default_factory=lambda: [Variant(name="all")], min_length=1)
    quick: Table = Field(default_factory=dict)
    """Dotted key -> value, for ``--quick``."""
    claim: list[Claim] = Field(default_factory=list)
    figure: list[FigureSpec] = Field(default_factory=list)
    case: Table = Field(default_factory=dict, exclude=True)

    # ------------------------------------------------------------------------------------ reading

    @classmethod
    def load(cls, name: str) -> Scenario:
        """The shipped scenario of that name, or the file at that path.

        Raises:
            ScenarioError: there is none, or it is wrong; names file, key and reason.
        """
        if "/" in name or name.endswith(".toml"):
            path = Path(name)
            try:
                text = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ScenarioError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
            return cls.parse(text, where=str(path))
        known = shipped()
        if name not in known:
            raise ScenarioError(
                unknown_key(name, known).replace("unknown key", "no scenario") + " (or give a .toml file)"
            )
        text = (resources.files("symphony_experiments") / "scenarios" / f"{name}.toml").read_text(encoding="utf-8")
        return cls.parse(text, where=f"{name}.toml")

    @classmethod
    def parse(cls, text: str, where: str) -> Scenario:
        """A scenario from TOML. Raises ScenarioError."""
        try:
            table = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ScenarioError(f"{where}: {error}") from None
        return cls.from_table(table, where)

    @classmethod
    def from_table(cls, table: Mapping[str, Any], where: str) -> Scenario:
        """A scenario from a file's content; every run it describes is checked. Raises ScenarioError."""
        meta = set(cls.model_fields) - {"case"}
        described: Table = {k: v for k, v in table.items() if k in meta}
        case = {k: copy.deepcopy(v) for k, v in table.items() if k not in meta}
        known = known_keys(Case)
        for key in _dotted(case):
            if not any(key == name or name.startswith(key + ".") or key.startswith(name + ".") for name in known):
                raise ScenarioError(f"{where}: {unknown_key(key, [*known, *meta])}")
        scenario = _validated(cls, {**described, "case": case}, where)
        names = [variant.name for variant in scenario.variant]
        if len(set(names)) < len(names):
            raise ScenarioError(f"{where}: two variants are called {next(n for n in names if names.count(n) > 1)!r}")
        try:
            scenario.runs()
        except ScenarioError as error:
            raise ScenarioError(f"{where}: {error}") from None
        return scenario

    def to_table(self) -> Table:
        """The scenario as a file would have it."""
        return {**self.model_dump(mode="json", exclude_unset=True), **copy.deepcopy(self.case)}

    def changed(self, overrides: Sequence[tuple[str, Any]], where: str = "--set") -> Scenario:
        """The scenario with dotted keys set to other values (lists make sweeps). Raises ScenarioError."""
        table = self.to_table()
        for key, value in overrides:
            if key.partition(".")[0] == "seeds":
                seeds = dict(table.get("seeds", {}))
                if key not in ("seeds.first", "seeds.count"):
                    raise ScenarioError(f"{where}: {unknown_key(key, ['seeds.first', 'seeds.count'])}")
                seeds[key.partition(".")[2]] = value
                table["seeds"] = seeds
                continue
            put(table, key, value, Case)
            table["variant"] = [
                {**variant, "set": {k: v for k, v in variant.get("set", {}).items() if k != key}}
                for variant in table.get("variant", [{"name": "all"}])
            ]
        return Scenario.from_table(table, where)

    def quickened(self) -> Scenario:
        """The scenario as ``--quick`` runs it."""
        return self.changed(list(self.quick.items()), where=f"{self.name}, quick")

    # ------------------------------------------------------------------------------------ runs

    def axes(self) -> dict[str, list[Any]]:
        """The sweep's axes over all variants: dotted key -> values."""
        found: dict[str, list[Any]] = {}
        for variant in self.variant:
            for key, values in axes(self._case_of(variant), Case).items():
                known = found.setdefault(key, [])
                known += [value for value in values if value not in known]
        return found

    def _case_of(self, variant: Variant) -> Table:
        case = copy.deepcopy(self.case)
        for key, value in variant.set.items():
            put(case, key, copy.deepcopy(value), Case)
        return case

    def runs(self) -> list[Planned]:
        """Every run: variant by variant, axis by axis, seed by seed. Raises ScenarioError."""
        keys = list(self.axes())
        planned = []
        for variant in self.variant:
            for case in combinations(self._case_of(variant), Case):
                values = {key: _at(case, key) for key in keys}
                label = ", ".join([variant.name, *(f"{k} = {v}" for k, v in values.items())])
                checked = _validated(Case, case, label)
                planned += [
                    Planned(variant=variant.name, axes=values, seed=seed, case=checked)
                    for seed in range(self.seeds.first, self.seeds.first + self.seeds.count)
                ]
        return planned


def shipped() -> list[str]:
    """Names of the scenarios that come with the package."""
    folder = resources.files("symphony_experiments") / "scenarios"
    return sorted(path.name.removesuffix(".toml") for path in folder.iterdir() if path.name.endswith(".toml"))


def _at(case: Mapping[str, Any], key: str) -> Any:
    value: Any = case
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _dotted(table: Mapping[str, Any], prefix: str = "") -> list[str]:
    keys = []
    for name, value in table.items():
        keys += _dotted(value, f"{prefix}{name}.") if isinstance(value, Mapping) and value else [prefix + name]
    return keys


def _validated(model: type[_Model], data: Any, where: str) -> _Model:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ScenarioError(
            f"{where}: {place + ': ' if place else ''}{first['msg'].removeprefix('Value error, ')}"
        ) from None
