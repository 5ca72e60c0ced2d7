"""Engines of a sharded build: they call the same task for each shard, here, on Ray or on Slurm."""

from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module

from mb_data.errors import EngineError
from mb_data.libraries import import_library
from mb_data.text.shards.shard import Engine, ShardTask
from mb_data.text.workers import map_in_order

ENGINES = ("local", "ray", "slurm")


WORKERS = 2
"""Processes of this machine, or jobs of Slurm, unless the user sets another number."""


def select_engine(name: str, *, workers: int | None, slurm_options: Sequence[str] = ()) -> Engine:
    """Return an engine by its name.

    Args:
        name: "local": processes of this machine. "ray": tasks of a Ray cluster, which Ray finds by `RAY_ADDRESS`, or
            starts here. "slurm": an array of jobs.
        workers: Processes of "local", jobs of "slurm", or shards that are built at once on "ray". None: two, and every
            CPU of Ray's cluster.
        slurm_options: Options of `sbatch`.

    Raises:
        EngineError: There is no such engine, or its library is not installed.
    """
    if slurm_options and name != "slurm":
        raise EngineError(f"--slurm-option: has no meaning for --engine {name}. Leave it out.")
    if name == "local":
        return partial(_run_here, workers=workers or WORKERS)
    if name == "slurm":
        return import_module("mb_data.text.shards.slurm").slurm_engine(  # type: ignore[no-any-return]
            jobs=workers or WORKERS, options=slurm_options
        )
    if name != "ray":
        raise EngineError(f"--engine: there is no engine {name!r}. Use {', '.join(ENGINES)}.")
    ray = import_library(
        "mb_data.text.shards.ray",
        where="--engine",
        purpose="builds shards on several machines",
        extra="ray",
        library="ray",
        error=EngineError,
    )
    return ray.ray_engine(workers)  # type: ignore[no-any-return]


def _run_here(task: ShardTask, numbers: Sequence[int], *, workers: int) -> Iterator[int]:
    return map_in_order(task, numbers, workers=min(workers, max(len(numbers), 1)))
