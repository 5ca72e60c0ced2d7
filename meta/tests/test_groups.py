"""Deterministic kernels: chosen when the random number generators are seeded."""

import pytest
import torch

import mb_host

mb_host.install()  # must run before megatron is imported

from mb_trainer.groups import seed_libraries  # noqa: E402
from mb_trainer.recipes import gpt_tiny  # noqa: E402


@pytest.mark.parametrize(
    ("requested", "gpu", "threads", "mode"),
    [
        (True, False, 1, "error"),
        (True, True, 2, "error"),
        (False, False, 1, "default"),
        (False, False, 2, "warn"),
        (False, True, 2, "default"),
    ],
)
def test_deterministic_kernels_are_used_on_request_and_on_the_cpu(monkeypatch, requested, gpu, threads, mode):
    """On the CPU, several threads need them to accumulate by index in a fixed order; one thread does not."""
    config = gpt_tiny()
    config.model.deterministic_mode = requested
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    try:
        seed_libraries(config)
        assert torch.get_deterministic_debug_mode() == {"default": 0, "warn": 1, "error": 2}[mode]
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = True
