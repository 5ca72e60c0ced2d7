"""Program of one job of a Slurm array: it builds every n-th of the listed shards."""

import os
import sys

from mb_data.errors import DataError
from mb_data.text.shards.shard import ShardTask


def main(folder: str, step: str, tasks: str, numbers: str) -> None:
    """Run the shards of this job; selected by `SLURM_ARRAY_TASK_ID`."""
    task = ShardTask(folder=folder, step="hash" if step == "hash" else "build")
    for number in [int(each) for each in numbers.split(",")][
        int(os.environ["SLURM_ARRAY_TASK_ID"]) :: int(tasks)
    ]:
        task(number)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except DataError as error:
        sys.exit(str(error))
