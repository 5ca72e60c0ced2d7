"""Registration of host memory with CUDA, so that copies from a GPU run at the speed of the bus and without waiting.

CUDA copies to unregistered memory through a small internal buffer, and the host waits for each part.
"""

import logging
from typing import Any, Protocol

import torch

logger = logging.getLogger(__name__)

_PORTABLE = 1
"""`cudaHostRegisterPortable`: the registration holds for all contexts of the process."""


class MemoryRegistry(Protocol):
    """Registration of host memory; `CudaRegistry` matches."""

    def register(self, address: int, size: int) -> bool:
        """Register memory; return whether it is registered."""

    def unregister(self, address: int) -> None:
        """Undo a registration, before the memory is unmapped."""


class CudaRegistry:
    """Registration with the CUDA driver. Memory that cannot be registered is used as it is, with a warning.

    Args:
        device: GPU of this process. A thread that has not selected a GPU would create a context on the first one.
    """

    def __init__(self, device: int) -> None:
        self._device = device

    def register(self, address: int, size: int) -> bool:
        """Register memory, which also allocates its pages; return whether it is registered."""
        with torch.cuda.device(self._device):
            code = int(_runtime().cudaHostRegister(address, size, _PORTABLE))
        if code:
            logger.warning(
                "checkpoint: %.2f GiB of host memory cannot be registered with CUDA (error %d), so that background "
                "saves block training for longer. Raise the limit of locked memory (ulimit -l).",
                size / 2**30,
                code,
            )
        return code == 0

    def unregister(self, address: int) -> None:
        """Undo a registration."""
        with torch.cuda.device(self._device):
            _runtime().cudaHostUnregister(address)


def _runtime() -> Any:
    """Return the runtime library of CUDA."""
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def current_registry() -> MemoryRegistry | None:
    """Return the registration for the GPU of this process; None if it uses none."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    return CudaRegistry(torch.cuda.current_device())
