"""Each check leaves the process as it was: runs set variables and modes that the next one must not inherit."""

import os

import pytest
import torch


@pytest.fixture(autouse=True)
def clean_process():
    """Put the environment and the choice of kernels back, and give cached memory up."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
    torch.use_deterministic_algorithms(False)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
