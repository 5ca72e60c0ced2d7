"""Megatron-LM's own training code on a CPU."""

import pytest

from mb_host import run_ranks

pytest.importorskip("megatron.training")

from host_megatron_lm import losses

HOST_ONLY = {"CUDA_VISIBLE_DEVICES": ""}


def test_megatron_lm_trains_on_one_rank_and_on_two():
    (alone,) = run_ranks(losses, 1, env=HOST_ONLY)
    assert alone[1] < alone[0]
    together = run_ranks(losses, 2, "--tensor-model-parallel-size", "2", env=HOST_ONLY)
    assert together[0] == together[1]
    assert together[0][1] < together[0][0]
