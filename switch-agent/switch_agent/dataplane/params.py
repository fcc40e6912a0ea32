# SPDX-License-Identifier: Apache-2.0
"""Symphony's parameters as users state them, and as the ten integers of the P4 action ``set_params``.

Values the paper publishes: k = 0.01 (table 1), tau = 0.25 and a window of 100 us (4.1). It names N_warmup
(Algorithm 1, line 11) and N_sample (3.4.3) without values. Ours:

- ``n_warmup = 16`` packets: psn_rec must exceed it before anything is marked. It is below 1 % of a step of
  8 MB in 4 KB packets, and from there on one packet more or less changes psn / psn_rec by at most 6 %.
- ``n_sample = 8`` packets: a window with at most that many leaves alpha alone. Fewer than four cannot tell
  tau = 0.25 from 0, and 8 is a quarter of what one 10G link carries in a window of 100 us in 4 KB packets,
  so a single throttled link still counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, fields
from types import MappingProxyType
from typing import Literal, NamedTuple

from switch_agent.dataplane.constants import LOG_FRACTION, PSN_BITS, PSN_SHIFT, TAU_FRACTION, TIME_UNIT_NS
from switch_agent.dataplane.errors import ParameterError
from switch_agent.dataplane.lookup import log2_fixed

__all__ = [
    "DISABLED_LG_K",
    "PARAM_FIELDS",
    "PARAM_RANGES",
    "VARIANTS",
    "FieldType",
    "ParamEntry",
    "ParamRange",
    "SymphonyParams",
]

DISABLED_LG_K = -80 * LOG_FRACTION
"""log2 of the gain of a disabled job: 2^-80.

