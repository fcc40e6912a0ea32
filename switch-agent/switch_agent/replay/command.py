# SPDX-License-Identifier: Apache-2.0
"""The subcommand ``switch-agent replay``: its options, and what it prints and writes.

Compiled code and plotting are imported when the command runs, so that registering it costs nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from switch_agent.dataplane.constants import STEP_BITS
from switch_agent.dataplane.errors import ParameterError
from switch_agent.dataplane.params import PARAM_RANGES, VARIANTS, SymphonyParams
from switch_agent.replay.errors import OptionError, OutputError, ReplayError
from symphony_common.output import write_file

if TYPE_CHECKING:
    from switch_agent.replay.pipeline import Progress, ReplayOptions
    from switch_agent.replay.report import ReplayReport

__all__ = ["add_parser", "run"]

_STDOUT = "-"
_LINE_EVERY_S = 1.0
_PARAMETERS = ("k", "tau", "window_us", "n_warmup", "n_sample", "gate", "alpha_max", "ratio_floor")


def _ratio_floor(text: str) -> float | None:
    return None if text.lower() == "none" else float(text)


_ratio_floor.__name__ = "number"  # argparse names the type in its message


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Register ``replay`` and its options; returns the new parser."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "replay",
        help="run the switch's pipeline over a capture",
        description="Run the switch's pipeline over captures (pcap or pcapng, also as gzip, zstd, xz or bzip2): step "
        "overlap over time, registers and would-be marks per job. RoCE in tunnels (VLAN, MPLS, VXLAN, GENEVE, GRE, "
        "ERSPAN, PPPoE) and InfiniBand are found too. docs/replay.md explains every figure.",
        epilog="live: tcpdump -i eth0 -U -s 128 -w - udp port 4791 | switch-agent replay - --follow",
    )
    parser.add_argument(
        "capture", nargs="+", help="the capture file; - reads standard input; several files are merged by time"
    )
    parser.add_argument(
        "--follow",
        action="store_true",
        help="the capture is still being written: a line each second, the report at its end or at Ctrl-C",
    )
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON; - prints it instead of tables")
    parser.add_argument("--png", metavar="FILE", type=Path, help="write the timeline as a picture")
    parser.add_argument("--window-ms", type=float, default=10.0, metavar="MS", help="windows of the timeline (10)")
    parser.add_argument("--seed", type=int, default=1, help="of the marking coin (1)")
    parser.add_argument(
        "--step-bits", type=int, default=STEP_BITS, metavar="N", help=f"bits of the step in the tag ({STEP_BITS})"
    )
    parser.add_argument(
        "--job",
        action="append",
        default=[],
        metavar="NAME=SRC,DST,SPORT/MASK",
        help="packets of one job, e.g. train=10.0.0.0/24,*,0xc400/0xfc00; may be given several times, the first "
        "match wins; packets that match none belong to the job of their tag",
    )
    steps = parser.add_argument_group("steps without tags (NCCL, MPI, perftest)")
    steps.add_argument(
        "--infer-steps",
        action="store_true",
        help="find the steps from the messages of the QPs: rings, overlap, laggards, collectives and their times",
    )
    steps.add_argument("--messages-per-step", type=int, metavar="N", help="if known; else it is found out")
    steps.add_argument(
        "--qp-groups",
        type=int,
        metavar="N",
        help="N QPs of one sender and receiver take turns, step by step (1: none do); else it is found out",
    )
    group = parser.add_argument_group("Symphony's parameters (docs/p4.md); each overrides that of the variant")
    group.add_argument("--variant", choices=tuple(VARIANTS), default="paper", help="base of the values (paper)")
    group.add_argument("--gate", action=argparse.BooleanOptionalAction, help="mark only if the queue is not empty")
    for name, allowed in PARAM_RANGES.items():
        unit = f", {allowed.unit}" if allowed.unit else ""
        group.add_argument(
            f"--{name.replace('_', '-')}",
            type=_ratio_floor if name == "ratio_floor" else int if allowed.integer else float,
            default=argparse.SUPPRESS,
            metavar="X",
            help=f"{allowed.low:.6g} to {allowed.high:.10g}{unit}",
        )
    return parser


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code, 2 for options that make no sense.

    Errors are one line on stderr, tracebacks need ``--debug``.
    """
    try:
        return _run(args)
    except (ReplayError, ParameterError) as error:
        if getattr(args, "debug", False):
            raise
        print(f"switch-agent replay: {error}", file=sys.stderr)
        return 2 if isinstance(error, OptionError | ParameterError) else 1


def _options(args: argparse.Namespace) -> ReplayOptions:
    from switch_agent.replay.jobs import parse_rule
    from switch_agent.replay.replayer import ReplayOptions

    base = SymphonyParams.variant(args.variant)
    given = vars(args)
    overrides: dict[str, Any] = {name: given[name] for name in _PARAMETERS if name in given}
    if overrides["gate"] is None:
        del overrides["gate"]
    return ReplayOptions(
        params=dataclasses.replace(base, **overrides),
        variant=args.variant,
        step_bits=args.step_bits,
        rules=tuple(parse_rule(text) for text in args.job),
        seed=args.seed,
        window_ms=args.window_ms,
        infer_steps=args.infer_steps,
        messages_per_step=args.messages_per_step,
        qp_groups=args.qp_groups,
    )


def _run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from switch_agent.replay.render import picture, print_report
    from switch_agent.replay.replayer import replay
    from switch_agent.replay.summary import seen_instead

    options = _options(args)
    if args.follow:
        with _Watch() as watch:
            report = replay(args.capture, options, watch)
    else:
        report = replay(args.capture, options)
    if args.json == _STDOUT:
        print(_json(report))
    else:
        print_report(report, Console())
        if args.json:
            _write("report", Path(args.json), (_json(report) + "\n").encode())
    if args.png:
        _write("picture", args.png, picture(report))
    for line in report.partial:
        print(f"switch-agent replay: {line}", file=sys.stderr)
    capture = report.capture
    if not capture.roce:
        print(f"switch-agent replay: {seen_instead(report)}", file=sys.stderr)
    return 0 if capture.roce or capture.other else 1


class _Watch:
    """Prints a line each second on stderr; from the first packet on, an interrupt ends the capture, not the program."""

    def __init__(self) -> None:
        self._before: Any = None
        self._stopped = False
        self._next_s = 0.0

    def __enter__(self) -> _Watch:
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _stop(self, *_: object) -> None:
        self._stopped = True

    def __call__(self, progress: Progress) -> bool:
        if self._before is None:
            self._before = signal.signal(signal.SIGINT, self._stop)
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + _LINE_EVERY_S
            print(progress, file=sys.stderr, flush=True)
        return not self._stopped


def _write(what: str, path: Path, content: bytes) -> None:
    try:
        write_file(path, content)
    except OSError as error:
        raise OutputError(f"cannot write the {what} {path}: {error.strerror or error}") from error


def _json(report: ReplayReport) -> str:
    return report.model_dump_json(indent=2)
