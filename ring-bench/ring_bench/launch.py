# SPDX-License-Identifier: Apache-2.0
"""Which ranks this process is: from options, or from what mpirun, srun, torchrun and others put into the environment.

A process that a launcher started must never take itself for the whole world: that would be another program, run once
per rank, in silence. So a rank in the environment that cannot be used is an error that names the variable.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ring_bench.errors import UsageError
from symphony_common.addresses import checked_host, split_address, whole
from symphony_common.tokens import read_token

__all__ = ["DEFAULT_PORT", "Placement", "place", "secret"]

DEFAULT_PORT = 29517
_LAST_PORT = 0xFFFF


@dataclass(frozen=True)
class Placement:
    """The ranks of this process and where it meets the others."""

    world: int
    ranks: tuple[int, ...]
    master: tuple[str, int] | None
    """Address of the hub; None when all ranks are in this process."""
    launcher: str
    """Who placed it: "options", or the name of a launcher."""


@dataclass(frozen=True)
class _Launcher:
    name: str
    rank: str
    world: str | None
    """Variable with the number of ranks; None: it tells none, so --world has to."""
    one_host: tuple[tuple[str, str], ...] = ()
    """Variables and values that say that all ranks are on this host; "=world" stands for the world's size."""


_PMI = _Launcher("pmi", "PMI_RANK", "PMI_SIZE", (("MPI_LOCALNRANKS", "=world"), ("PMI_LOCAL_SIZE", "=world")))
_PMIX = _Launcher("PMIx", "PMIX_RANK", None)
_SRUN = _Launcher("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", (("SLURM_STEP_NUM_NODES", "1"),))
_LAUNCHERS = (
    _Launcher("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", (("OMPI_COMM_WORLD_LOCAL_SIZE", "=world"),)),
    _Launcher("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", (("MV2_COMM_WORLD_LOCAL_SIZE", "=world"),)),
    _Launcher("Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", (("FLUX_JOB_NNODES", "1"),)),
    _PMI,
    _Launcher("jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", (("JSM_NAMESPACE_LOCAL_SIZE", "=world"),)),
    _Launcher("PALS", "PALS_RANKID", None),
    _PMIX,
    _SRUN,
    _Launcher("torchrun", "RANK", "WORLD_SIZE", (("LOCAL_WORLD_SIZE", "=world"),)),
)
"""Inner launchers first: under mpirun in a Slurm job, srun's variables are those of mpirun's daemon."""

_RANK_LIKE = re.compile(r"(?:[A-Z0-9_]*_)?(?:RANK|RANKID|PROCID)")
_NOT_OF_THE_WORLD = re.compile(r"(?:^|_)(?:LOCAL|NODE|GROUP|ROLE)_RANK")
"""Ranks among fewer than all: they stand beside the one that counts."""


def secret(variable: str) -> str | None:
    """Give the token in an environment variable; None where it is unset.

    Raises:
        UsageError: What is there is no token (`symphony_common.tokens`).
    """
    try:
        return read_token(None, variable)
    except ValueError as error:
        raise UsageError(str(error)) from None


def place(world: int | None, rank: int | None, master: str | None, environment: Mapping[str, str]) -> Placement:
    """Decide which ranks this process is.

    ``--rank`` and ``--world`` win. Else a launcher that started more than one process gives both. Else the whole
    world lives in this process.

    Args:
        world: ``--world``.
        rank: ``--rank``.
        master: ``--master``, "host:port".
        environment: The process's environment.

    Raises:
        UsageError: Contradictions, no way to know where rank 0 is, or a launcher that is not understood.
    """
    if rank is not None:
        if world is None:
            raise UsageError("--rank needs --world: how many ranks are there?")
        if not 0 <= rank < world:
            raise UsageError(f"--rank {rank} is outside the world of {world} ranks (0 to {world - 1})")
        if world == 1:
            return Placement(1, (0,), None, "options")
        return Placement(world, (rank,), _master(master, None, world, environment), "options")
    launched = _launched(environment, world)
    if launched is not None:
        launcher, its_rank, its_world = launched
        if world is not None and world != its_world:
            raise UsageError(
                f"{launcher.name} started {its_world} processes, --world says {world}: leave --world out, "
                "or start one process for a world inside it"
            )
        return Placement(its_world, (its_rank,), _master(master, launcher, its_world, environment), launcher.name)
    if master is not None:
        raise UsageError("--master is for one process per rank: give --rank too")
    if world is None:
        raise UsageError(
            "how many ranks? --world N for all in this process, --rank R --world N --master HOST:PORT for "
            "one per process, or start with mpirun, srun or torchrun"
        )
    return Placement(world, tuple(range(max(world, 0))), None, "options")


