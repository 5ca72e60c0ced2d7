"""Engine that builds shards as tasks of a Ray cluster. Requires the extra `ray`."""

import os
from collections.abc import Iterator, Sequence

# Read when Ray is imported. Under `uv run`, Ray would start its workers with that command again, which installs the
# project into the environment of the running process.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")

import ray
from ray.exceptions import RayError, RayTaskError

from mb_data.errors import EngineError
from mb_data.text.shards.shard import ShardTask

_RETRIES = 5
"""Times that a shard is begun again when its worker or node died. An error of the task itself is not repeated."""


def run_on_ray(task: ShardTask, numbers: Sequence[int]) -> Iterator[int]:
    """Run a task for each shard on a CPU of the cluster; see `mb_data.text.shards.shard.Engine`.

    Every node must have this package, the inputs, the tokenizer and the folder of the shards at the same paths. A
    cluster that the caller has connected to is used.

    Raises:
        EngineError: Ray failed, or a shard was lost with its worker more than five times.
        Exception: The exception of the task for the first shard for which it raises.
    """
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    remote = ray.remote(num_cpus=1, max_retries=_RETRIES, scheduling_strategy="SPREAD")(_run)
    pending = [remote.remote(task, number) for number in numbers]
    try:
        while pending:
            done, pending = ray.wait(pending)
            yield from ray.get(done)
    except RayTaskError as error:
        raise error.cause from error
    except RayError as error:
        raise EngineError(
            f"--engine ray: {error}. Shards that are whole are kept: call the command again to resume."
        ) from error
    finally:
        for reference in pending:
            ray.cancel(reference, force=True)


def _run(task: ShardTask, number: int) -> int:
    return task(number)
