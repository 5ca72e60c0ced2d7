"""Engines of a sharded build: they call the same task for each shard, here, on Ray or on Slurm."""

from collections.abc import Sequence
from importlib import import_module

from mb_data.errors import EngineError
from mb_data.text.shards.shard import Engine
from mb_data.text.workers import map_in_order

ENGINES = ("local", "ray", "slurm")


def select_engine(name: str, *, workers: int, slurm_options: Sequence[str] = ()) -> Engine:
    """Return an engine by its name.

    Args:
        name: "local": processes of this machine. "ray": tasks of a Ray cluster, which Ray finds by `RAY_ADDRESS`, or
            starts here. "slurm": an array of jobs.
        workers: Processes of "local", jobs of "slurm"; Ray uses every CPU of its cluster.
        slurm_options: Options of `sbatch`.

    Raises:
        EngineError: There is no such engine, or its library is not installed.
    """
    if slurm_options and name != "slurm":
        raise EngineError(f"--slurm-option: has no meaning for --engine {name}. Leave it out.")
    if name == "local":
        return lambda task, numbers: map_in_order(task, numbers, workers=min(workers, max(len(numbers), 1)))
    if name == "slurm":
        return import_module("mb_data.text.shards.slurm").slurm_engine(  # type: ignore[no-any-return]
            jobs=workers, options=slurm_options
        )
    if name != "ray":
        raise EngineError(f"--engine: there is no engine {name!r}. Use {', '.join(ENGINES)}.")
    try:
        return import_module("mb_data.text.shards.ray").run_on_ray  # type: ignore[no-any-return]
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise EngineError(
            '--engine: the library ray is not installed. Install it: pip install "mb-data[ray]".'
        ) from error