def _launched(environment: Mapping[str, str], world: int | None) -> tuple[_Launcher, int, int] | None:
    """Give launcher, rank and size of a world that is spread over processes; None: nothing started more than one."""
    explained: set[str] = set()
    for launcher in _LAUNCHERS:
        if launcher.rank not in environment:
            continue
        if _is_told_again(launcher, environment, explained):
            explained.add(launcher.rank)
            continue
        source = launcher.world if launcher.world in environment else None
        if source is None and launcher is _SRUN:  # a batch script, or a shell inside an allocation: no step
            explained.add(launcher.rank)
            continue
        size = world if source is None else _number(environment, source, 1)
        if size is None:
            raise UsageError(
                f"{launcher.rank}={environment[launcher.rank]} is of a launcher that does not say how many "
                f"processes it started: {_way_out(launcher.rank, 'give the number as --world')}"
            )
        its_rank = _number(environment, launcher.rank, 0)
        if its_rank >= size:
            raise UsageError(
                f"{launcher.rank}={its_rank} in the environment is outside the world of {size} ranks "
                f"(0 to {size - 1}, by {source or '--world'})"
            )
        if size > 1:
            return launcher, its_rank, size
        explained.add(launcher.rank)
    for name, value in sorted(environment.items()):
        if name not in explained and _is_a_rank(name) and whole(value) is not None:
            raise UsageError(
                f"{name}={value} looks as if a launcher that is not known here started this process: "
                f"{_way_out(name, 'give --rank, --world and --master')}"
            )
    return None


def _is_a_rank(name: str) -> bool:
    return _RANK_LIKE.fullmatch(name) is not None and _NOT_OF_THE_WORLD.search(name) is None


def _is_told_again(launcher: _Launcher, environment: Mapping[str, str], explained: Collection[str]) -> bool:
    """Tell whether the variables are those of a launcher that says more by its own: of mpirun, which has PMIx in it, or
    of srun --mpi=pmix and --mpi=pmi2.
    """
    if launcher is _PMIX:
        return "OMPI_COMM_WORLD_RANK" in explained or environment.get("PMIX_NAMESPACE", "").startswith("slurm.")
    return launcher is _PMI and all(
        environment.get(name) == environment.get(srun)
        for name, srun in (("PMI_RANK", _SRUN.rank), ("PMI_SIZE", _SRUN.world or ""))
    )


def _way_out(name: str, advice: str) -> str:
    return f"{advice}; for all ranks in this one process unset it (env -u {name} ring-bench ..)"


def _number(environment: Mapping[str, str], name: str, least: int) -> int:
    number = whole(environment[name])
    if number is None or number < least:
        raise UsageError(f"{name}={environment[name][:100]!r} in the environment must be a number from {least} up")
    return number


def _master(
    master: str | None, launcher: _Launcher | None, world: int, environment: Mapping[str, str]
) -> tuple[str, int]:
    if master is not None:
        try:
            host, port = split_address(master, DEFAULT_PORT)
        except ValueError as error:
            raise UsageError(f"--master: {error}") from None
        if port == 0:
            raise UsageError(f"--master {master}: a port is 1 to {_LAST_PORT}")
        return host, port
    if "MASTER_ADDR" in environment:
        return _torch_master(environment)
    if launcher is not None:
        for variable, value in launcher.one_host:
            if environment.get(variable) == (str(world) if value == "=world" else value):
                return "127.0.0.1", DEFAULT_PORT
    raise UsageError("where is rank 0? Give every rank the same --master HOST:PORT, an address of rank 0's host")


def _torch_master(environment: Mapping[str, str]) -> tuple[str, int]:
    """Give the address that PyTorch's launchers name, with another port: their own store listens at that one."""
    try:
        host = checked_host(environment["MASTER_ADDR"])
    except ValueError as error:
        raise UsageError(f"MASTER_ADDR in the environment: {error}; or give --master") from None
    if "MASTER_PORT" not in environment:
        return host, DEFAULT_PORT
    port = _number(environment, "MASTER_PORT", 1)
    if port > _LAST_PORT:
        raise UsageError(f"MASTER_PORT={port} in the environment is no port: those are 1 to {_LAST_PORT}")
    return host, port + 1 if port < _LAST_PORT else port - 1
