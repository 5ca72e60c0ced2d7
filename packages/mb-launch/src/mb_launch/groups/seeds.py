"""Seeds of the generators of Python, NumPy and torch. Imports torch and NumPy."""

import random

import numpy as np
import torch


def seed_libraries(seed: int, *, deterministic: bool = False) -> None:
    """Seed Python, NumPy and torch.

    Args:
        seed: Above 0.
        deterministic: Use deterministic kernels, and raise in operations that have none.
    """
    if deterministic:
        torch.use_deterministic_algorithms(True)
    random.seed(seed)
    np.random.seed(seed)  # libraries that draw from NumPy use its global state
    torch.manual_seed(seed)
