"""Synchronization with GPUs before another thread or process reads their memory.

A copy waits only for the stream that it is issued on. A new thread uses the default stream of a device, which does not
wait for the stream that training runs on (CUDA graphs, overlapped communication); another process has its own streams.
Without synchronization, both can read a parameter before the kernels that update it have run. A copy with
`non_blocking=True` returns before the bytes have arrived, and the host may read them only after synchronization.
"""

from collections.abc import Callable, Iterable

import torch

Synchronize = Callable[[torch.device], object]
"""Function that blocks until all streams of a device are idle, such as `torch.cuda.synchronize`."""


def wait_for_devices(tensors: Iterable[object], *, synchronize: Synchronize | None = None) -> None:
    """Wait for all streams of every GPU that holds one of the tensors; return at once if none is on a GPU.

    Args:
        tensors: Tensors on any device; other objects are skipped.
        synchronize: None uses `torch.cuda.synchronize`.
    """
    for device in _gpus_of(tensors):
        (synchronize or torch.cuda.synchronize)(device)


def wait_for_copies(tensors: Iterable[object], *, synchronize: Synchronize | None = None) -> None:
    """Wait for copies that were issued on the current streams of the GPUs that hold the tensors, by one event each.

    Args:
        tensors: Tensors on any device; other objects are skipped.
        synchronize: Blocks until the copies of a device have arrived; None records an event and waits for it.
    """
    for device in _gpus_of(tensors):
        (synchronize or _wait_for_event)(device)


def _gpus_of(tensors: Iterable[object]) -> list[torch.device]:
    devices = {tensor.device for tensor in tensors if isinstance(tensor, torch.Tensor)}
    return sorted((device for device in devices if device.type == "cuda"), key=str)


def _wait_for_event(device: torch.device) -> None:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    event.synchronize()


def wait_for_current_device(*, synchronize: Callable[[], object] | None = None) -> None:
    """Wait for all streams of this process's GPU. For copies in flight whose tensors are not known.

    Args:
        synchronize: None uses `torch.cuda.synchronize` if there is a GPU, and does nothing otherwise.
    """
    if synchronize is not None:
        synchronize()
    elif torch.cuda.is_available():
        torch.cuda.synchronize()
