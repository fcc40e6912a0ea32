# SPDX-License-Identifier: Apache-2.0
"""A scenario being run: what is left to do, the runs, and the tables when they are done."""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import fabric_twin
import ring_bench
import switch_agent
from symphony_experiments.errors import InterruptedSweepError, ResultsError
from symphony_experiments.run_case import run_case
from symphony_experiments.runner import Failed, Job, outcomes
from symphony_experiments.scenario import Planned, Scenario
from symphony_experiments.store import FORMAT, Finished, Results, provenance, run_key

__all__ = ["Campaign"]

Table = dict[str, Any]


class Campaign:
    """All runs of a scenario, into a folder of results."""

    def __init__(self, scenario: Scenario, results: Results, *, quick: bool) -> None:
        self.scenario = scenario
        self.results = results
        self._quick = quick
        self._code = code_hash()
        self._planned = {run_key(run.to_case(), self._code): run for run in scenario.runs()}

    def run(self, *, workers: int | None, scheduler: str | None) -> list[Failed]:
        """Do what is not done yet; returns the runs that ended without a result.

        Raises:
            InterruptedSweepError: Ctrl-C; what finished is kept.
            ResultsError: the folder belongs to something else, or cannot be written.
        """
        self.results.begin(self._manifest({}))
        done = {key: run for key, run in self.results.finished().items() if key in self._planned}
        left = [key for key in self._planned if key not in done]
        failed: list[Failed] = []
        jobs = [Job(key, self._planned[key].to_case()) for key in left]
        columns = {key: _columns(self._planned[key]) for key in left}
        try:
            with _progress() as progress:
                task = progress.add_task(self.scenario.name, total=len(self._planned), completed=len(done))
                run = functools.partial(_with_columns, columns)
                for outcome in outcomes(jobs, run, workers=workers, scheduler=scheduler) if jobs else ():
                    if isinstance(outcome, Failed):
                        failed.append(outcome)
                    else:
                        self.results.add(outcome)
                        done[outcome.key] = outcome
                    progress.advance(task)
        except KeyboardInterrupt:
            raise InterruptedSweepError(
                f"stopped; {len(done)} of {len(self._planned)} runs are kept in {self.results.directory}, "
                "the same command goes on with the others"
            ) from None
        ordered = [done[key] for key in self._planned if key in done]
        self.results.complete(self._manifest(done), ordered)
        return failed

    def _manifest(self, done: dict[str, Finished]) -> Table:
        return {
            "format": FORMAT,
            "scenario": self.scenario.to_table(),
            "quick": self._quick,
            "code": self._code,
            **provenance(Path(fabric_twin.__file__).parent),
            "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "cpu_s": round(sum(run.engine["cpu_s"] for run in done.values()), 1),
            "data_packets": sum(run.engine["data_packets"] for run in done.values()),
            "runs": {
                key: {
                    "variant": run.variant,
                    "case": run.to_case(),
                    "trace_hash": done[key].trace_hash if key in done else None,
                }
                for key, run in self._planned.items()
            },
        }

    @staticmethod
    def repeat(results: Results, key: str) -> tuple[str, str]:
        """Run one run of a manifest again; returns the hash that the manifest has, and the one it gave now.

        Raises:
            ResultsError: the manifest has no such run, or it did not finish.
        """
        runs = results.manifest()["runs"]
        matching = [name for name in runs if name.startswith(key)]
        if len(matching) != 1:
            raise ResultsError(f"{results.directory}: {len(matching)} runs begin with {key!r}; see manifest.json")
        expected = runs[matching[0]]["trace_hash"]
        if expected is None:
            raise ResultsError(f"{results.directory}: run {matching[0]} has no result to compare with")
        return expected, run_case(matching[0], runs[matching[0]]["case"], {}).trace_hash


def _with_columns(columns: dict[str, Table], key: str, case: Table) -> Finished:
    return run_case(key, case, columns[key])


def _columns(run: Planned) -> Table:
    return {"variant": run.variant, **run.axes}


def code_hash() -> str:
    """A hash of all Python that decides a run's result: the twin, the data plane, ring-bench's schedules."""
    digest = hashlib.sha256()
    for package in (fabric_twin, switch_agent, ring_bench):
        root = Path(str(package.__file__)).parent
        for path in sorted(_sources(root)):
            digest.update(f"{package.__name__}/{path.relative_to(root)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _sources(root: Path) -> Iterable[Path]:
    """Of the parts that simulations use."""
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).parts
        if root.name == "switch_agent" and parts[0] != "dataplane":
            continue
        if root.name == "ring_bench" and (len(parts) > 1 or parts[0] in ("cli.py", "__main__.py", "report.py")):
            continue
        if root.name == "fabric_twin" and parts[0] in ("bfrt_server", "cli.py", "daemon.py", "rest.py"):
            continue
        yield path


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