log2(alpha) adds at most 16 octaves and log2(psn / psn_rec) between -24 and +24, so sums lie in
[-104, -40] octaves: above the -128 where int16 would wrap, below the -14 where thresholds begin.
"""

_FLOOR_OFF = -(1 << 15)
_PORT_MASK = 0xFFFF


class FieldType(NamedTuple):
    """Width in bits and signedness of one field of the action ``set_params``."""

    bits: int
    signed: bool


PARAM_FIELDS: Mapping[str, FieldType] = MappingProxyType(
    {
        "scope_mask": FieldType(16, False),
        "gate": FieldType(8, False),
        "lg_k": FieldType(16, True),
        "lg_floor": FieldType(16, True),
        "d_op": FieldType(32, True),
        "d_oth": FieldType(32, True),
        "n_sample": FieldType(32, True),
        "neg_window": FieldType(32, True),
        "warmup": FieldType(32, False),
        "amax": FieldType(16, False),
    }
)
"""The fields of ``set_params`` in the order of the P4 program and of ``ParamEntry``."""


class ParamRange(NamedTuple):
    """Allowed values of one parameter, both ends included."""

    low: float
    high: float
    unit: str
    integer: bool = False


PARAM_RANGES: Mapping[str, ParamRange] = MappingProxyType(
    {
        "k": ParamRange(1e-6, 1.0, "gain"),
        "tau": ParamRange(1 / TAU_FRACTION, 1.0, "share of packets, steps of 1/256"),
        # Above, the 32-bit score of a window could overflow at the packet rate of a pipe.
        "window_us": ParamRange(0.256, 10_000.0, "us, steps of 0.256"),
        "n_warmup": ParamRange(0, (1 << PSN_BITS) - 1, "packets", True),
        "n_sample": ParamRange(0, (1 << 31) - 1, "packets", True),
        "alpha_max": ParamRange(1, (1 << 16) - 1, "", True),
        "ratio_floor": ParamRange(1 / 1024, 1024.0, "PSN ratio; none turns it off"),
    }
)
"""Ranges of the numeric parameters, for validation here and in the interfaces built on it."""


def _check(field: str, value: object) -> None:
    allowed = PARAM_RANGES[field]
    kind = int if allowed.integer else (int, float)
    right_kind = isinstance(value, kind) and not isinstance(value, bool)
    if right_kind and allowed.low <= value <= allowed.high:  # type: ignore[operator]
        return
    noun = "an integer" if allowed.integer else "a number"
    unit = f" ({allowed.unit})" if allowed.unit else ""
    raise ParameterError(
        f"Symphony parameter {field} = {value!r} is not allowed: "
        f"give {noun} from {allowed.low:.10g} to {allowed.high:.10g}{unit}"
    )


def _window_units(window_us: float) -> int:
    return max(1, round(window_us * 1000 / TIME_UNIT_NS))


def _shortest(exact: float, code: int, encode: Callable[[float], int]) -> float:
    """Return the decimal number with the fewest digits that encodes to ``code``, as ``exact`` does."""
    for digits in range(1, 17):
        candidate = float(f"{exact:.{digits}g}")
        if encode(candidate) == code:
            return candidate
    return exact


@dataclass(frozen=True)
class SymphonyParams:
    """Parameters of one job. Defaults: the paper's form; the module's docstring explains our choices.

    Attributes:
        k: gain of the marking probability (eq. 4).
        tau: share of outpacing packets from which alpha grows (eq. 3); the switch rounds it to n/256.
        window_us: length of the window (3.4.3); the switch rounds it to units of 256 ns.
        n_warmup: nothing is marked while psn_rec <= n_warmup packets (Algorithm 1, line 11).
        n_sample: windows with at most this many packets leave alpha as it is (3.4.3).
        gate: mark only if the egress queue is not empty at dequeue (refinement).
        alpha_max: bound of alpha (refinement); 65535 is the register's width, that is, no bound.
        ratio_floor: least value of psn / psn_rec (refinement); None: no floor.
        scope: one state block per job as in the paper, or per job and egress port.

    Raises:
        ParameterError: a value is of the wrong kind or out of ``PARAM_RANGES``; names field, value, range.
    """

    k: float = 0.01
    tau: float = 0.25
    window_us: float = 100.0
    n_warmup: int = 16
    n_sample: int = 8
    gate: bool = False
    alpha_max: int = 65535
    ratio_floor: float | None = None
    scope: Literal["job", "port"] = "job"

    def __post_init__(self) -> None:
        for field in PARAM_RANGES:
            value = getattr(self, field)
            if not (field == "ratio_floor" and value is None):
                _check(field, value)
        if not isinstance(self.gate, bool):
            raise ParameterError(f"Symphony parameter gate = {self.gate!r} is not allowed: give true or false")
        if self.scope not in ("job", "port"):
            raise ParameterError(f"Symphony parameter scope = {self.scope!r} is not allowed: give 'job' or 'port'")

    @classmethod
    def variant(cls, name: str) -> SymphonyParams:
        """Return a named parameter set: "paper", or "refined" (gate, alpha <= 128, PSN ratio >= 1).

        Raises:
            ParameterError: there is no such variant.
        """
        try:
            return VARIANTS[name]
        except KeyError:
            raise ParameterError(
                f"Symphony variant {name!r} does not exist: choose one of {', '.join(VARIANTS)}"
            ) from None

    @property
    def window_units(self) -> int:
        """Length of the window in the switch's time units of 256 ns."""
        return _window_units(self.window_us)

    def to_entry(self) -> ParamEntry:
        """Return the action data that make the switch run these parameters."""
        tau = round(self.tau * TAU_FRACTION)
        return ParamEntry(
            scope_mask=_PORT_MASK if self.scope == "port" else 0,
            gate=int(self.gate),
            lg_k=log2_fixed(self.k),
            lg_floor=_FLOOR_OFF if self.ratio_floor is None else log2_fixed(self.ratio_floor),
            d_op=TAU_FRACTION - tau,
            d_oth=-tau,
            n_sample=self.n_sample,
            neg_window=-self.window_units,
            warmup=self.n_warmup << PSN_SHIFT,
            amax=self.alpha_max,
        )


VARIANTS: Mapping[str, SymphonyParams] = MappingProxyType(
    {
        "paper": SymphonyParams(),
        "refined": SymphonyParams(gate=True, alpha_max=128, ratio_floor=1.0),
    }
)
"""Named parameter sets: the paper's form, and the one with the refinements a Tofino 2 can run."""


