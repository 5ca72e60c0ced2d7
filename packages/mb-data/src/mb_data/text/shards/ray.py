"""Engine that builds shards as tasks of a Ray cluster. Requires the extra `ray`."""

import os
from collections.abc import Iterator, Sequence
from itertools import islice

# Read when Ray is imported. Under `uv run`, Ray would start its workers with that command again, which installs the
# project into the environment of the running process.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")

import ray
from ray.exceptions import RayError, RayTaskError

from mb_data.errors import EngineError
from mb_data.text.shards.shard import Engine, ShardTask

_RETRIES = 5
"""Times that a shard is begun again when its worker or node died. An error of the task itself is not repeated."""

_RESUME = "Complete shards are kept: call the command again to resume."


def ray_engine(workers: int | None) -> Engine:
    """Return an engine that runs a task for each shard on a CPU of the cluster.

    Every node must have this package, the inputs, the tokenizer and the folder of the shards at the same paths. A
    cluster that the caller has connected to is used; otherwise the one that Ray finds, or one of this machine is
    started, which runs until the process ends.

    Args:
        workers: Shards that are built at once, at most; None: as many as the cluster has CPUs.

    Raises (when it runs):
        EngineError: Ray failed, or a shard was lost with its worker more than five times.
        Exception: The exception of the task for the first shard for which it raises.
    """

    def run(task: ShardTask, numbers: Sequence[int]) -> Iterator[int]:
        _connect(workers)
        remote = ray.remote(num_cpus=1, max_retries=_RETRIES, scheduling_strategy="SPREAD")(_run)
        waiting = iter(numbers)
        running = [remote.remote(task, number) for number in islice(waiting, workers)]
        try:
            while running:
                done, running = ray.wait(running)
                running += [remote.remote(task, number) for number in islice(waiting, len(done))]
                yield from ray.get(done)
        except RayTaskError as error:
            raise error.cause from error
        except RayError as error:
            raise EngineError(f"--engine ray: {error}. {_RESUME}") from error
        finally:
            for reference in running:
                ray.cancel(reference, force=True)

    return run


def _connect(workers: int | None) -> None:
    """Connect to the cluster at `RAY_ADDRESS`, or of `ray start` on this machine, or start one of `workers` CPUs.

    Raises:
        EngineError: There is no cluster at the address.
    """
    if ray.is_initialized():
        return
    address = os.environ.get("RAY_ADDRESS")
    try:
        if address:
            ray.init(log_to_driver=False)
        else:
            _join_or_start(workers)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise EngineError(
            f"--engine ray: cannot connect to the cluster ({error}; RAY_ADDRESS={address!r}). Correct the address, or "
            "unset RAY_ADDRESS to start Ray on this machine."
        ) from error


def _join_or_start(workers: int | None) -> None:
    try:
        ray.init(num_cpus=workers, log_to_driver=False, include_dashboard=False)
    except ValueError:  # `ray start` began a cluster here, whose CPUs a driver does not choose
        ray.init(log_to_driver=False)


def _run(task: ShardTask, number: int) -> int:
    return task(number)
