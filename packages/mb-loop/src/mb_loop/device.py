"""Device synchronisation. Imports torch."""

import torch


def wait_for_device() -> None:
    """Wait for all work on the GPU to complete; does nothing without a GPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
