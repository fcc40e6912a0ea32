# SPDX-License-Identifier: Apache-2.0
"""What goes into the search for steps, and what comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "END_SEEN",
    "EPOCH",
    "IMMEDIATE",
    "SEND",
    "START_SEEN",
    "Candidate",
    "Flow",
    "Group",
    "Inference",
    "Lane",
    "Messages",
    "OverlapWindow",
]

Ints = npt.NDArray[np.int64]

IMMEDIATE, START_SEEN, END_SEEN, EPOCH, SEND = 1, 2, 4, 8, 16
"""Flags of a message: carries an immediate, first and last packet seen, the QP was set up anew ahead of it, SEND."""


class Messages(NamedTuple):
    """Messages in the order of their start, int64[n] each; ``psn`` counts on beyond 24 bits.

    ``length`` is in bytes, -1 if unknown; ``octets`` were seen on the wire; ``flags`` as above.
    """

    flow: Ints
    start_ns: Ints
    end_ns: Ints
    psn: Ints
    packets: Ints
    length: Ints
    octets: Ints
    flags: Ints


@dataclass(frozen=True)
class Flow:
    """One direction of a QP."""

    src: str
    dst: str
    qpn: int
    packets: int
    retransmitted: int
    missing: int


@dataclass(frozen=True)
class Lane:
    """What counts steps: one QP, or QPs that take turns. Times are seconds since the start of the analysis."""

    src: str
    dst: str
    qpns: list[int]
    messages: int
    steps: int
    bytes: int
    retransmitted: int
    missing_messages: int
    first_s: float
    last_s: float
    step_ms: float | None
    last_share: float | None


@dataclass(frozen=True)
class OverlapWindow:
    """The largest overlap within a window: highest step started - lowest step not finished + 1."""

    start_s: float
    step_min: int
    step_max: int
    overlap: int


@dataclass(frozen=True)
class Candidate:
    """What may be one collective: its completion time is ``cct_ms``."""

    start_s: float
    cct_ms: float
    first_step: int
    steps: int
    kind: str


@dataclass(frozen=True)
class Group:
    """Lanes that belong together. ``overlap`` and what follows from it are None or empty if they cannot be told."""

    shape: str
    members: list[str]
    lanes: list[Lane]
    messages_per_step: int | None
    confidence: float
    reasons: list[str]
    max_overlap: int | None
    timeline: list[OverlapWindow]
    laggards: list[str]
    candidates: list[Candidate]


@dataclass(frozen=True)
class Inference:
    """Everything found. ``control_flows`` carry no data."""

    groups: list[Group]
    control_flows: int
    notes: list[str]
