"""Training with torch's fully_shard that resumes bit for bit after it was killed at any moment.

On two CPU cores:

    torchrun --nproc-per-node 2 fsdp2_loop.py checkpoints --steps 20
    torchrun --nproc-per-node 2 fsdp2_loop.py checkpoints --steps 20   # after a kill: resumes

`--background` writes the checkpoints in another process while training continues. `--storage s3://bucket/run` copies
them there; a run that finds an empty folder resumes from the storage. AWS_ENDPOINT_URL names a server other than AWS.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from mb_checkpoint import TorchCheckpointer


def main() -> None:
    """Train a small network on random data."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--background", action="store_true")
    parser.add_argument("--storage")
    options = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1234)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 64)).to(device)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    torch.manual_seed(dist.get_rank())  # another dropout and other data on each rank

    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    checkpointer = TorchCheckpointer(
        options.folder, state, most_recent_k=2, async_save=options.background, storage=options.storage
    )
    for step in range(checkpointer.load() + 1, options.steps + 1):
        batch = torch.randn(32, 64, device=device)
        loss = nn.functional.mse_loss(model(batch), batch.roll(1, dims=1))
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        print(f"rank {dist.get_rank()} step {step} loss {loss.item()!r}", flush=True)
        checkpointer.poll()
        if step % 2 == 0:
            checkpointer.save(step)
    checkpointer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
