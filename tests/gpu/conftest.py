"""Restore the state of the process after each check, because runs set variables and modes that would be inherited."""

import os

import pytest
import torch


@pytest.fixture(autouse=True)
def clean_process():
    """Restore the environment and the choice of kernels, and free cached memory."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
    torch.use_deterministic_algorithms(False)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
