# SPDX-License-Identifier: Apache-2.0
"""The command ``ring-bench doctor`` (and ``host-agent doctor``): options, the table, JSON, the exit status."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ring_bench.doctor import CHECKS, Check, Finding, Machine, Options, Report, Severity, diagnose
from ring_bench.hosts import expand_hosts
from ring_bench.units import parse_size
from symphony_common.addresses import whole
from symphony_common.output import with_stdout_checked

__all__ = ["add_arguments", "examine", "main", "show"]

_LONGEST_WATCH_S = 3600.0
_STYLES = {Severity.OK: "green", Severity.UNKNOWN: "cyan", Severity.WARNING: "yellow", Severity.ERROR: "bold red"}


def main(arguments: Sequence[str]) -> int:
    """Run the command; gives 0, or 1 when something must be mended."""
    parser = argparse.ArgumentParser(
        prog="ring-bench doctor",
        description="Find out what on this machine stands against RoCE with step tags. Changes nothing.",
    )
    add_arguments(parser)
    given = parser.parse_args(arguments)
    return with_stdout_checked("ring-bench", lambda: examine(given))


def add_arguments(parser: argparse.ArgumentParser, checks: Sequence[Check] = CHECKS) -> None:
    """Declare doctor's options."""
    ids = sorted(name for check in checks for name in check.ids)
    add = parser.add_argument
    add("--json", action="store_true", help="findings as JSON")
    add("--verbose", action="store_true", help="show what is all right, too")
    add("--strict", action="store_true", help="warnings count as errors for the exit status")
    add("--only", type=_names(ids), default=[], metavar="ID,..", help=f"look at these only: {', '.join(ids)}")
    add("--device", type=_split, default=[], metavar="NAME,..", help="RDMA or network devices (default: all)")
    add("--peers", type=_hosts, default=[], metavar="ADDR,..", help="the ring's hosts in rank order, this one included")
    add("--memory", type=_size, default=256 << 20, metavar="SIZE", help="a process will register (default 256M)")
    add("--traffic-class", type=_whole(0, 255), default=106, metavar="TC", help="DSCP << 2 | ECN (default 106)")
    add(
        "--gid-index",
        type=_gid_index,
        default=_nccl_gid_index(),
        metavar="N",
        help="index another program is told to use (default: $NCCL_IB_GID_INDEX)",
    )
    add("--switch-mtu", type=_whole(576, 0xFFFF), metavar="BYTES", help="L3 MTU of the switch ports")
    add("--interval", type=_seconds, default=1.0, metavar="S", help="watch counters so long; 0: do not (default 1)")
    add("--probe", action="store_true", help="send real messages over queue pairs made for it, and change their tag")


def examine(given: argparse.Namespace, machine: Machine | None = None, checks: Sequence[Check] = CHECKS) -> int:
    """Diagnose as the options say, print the report, give the exit status."""
    options = Options(
        devices=tuple(given.device),
        peers=tuple(given.peers),
        memory=given.memory,
        traffic_class=given.traffic_class,
        gid_index=given.gid_index,
        switch_mtu=given.switch_mtu,
        interval_s=given.interval,
        probe=given.probe,
    )
    report = diagnose(machine or Machine(), options, only=given.only, checks=checks)
    if given.json:
        print(json.dumps(report.as_data(), indent=1))
    else:
        show(report, Console(), verbose=given.verbose)
    return report.exit_status(strict=given.strict)


def show(report: Report, console: Console, *, verbose: bool = False) -> None:
    """Print a report for people: worst first, what is all right in one line."""
    order = list(Severity)[::-1]
    bad = [finding for severity in order for finding in report.of(severity) if severity is not Severity.OK]
    rows = bad + (report.of(Severity.OK) if verbose else [])
    if rows:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("", no_wrap=True)
        table.add_column("check", no_wrap=True)
        table.add_column("what was seen, and what to do", overflow="fold")
        for finding in rows:
            table.add_row(
                Text(finding.severity.value, style=_STYLES[finding.severity]), finding.id, _explanation(finding)
            )
        console.print(table)
    good = list(dict.fromkeys(finding.id for finding in report.of(Severity.OK)))
    if good and not verbose:
        console.print(Text(f"ok: {', '.join(good)} (--verbose shows the evidence)", style="green"))
    counts = {severity: len(report.of(severity)) for severity in order}
    console.print(
        f"{report.host}: {counts[Severity.ERROR]} errors, {counts[Severity.WARNING]} warnings, "
        f"{counts[Severity.UNKNOWN]} unknown, {counts[Severity.OK]} ok"
    )


def _explanation(finding: Finding) -> Text:
    subject = f"{finding.subject}: " if finding.subject else ""
    text = Text(subject, style="bold") + Text(finding.evidence, style="")
    if finding.fix:
        text += Text(f"\n-> {finding.fix}", style="italic")
    return text


def _split(text: str) -> list[str]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise argparse.ArgumentTypeError(f"names separated by commas, not {text!r}")
    return names


def _names(known: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = _split(text)
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"no check {name!r}; there are {', '.join(known)}")
        return names

    return parse


def _whole(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = whole(text)
        if number is None or not least <= number <= most:
            raise argparse.ArgumentTypeError(f"a whole number from {least} to {most}, not {text!r}")
        return number

    return parse


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _LONGEST_WATCH_S:
        raise argparse.ArgumentTypeError(f"seconds from 0 to {_LONGEST_WATCH_S:g}, not {text!r}")
    return seconds


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _hosts(text: str) -> list[str]:
    try:
        return expand_hosts(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _gid_index(text: str) -> int:
    try:
        return _whole(0, 0xFFFF)(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error} (without the option, $NCCL_IB_GID_INDEX counts)") from None


def _nccl_gid_index() -> str | None:
    """Give what NCCL is told, to be read as the option is; None for -1, its default: it then chooses by address."""
    text = os.environ.get("NCCL_IB_GID_INDEX", "").strip()
    return None if text in ("", "-1") else text
