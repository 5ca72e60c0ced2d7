"""Overlap setup on Megatron Core's configuration classes."""

from argparse import ArgumentParser
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")
pytest.importorskip("megatron.core")

from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer import TransformerConfig

from mb_overlap import CommOverlapConfig, OverlapConflictError, find_conflicts, preset

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


def test_megatron_config_classes_receive_the_settings_of_the_layout():
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


def test_megatron_config_checks_accept_the_result():
    model = pipelined(gradient_accumulation_fusion=True)
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=True, num_buckets=4)
    CommOverlapConfig(tp_comm_overlap=False, defer_embedding_wgrad_compute=True, data_parallel_size=8).setup(
        model, OptimizerConfig(), ddp
    )
    assert replace(model).wgrad_deferral_limit == 0
    assert replace(ddp).bucket_size is None


def test_megatron_model_config_has_no_field_for_gemm_settings():
    model = model_config(tensor_model_parallel_size=4, sequence_parallel=True)
    config = CommOverlapConfig(tp_comm_overlap=True, tp_comm_overlap_cfg=preset(PRESET))
    changes = config.setup(model, OptimizerConfig(), DistributedDataParallelConfig(), transformer_engine=True)
    assert model.tp_comm_overlap is True
    assert [change.field for change in changes if change.severity == "warning"] == [
        "comm_overlap.tp_comm_overlap_cfg"
    ]


EXPERTS = {
    "pipeline_dtype": "float32", "num_moe_experts": 4, "add_bias_linear": False, "overlap_p2p_comm": False,
}  # fmt: skip
MODELS = st.fixed_dictionaries(
    {
        "expert_model_parallel_size": st.sampled_from([1, 2, 2, 2]),
        "moe_token_dispatcher_type": st.sampled_from(["alltoall", "alltoall", "allgather"]),
        "bf16": st.sampled_from([True, True, False]),
        "pipeline_model_parallel_size": st.sampled_from([1, 2]),
        "virtual_pipeline_model_parallel_size": st.sampled_from([None, 2]),
        "moe_shared_expert_overlap": st.sampled_from([False, False, True]),
        "mtp_num_layers": st.sampled_from([None, None, 1, 2]),
    },
    optional={
        "recompute_granularity": st.just("selective"),
        "recompute_modules": st.sampled_from([["moe"], ["mlp"]]),
    },
)


@settings(max_examples=150, deadline=None)
@given(fields=MODELS)
def test_expert_overlap_is_accepted_exactly_where_megatron_core_accepts_it(fields):
    if fields["pipeline_model_parallel_size"] == 1:
        fields["virtual_pipeline_model_parallel_size"] = None
    if fields["moe_shared_expert_overlap"]:
        fields |= {"moe_shared_expert_intermediate_size": 64, "moe_token_dispatcher_type": "alltoall"}
    model = model_config(**EXPERTS, **fields)
    config = CommOverlapConfig(tp_comm_overlap=False, overlap_moe_expert_parallel_comm=True)
    try:
        config.setup(model, OptimizerConfig(), DistributedDataParallelConfig())
        granted = True
    except OverlapConflictError:
        granted = False
    try:
        replace(model, overlap_moe_expert_parallel_comm=True)
        taken = True
    except (AssertionError, ValueError):
        taken = False
    assert granted == taken


def test_megatron_lm_argument_parser_serves_as_sections():
    arguments = pytest.importorskip("megatron.training.arguments")
    parser = arguments.add_megatron_arguments(ArgumentParser())
    args = parser.parse_args([
        "--tensor-model-parallel-size=2", "--pipeline-model-parallel-size=4", "--sequence-parallel",
        "--use-distributed-optimizer", "--num-experts=8",
    ])  # fmt: skip
    args.virtual_pipeline_model_parallel_size = 2  # which its validate_args computes
    config = CommOverlapConfig(tp_comm_overlap=True, data_parallel_size=4)
    changes = config.setup(args, args, args, transformer_engine=True)
    assert {change.field: change.new for change in changes} == {
        "model.tp_comm_overlap": True,
        "model.tp_comm_overlap_cfg": None,  # a note: the default settings of Transformer Engine are used
        "model.wgrad_deferral_limit": -1,
        "optimizer.ddp_bucket_size": 134217728,
        "optimizer.overlap_grad_reduce": True,
        "optimizer.overlap_param_gather": True,
    }
    assert (args.overlap_p2p_comm, args.align_param_gather) == (True, True)  # defaults of the parser
    assert [found for found in find_conflicts(args) if found.severity == "error"] == []
