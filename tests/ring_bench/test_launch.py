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


def test_next_to_pytorchs_store_there_is_a_port_at_either_side() -> None:
    assert place(None, None, None, {**TORCHRUN, "MASTER_PORT": "65535"}).master == ("10.0.0.1", 65534)
    without = {name: value for name, value in TORCHRUN.items() if name != "MASTER_PORT"}
    assert place(None, None, None, without).master == ("10.0.0.1", DEFAULT_PORT)


@pytest.mark.parametrize(
    ("launcher", "environment"),
    [
        ("MVAPICH", {"MV2_COMM_WORLD_RANK": "2", "MV2_COMM_WORLD_SIZE": "4", "MV2_COMM_WORLD_LOCAL_SIZE": "4"}),
        (
            "Flux",
            {"FLUX_TASK_RANK": "2", "FLUX_JOB_SIZE": "4", "FLUX_JOB_NNODES": "1", "PMI_RANK": "2", "PMI_SIZE": "4"},
        ),
        ("pmi", {"PMI_RANK": "2", "PMI_SIZE": "4", "PMI_LOCAL_SIZE": "4", "PALS_RANKID": "2"}),
        ("jsrun", {"JSM_NAMESPACE_RANK": "2", "JSM_NAMESPACE_SIZE": "4", "JSM_NAMESPACE_LOCAL_SIZE": "4"}),
        ("mpirun", {**MPIRUN, "PMIX_RANK": "2", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}),
        (
            "srun",  # --mpi=pmi2
            {
                "SLURM_PROCID": "2",
                "SLURM_STEP_NUM_TASKS": "4",
                "SLURM_STEP_NUM_NODES": "1",
                "PMI_RANK": "2",
                "PMI_SIZE": "4",
            },
        ),
        (
            "srun",  # --mpi=pmix
            {
                "SLURM_PROCID": "2",
                "SLURM_STEP_NUM_TASKS": "4",
                "SLURM_STEP_NUM_NODES": "1",
                "PMIX_RANK": "2",
                "PMIX_NAMESPACE": "slurm.pmix.7.0",
            },
        ),
    ],
)
def test_each_launcher_is_known_by_its_own_variables(launcher: str, environment: dict[str, str]) -> None:
    for world in (None, 4):
        placement = place(world, None, None, environment)
        assert (placement.world, placement.ranks, placement.launcher) == (4, (2,), launcher)
        assert placement.master == ("127.0.0.1", DEFAULT_PORT)


@pytest.mark.parametrize("variable", ["PMIX_RANK", "PALS_RANKID", "PMI_RANK", "RANK", "MV2_COMM_WORLD_RANK"])
def test_a_launcher_that_tells_no_size_needs_it_as_an_option(variable: str) -> None:
    placement = place(4, None, "node1:7000", {variable: "1"})
    assert (placement.world, placement.ranks, placement.master) == (4, (1,), ("node1", 7000))
    with pytest.raises(UsageError, match=rf"{variable}=1 .* give the number as --world; .*env -u {variable}"):
        place(None, None, None, {variable: "1"})
    with pytest.raises(UsageError, match="where is rank 0"):
        place(4, None, None, {variable: "1"})


@pytest.mark.parametrize("variable", ["NEWMPI_COMM_WORLD_RANK", "LAUNCHER_RANKID", "X_PROCID"])
def test_a_launcher_that_is_not_known_is_refused_never_a_world_of_its_own(variable: str) -> None:
    with pytest.raises(UsageError, match=f"{variable}=0 looks as if a launcher"):
        place(4, None, None, {variable: "0", "PATH": "/bin"})
    assert place(4, 1, "h:1", {variable: "0"}).ranks == (1,)


def test_a_heterogeneous_job_of_slurms_is_one_world() -> None:
    """As Slurm 22.05 sets it for ``srun -n1 : -n1``: rank and number of tasks are those of the whole step."""
    second = {
        "SLURM_HET_SIZE": "2",
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_HET_GROUP_1": "1",
        "SLURM_PROCID": "1",
        "SLURM_LOCALID": "0",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NUM_TASKS": "2",
    }
    placement = place(None, None, "n1:7000", second)
    assert (placement.world, placement.ranks, placement.master) == (2, (1,), ("n1", 7000))


def test_what_is_of_no_launcher_leaves_the_world_in_this_process() -> None:
    batch_script = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "7"}
    single = {
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": "1",
        "PMIX_RANK": "0",
        "OMPI_COMM_WORLD_NODE_RANK": "0",
    }
    one_of_torchrun = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "GROUP_RANK": "0", "ROLE_RANK": "0"}
    for environment in (batch_script, single, one_of_torchrun, {"FRANK": "1", "PAGE_RANK": "none"}):
        assert place(4, None, None, environment).ranks == (0, 1, 2, 3)


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
        (None, None, None, {**MPIRUN, "OMPI_COMM_WORLD_RANK": "x"}, "must be a number from 0 up"),
        (None, None, None, {**MPIRUN, "OMPI_COMM_WORLD_SIZE": "0"}, "must be a number from 1 up"),
        (None, None, None, {**TORCHRUN, "RANK": "7"}, "RANK=7 in the environment is outside the world of 4"),
        (None, None, None, {**TORCHRUN, "RANK": "-1"}, "RANK='-1' in the environment must be"),
        (None, None, None, {**TORCHRUN, "RANK": "²"}, "must be a number"),
        (4, None, "h:1", {"PMIX_RANK": "4"}, "outside the world of 4 .*by --world"),
        (None, None, None, {**TORCHRUN, "MASTER_PORT": "²"}, "MASTER_PORT='²' in the environment must be"),
        (None, None, None, {**TORCHRUN, "MASTER_PORT": "65536"}, "MASTER_PORT=65536 .* no port"),
        (None, None, None, {**TORCHRUN, "MASTER_ADDR": ""}, "MASTER_ADDR in the environment: '' is no host name"),
        (None, None, None, {**TORCHRUN, "MASTER_ADDR": ".n1"}, "MASTER_ADDR in the environment: '.n1' is no host name"),
        (4, 0, "n1..lab:29517", {}, "'n1..lab' is no host name"),
        (4, 0, "h:²", {}, "HOST:PORT"),
        (4, 0, "h:0", {}, "1 to 65535"),
    ],
)
def test_contradictions_are_refused_with_the_reason(
    world: int | None, rank: int | None, master: str | None, environment: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        place(world, rank, master, environment)
