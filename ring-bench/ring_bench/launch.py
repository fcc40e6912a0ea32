# SPDX-License-Identifier: Apache-2.0
"""Which ranks this process is: from options, or from what mpirun, srun or torchrun put into the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ring_bench.errors import UsageError

__all__ = ["DEFAULT_PORT", "Placement", "place"]

DEFAULT_PORT = 29517


@dataclass(frozen=True)
class Placement:
    """The ranks of this process and where it meets the others."""

    world: int
    ranks: tuple[int, ...]
    master: tuple[str, int] | None
    """Address of the hub; None when all ranks are in this process."""
    launcher: str
    """Who placed it: "options", "mpirun", "pmi", "srun" or "torchrun"."""


@dataclass(frozen=True)
class _Launcher:
    name: str
    rank: str
    world: str
    one_host: tuple[str, str] | None
    """Variable and value that say that all ranks are on this host; "=world" stands for the world's size."""


_LAUNCHERS = (
    _Launcher("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("OMPI_COMM_WORLD_LOCAL_SIZE", "=world")),
    _Launcher("pmi", "PMI_RANK", "PMI_SIZE", ("MPI_LOCALNRANKS", "=world")),
    _Launcher("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ("SLURM_STEP_NUM_NODES", "1")),
    _Launcher("torchrun", "RANK", "WORLD_SIZE", ("LOCAL_WORLD_SIZE", "=world")),
)


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
        UsageError: Contradictions, or no way to know where rank 0 is.
    """
    if rank is not None:
        if world is None:
            raise UsageError("--rank needs --world: how many ranks are there?")
        if not 0 <= rank < world:
            raise UsageError(f"--rank {rank} is outside the world of {world} ranks (0 to {world - 1})")
        if world == 1:
            return Placement(1, (0,), None, "options")
        return Placement(world, (rank,), _master(master, None, environment), "options")
    launched = _launched(environment)
    if launched is not None:
        launcher, its_rank, its_world = launched
        if world is not None and world != its_world:
            raise UsageError(
                f"{launcher.name} started {its_world} processes, --world says {world}: leave --world out, "
                "or start one process for a world inside it"
            )
        return Placement(its_world, (its_rank,), _master(master, launcher, environment), launcher.name)
    if master is not None:
        raise UsageError("--master is for one process per rank: give --rank too")
    if world is None:
        raise UsageError(
            "how many ranks? --world N for all in this process, --rank R --world N --master HOST:PORT for "
            "one per process, or start with mpirun, srun or torchrun"
        )
    return Placement(world, tuple(range(max(world, 0))), None, "options")


def _launched(environment: Mapping[str, str]) -> tuple[_Launcher, int, int] | None:
    for launcher in _LAUNCHERS:
        if launcher.rank in environment and launcher.world in environment:
            try:
                rank, world = int(environment[launcher.rank]), int(environment[launcher.world])
            except ValueError:
                raise UsageError(f"{launcher.rank} and {launcher.world} in the environment must be numbers") from None
            if world > 1:
                return launcher, rank, world
    return None


def _master(master: str | None, launcher: _Launcher | None, environment: Mapping[str, str]) -> tuple[str, int]:
    if master is not None:
        host, colon, port = master.rpartition(":")
        if not colon:
            host, port = master, str(DEFAULT_PORT)
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError(f"--master reads HOST:PORT, not {master!r}")
        return host.strip("[]"), int(port)
    if "MASTER_ADDR" in environment:
        port = environment.get("MASTER_PORT", "")
        # torchrun's own store listens at MASTER_PORT.
        return environment["MASTER_ADDR"], int(port) + 1 if port.isdigit() else DEFAULT_PORT
    if launcher is not None and launcher.one_host is not None:
        variable, value = launcher.one_host
        wanted = environment[launcher.world] if value == "=world" else value
        if environment.get(variable) == wanted:
            return "127.0.0.1", DEFAULT_PORT
    raise UsageError("where is rank 0? Give every rank the same --master HOST:PORT, an address of rank 0's host")
