"""Rank, world size and rendezvous address of this process, as its launcher set them. The standard library only."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mb_launch.errors import LauncherError


class WorldError(LauncherError, ValueError):
    """The environment describes the processes of the run inconsistently or incompletely."""

    bad_input = True


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Position of this process among the processes of the run."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    attempt: str = "0"
    """Number of the start of the same processes, as torch elastic counts restarts."""
    address: str | None = None
    """HOST:PORT of the rendezvous; None: MASTER_ADDR and MASTER_PORT hold it."""

    @property
    def is_logging_rank(self) -> bool:
        """True for the last rank, which has the loss under pipeline parallelism and logs for all ranks."""
        return self.rank == self.world_size - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherVariables:
    """Names of the environment variables in which a launcher passes rank and world size to a process."""

    launcher: str
    rank: str
    world_size: str
    local_rank: str


def launcher_variables(environment: Mapping[str, str]) -> LauncherVariables | None:
    """Return the variables of the launcher that started this process: torchrun, mpirun or srun; None for one process.

    Slurm sets its variables in an sbatch script, in a step of one task and in a shell within an allocation, too. Each
    of these is a single process: srun counts as the launcher only if it started several tasks in this step. mpirun
    takes precedence over srun, with which it starts a daemon on each node of an allocation. A container of one process
    may have RANK=0 and WORLD_SIZE=1 without LOCAL_RANK, which torchrun always sets.
    """
    if "RANK" in environment or "WORLD_SIZE" in environment:
        numbers = (environment.get("RANK", "0"), environment.get("WORLD_SIZE"))
        if numbers == ("0", "1") and "LOCAL_RANK" not in environment:
            return None
        return TORCHRUN
    for mpi in MPI:
        if mpi.rank in environment or mpi.world_size in environment:
            # srun --mpi=pmi2 sets the variables of PMI in addition to its own
            srun = None if mpi.local_rank in environment else _srun(environment)
            return srun or (mpi if environment.get(mpi.world_size) != "1" else None)
    return _srun(environment)


def _srun(environment: Mapping[str, str]) -> LauncherVariables | None:
    tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
    srun = LauncherVariables(
        launcher="srun", rank="SLURM_PROCID", world_size=tasks, local_rank="SLURM_LOCALID"
    )
    is_step = srun.rank in environment and "SLURM_STEP_ID" in environment
    return srun if is_step and environment.get(tasks, "1") != "1" else None


TORCHRUN = LauncherVariables(
    launcher="torchrun", rank="RANK", world_size="WORLD_SIZE", local_rank="LOCAL_RANK"
)
MPI = (
    LauncherVariables(
        launcher="mpirun",
        rank="OMPI_COMM_WORLD_RANK",
        world_size="OMPI_COMM_WORLD_SIZE",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
    ),
    LauncherVariables(
        launcher="mpirun", rank="PMI_RANK", world_size="PMI_SIZE", local_rank="MPI_LOCALRANKID"
    ),
)
"""Variables of Open MPI, and of MPICH, Intel MPI and MVAPICH (process management interface)."""


def is_launched(environment: Mapping[str, str]) -> bool:
    """Return whether torchrun, mpirun or srun started this process as one of several."""
    return launcher_variables(environment) is not None


def require_single_process(environment: Mapping[str, str], *, option: str) -> None:
    """Reject an option that starts processes, if torchrun, mpirun or srun has started this one.

    Raises:
        WorldError: A launcher has started this process as one of several.
    """
    if is_launched(environment):
        raise WorldError(
            f"{option}: is given inside torchrun, mpirun or srun, which have started the processes already. Leave it "
            "out."
        )


def read_world(environment: Mapping[str, str]) -> World:
    """Read rank, world size and local rank as torchrun, mpirun or srun set them; a single process if none did.

    Raises:
        WorldError: A variable is set but is not a number, the rank is outside the world, or Slurm's list of nodes
            cannot be read.
    """
    variables = launcher_variables(environment)
    if variables is None:
        return World()
    world = World(
        rank=_read_number(environment, variables.rank, variables),
        world_size=_read_number(environment, variables.world_size, variables),
        local_rank=_read_number(environment, variables.local_rank, variables),
        attempt=environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
        address=step_address(environment) if variables.launcher == "srun" else None,
    )
    if not 0 <= world.rank < world.world_size:
        raise WorldError(
            f"{variables.rank}={world.rank}: is outside the world of {variables.world_size}={world.world_size} "
            f"processes. Start every process with the launcher that counts them ({variables.launcher})."
        )
    return world


def torchrun_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of this process, with rank, world sizes and address as torchrun sets them.

    LOCAL_WORLD_SIZE is left out where the launcher does not state it. A single process without a launcher has none of
    the variables.

    Raises:
        WorldError: As `read_world`; or there are several processes, and no variable holds the address.
    """
    world = read_world(environment)
    if launcher_variables(environment) is None:
        return {name: value for name, value in environment.items() if name not in TORCHRUN_VARIABLES}
    require_address(world, environment)
    numbers = (world.rank, world.world_size, world.local_rank)
    variables = {**environment, **dict(zip(TORCHRUN_VARIABLES, map(str, numbers), strict=False))}
    if (local_world_size := read_local_world_size(environment)) is not None:
        variables["LOCAL_WORLD_SIZE"] = str(local_world_size)
    if world.address is not None:
        variables["MASTER_ADDR"], _, variables["MASTER_PORT"] = world.address.rpartition(":")
    return variables


TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Variables that torchrun sets: rank, world size, local rank, and the rendezvous address."""


def read_local_world_size(environment: Mapping[str, str]) -> int | None:
    """Return the number of processes that the launcher started on this machine; None if unknown."""
    variables = launcher_variables(environment)
    if variables is not None and variables.launcher == "srun":
        return _step_tasks_of_node(environment)
    text = environment.get("LOCAL_WORLD_SIZE", environment.get("OMPI_COMM_WORLD_LOCAL_SIZE", ""))
    return int(text) if text.isdecimal() else None


def _step_tasks_of_node(environment: Mapping[str, str]) -> int | None:
    """Return the tasks of a Slurm step on this node, from a text such as `8(x2),4`: the numbers of all its nodes."""
    node, counts = environment.get("SLURM_NODEID", ""), environment.get("SLURM_STEP_TASKS_PER_NODE", "")
    runs = [re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", text) for text in counts.split(",")]
    tasks = [int(run[1]) for run in runs if run is not None for _ in range(int(run[2] or 1))]
    return tasks[int(node)] if None not in runs and node.isdecimal() and int(node) < len(tasks) else None


def require_address(world: World, environment: Mapping[str, str]) -> None:
    """Check that several processes have an address for their rendezvous, so that none waits forever.

    Raises:
        WorldError: There are several processes, and no variable holds the address.
    """
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]
    if world.world_size > 1 and world.address is None and missing:
        verb = "are" if len(missing) > 1 else "is"
        raise WorldError(
            f"{' and '.join(missing)}: {verb} not set, and without them {world.world_size} processes cannot find each "
            "other. Start them with torchrun, or with srun, which sets nodes (SLURM_STEP_NODELIST) and job "
            "(SLURM_JOB_ID), or set MASTER_ADDR to the node of rank 0 and MASTER_PORT to a free port there (mpirun: -x "
            "MASTER_ADDR=... -x MASTER_PORT=...)."
        )


def step_address(environment: Mapping[str, str]) -> str | None:
    """Return the rendezvous address of a Slurm step: its first node, which has rank 0, and a port derived from the job.

    MASTER_ADDR and MASTER_PORT each take precedence. None if the variables do not determine an address.

    Raises:
        WorldError: The list of nodes cannot be read.
    """
    host, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if not host and name in environment:
            host = first_host(environment[name], variable=name)
    job, step = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "")
    if not port and job.isdecimal():
        # Steps of one job may run at the same time on the same node, so the port depends on the step, too.
        number = int(job) + 997 * int(step if step.isdecimal() else 0)
        port = str(FIRST_PORT + number % PORTS)
    return f"{host}:{port}" if host and port else None


FIRST_PORT, PORTS = 15_000, 10_000
"""Range of the ports of Slurm steps: above well-known services, below Linux's range for outgoing connections."""


def first_host(nodes: str, *, variable: str) -> str:
    """Return the first host of a node list such as `gpu[007-009,12],login1`: `gpu007`.

    Args:
        nodes: In Slurm's notation.
        variable: Name of the environment variable, for the error message.

    Raises:
        WorldError: The list is empty, or a bracket is not closed.
    """
    first = re.match(r"(?:[^\[\],]|\[[^\[\]]+\])+", nodes)
    if first is None or nodes[first.end() : first.end() + 1] not in ("", ","):
        raise WorldError(
            f"{variable}: {nodes!r} is not a list of nodes in Slurm's notation, such as gpu[007-009]. Set MASTER_ADDR "
            "to the node of rank 0, or start with torchrun."
        )
    return re.sub(r"\[([^-,\]]+)[^\]]*\]", r"\1", first.group())


def _read_number(environment: Mapping[str, str], name: str, variables: LauncherVariables) -> int:
    """Return the number in a variable of the launcher.

    Raises:
        WorldError: The variable is not set, or not to a number.
    """
    text = environment.get(name)
    if text is None and name == variables.local_rank and variables.rank in environment:
        raise WorldError(
            f"{name}: is not set, but {variables.rank} and {variables.world_size} are, so the device of this process "
            f"is unknown. Set {name}=0 if each node or pod has one process, as some operators of Kubernetes start "
            "them; torchrun sets it itself."
        )
    if text is None or not text.isdecimal():
        raise WorldError(
            f"{name}: must be a whole number, is {text!r}. Reading it as rank 0 would start a second leader. Set it as "
            f"{variables.launcher} does, or unset all of {variables.rank}, {variables.world_size} and "
            f"{variables.local_rank} for one process."
        )
    return int(text)
