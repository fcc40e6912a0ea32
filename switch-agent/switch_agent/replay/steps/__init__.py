# SPDX-License-Identifier: Apache-2.0
"""Find the steps of a ring collective in the messages of its QPs, without tags.

Pure: arrays in, dataclasses out; numpy is all it needs.

1. QPs that carry data are told from those that carry credits and the like by their bytes.
2. A *lane* counts steps: one QP, or the QPs of one sender and receiver that take turns.
3. Messages per step: given, or from the immediates, the lengths or the pauses between messages.
4. Who sends to whom gives rings. In a ring no step is sent ahead of the arrival of the step before it: by that the
   lanes' counts are brought to one origin, and checked.
5. Overlap, laggards and collectives follow. What cannot be told is None and has a reason.
"""

from __future__ import annotations

from switch_agent.replay.steps.infer import infer
from switch_agent.replay.steps.model import (
    END_SEEN,
    EPOCH,
    IMMEDIATE,
    SEND,
    START_SEEN,
    Candidate,
    Flow,
    Group,
    Inference,
    Lane,
    Messages,
    OverlapWindow,
)

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
    "infer",
]
