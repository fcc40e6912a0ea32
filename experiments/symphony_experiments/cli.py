# SPDX-License-Identifier: Apache-2.0
"""The command ``symphony-experiments``."""

from __future__ import annotations

import argparse
import shutil
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from symphony_common.output import with_stdout_checked
from symphony_common.version import version
from symphony_experiments.campaign import Campaign
from symphony_experiments.compare import compare
from symphony_experiments.errors import ExperimentError, InterruptedSweepError, ResultsError, ScenarioError
from symphony_experiments.report import Report, write_report
from symphony_experiments.scenario import Scenario, shipped
from symphony_experiments.store import Results
from symphony_experiments.sweep import parse_override

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; leaves with 0, 1 (failed or partial), 2 (input that cannot work) or 130 (Ctrl-C)."""
    given = _parser().parse_args(arguments)

    def command() -> int:
        try:
            status: int = given.function(given)
        except ExperimentError as error:
            if given.debug:
                traceback.print_exc()
            print(f"symphony-experiments: {error}", file=sys.stderr)
            if isinstance(error, InterruptedSweepError):
                return 130
            return 2 if isinstance(error, ScenarioError) else 1
        return status

    sys.exit(with_stdout_checked("symphony-experiments", command))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="symphony-experiments", description="The paper's evaluation as commands.")
    parser.add_argument("--version", action="version", version=f"symphony-experiments {version()}")
    parser.add_argument("--debug", action="store_true", help="tracebacks of errors")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("list", help="the scenarios that come with the package")
    command.set_defaults(function=_list)

    command = commands.add_parser("show", help="what a scenario runs, without running it")
    _takes_scenario(command)
    command.set_defaults(function=_show)

    command = commands.add_parser("run", help="run a scenario, or go on with it; then write its report")
    _takes_scenario(command)
    command.add_argument("--out", type=Path, help="folder of the results (results/NAME, or results/NAME-quick)")
    command.add_argument("--fresh", action="store_true", help="delete what the folder holds first")
    command.add_argument("--workers", type=int, help="processes on this machine (one per core); 0: all in this one")
    command.add_argument("--scheduler", metavar="ADDRESS", help="use the workers of this Dask scheduler instead")
    command.set_defaults(function=_run)

    command = commands.add_parser("repeat", help="run one run again from its manifest; fails if the hash differs")
    command.add_argument("directory", type=Path, metavar="DIR")
    command.add_argument("key", metavar="KEY", help="of the run, in manifest.json")
    command.set_defaults(function=_repeat)

    command = commands.add_parser("report", help="write the report of a folder of results again")
    command.add_argument("directory", type=Path, metavar="DIR")
    command.set_defaults(function=_report)

    command = commands.add_parser("compare", help="two folders of results of one scenario, row by row")
    command.add_argument("before", type=Path, metavar="DIR")
    command.add_argument("after", type=Path, metavar="DIR")
    command.set_defaults(function=_compare)
    return parser


def _takes_scenario(command: argparse.ArgumentParser) -> None:
    command.add_argument("scenario", metavar="NAME|FILE", help="a shipped scenario, or a .toml file")
    command.add_argument("--quick", action="store_true", help="the small form: under a minute on two cores")
    command.add_argument(
        "--set",
        dest="overrides",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help='another value, as TOML; a list makes a sweep (--set workload.chunk=\'["4M", "8M"]\')',
    )


def _scenario(given: argparse.Namespace) -> Scenario:
    scenario = Scenario.load(given.scenario)
    if given.quick:
        scenario = scenario.quickened()
    if given.overrides:
        scenario = scenario.changed([parse_override(text) for text in given.overrides])
    return scenario


def _list(given: argparse.Namespace) -> int:
    table = Table(box=None, pad_edge=False)
    for column in ("name", "runs", "quick", "what", "paper"):
        table.add_column(column, overflow="fold")
    for name in shipped():
        scenario = Scenario.load(name)
        quick = len(scenario.quickened().runs())
        table.add_row(name, str(len(scenario.runs())), str(quick), scenario.title, scenario.paper or "beyond it")
    Console().print(table)
    return 0


def _show(given: argparse.Namespace) -> int:
    scenario = _scenario(given)
    console = Console()
    console.print(f"{scenario.name}: {scenario.title}", highlight=False)
    if scenario.paper:
        console.print(f"paper: {scenario.paper}", highlight=False)
    if scenario.about:
        console.print(scenario.about, highlight=False)
    runs = scenario.runs()
    seeds = scenario.seeds
    console.print(f"{len(runs)} runs; seeds {seeds.first} to {seeds.first + seeds.count - 1}", highlight=False)
    for variant in scenario.variant:
        said = ", ".join(f"{key} = {value}" for key, value in variant.set.items())
        console.print(f"  variant {variant.name}: {said or 'nothing changed'}", highlight=False, markup=False)
    for key, values in scenario.axes().items():
        console.print(f"  axis {key}: {', '.join(map(str, values))}", highlight=False, markup=False)
    for claim in scenario.claim:
        console.print(f"  claim {claim.id}: {claim.text} ({claim.source})", highlight=False, markup=False)
    return 0


def _run(given: argparse.Namespace) -> int:
    if given.workers is not None and given.workers < 0:
        raise ScenarioError(f"--workers {given.workers}: give 0 (this process) or more")
    scenario = _scenario(given)
    out = given.out or Path("results") / (scenario.name + ("-quick" if given.quick else ""))
    if given.fresh and out.exists():
        if not (out / "manifest.json").exists():
            raise ScenarioError(f"--fresh: {out} holds no results of ours (no manifest.json); it is left alone")
        shutil.rmtree(out)
    campaign = Campaign(scenario, Results(out), quick=given.quick)
    failed = campaign.run(workers=given.workers, scheduler=given.scheduler)
    report = write_report(Results(out))
    _print_verdicts(report)
    print(f"{out}/report.html")
    for failure in failed:
        print(f"symphony-experiments: run {failure.key}: {failure.reason}", file=sys.stderr)
    return 1 if failed else 0


def _repeat(given: argparse.Namespace) -> int:
    expected, got = Campaign.repeat(Results(given.directory), given.key)
    if got != expected:
        raise ResultsError(
            f"run {given.key} gave {got[:16]}…, the manifest has {expected[:16]}…: other code or machine"
        )
    print(f"{given.key} {got}")
    return 0


def _report(given: argparse.Namespace) -> int:
    report = write_report(Results(given.directory))
    _print_verdicts(report)
    print(f"{given.directory}/report.html")
    return 0


def _print_verdicts(report: Report) -> None:
    console = Console()
    if report.is_partial:
        console.print(f"PARTIAL: {report.done} of {report.planned} runs", highlight=False)
    for judgement in report.judgements:
        ours = (
            "" if judgement.ours is None else f" (ours {judgement.ours.value:.4g}, the paper {judgement.claim.paper})"
        )
        console.print(f"{judgement.verdict}: {judgement.claim.text}{ours}", highlight=False, markup=False)


def _compare(given: argparse.Namespace) -> int:
    table = Table(box=None, pad_edge=False)
    header, *lines = compare(Results(given.before), Results(given.after))
    for column in header:
        table.add_column(column)
    for line in lines:
        table.add_row(*line)
    Console().print(table)
    return 0


if __name__ == "__main__":
    main()
