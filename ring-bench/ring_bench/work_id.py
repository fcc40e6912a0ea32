# SPDX-License-Identifier: Apache-2.0
"""Work request ids: which edge of which ring a completion is of, what was asked, and for which step."""

from __future__ import annotations

__all__ = [
    "CREDIT",
    "GRANT",
    "KIND_SHIFT",
    "RECV",
    "SEND",
    "axis_of",
    "kind_of",
    "link_part",
    "ring_of",
    "step_of",
    "value_of",
]

SEND, RECV, CREDIT, GRANT = range(4)
KIND_SHIFT, _RING_SHIFT, _AXIS_SHIFT = 60, 48, 40
_VALUE_MASK = (1 << _AXIS_SHIFT) - 1
_AXIS_MASK = (1 << _RING_SHIFT - _AXIS_SHIFT) - 1
_RING_MASK = (1 << KIND_SHIFT - _RING_SHIFT) - 1


def link_part(ring: int, axis: int) -> int:
    """Give what all ids of an edge share; kind << `KIND_SHIFT` and a step or serial number are added to it."""
    return ring << _RING_SHIFT | axis << _AXIS_SHIFT


def kind_of(wr_id: int) -> int:
    """Give what a work request is: SEND, RECV, CREDIT or GRANT."""
    return wr_id >> KIND_SHIFT


def ring_of(wr_id: int) -> int:
    """Give the ring of a work request."""
    return wr_id >> _RING_SHIFT & _RING_MASK


def axis_of(wr_id: int) -> int:
    """Give the axis of a work request."""
    return wr_id >> _AXIS_SHIFT & _AXIS_MASK


def value_of(wr_id: int) -> int:
    """Give the step of a SEND or RECV, the serial number of a GRANT."""
    return wr_id & _VALUE_MASK


def step_of(wr_id: int) -> int | None:
    """Give the step of a work request; None for those of the credit flow."""
    return value_of(wr_id) if kind_of(wr_id) in (SEND, RECV) else None
