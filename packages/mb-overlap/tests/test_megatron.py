"""The same on Megatron Core's own configuration classes."""

from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("megatron.core")

from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer import TransformerConfig

from mb_overlap import CommOverlapConfig, preset

PRESET = "userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen8192"


def model_config(**fields):
    return TransformerConfig(num_layers=4, hidden_size=64, num_attention_heads=4, **fields)


def pipelined(**fields):
    return model_config(
        pipeline_model_parallel_size=2,
        virtual_pipeline_model_parallel_size=2,
        pipeline_dtype="float32",
        **fields,
    )


def test_megatrons_classes_take_what_the_layout_gets():
    model, optimizer, ddp = (
        pipelined(),
        OptimizerConfig(),
        DistributedDataParallelConfig(use_distributed_optimizer=True),
    )
    changes = CommOverlapConfig(tp_comm_overlap=False, data_parallel_size=8).setup(model, optimizer, ddp)
    assert {change.field: change.new for change in changes} == {
        "model.overlap_p2p_comm": True,
        "model.batch_p2p_comm": False,
        "model.wgrad_deferral_limit": -1,
        "optimizer.overlap_param_gather": True,
        "ddp.bucket_size": 134217728,
        "ddp.overlap_grad_reduce": True,
        "ddp.overlap_param_gather": True,
        "ddp.align_param_gather": True,
    }


def test_megatrons_own_checks_accept_the_outcome():
    model = pipelined(gradient_accumulation_fusion=True)
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=True, num_buckets=4)
    CommOverlapConfig(tp_comm_overlap=False, defer_embedding_wgrad_compute=True, data_parallel_size=8).setup(
        model, OptimizerConfig(), ddp
    )
    assert replace(model).wgrad_deferral_limit == 0
    assert replace(ddp).bucket_size is None


def test_megatrons_model_has_no_place_for_the_settings_of_the_gemms():
    model = model_config(tensor_model_parallel_size=4, sequence_parallel=True)
    config = CommOverlapConfig(tp_comm_overlap=True, tp_comm_overlap_cfg=preset(PRESET))
    changes = config.setup(model, OptimizerConfig(), DistributedDataParallelConfig(), transformer_engine=True)
    assert model.tp_comm_overlap is True
    assert [change.field for change in changes if change.severity == "warning"] == [
        "comm_overlap.tp_comm_overlap_cfg"
    ]
