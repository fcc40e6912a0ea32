# SPDX-License-Identifier: Apache-2.0
"""The switch's own desired configuration, from a YAML file: ECMP hashing, RED thresholds, ports.

::

    ecmp: {hash_source_port: true}
    red:                       # for all ports that say nothing else
      kmin_bytes: 50000
      kmax_bytes: 100000
      pmax: 0.2
      cell_bytes: 176          # Tofino 2
      steps: 16                # pieces of the ramp between Kmin and Kmax
      busy_min_cells: 1        # from this depth on a queue counts as non-empty (Symphony's gate)
    ports:
      - {dev_port: 264, speed: 100G, fec: rs, mtu: 9216, autoneg: false}
      - {dev_port: 272, speed: 400G, fec: rs, red: {kmin_bytes: 400000, kmax_bytes: 1600000, pmax: 0.2}}

What the file does not mention is left alone on the switch.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from switch_agent.bfrt.requests import Entry, KeyValue, Range, Ternary, Value
from switch_agent.errors import ConfigError

__all__ = ["EcmpConfig", "PortConfig", "RedConfig", "SwitchConfig", "load_config"]

_DEPTH_BITS, _PORT_BITS = 19, 9
_ONE_PORT, _ANY_PORT = 10, 20  # match priorities, the lower number wins
_PROB_ALWAYS = 0xFFFF


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class EcmpConfig(_Strict):
    """Whether ECMP looks at the UDP source port, that is, whether a new step takes a new path."""

    hash_source_port: bool

    @property
    def mask(self) -> int:
        """Data of the default action ``set_hash_sport``."""
        return 0xFFFF if self.hash_source_port else 0


class RedConfig(_Strict):
    """RED as DCQCN wants it: marking probability 0 below Kmin, rising to Pmax at Kmax, then 1.

    The switch has no multiplication, so the ramp is cut into ``steps`` ranges of queue depth, each with the
    probability of its middle.
    """

    kmin_bytes: Annotated[int, Field(gt=0)]
    kmax_bytes: Annotated[int, Field(gt=0)]
    pmax: Annotated[float, Field(gt=0, le=1)]
    cell_bytes: Annotated[int, Field(gt=0)] = 176
    steps: Annotated[int, Field(ge=1, le=256)] = 16
    busy_min_cells: Annotated[int, Field(ge=1)] = 1

    @model_validator(mode="after")
    def _ordered(self) -> RedConfig:
        if self.kmax_bytes <= self.kmin_bytes:
            raise ValueError(f"kmax_bytes {self.kmax_bytes} must exceed kmin_bytes {self.kmin_bytes}")
        if self.kmax_bytes // self.cell_bytes >= 1 << _DEPTH_BITS:
            raise ValueError(f"kmax_bytes {self.kmax_bytes} is more than a queue can hold")
        return self

    def entries(self, dev_port: int | None = None) -> list[Entry]:
        """Return the entries of ``red_profile`` for one egress port, or (None) for any that has none of its own.

        Disjoint ranges of queue depth in cells; the last one has no end. Those of one port begin at 0, so that
        nothing of the others' profile shines through.
        """
        port = Ternary(0, 0) if dev_port is None else Ternary(dev_port, (1 << _PORT_BITS) - 1)
        cuts = self._cuts()
        bounds = sorted({0, self.busy_min_cells, *cuts})
        entries = []
        for low, beyond in pairwise([*bounds, 1 << _DEPTH_BITS]):
            probability, busy = self._probability(cuts, low), low >= self.busy_min_cells
            if dev_port is None and not probability and not busy:
                continue  # as the default action has it
            key: dict[str, KeyValue] = {
                "eg_intr_md.egress_port": port,
                "eg_intr_md.deq_qdepth": Range(low, beyond - 1),
                "$MATCH_PRIORITY": _ANY_PORT if dev_port is None else _ONE_PORT,
            }
            data: dict[str, Value] = {
                "prob": min(_PROB_ALWAYS, round(probability * (1 << 16))),
                "busy": int(busy),
            }
            entries.append(Entry(key=key, action="Egress.set_red", data=data))
        return entries

    def _cuts(self) -> list[int]:
        """Depths in cells at which a piece of the ramp begins; the last one is Kmax."""
        kmin = self.kmin_bytes // self.cell_bytes
        kmax = max(self.kmax_bytes // self.cell_bytes, kmin + 1)
        return sorted({kmin + round((kmax - kmin) * piece / self.steps) for piece in range(self.steps + 1)})

    def _probability(self, cuts: list[int], depth: int) -> float:
        """Marking probability at a depth: that of the middle of its piece."""
        kmin, kmax = cuts[0], cuts[-1]
        if not kmin <= depth < kmax:
            return 0.0 if depth < kmin else 1.0
        piece = bisect_right(cuts, depth)
        return self.pmax * ((cuts[piece - 1] + cuts[piece]) / 2 - kmin) / (kmax - kmin)


class PortConfig(_Strict):
    """One port by its device number, in the words of the fixed table ``$PORT``."""

    dev_port: Annotated[int, Field(ge=0, lt=512)]
    speed: Literal["10G", "25G", "40G", "50G", "100G", "200G", "400G"]
    fec: Literal["none", "fc", "rs"] = "none"
    lanes: Annotated[int, Field(ge=1, le=8)] | None = None
    mtu: Annotated[int, Field(ge=64, le=10240)] | None = None
    autoneg: bool | None = None
    enable: bool = True
    red: RedConfig | None = None

    def entry(self) -> Entry:
        """Return the entry of ``$PORT``; optional fields only where they are configured."""
        fec = {"none": "BF_FEC_TYP_NONE", "fc": "BF_FEC_TYP_FC", "rs": "BF_FEC_TYP_RS"}
        data: dict[str, Any] = {
            "$SPEED": f"BF_SPEED_{self.speed}",
            "$FEC": fec[self.fec],
            "$PORT_ENABLE": self.enable,
        }
        if self.lanes is not None:
            data["$N_LANES"] = self.lanes
        if self.mtu is not None:
            data |= {"$TX_MTU": self.mtu, "$RX_MTU": self.mtu}
        if self.autoneg is not None:
            data["$AUTO_NEGOTIATION"] = "PM_AN_FORCE_ENABLE" if self.autoneg else "PM_AN_FORCE_DISABLE"
        return Entry(key={"$DEV_PORT": self.dev_port}, data=data)


class SwitchConfig(_Strict):
    """The whole file."""

    ecmp: EcmpConfig | None = None
    red: RedConfig | None = None
    ports: list[PortConfig] = Field(default_factory=list)

    @model_validator(mode="after")
    def _each_port_once(self) -> SwitchConfig:
        numbers = [port.dev_port for port in self.ports]
        twice = sorted({number for number in numbers if numbers.count(number) > 1})
        if twice:
            raise ValueError(f"ports has dev_port {', '.join(map(str, twice))} more than once")
        return self

    def red_entries(self) -> list[Entry] | None:
        """Return all entries of ``red_profile``, None when the file says nothing about RED."""
        profiles = [(port.red, port.dev_port) for port in self.ports]
        wanted = [(red, port) for red, port in [(self.red, None), *profiles] if red is not None]
        return [entry for red, port in wanted for entry in red.entries(port)] or None


def load_config(path: Path) -> SwitchConfig:
    """Read the file. Raises ConfigError that names path, field and what is wrong with it."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read switch config {path}: {' '.join(str(error).split())}") from error
    try:
        return SwitchConfig.model_validate(document or {})
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors())
        raise ConfigError(f"switch config {path}: {problems}") from error
