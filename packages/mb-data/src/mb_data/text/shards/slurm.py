"""Engine that builds shards in an array of Slurm jobs, one `sbatch` for each step, and the program of such a job."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence

from mb_data.errors import DataError, EngineError
from mb_data.text.input_files import located_path
from mb_data.text.shards.shard import Engine, ShardTask, is_done, shard_name


def slurm_engine(*, jobs: int, options: Sequence[str]) -> Engine:
    """Return an engine that submits an array of at most `jobs` jobs and waits for it.

    Every node must have this Python, the inputs, the tokenizer and the folder of the shards at the same paths. The
    output of the jobs is written next to the shards. A job that Slurm requeues resumes with its missing shards.

    Raises (when it runs):
        EngineError: `sbatch` is not there or refuses, or shards are missing at the end.
    """

    def run(task: ShardTask, numbers: Sequence[int]) -> Iterator[int]:
        tasks = min(jobs, len(numbers))
        if not tasks:
            return
        program = [
            sys.executable,
            "-m",
            __name__,
            task.folder,
            task.step,
            str(tasks),
            ",".join(map(str, numbers)),
        ]
        log = f"{task.folder}/{task.step}-%A_%a.log"
        command = ["sbatch", "--wait", f"--array=0-{tasks - 1}", "--requeue", f"--output={log}"]
        try:
            finished = subprocess.run(
                [*command, f"--job-name=mb-data-{task.step}", *options],
                input=f"#!/bin/sh\nexec {shlex.join(program)}\n",
                capture_output=True,
                text=True,
                check=False,
            )
        except FileNotFoundError as error:
            raise EngineError(
                "--engine slurm: there is no program sbatch here. Call the command on a node that submits jobs."
            ) from error
        folder = located_path(task.folder)
        missing = [number for number in numbers if not is_done(folder, number, task.step)]
        yield from (number for number in numbers if number not in set(missing))
        if missing:
            reason = finished.stderr.strip() or f"sbatch ended with exit code {finished.returncode}"
            raise EngineError(
                f"--engine slurm: {len(missing)} shards are missing, the first is {shard_name(missing[0])} ({reason}). "
                f"See {task.folder}/{task.step}-*.log; call the command again to resume."
            )

    return run


def run_job(folder: str, step: str, tasks: str, numbers: str) -> None:
    """Run every n-th of the listed shards, those of the job `SLURM_ARRAY_TASK_ID`."""
    task = ShardTask(folder=folder, step="hash" if step == "hash" else "build")
    for number in numbers.split(",")[int(os.environ["SLURM_ARRAY_TASK_ID"]) :: int(tasks)]:
        task(int(number))


if __name__ == "__main__":
    try:
        run_job(*sys.argv[1:])
    except DataError as error:
        sys.exit(str(error))
