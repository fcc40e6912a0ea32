# SPDX-License-Identifier: Apache-2.0
"""Run captures through the data plane and report: the one function behind ``switch-agent replay``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from switch_agent.replay.capture import Capture
from switch_agent.replay.errors import EmptyCaptureError, OptionError
from switch_agent.replay.merge import MAX_CAPTURES, decoded, merged
from switch_agent.replay.pipeline import Pipeline, Progress, ReplayOptions
from switch_agent.replay.report import ReplayReport
from switch_agent.replay.summary import summary

__all__ = ["ReplayOptions", "replay"]


def replay(
    paths: str | Sequence[str],
    options: ReplayOptions,
    watch: Callable[[Progress], bool] | None = None,
) -> ReplayReport:
    """Run captures through the data plane.

    Args:
        paths: one file ("-": standard input) or several, which are merged by time.
        options: what to do.
        watch: the capture is live: wait for more at its end, and call this after every piece, at least twice a
            second, until it returns False.

    Raises:
        CaptureError: a file cannot be read, is no capture, or there is no packet.
        OptionError: step_bits out of range, or captures that cannot be merged.
    """
    paths = [paths] if isinstance(paths, str) else list(paths)
    if len(paths) > MAX_CAPTURES:
        raise OptionError(f"{len(paths)} captures: at most {MAX_CAPTURES} can be merged")
    if len(set(paths)) < len(paths):
        raise OptionError("a capture is named twice")
    if watch and len(paths) > 1:
        raise OptionError("--follow takes one capture")
    run = Pipeline(options, len(paths))
    with ExitStack() as stack:
        captures = [stack.enter_context(Capture(path, live=watch is not None)) for path in paths]
        pieces = decoded(captures[0]) if len(captures) == 1 else merged(captures)
        for piece in pieces:
            run.feed(piece)
            if watch and not watch(run.progress()):
                break
    run.finish()
    if not any(capture.records for capture in captures):
        raise _without_a_packet(captures)
    return summary(captures, run)


def _without_a_packet(captures: Sequence[Capture]) -> EmptyCaptureError:
    names = " and ".join(capture.name for capture in captures)
    why = next((f" ({capture.incomplete.reason})" for capture in captures if capture.incomplete), "")
    kind = f"is a {captures[0].format} file" if len(captures) == 1 else "are captures"
    return EmptyCaptureError(f"{names} {kind} without a packet{why or ': was anything captured?'}")
