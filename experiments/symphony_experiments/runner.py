# SPDX-License-Identifier: Apache-2.0
"""Runs of a sweep, in parallel on Dask workers: every finished run is kept at once, and kept for good.

Each run is a pure function of its case, so it does not matter where it runs or how often it is tried. A worker that is
killed (out of memory, say) is replaced by Dask and its run tried again, `ATTEMPTS` times in all; a run that kills every
worker it meets is reported, and the others go on.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from symphony_experiments.errors import ExperimentError, ScenarioError
from symphony_experiments.store import Finished

__all__ = ["ATTEMPTS", "Failed", "Job", "outcomes"]

ATTEMPTS = 2
Table = dict[str, Any]


class Job(NamedTuple):
    """A run to be made: its key and its case."""

    key: str
    case: Table


class Failed(NamedTuple):
    """A run that ended without a result, and why, in one line."""

    key: str
    reason: str


class _Future(Protocol):
    key: str

    def exception(self) -> BaseException | None: ...
    def result(self) -> Any: ...


def outcomes(
    jobs: Sequence[Job],
    run: Callable[[str, Table], Finished],
    *,
    workers: int | None,
    scheduler: str | None,
) -> Iterator[Finished | Failed]:
    """The outcomes of all jobs as they come.

    Args:
        jobs: what to run.
        run: does one; called in the workers.
        workers: processes on this machine; 0: none, all in this process, one after another; None: one per core.
        scheduler: address of a running Dask scheduler, whose workers are used instead.

    Raises:
        ScenarioError: the scheduler cannot be reached.
    """
    if scheduler is None and workers == 0:
        yield from _here(jobs, run)
        return
    with _client(workers, scheduler, len(jobs)) as client:
        from distributed import as_completed

        futures = [client.submit(run, job.key, job.case, key=job.key, pure=True) for job in jobs]
        for future in as_completed(futures):
            yield _outcome(future)
            future.release()


def _here(jobs: Sequence[Job], run: Callable[[str, Table], Finished]) -> Iterator[Finished | Failed]:
    for job in jobs:
        try:
            yield run(job.key, job.case)
        except Exception as error:  # whatever it is, the other runs go on
            yield Failed(job.key, _one_line(error))


def _outcome(future: _Future) -> Finished | Failed:
    error = future.exception()
    if error is None:
        finished: Finished = future.result()
        return finished
    return Failed(future.key, _one_line(error))


def _one_line(error: BaseException) -> str:
    if type(error).__name__ == "KilledWorker":
        return f"its worker was killed {ATTEMPTS} times (out of memory?)"
    text = " ".join(str(error).split()) or type(error).__name__
    return text if isinstance(error, ExperimentError) else f"{type(error).__name__}: {text}"


@contextlib.contextmanager
def _client(workers: int | None, scheduler: str | None, runs: int) -> Iterator[Any]:
    import dask
    from distributed import Client, LocalCluster

    with dask.config.set(
        {
            "distributed.scheduler.allowed-failures": ATTEMPTS - 1,
            "distributed.admin.log-format": "%(message)s",
            "distributed.comm.timeouts.connect": "10s",
        }
    ):
        if scheduler is not None:
            try:
                client = Client(scheduler, timeout=10)
            except (OSError, ValueError, TimeoutError) as error:
                raise ScenarioError(f"--scheduler {scheduler}: no Dask scheduler there ({_one_line(error)})") from None
            with client:
                yield client
            return
        count = min(workers or os.cpu_count() or 1, max(runs, 1))
        with (
            LocalCluster(
                n_workers=count,
                threads_per_worker=1,
                processes=True,
                host="127.0.0.1",
                dashboard_address=None,
                silence_logs=logging.CRITICAL,
            ) as cluster,
            Client(cluster) as client,
        ):
            yield client
