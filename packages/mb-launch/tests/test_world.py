"""Rank and world from the variables of a launcher, and the rendezvous address."""

import pytest

from mb_launch.world import (
    World,
    WorldError,
    first_host,
    is_launched,
    read_local_world_size,
    read_world,
    require_address,
    require_single_process,
    torchrun_environment,
)

SRUN = {
    "SLURM_JOB_ID": "123456",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NODELIST": "gpu[007-009]",
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "2",
    "SLURM_LOCALID": "1",
}


def test_without_a_launcher_there_is_one_process_which_logs():
    assert read_world({}) == World(rank=0, world_size=1, local_rank=0)
    assert read_world({}).is_logging_rank


def test_torchrun_comes_before_slurm():
    environment = {**SRUN, "RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
    assert read_world(environment) == World(rank=3, world_size=8, local_rank=1)


def test_the_address_under_srun_is_the_first_node_with_a_port_of_the_step():
    here = World(rank=1, world_size=2, local_rank=1, address="gpu007:20450")
    assert read_world(SRUN) == here
    assert (
        read_world({**SRUN, "SLURM_STEP_ID": "3"}).address == "gpu007:21447"
    )  # the other step may run at the same time


@pytest.mark.parametrize(
    ("more", "address"),
    [
        ({"MASTER_ADDR": "leader"}, "leader:20450"),
        ({"MASTER_PORT": "29500"}, "gpu007:29500"),
        ({"MASTER_ADDR": "leader", "MASTER_PORT": "29500"}, "leader:29500"),
    ],
)
def test_variables_of_the_user_take_precedence(more, address):
    assert read_world({**SRUN, **more}).address == address


@pytest.mark.parametrize(
    "environment",
    [
        {name: SRUN[name] for name in SRUN if name != "SLURM_STEP_ID"}
        | {"SLURM_PROCID": "0"},  # sbatch script
        {**SRUN, "SLURM_PROCID": "0", "SLURM_NTASKS": "1"},  # srun -n 1
        {**SRUN, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},  # a shell of salloc
    ],
)
def test_a_single_task_is_one_process_and_may_start_others(environment):
    assert read_world(environment) == World()
    assert not is_launched(environment)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("gpu[007-009,12],login1", "gpu007"),
        ("gpu[12,14-16]", "gpu12"),
        ("rack[1-2]n[01-04]-ib", "rack1n01-ib"),
        ("a-b.example", "a-b.example"),
    ],
)
def test_the_first_host_of_a_node_list(nodes, first):
    assert first_host(nodes, variable="SLURM_STEP_NODELIST") == first


@pytest.mark.parametrize("nodes", ["", "gpu[007", "gpu]1", "gpu[]", ","])
def test_a_malformed_node_list_is_an_error(nodes):
    with pytest.raises(WorldError, match=r"SLURM_STEP_NODELIST: .* is not a list of nodes"):
        read_world({**SRUN, "SLURM_STEP_NODELIST": nodes})


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("SLURM_STEP_NODELIST", "MASTER_ADDR and MASTER_PORT: are not set"),
        ("SLURM_JOB_ID", "MASTER_ADDR and MASTER_PORT"),
    ],
)
def test_several_processes_without_an_address_are_an_error(missing, message):
    world = read_world({name: value for name, value in SRUN.items() if name != missing})
    with pytest.raises(WorldError, match=message):
        require_address(world, {})
    with pytest.raises(WorldError, match=r"^MASTER_PORT: is not set"):
        require_address(world, {"MASTER_ADDR": "leader"})
    require_address(world, {"MASTER_ADDR": "leader", "MASTER_PORT": "29500"})
    require_address(World(), {})


