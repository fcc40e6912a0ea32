# SPDX-License-Identifier: Apache-2.0
"""Starts ring-bench as a process group of its own and ends that whole group, whatever it has forked
meanwhile.

The group's leader and start time are written to `process.json` in the run folder, so that a host-agent which
was killed outright finds and ends what it left behind when it starts again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from host_agent.errors import StorageError
from host_agent.models import BenchSpec

__all__ = ["BenchProcess", "bench_command", "end_leftover", "find_program", "tail"]

GRACE_S: Final = 5.0
"""Seconds between SIGTERM and SIGKILL."""
TAIL_BYTES: Final = 8192


def find_program(name: str = "ring-bench") -> str | None:
    """Path of a console script: beside this interpreter first (virtual environment), then on PATH."""
    beside = str(Path(sys.executable).parent)
    return shutil.which(name, path=os.pathsep.join([beside, os.environ.get("PATH", "")]))


def bench_command(
    program: str,
    bench: BenchSpec,
    *,
    hosts: Sequence[str],
    verbs: Path,
    job_name: str,
    job_tag: int,
    events_url: str,
    result: Path,
    seed: int | None,
) -> list[str]:
    """ring-bench's command line for a run on the twin."""
    command = [
        program,
        *("--provider", "twin", "--verbs", str(verbs)),
        *("--job", job_name, "--job-tag", str(job_tag)),
        *("--world", str(len(hosts)), "--hosts", ",".join(hosts)),
        *("-b", str(bench.size), "-e", str(bench.size), "-n", str(bench.iterations), "-w", str(bench.warmup)),
        *("-d", bench.datatype, "-o", bench.redop, "-c", "1" if bench.check else "0"),
        *("--rings", str(bench.rings), "--tagging", bench.tagging, "--release", bench.release),
        *("--payload-scale", str(bench.payload_scale)),
        *("--events", events_url, "-J", str(result)),
    ]
    if bench.split is not None:
        command += ["--split", bench.split]
    if seed is not None:
        command += ["--seed", str(seed)]
    return command


class BenchProcess:
    """A running benchmark. `wait` returns its exit code; `stop` ends the whole group."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self._process = process
        self._folder = folder
        self.pid = process.pid
        self.log = folder / "ring-bench.log"
        self.errors = folder / "ring-bench.err"

    @classmethod
    async def start(cls, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> BenchProcess:
        """Start `command` with its output going to ring-bench.log and ring-bench.err in `folder`.

        Raises OSError when the program cannot be started and StorageError when the folder cannot be written.
        """
        try:
            log = (folder / "ring-bench.log").open("wb")
            errors = (folder / "ring-bench.err").open("wb")
        except OSError as error:
            raise StorageError(f"cannot write the logs in {folder}: {error.strerror}") from error
        with log, errors:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=errors,
                env=dict(environment),
                cwd=folder,
                start_new_session=True,
            )
        bench = cls(process, folder)
        try:
            record = {"pid": process.pid, "started": _start_ticks(process.pid)}
            (folder / "process.json").write_text(json.dumps(record), encoding="utf-8")
        except OSError as error:
            await bench.stop(grace_s=0)
            raise StorageError(f"cannot write {folder}/process.json: {error.strerror}") from error
        return bench

    async def wait(self) -> int:
        """Exit code of the leader (negative: the signal that ended it); what is left of its group is
        killed.
        """
        code = await self._process.wait()
        self.kill()
        return code

    async def stop(self, grace_s: float | None = None) -> None:
        """SIGTERM to the group, SIGKILL to what is still there after `grace_s` seconds (GRACE_S)."""
        self.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S if grace_s is None else grace_s):
                await self._process.wait()
        self.kill()
        await self._process.wait()

    def terminate(self) -> None:
        """SIGTERM to the whole group, without waiting."""
        _signal_group(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the whole group, now and without waiting; nothing left to kill is fine."""
        _signal_group(self.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            (self._folder / "process.json").unlink(missing_ok=True)


def tail(log: Path, lines: int = 12) -> list[str]:
    """The last lines of a log, for a user to read; empty when there is none."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]


def end_leftover(folder: Path, log: Callable[[str], None]) -> None:
    """Kill the process group that a former host-agent left in this run folder, if it is still that one."""
    record = folder / "process.json"
    try:
        content = json.loads(record.read_text(encoding="utf-8"))
        pid, started = int(content["pid"]), content["started"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if started is not None and _start_ticks(pid) == started:
        log(f"ending process group {pid}, left over from an earlier host-agent in {folder}")
        _signal_group(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        record.unlink(missing_ok=True)


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _start_ticks(pid: int) -> int | None:
    """When the kernel started this process (clock ticks since boot): tells a recycled PID from the
    original.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])
