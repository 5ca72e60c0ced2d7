"""Device and default process group of this rank, in any torch program. Imports torch."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch.distributed import HashStore, Store  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _get_default_store

from mb_launch.ranks.failures import timed_failure
from mb_launch.ranks.rank_store import rank_store
from mb_launch.world import World, WorldError, require_address


def pick_device(world: World, *, external_mapping: bool = False) -> torch.device:
    """Return the device of this rank and make it CUDA's current one: its GPU, or the CPU of a machine without a GPU.

    Args:
        world: Rank of this process.
        external_mapping: The launcher makes one GPU visible to each process: take index 0, not the local rank.

    Raises:
        WorldError: Fewer GPUs are visible than this machine has processes. CUDA is not initialised.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    visible = torch.cuda.device_count()
    if not external_mapping and world.local_rank >= visible:
        raise WorldError(
            f"dist.local_rank: is {world.local_rank}, but this process sees {visible} GPU{'s' if visible > 1 else ''} "
            f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'unset')}), because each process of a "
            "machine takes the GPU with its local rank as index. Start at most as many processes on a machine as GPUs "
            "are visible, or set dist.external_gpu_device_mapping=true if the launcher maps one GPU to each process."
        )
    device = torch.device("cuda", 0 if external_mapping else world.local_rank)
    torch.cuda.set_device(device)
    return device


@contextmanager
def default_process_group(
    world: World,
    *,
    device: torch.device,
    backend: str = "nccl",
    timeout: timedelta | None = None,
    store: Store | None = None,
) -> Iterator[None]:
    """Open torch's default process group for the length of a block. Collective over the world.

    A process group that is already open is used and left open. A single process needs no port. The first collective
    names the GPU of this rank (`barrier`). `init_process_group(device_id=...)` would do so, too, but it makes torch
    split every further group off the default one, in which all ranks must take part.

    Args:
        world: Rank, world size and rendezvous address.
        device: Of this rank, as `pick_device` returns it.
        backend: For GPUs; on the CPU the backend is gloo.
        timeout: Of collectives; None: torch's default.
        store: In which the ranks find each other; None: that of torchrun, or one that rank 0 serves at the
            rendezvous address (`rank_store`).

    Raises:
        WorldError: There are several processes, and no variable holds the rendezvous address; or rank 0 cannot listen
            there.
    """
    opened_here = not torch.distributed.is_initialized()
    if opened_here:
        store = HashStore() if world.world_size == 1 else store
        if store is None:
            require_address(world, os.environ)
            store = rank_store(world, os.environ, timeout=timeout)
        torch.distributed.init_process_group(
            backend=backend if device.type == "cuda" else "gloo",
            store=store,
            rank=world.rank,
            world_size=world.world_size,
            timeout=timeout,
        )
    try:
        with timed_failure():
            if opened_here:
                barrier(device=device)
            yield
    finally:
        # an abort of the communicators, for an in-process restart, has destroyed it
        if opened_here and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def default_store(world: World) -> Store | None:
    """Return the store of the default process group, which all ranks share; None for a single rank."""
    return _get_default_store() if world.world_size > 1 else None


def barrier(*, device: torch.device | None = None) -> None:
    """Block until all ranks have reached the barrier. Collective over the world.

    Passes the GPU to NCCL. Otherwise NCCL takes the GPU with the index rank modulo number of GPUs if no collective came
    before. Where ranks are not numbered node by node, that is another rank's GPU, and the barrier hangs.

    Args:
        device: Of this rank; None: the current one.
    """
    if "nccl" not in torch.distributed.get_backend():
        torch.distributed.barrier()
        return
    index = torch.cuda.current_device() if device is None else device.index
    torch.distributed.barrier(device_ids=[index])
