# SPDX-License-Identifier: Apache-2.0
"""The step tag: which job and which step of its ring a packet belongs to, carried in the UDP source port.

A RoCEv2 packet's UDP source port is free entropy in 0xC000-0xFFFF (``IB_ROCE_UDP_ENCAP_VALID_PORT_MIN`` and
``_MAX`` of rdma-core), 14 bits. They hold ``job_tag`` in the upper and ``step mod 2**step_bits`` in the lower
bits::

    15 14 13                 step_bits           0
    +----+--------------------+------------------+
    | 11 |      job_tag       | step mod 2**bits |
    +----+--------------------+------------------+

Steps wrap, so they are compared with serial-number arithmetic (RFC 1982) everywhere: host, P4, twin, replay.
This module imports nothing of the testbed. Every error is a ``ValueError``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

__all__ = [
    "DEFAULT_STEP_BITS",
    "FLOW_LABEL_BITS",
    "SPORT_BASE",
    "SPORT_BITS",
    "StepTag",
    "TagLayout",
    "flow_label_of_sport",
    "serial_diff",
    "serial_gt",
    "serial_lt",
    "serial_max",
    "serial_min",
    "sport_of_flow_label",
]

SPORT_BASE = 0xC000
"""Lowest UDP source port that a RoCEv2 sender may use for entropy."""

SPORT_BITS = 14
"""Free bits of the source port: 0xC000-0xFFFF."""

FLOW_LABEL_BITS = 20
"""Width of the GRH / IPv6 flow label."""

DEFAULT_STEP_BITS = 10

_ENTROPY_MASK = (1 << SPORT_BITS) - 1


class StepTag(NamedTuple):
    """What a source port says: the job's tag and the step modulo ``2**step_bits``."""

    job_tag: int
    step: int


@dataclass(frozen=True)
class TagLayout:
    """How the 14 free bits of the source port are shared between job tag and step.

    Args:
        step_bits: Bits for the step, 2 to 14 (RFC 1982 needs two); the rest is the job tag.

    Raises:
        ValueError: ``step_bits`` out of range.
    """

    step_bits: int = DEFAULT_STEP_BITS

    def __post_init__(self) -> None:
        if not 2 <= self.step_bits <= SPORT_BITS:
            raise ValueError(f"step_bits must be 2 to {SPORT_BITS}, not {self.step_bits}")

    @property
    def job_tag_bits(self) -> int:
        """Bits left for the job tag; 0 means the only job tag is 0."""
        return SPORT_BITS - self.step_bits

    @property
    def modulus(self) -> int:
        """Steps are equal on the wire when they are equal modulo this number."""
        return 1 << self.step_bits

    def encode(self, job_tag: int, step: int) -> int:
        """Give the UDP source port of a step.

        Args:
            job_tag: 0 to ``2**job_tag_bits - 1``.
            step: Any step from 0 up; it is taken modulo `modulus`.

        Returns:
            A port in 0xC000-0xFFFF.

        Raises:
            ValueError: Job tag out of range or a negative step.
        """
        self._check_job_tag(job_tag)
        if step < 0:
            raise ValueError(f"a step counts from 0 up, not {step}")
        return SPORT_BASE | job_tag << self.step_bits | step & self.modulus - 1

    def decode(self, sport: int) -> StepTag:
        """Read job tag and step (modulo `modulus`) from a UDP source port.

        Raises:
            ValueError: The port is not in 0xC000-0xFFFF, so it carries no tag.
        """
        _check_sport(sport)
        entropy = sport & _ENTROPY_MASK
        return StepTag(entropy >> self.step_bits, entropy & self.modulus - 1)

    def classify(self, job_tag: int) -> tuple[int, int]:
        """Give the ternary match (16-bit value and mask) of the source ports of one job.

        Raises:
            ValueError: Job tag out of range.
        """
        self._check_job_tag(job_tag)
        return SPORT_BASE | job_tag << self.step_bits, 0xFFFF & ~(self.modulus - 1)

    def _check_job_tag(self, job_tag: int) -> None:
        if not 0 <= job_tag < 1 << self.job_tag_bits:
            raise ValueError(
                f"job_tag must be 0 to {(1 << self.job_tag_bits) - 1} with {self.step_bits} step bits, not {job_tag}"
            )


def _check_sport(sport: int) -> None:
    if not SPORT_BASE <= sport <= 0xFFFF:
        raise ValueError(f"UDP source port {sport} is outside 49152-65535, where RoCEv2 tags live")


def sport_of_flow_label(flow_label: int) -> int:
    """Give the UDP source port a NIC derives from a flow label: its upper 6 bits folded into its lower 14.

    The fold of rdma-core's ``ibv_flow_label_to_udp_sport``; the mlx5 and rxe kernel drivers use the same.

    Raises:
        ValueError: More than 20 bits, or negative.
    """
    if not 0 <= flow_label < 1 << FLOW_LABEL_BITS:
        raise ValueError(f"a flow label has {FLOW_LABEL_BITS} bits, {flow_label:#x} does not fit")
    return SPORT_BASE | (flow_label & _ENTROPY_MASK) ^ (flow_label >> SPORT_BITS)


def flow_label_of_sport(sport: int) -> int:
    """Give a flow label, never 0, for which `sport_of_flow_label` gives this port back.

    Flow label 0 means "none given" to drivers, which then hash the QP numbers. So port 0xC000 gets the label
    0x4001, whose two halves cancel out.

    Raises:
        ValueError: The port is not in 0xC000-0xFFFF.
    """
    _check_sport(sport)
    return sport & _ENTROPY_MASK or 1 << SPORT_BITS | 1


def serial_diff(a: int, b: int, bits: int = DEFAULT_STEP_BITS) -> int:
    """Give the signed distance from ``b`` to ``a`` on a circle of ``2**bits`` (RFC 1982).

    The result lies in ``-2**(bits-1)`` to ``2**(bits-1) - 1``. Exactly half the circle, which RFC 1982 leaves
    undefined, counts as ``-2**(bits-1)``, "behind": the switch looks at the sign bit of the difference.
    """
    half = 1 << bits - 1
    return ((a - b + half) & ((1 << bits) - 1)) - half


def serial_lt(a: int, b: int, bits: int = DEFAULT_STEP_BITS) -> bool:
    """Say whether ``a`` is behind ``b``; at exactly half the circle each is behind the other."""
    return serial_diff(a, b, bits) < 0


def serial_gt(a: int, b: int, bits: int = DEFAULT_STEP_BITS) -> bool:
    """Say whether ``a`` is ahead of ``b``; at exactly half the circle neither is ahead of the other."""
    return serial_diff(a, b, bits) > 0


def serial_min(values: Iterable[int], bits: int = DEFAULT_STEP_BITS) -> int:
    """Give the value furthest behind, taking the values in order as a switch register does.

    Raises:
        ValueError: No values.
    """
    return _fold(values, bits, want_behind=True)


def serial_max(values: Iterable[int], bits: int = DEFAULT_STEP_BITS) -> int:
    """Give the value furthest ahead, taking the values in order as a switch register does.

    Raises:
        ValueError: No values.
    """
    return _fold(values, bits, want_behind=False)


def _fold(values: Iterable[int], bits: int, *, want_behind: bool) -> int:
    chosen: int | None = None
    for value in values:
        if chosen is None or (serial_lt if want_behind else serial_gt)(value, chosen, bits):
            chosen = value
    if chosen is None:
        raise ValueError("the smallest or largest of no steps at all is undefined")
    return chosen
