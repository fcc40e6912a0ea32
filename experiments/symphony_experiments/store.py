# SPDX-License-Identifier: Apache-2.0
"""A folder of results: what was run, with what, and what came out.

::

    DIR/manifest.json     the scenario as it was resolved, versions, host, git commit; one entry per run with its hash
    DIR/runs/KEY.json     one finished run, written whole or not at all
    DIR/rows.parquet      all rows, in the order of the scenario
    DIR/series.parquet    curves over time, for scenarios that keep them
    DIR/report.html, DIR/report.md, DIR/figures/

A run is known by its *key*, a hash of everything that decides its result (its case, seed included, and the code of
the twin). So a sweep can be stopped anywhere and resumed: what has a file is done.
"""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from symphony_common.output import write_file
from symphony_common.version import version
from symphony_experiments.errors import ResultsError

__all__ = ["FORMAT", "Finished", "Results", "canonical", "run_key"]

FORMAT = 1
Table = dict[str, Any]


def canonical(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no blanks."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def run_key(case: Mapping[str, Any], code: str) -> str:
    """16 hex digits that name a run: its case (seed included) and the code that runs it."""
    return hashlib.sha256(canonical([case, code]).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Finished:
    """One finished run: its rows (one per job), its curves, the hash of its step trace, what it cost."""

    key: str
    rows: list[Table]
    series: dict[str, list[float]]
    trace_hash: str
    engine: Table

    def to_json(self) -> Table:
        """Plain data, as in ``runs/KEY.json``."""
        return {
            "key": self.key,
            "rows": self.rows,
            "series": self.series,
            "trace_hash": self.trace_hash,
            "engine": self.engine,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Finished:
        """The run in a file's content. Raises KeyError or TypeError for anything else."""
        return cls(data["key"], data["rows"], data["series"], data["trace_hash"], data["engine"])


class Results:
    """The folder `directory`.

    Raises:
        ResultsError: of all methods that read or write, naming the file.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._runs = directory / "runs"

    # ------------------------------------------------------------------------------------ writing

    def begin(self, manifest: Table) -> None:
        """Make the folder for this scenario, or go on in it.

        Raises:
            ResultsError: it holds the results of another scenario, or of other code.
        """
        if (self.directory / "manifest.json").exists():
            there = self.manifest()
            for what, text in (("scenario", "another scenario or other values"), ("code", "other code of the twin")):
                if there.get(what) != manifest[what]:
                    raise ResultsError(
                        f"{self.directory} holds results of {text}; give another --out, or --fresh to start it anew"
                    )
        try:
            self._runs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResultsError(f"cannot make {self._runs}: {error.strerror}") from None
        self._write("manifest.json", _pretty(manifest))

    def add(self, run: Finished) -> None:
        """Keep a finished run; after this it survives anything."""
        self._write(f"runs/{run.key}.json", canonical(run.to_json()).encode())

    def complete(self, manifest: Table, runs: Iterable[Finished]) -> None:
        """Write the tables over all runs, and the manifest with their hashes."""
        ordered = list(runs)
        self._table("rows.parquet", [row for run in ordered for row in run.rows])
        series = [
            {"key": run.key, "curve": name, "values": values}
            for run in ordered
            for name, values in sorted(run.series.items())
        ]
        if series:
            self._table("series.parquet", series)
        self._write("manifest.json", _pretty(manifest))

    def _table(self, name: str, rows: list[Table]) -> None:
        columns = list(dict.fromkeys(column for row in rows for column in row))
        table = pa.table({column: [row.get(column) for row in rows] for column in columns})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        self._write(name, sink.getvalue().to_pybytes())

    def _write(self, name: str, content: bytes) -> None:
        path = self.directory / name
        try:
            write_file(path, content)
        except OSError as error:
            raise ResultsError(
                f"cannot write {path}: {error.strerror}; the runs that finished before are kept"
            ) from None

    def write_text(self, name: str, text: str) -> Path:
        """Write a text beside the results (a report); returns its path."""
        self._write(name, text.encode())
        return self.directory / name

    # ------------------------------------------------------------------------------------ reading

    def manifest(self) -> Table:
        """The manifest as plain data."""
        path = self.directory / "manifest.json"
        try:
            data = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise ResultsError(f"{self.directory} holds no results: there is no manifest.json") from None
        except (OSError, ValueError) as error:
            raise ResultsError(f"cannot read {path}: {error}") from None
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ResultsError(f"{path} is not a manifest of format {FORMAT}")
        return data

    def finished(self) -> dict[str, Finished]:
        """Key -> run, for every run that has ended. Files that are no runs are left alone and not counted."""
        found: dict[str, Finished] = {}
        for path in sorted(self._runs.glob("*.json")) if self._runs.is_dir() else []:
            try:
                run = Finished.from_json(json.loads(path.read_bytes()))
            except (OSError, ValueError, KeyError, TypeError):
                continue  # whatever it is, it is no result; the run is done again
            if run.key == path.stem:
                found[run.key] = run
        return found

    def rows(self) -> list[Table]:
        """All rows: of ``rows.parquet``, or, while the sweep has not ended, of the runs there are."""
        path = self.directory / "rows.parquet"
        if path.exists():
            return self._read(path)
        return [row for run in self.finished().values() for row in run.rows]

    def series(self) -> dict[str, dict[str, list[float]]]:
        """Key of a run -> name of a curve -> values."""
        path = self.directory / "series.parquet"
        if not path.exists():
            return {run.key: run.series for run in self.finished().values() if run.series}
        found: dict[str, dict[str, list[float]]] = {}
        for row in self._read(path):
            found.setdefault(row["key"], {})[row["curve"]] = row["values"]
        return found

    def _read(self, path: Path) -> list[Table]:
        try:
            rows: list[Table] = pq.read_table(path).to_pylist()
        except (OSError, pa.ArrowException) as error:
            raise ResultsError(f"cannot read {path}: {error}") from None
        return rows


def provenance(repository: Path) -> Table:
    """Where and with what these runs are made: versions, machine, git commit (null outside a checkout)."""
    return {
        "version": version(),
        "python": platform.python_version(),
        "host": {"machine": platform.machine(), "system": f"{platform.system()} {platform.release()}"},
        "commit": _commit(repository),
    }


def _commit(repository: Path) -> str | None:
    command = ["git", "-C", str(repository), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _pretty(value: Any) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
