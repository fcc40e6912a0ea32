# SPDX-License-Identifier: Apache-2.0
"""The state folder: one folder per job, kept for ever, from which a restarted host-agent picks up its jobs.

<state>/runs/<YYYYmmdd-HHMMSS>-<Job_ID>-<name>/
    job.json         what was asked for, identities, state
    events.token     bearer token of the job's reporters (mode 0600)
    ring-bench.log   output of the benchmark; ring-bench.err: what it complained about
    result.json      its results
    process.json     while it runs: its process group
<state>/lock         held by the service that uses the folder
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from host_agent.errors import StorageError
from host_agent.jobs import Job
from host_agent.models import JobRequest
from host_agent.placement import Flow
from host_agent.testbed import HostEntry
from symphony_common.output import write_file

__all__ = ["Store", "default_state_dir"]


def default_state_dir() -> Path:
    """$STATE_DIRECTORY (systemd), else $XDG_STATE_HOME/symphony/host-agent, else
    ~/.local/state/symphony/host-agent.
    """
    if systemd := os.environ.get("STATE_DIRECTORY"):
        return Path(systemd.split(":")[0])
    try:
        base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise StorageError("this user has no home directory to keep state in; give --state-dir") from error
    return Path(base) / "symphony" / "host-agent"


class Store:
    """Reads and writes the state folder. Every failure is a StorageError that names path and reason."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runs = root / "runs"

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Keep other services from using the folder, which can be written. Raises StorageError otherwise.

        Two services on one folder would each take the other's running benchmarks for leftovers.
        """
        try:
            self.runs.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(f"cannot use state folder {self.root}: {_reason(error)}") from error
        try:
            self._lock(lock)
            if not os.access(self.runs, os.W_OK | os.X_OK):
                raise StorageError(
                    f"cannot write below {self.runs}: Permission denied; correct that or choose another --state-dir"
                )
            yield
        finally:
            os.close(lock)

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StorageError(
                f"state folder {self.root} is in use by another host-agent; give each its own --state-dir"
            ) from None
        except OSError as error:
            raise StorageError(f"cannot lock {self.root}/lock: {_reason(error)}") from error

    def new_folder(self, job_id: int, name: str) -> Path:
        """Create the folder of a new job."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        folder = self.runs / f"{stamp}-{job_id}-{name}"
        try:
            self.runs.mkdir(parents=True, exist_ok=True)
            suffix = 1
            while folder.exists():
                suffix += 1
                folder = self.runs / f"{stamp}-{job_id}-{name}.{suffix}"
            folder.mkdir()
        except OSError as error:
            raise StorageError(f"cannot create {folder}: {_reason(error)}") from error
        return folder

    def save(self, job: Job) -> None:
        """Write job.json (atomically) and, once, events.token."""
        content = {
            "id": job.id,
            "tag": job.tag,
            "state": job.state,
            "error": job.error,
            "created_unix_s": job.created_unix_s,
            "ended_unix_s": job.ended_unix_s,
            "request": job.request.model_dump(mode="json", exclude_unset=True),
            "hosts": [host.model_dump() for host in job.hosts],
            "flows": job.flows,
            "symphony": job.symphony,
            "preset": job.preset,
            "fabric_events": job.fabric_view(),
            "held_by": sorted(job.held_by),
            "behind": sorted(job.behind),
        }
        try:
            write_file(job.folder / "job.json", (json.dumps(content, indent=1) + "\n").encode(), sync=False)
            token = job.folder / "events.token"
            if not token.exists():
                with os.fdopen(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                    file.write(job.events_token)
        except OSError as error:
            raise StorageError(f"cannot write {job.folder}/job.json: {_reason(error)}") from error

    def active_jobs(self) -> Iterator[Job]:
        """Jobs that were active when host-agent last wrote their state, or that a switch still held.

        Unreadable folders are skipped.
        """
        for path in sorted(self.runs.glob("*/job.json")):
            try:
                content = json.loads(path.read_text(encoding="utf-8"))
                if content["state"] in ("registered", "running") or content.get("held_by"):
                    yield self._load(path.parent, content)
            except (OSError, ValueError, KeyError, TypeError):
                continue

    @staticmethod
    def _load(folder: Path, content: dict[str, Any]) -> Job:
        return Job(
            id=content["id"],
            tag=content["tag"],
            request=JobRequest.model_validate(content["request"]),
            hosts=[HostEntry.model_validate(host) for host in content["hosts"]],
            flows={switch: [Flow(*flow) for flow in flows] for switch, flows in content["flows"].items()},
            folder=folder,
            symphony=content["symphony"],
            state=content["state"],
            error=content["error"],
            created_unix_s=content["created_unix_s"],
            ended_unix_s=content["ended_unix_s"],
            preset=content.get("preset"),
            held_by=set(content.get("held_by", ())),
            behind=set(content.get("behind", ())),
            recovered=True,
            events_token=(folder / "events.token").read_text(encoding="utf-8"),
        )

    @staticmethod
    def result(folder: Path) -> dict[str, Any] | None:
        """ring-bench's result file, if it wrote one that can be read."""
        try:
            content = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return content if isinstance(content, dict) else None


def _reason(error: OSError) -> str:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return f"{error.strerror}; {'free some space' if full else 'correct that'} or choose another --state-dir"
