"""One rank of a run in which rank 1 does not call the last collective; started by torchrun on several "nodes"."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from mb_resilience import HangReporter, rank_and_store
from mb_resilience.hangs.flight_record_reader import read_collectives

SECONDS = 5.0


def log(text):
    print(f"{time.time()} {text}", flush=True)


def main():
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    pair = dist.new_group([0, 1], group_desc="TENSOR_MODEL_PARALLEL_GROUP")
    rank = int(os.environ["RANK"])
    options = {"folder": folder, "log": log, "read_collectives": read_collectives}
    with HangReporter(seconds=SECONDS, **rank_and_store(of_thread=True), **options) as progress:
        for step in range(1, 4):
            progress.note("step", step)
            dist.all_reduce(torch.ones(3), group=pair)
        if rank == 1:
            (folder / "hangs").write_text(repr(time.time()))
            time.sleep(300)
        dist.all_gather([torch.ones(2), torch.ones(2)], torch.ones(2), group=pair)


if __name__ == "__main__":
    main()
