# SPDX-License-Identifier: Apache-2.0
"""The desired state on disk: one SQLite file, one row per job.

The switch forgets everything when its driver restarts; this file is what it is brought back to. A lock file
makes sure that one agent uses it. The write-ahead log is not synced on every commit: a crash of the agent
loses nothing, a power cut may lose the last change (the switch on the same power loses all).
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from switch_agent.agent.models import Job, JobSpec
from switch_agent.errors import StoreError

__all__ = ["Store"]

_SCHEMA_VERSION = 1


class Store:
    """Jobs on disk. Raises StoreError, with path and cause, whenever the disk does not cooperate."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "desired.sqlite"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreError(f"cannot use state directory {folder}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise StoreError(
                f"state directory {folder} is in use by another switch-agent; give each its own --state-dir"
            ) from None
        try:
            self._db = sqlite3.connect(self.path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version == 0:
                self._db.execute(
                    "CREATE TABLE IF NOT EXISTS jobs (job_id INTEGER PRIMARY KEY, spec TEXT NOT NULL, "
                    "state INTEGER NOT NULL, n_states INTEGER NOT NULL, revision INTEGER NOT NULL)"
                )
                self._db.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
        except sqlite3.Error as error:
            os.close(self._lock)
            raise StoreError(f"cannot open {self.path}: {error}") from error
        if version not in (0, _SCHEMA_VERSION):
            self.close()
            raise StoreError(
                f"{self.path} is of version {version}, this agent knows {_SCHEMA_VERSION}: "
                "use the agent that wrote it, or another --state-dir"
            )

    def close(self) -> None:
        """Close the database and give up the lock."""
        self._db.close()
        os.close(self._lock)

    def load(self) -> Iterable[Job]:
        """Return all jobs by id. A row that cannot be understood is an error, not a lost job."""
        try:
            rows = self._db.execute(
                "SELECT job_id, spec, state, n_states, revision FROM jobs ORDER BY job_id"
            ).fetchall()
            return [
                Job(job_id, JobSpec.model_validate_json(spec), state, n_states, revision)
                for job_id, spec, state, n_states, revision in rows
            ]
        except (sqlite3.Error, ValidationError) as error:
            text = " ".join(str(error).split())  # pydantic writes several lines
            raise StoreError(f"cannot read the jobs in {self.path}: {text}") from error

    def save(self, job: Job) -> None:
        """Add a job or replace the one with its id."""
        row = (job.job_id, _spec_json(job), job.state, job.n_states, job.revision)
        self._run("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?)", row)

    def delete(self, job_id: int) -> None:
        """Forget a job."""
        self._run("DELETE FROM jobs WHERE job_id = ?", (job_id,))

    def _run(self, statement: str, values: tuple[int | str, ...]) -> None:
        try:
            self._db.execute(statement, values)
        except sqlite3.Error as error:
            raise StoreError(f"cannot save the job in {self.path}: {error}; is the disk full?") from error


def _spec_json(job: Job) -> str:
    # Only the settings that were given: those that were not follow their variant.
    return job.spec.model_dump_json(exclude_unset=True)
