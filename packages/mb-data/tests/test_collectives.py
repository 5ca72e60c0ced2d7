"""Execution on rank 0 first: with NCCL the barrier names the GPU of the rank."""

import pytest
import torch

from mb_data.collectives import rank_zero_first


@pytest.mark.parametrize(("backend", "given"), [("nccl", {"device_ids": [3]}), ("gloo", {})])
@pytest.mark.parametrize("rank", [0, 3])
def test_the_barrier_names_the_gpu(monkeypatch, backend, given, rank):
    order = []
    answers = {"is_initialized": True, "get_rank": rank, "get_backend": backend}
    for name, answer in answers.items():
        monkeypatch.setattr(torch.distributed, name, lambda answer=answer: answer)
    monkeypatch.setattr(torch.distributed, "barrier", lambda **options: order.append(options))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    rank_zero_first(lambda: order.append("work"))
    assert order == (["work", given] if rank == 0 else [given, "work"])