@pytest.mark.parametrize(
    "environment", [{"RANK": "x", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, {"WORLD_SIZE": "2"}]
)
def test_a_malformed_rank_is_an_error_never_rank_0(environment):
    with pytest.raises(WorldError, match=r"RANK: must be a whole number.* RANK, WORLD_SIZE and LOCAL_RANK"):
        read_world(environment)


def test_a_malformed_rank_of_srun_names_sruns_variables():
    with pytest.raises(
        WorldError, match=r"SLURM_LOCALID: .*, is ''.* SLURM_PROCID, SLURM_NTASKS and SLURM_LOCALID"
    ):
        read_world({**SRUN, "SLURM_LOCALID": ""})


def test_a_rank_outside_the_world_is_an_error():
    with pytest.raises(WorldError, match=r"RANK=2: is outside the world of WORLD_SIZE=2"):
        read_world({"RANK": "2", "WORLD_SIZE": "2", "LOCAL_RANK": "0"})
    with pytest.raises(WorldError, match=r"SLURM_PROCID=2: is outside .* \(srun\)"):
        read_world({**SRUN, "SLURM_PROCID": "2"})


@pytest.mark.parametrize(("text", "number"), [("4", 4), (None, None), ("many", None)])
def test_torchrun_sets_the_number_of_local_processes(text, number):
    environment = {} if text is None else {"LOCAL_WORLD_SIZE": text}
    assert read_local_world_size(environment) == number


@pytest.mark.parametrize(
    ("node", "counts", "number"),
    [
        ("0", "8(x2),4", 8),
        ("1", "8(x2),4", 8),
        ("2", "8(x2),4", 4),
        ("3", "8(x2),4", None),
        ("0", "8(y)", None),
    ],
)
def test_srun_states_the_number_of_processes_of_each_node(node, counts, number):
    step = {**SRUN, "SLURM_NODEID": node, "SLURM_STEP_TASKS_PER_NODE": counts, "LOCAL_WORLD_SIZE": "99"}
    assert read_local_world_size(step) == number


def test_a_task_of_srun_gets_the_variables_of_torchrun():
    step = {**SRUN, "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "2"}
    of_torchrun = {
        name: torchrun_environment(step)[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    }
    assert of_torchrun == {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}


def test_an_option_that_starts_processes_is_rejected_inside_a_launcher():
    require_single_process({}, option="--nproc")
    with pytest.raises(WorldError, match=r"^--nproc: is given inside torchrun, mpirun or srun"):
        require_single_process({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, option="--nproc")


OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "9",
    "OMPI_COMM_WORLD_SIZE": "16",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "8",
}
HYDRA = {"PMI_RANK": "9", "PMI_SIZE": "16", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "8"}
"""As the process managers of Open MPI 4 and of MPICH 4 set them for rank 9 of 16 on the second of two nodes."""


@pytest.mark.parametrize("environment", [OPEN_MPI, HYDRA])
def test_mpirun_sets_rank_and_world(environment):
    assert read_world(environment) == World(rank=9, world_size=16, local_rank=1)
    assert is_launched(environment)
    # within an allocation, mpirun starts one daemon on each node with srun: these are its numbers, not the ranks'
    daemon = {**SRUN, "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}
    assert read_world({**daemon, **environment}) == World(rank=9, world_size=16, local_rank=1)
    assert read_world({**environment, "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3"}).rank == 3


def test_several_processes_of_mpirun_need_an_address():
    with pytest.raises(
        WorldError, match=r"MASTER_ADDR and MASTER_PORT: are not set.* \(mpirun: -x MASTER_ADDR"
    ):
        require_address(read_world(OPEN_MPI), OPEN_MPI)
    assert read_local_world_size(OPEN_MPI) == 8


@pytest.mark.parametrize("environment", [OPEN_MPI, HYDRA])
def test_one_process_of_mpirun_is_a_single_process(environment):
    one = {name: "1" if name.endswith("_SIZE") else "0" for name in environment}
    assert read_world(one) == World()
    assert not is_launched(one)


def test_tasks_of_srun_that_use_mpi_are_those_of_srun():
    """`srun --mpi=pmi2` sets PMI_RANK and PMI_SIZE, and no local rank."""
    assert read_world({**SRUN, "PMI_RANK": "1", "PMI_SIZE": "2"}) == read_world(SRUN)


@pytest.mark.parametrize("environment", [{"RANK": "0", "WORLD_SIZE": "1"}, {"WORLD_SIZE": "1"}])
def test_a_container_with_one_process_is_a_single_process(environment):
    assert read_world(environment) == World()
    assert not is_launched(environment)


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"RANK": "1", "WORLD_SIZE": "2"}, "LOCAL_RANK"),
        ({"RANK": "1", "WORLD_SIZE": "1"}, "LOCAL_RANK"),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, "MPI_LOCALRANKID"),
    ],
)
def test_several_processes_without_a_local_rank_are_an_error(environment, name):
    with pytest.raises(
        WorldError, match=rf"^{name}: is not set, but .*Set {name}=0 if each node or pod has one"
    ):
        read_world(environment)