@dataclass(frozen=True)
class ParamEntry:
    """Action data of ``set_params``: ten integers, signed where the P4 field is signed.

    Attributes:
        scope_mask: AND-ed with the egress port's index and added to the state index: 0 or 0xffff.
        gate: 1: a mark needs a non-empty egress queue.
        lg_k: log2 of k in 1/256 octave.
        lg_floor: log2 of the floor of psn / psn_rec; -32768: no floor.
        d_op: added to the score by an outpacing packet: 256 (1 - tau).
        d_oth: added to the score by any other packet: -256 tau.
        n_sample: a window's count must exceed it.
        neg_window: minus the window's length in units of 256 ns.
        warmup: N_warmup << 8.
        amax: bound of alpha.

    Raises:
        ParameterError: a value does not fit its field.
    """

    scope_mask: int
    gate: int
    lg_k: int
    lg_floor: int
    d_op: int
    d_oth: int
    n_sample: int
    neg_window: int
    warmup: int
    amax: int

    def __post_init__(self) -> None:
        for name, (bits, signed) in PARAM_FIELDS.items():
            low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ParameterError(f"set_params field {name} = {value!r}: give an integer from {low} to {high}")

    @classmethod
    def from_data(cls, data: Mapping[str, int]) -> ParamEntry:
        """Return the entry for action data as read from a switch: field name -> raw unsigned word.

        Raises:
            ParameterError: a field is missing, unknown or too wide.
        """
        if data.keys() != PARAM_FIELDS.keys():
            odd = ", ".join(sorted(data.keys() ^ PARAM_FIELDS.keys()))
            raise ParameterError(
                f"set_params entry: missing or unknown fields {odd}; "
                "is the loaded P4 program of another version than this software?"
            )
        values = {}
        for name, (bits, signed) in PARAM_FIELDS.items():
            raw = data[name]
            values[name] = raw - (1 << bits) if signed and raw >= 1 << (bits - 1) else raw
        return cls(**values)

    def to_data(self) -> dict[str, int]:
        """Return field name -> raw unsigned word (two's complement), as BF-Runtime takes it."""
        return {name: getattr(self, name) & ((1 << bits) - 1) for name, (bits, _) in PARAM_FIELDS.items()}

    def values(self) -> tuple[int, ...]:
        """Return the ten integers in the order of ``PARAM_FIELDS``: the row that the integer form takes."""
        return astuple(self)

    def to_params(self) -> SymphonyParams:
        """Return the parameters this entry stands for, with the fewest decimal digits that mean the same.

        ``params.to_entry().to_params()`` is what the switch runs: ``params`` with its values rounded.

        Raises:
            ParameterError: no parameters give this entry (some other software wrote it).
        """
        if self.gate not in (0, 1):
            raise self._foreign("gate", "0 or 1")
        if self.scope_mask not in (0, _PORT_MASK):
            raise self._foreign("scope_mask", f"0 or {_PORT_MASK}")
        if self.d_op - self.d_oth != TAU_FRACTION:
            raise self._foreign("d_op", f"d_oth + {TAU_FRACTION} = {self.d_oth + TAU_FRACTION}")
        if self.warmup & ((1 << PSN_SHIFT) - 1):
            raise self._foreign("warmup", f"a multiple of {1 << PSN_SHIFT}")
        window_us = -self.neg_window * TIME_UNIT_NS / 1000
        floor = None if self.lg_floor == _FLOOR_OFF else _from_log2(self.lg_floor)
        return SymphonyParams(
            k=_from_log2(self.lg_k),
            tau=-self.d_oth / TAU_FRACTION,
            window_us=_shortest(window_us, -self.neg_window, _window_units),
            n_warmup=self.warmup >> PSN_SHIFT,
            n_sample=self.n_sample,
            gate=self.gate == 1,
            alpha_max=self.amax,
            ratio_floor=floor,
            scope="port" if self.scope_mask else "job",
        )

    def _foreign(self, field: str, expected: str) -> ParameterError:
        return ParameterError(
            f"set_params field {field} = {getattr(self, field)}: expected {expected}; "
            "some other software wrote this entry, set the job's parameters anew"
        )


def _from_log2(code: int) -> float:
    return _shortest(2.0 ** (code / LOG_FRACTION), code, log2_fixed)


assert tuple(PARAM_FIELDS) == tuple(field.name for field in fields(ParamEntry))
