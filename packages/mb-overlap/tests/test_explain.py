"""One line a kind of overlap, and nothing written."""

from copy import deepcopy
from types import SimpleNamespace

import pytest

from mb_overlap import CommOverlapConfig, DataParallelSizeError, explain


def sections():
    model = SimpleNamespace(
        tensor_model_parallel_size=1,
        pipeline_model_parallel_size=2,
        virtual_pipeline_model_parallel_size=2,
        sequence_parallel=False,
        tp_comm_overlap=False,
        overlap_p2p_comm=False,
        batch_p2p_comm=True,
        overlap_moe_expert_parallel_comm=True,
    )
    ddp = SimpleNamespace(
        use_distributed_optimizer=True, overlap_grad_reduce=False, overlap_param_gather=False
    )
    return model, SimpleNamespace(overlap_param_gather=False), ddp


def test_each_kind_says_what_it_is_and_what_decides():
    config = CommOverlapConfig(tp_comm_overlap=True, overlap_grad_reduce=False, data_parallel_size=8)
    assert explain(config, *sections()).splitlines() == [
        "tensor parallel     off  O02: needs tensor parallelism (tp=1), because one rank alone has no "
        "tensor-parallel communication to hide. Set model.tensor_model_parallel_size=2 or more, or "
        "comm_overlap.tp_comm_overlap=false.",
        "pipeline            on   O05: pp=2, vp=2: sends hide under another chunk's computation",
        "gradients           off  O15: the user's wish",
        "parameters          on   O12: dp=8 under the distributed optimizer",
        "experts             on   model.overlap_moe_expert_parallel_comm=True stands: no rule decides it",
        "embedding gradient  off  no section has the field defer_embedding_wgrad_compute",
    ]


def test_a_wish_without_effect_shows_the_value_that_stands():
    model, optimizer, ddp = sections()
    ddp.use_distributed_optimizer, ddp.overlap_grad_reduce = False, True
    config = CommOverlapConfig(tp_comm_overlap=False, overlap_grad_reduce=False)
    lines = explain(config, model, optimizer, ddp).splitlines()
    assert lines[2].startswith(
        "gradients           on   O22: has no effect (ddp.use_distributed_optimizer=False)"
    )
    assert lines[3] == "parameters          off  ddp.overlap_param_gather=False stands: no rule decides it"


def test_explaining_writes_nothing():
    before = sections()
    after = deepcopy(before)
    explain(CommOverlapConfig(tp_comm_overlap=False, data_parallel_size=8), *after)
    assert after == before


def test_explaining_needs_what_setup_needs():
    with pytest.raises(DataParallelSizeError):
        explain(CommOverlapConfig(tp_comm_overlap=False), *sections())
