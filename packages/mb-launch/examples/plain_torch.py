"""A plain torch script that runs alone, on N local ranks, under torchrun and under srun.

python examples/plain_torch.py
python examples/plain_torch.py --nproc 2
torchrun --nproc-per-node 2 examples/plain_torch.py
srun --ntasks 16 --ntasks-per-node 8 python examples/plain_torch.py
"""

import argparse
import os
import sys
import traceback

import torch

import mb_launch


def train(world: mb_launch.World) -> None:
    """Average a number over all ranks. Collective over the world."""
    device = mb_launch.pick_device(world)
    with mb_launch.default_process_group(world, device=device):
        mb_launch.seed_libraries(1234)
        value = torch.tensor([float(world.rank)], device=device)
        torch.distributed.all_reduce(value)
        if world.is_logging_rank:
            print(f"mean rank of {world.world_size}: {value.item() / world.world_size}")


def main() -> int:
    """Start local ranks, or be one of the ranks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nproc", type=int, help="start this number of ranks on this machine")
    parser.add_argument("--fail", type=int, help="rank that raises an error")
    options = parser.parse_args()
    if options.nproc and not mb_launch.is_launched(os.environ):
        mb_launch.set_omp_threads(os.environ, processes=options.nproc)
        port = mb_launch.requested_port(os.environ)
        result = mb_launch.launch_local(sys.argv, processes=options.nproc, port=port)
        if result.failure is not None:
            print(f"error: {result.failure.text}", file=sys.stderr)
        return result.exit_code
    world = mb_launch.read_world(os.environ)
    mb_launch.bind_this_process(os.environ, local_rank=world.local_rank)
    try:
        if world.rank == options.fail:
            raise RuntimeError("no data for this rank")
        train(world)
    except Exception:  # noqa: BLE001 - any failure of this rank may be the first cause
        return mb_launch.report_failure(traceback.format_exc(), exit_code=1, environment=os.environ)
    return 0


if __name__ == "__main__":
    sys.exit(main())
