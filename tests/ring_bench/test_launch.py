# SPDX-License-Identifier: Apache-2.0
"""Which ranks a process is, from options and from launchers."""

from __future__ import annotations

import pytest

from ring_bench.errors import UsageError
from ring_bench.launch import DEFAULT_PORT, place

MPIRUN = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
SRUN = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2"}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29400"}


def test_a_world_without_rank_lives_in_one_process() -> None:
    placement = place(4, None, None, {})
    assert placement.ranks == (0, 1, 2, 3)
    assert placement.master is None


def test_rank_world_and_master_place_one_rank() -> None:
    placement = place(4, 1, "10.0.0.9:7000", {})
    assert (placement.world, placement.ranks, placement.master) == (4, (1,), ("10.0.0.9", 7000))
    assert place(4, 1, "node1", {}).master == ("node1", DEFAULT_PORT)
    assert place(4, 1, "[::1]:7000", {}).master == ("::1", 7000)


def test_mpirun_on_one_host_needs_nothing_else() -> None:
    placement = place(None, None, None, MPIRUN)
    assert (placement.ranks, placement.master, placement.launcher) == ((2,), ("127.0.0.1", DEFAULT_PORT), "mpirun")


def test_srun_over_several_hosts_needs_a_master() -> None:
    with pytest.raises(UsageError, match="where is rank 0"):
        place(None, None, None, SRUN)
    assert place(4, None, "node1:7000", SRUN).ranks == (1,)


def test_srun_and_mpich_on_one_host_need_nothing_else() -> None:
    here = ("127.0.0.1", DEFAULT_PORT)
    srun = place(None, None, None, {**SRUN, "SLURM_STEP_NUM_NODES": "1"})
    assert (srun.world, srun.ranks, srun.master, srun.launcher) == (4, (1,), here, "srun")
    mpich = place(None, None, None, {"PMI_RANK": "2", "PMI_SIZE": "3", "MPI_LOCALNRANKS": "3"})
    assert (mpich.world, mpich.ranks, mpich.master, mpich.launcher) == (3, (2,), here, "pmi")


def test_torchrun_gives_the_master_whose_port_its_own_store_holds() -> None:
    assert place(None, None, None, TORCHRUN).master == ("10.0.0.1", 29401)


def test_options_win_over_a_launcher() -> None:
    assert place(8, 5, "h:1", MPIRUN).ranks == (5,)


def test_a_launcher_of_a_single_process_leaves_the_world_to_the_options() -> None:
    single = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    assert place(8, None, None, single).ranks == tuple(range(8))


@pytest.mark.parametrize(
    ("world", "rank", "master", "environment", "message"),
    [
        (None, None, None, {}, "how many ranks"),
        (None, 1, None, {}, "--rank needs --world"),
        (4, 4, "h:1", {}, "outside the world of 4"),
        (4, -1, "h:1", {}, "outside the world"),
        (8, None, None, MPIRUN, "mpirun started 4 processes, --world says 8"),
        (4, None, "h:1", {}, "give --rank too"),
        (4, 0, "h:port", {}, "HOST:PORT"),
        (4, 0, ":1", {}, "HOST:PORT"),
        (4, 0, "h:70000", {}, "HOST:PORT"),
        (None, None, None, {**MPIRUN, "OMPI_COMM_WORLD_RANK": "x"}, "must be numbers"),
    ],
)
def test_contradictions_are_refused_with_the_reason(
    world: int | None, rank: int | None, master: str | None, environment: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        place(world, rank, master, environment)
