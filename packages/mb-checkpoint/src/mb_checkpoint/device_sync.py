"""Waiting for GPUs before another thread or process reads what they compute.

A copy waits only for the stream that it is issued on. A thread starts on the default stream of a device, which does not
wait for the stream that training runs on (CUDA graphs, communication that overlaps); another process has streams of its
own. AllButAdapters a wait both can read a parameter before the kernels that update it have run. A copy with
`non_blocking=True` returns before the bytes have arrived, and the host may only read them after a wait.
"""

from collections.abc import Callable, Iterable

import torch

Synchronize = Callable[[torch.device], object]
"""Blocks until all streams of a device are idle, as `torch.cuda.synchronize` does."""


def wait_for_devices(tensors: Iterable[object], *, synchronize: Synchronize | None = None) -> None:
    """Wait for all streams of every GPU that holds one of the tensors; return at once where none is on a GPU.

    Args:
        tensors: Tensors on any device; other objects are skipped.
        synchronize: None: `torch.cuda.synchronize`.
    """
    found = {each.device for each in tensors if isinstance(each, torch.Tensor)}
    for device in sorted((each for each in found if each.type == "cuda"), key=str):
        (synchronize or torch.cuda.synchronize)(device)


def wait_for_current_device(*, synchronize: Callable[[], object] | None = None) -> None:
    """Wait for all streams of this process's GPU, where copies are in flight whose tensors are not known.

    Args:
        synchronize: None: `torch.cuda.synchronize` where there is a GPU, and nothing elsewhere.
    """
    if synchronize is not None:
        synchronize()
    elif torch.cuda.is_available():
        torch.cuda.synchronize()
