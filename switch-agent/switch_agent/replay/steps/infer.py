# SPDX-License-Identifier: Apache-2.0
"""The steps of all QPs of a capture."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from switch_agent.replay.steps.collectives import find_candidates, overlap
from switch_agent.replay.steps.lanes import DATA_SHARE, Track, data_flows, find_tracks
from switch_agent.replay.steps.model import Candidate, Flow, Group, Inference, Lane, Messages, OverlapWindow
from switch_agent.replay.steps.per_step import find_messages_per_step
from switch_agent.replay.steps.rings import align, components, shape_of

__all__ = ["infer"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_LAGGARDS = 3
_NS = 1e9


def _group(
    flows: Sequence[Flow],
    messages: Messages,
    tracks: Sequence[Track],
    base_ns: int,
    per_step_given: int | None,
    window_ns: int,
    step_of: Ints,
) -> Group:
    shape, members, why_no_ring = shape_of(tracks)
    per_step, sure, how = find_messages_per_step(messages, tracks, per_step_given)
    reasons = [how, *([why_no_ring] if why_no_ring else [])]
    origins: list[int] | None = None
    seen = sum(len(track.rows) for track in tracks)
    missing = sum(track.missing for track in tracks)
    if any(track.missing > len(track.rows) for track in tracks):
        sure = 0.0
        reasons.append(f"{missing} messages are missing by their PSNs, {seen} are there: steps cannot be told")
    elif per_step and shape != "mesh":
        origins, aligned, why = align(messages, tracks, per_step, members, shape)
        sure *= aligned
        reasons.append(why)
    elif shape == "mesh":
        sure = 0.0
    if shape in ("chain", "pair"):
        sure *= 0.8
    if missing and origins is not None:
        sure *= max(0.0, 1 - missing / (seen + missing)) ** 2
        reasons.append(f"{missing} messages are missing by their PSNs and were counted all the same")
    used = origins or [0] * len(tracks)
    raw = [(track.ordinal - origin) // (per_step or 1) for track, origin in zip(tracks, used, strict=True)]
    lowest = min(int(step[0]) for step in raw)
    steps = [step - lowest for step in raw]
    timeline: list[OverlapWindow] = []
    last_share: Floats | None = None
    candidates: list[Candidate] = []
    laggards: list[str] = []
    if origins is not None:
        for track, step in zip(tracks, steps, strict=True):
            step_of[track.rows] = step
        timeline, last_share = overlap(tracks, messages, steps, base_ns, window_ns)
        candidates = find_candidates(tracks, messages, steps, base_ns, len(members) if shape == "ring" else 0, -lowest)
    lanes = [
        _lane(flows, messages, track, step, base_ns, None if last_share is None else float(last_share[i]))
        for i, (track, step) in enumerate(zip(tracks, steps, strict=True))
    ]
    if last_share is not None and len(tracks) > 1:
        fair = 2 / len(tracks) if len(tracks) > 2 else 0.75
        worst = [i for i in np.argsort(-last_share).tolist() if last_share[i] >= max(fair, 0.25)][:_LAGGARDS]
        laggards = [f"{tracks[i].src} -> {tracks[i].dst}" for i in worst]
    return Group(
        shape=shape,
        members=members,
        lanes=lanes,
        messages_per_step=per_step,
        confidence=round(sure, 2),
        reasons=reasons,
        max_overlap=max((window.overlap for window in timeline), default=None),
        timeline=timeline,
        laggards=laggards,
        candidates=candidates,
    )


def _lane(
    flows: Sequence[Flow], messages: Messages, track: Track, step: Ints, base_ns: int, last_share: float | None
) -> Lane:
    mine = [flows[f] for f in track.flows]
    begun, ended = int(messages.start_ns[track.rows].min()), int(messages.end_ns[track.rows].max())
    first = np.concatenate([[0], np.flatnonzero(np.diff(step)) + 1])
    starts = np.minimum.reduceat(messages.start_ns[track.rows], first)
    return Lane(
        src=track.src,
        dst=track.dst,
        qpns=[flow.qpn for flow in mine],
        messages=len(track.rows),
        steps=int(step[-1] - step[0]) + 1,
        bytes=int(messages.octets[track.rows].sum()),
        retransmitted=sum(flow.retransmitted for flow in mine),
        missing_messages=track.missing,
        first_s=(begun - base_ns) / _NS,
        last_s=(ended - base_ns) / _NS,
        step_ms=float(np.median(np.diff(starts))) / 1e6 if len(starts) > 1 else None,
        last_share=None if last_share is None else round(last_share, 3),
    )


def infer(
    flows: Sequence[Flow],
    messages: Messages,
    *,
    messages_per_step: int | None = None,
    turns: int | None = None,
    window_ns: int = 10_000_000,
    base_ns: int = 0,
) -> tuple[Inference, Ints]:
    """Find the steps; also return that of each message, -1 where it cannot be told.

    Args:
        flows: the flows that ``messages.flow`` is an index into.
        messages: all messages, by time of their start.
        messages_per_step: if known; None: found out.
        turns: how many QPs of a sender and receiver take turns; None: found out.
        window_ns: of the timelines, longer if there would be more than 1000 windows.
        base_ns: times in the result are seconds since then.
    """
    step_of = np.full(len(messages.flow), -1, np.int64)
    octets = np.bincount(messages.flow, messages.octets, len(flows)).astype(np.float64)
    data = data_flows(flows, messages, octets)
    control = int(np.count_nonzero(octets)) - len(data)
    if not data:
        nothing = "There are no messages of a reliable connection (SEND, RDMA WRITE or READ) with data."
        return Inference([], control, [nothing]), step_of
    tracks = find_tracks(flows, messages, data, turns)
    groups = [
        _group(flows, messages, [tracks[i] for i in part], base_ns, messages_per_step, window_ns, step_of)
        for part in components(tracks)
    ]
    notes = []
    if control:
        notes.append(
            f"{control} flows carry no steps: small SENDs against the direction of the data, or less than "
            f"{DATA_SHARE:.0%} of the bytes of the busiest flow."
        )
    return Inference(groups, control, notes), step_of
