"""Ranks that save or read rows of two DTensors with TorchCheckpointer's door; each reads its own copy of the folder."""

import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from mb_checkpoint import CheckpointConfig, TorchCheckpointer
from mb_checkpoint.formats.manifest import read_manifest
from mb_checkpoint.load import file_pieces
from mb_checkpoint.load.verified_reads import verified_reads
from mb_checkpoint.megatron import shards

ROWS, COLUMNS = 64, 4096


def values():
    """Return two tensors of 1 MiB, each element another one."""
    count = ROWS * COLUMNS
    return {
        "one": torch.arange(count).reshape(ROWS, COLUMNS).float(),
        "two": -torch.arange(count).reshape(ROWS, COLUMNS).float(),
    }


def checkpointer(root, tensors):
    """Return a checkpointer of parameters that are distributed by rows, and the module."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    module = torch.nn.Module()
    for name, tensor in tensors.items():
        module.register_parameter(name, torch.nn.Parameter(distribute_tensor(tensor, mesh, [Shard(0)])))
    config = CheckpointConfig(save=str(root), load=str(root))
    return TorchCheckpointer(config, {"model": module}, log=lambda _line: None), module


def save(root):
    """Save the values."""
    checkpointer(root, values())[0].save(1)


def load(root):
    """Load; return the bytes that this rank read from files, and whether the values are right."""
    checkpointer(root, {name: torch.zeros(ROWS, COLUMNS) for name in values()})[0].load()  # with all imports
    loading, module = checkpointer(root, {name: torch.zeros(ROWS, COLUMNS) for name in values()})
    before = bytes_read()
    loading.load()
    count = bytes_read() - before
    expected = checkpointer(root, values())[1]
    right = all(
        torch.equal(ours.to_local(), theirs.to_local())
        for ours, theirs in zip(module.parameters(), expected.parameters(), strict=True)
    )
    return count, right


def bytes_read():
    """Return the bytes that this process has read from files."""
    return int(Path("/proc/self/io").read_text().split()[1])


def read_rows(folders, uncopyable=(), killed=None):
    """Read this rank's rows of each tensor from its own copy of a checkpoint; return whether they are right.

    Args:
        folders: The copy of each rank.
        uncopyable: Ranks that pass memory into which nothing can be copied.
        killed: Rank that kills itself when it is to read a piece for others.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    folder = Path(folders[rank])
    if rank == killed:
        file_pieces._SentFile.read = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    rows = ROWS // world
    requested = {}
    for name in values():
        data = (
            torch.zeros(rows, COLUMNS) if rank not in uncopyable else torch.zeros(1, 1).expand(rows, COLUMNS)
        )
        requested[f"model.{name}"] = shards.Shard(data=data, offsets=(rank * rows, 0), shape=(ROWS, COLUMNS))
    with verified_reads(folder, read_manifest(folder)) as reads:
        reads.read(lambda: shards.read_entries(folder, requested), after="nothing is lost")
    return all(
        torch.equal(requested[f"model.{name}"].data, tensor[rank * rows : (rank + 1) * rows])
        for name, tensor in values().items()
    )
