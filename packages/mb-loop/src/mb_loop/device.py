"""Waiting for the device, where there is one. Needs torch."""

import torch


def wait_for_device() -> None:
    """Wait until the GPU has done all that it was given; without a GPU there is nothing to wait for."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
