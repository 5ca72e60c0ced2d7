"""One line per kind of overlap, without writing."""

from copy import deepcopy
from types import SimpleNamespace

import pytest

from mb_overlap import CommOverlapConfig, DataParallelSizeError, OverlapRejectedError, explain, preset

FACTS = {"transformer_engine": True, "transformer_engine_version": "2.20.2", "torch_version": "2.11.0"}


def sections(**model):
    defaults = {
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 2,
        "virtual_pipeline_model_parallel_size": 2,
        "sequence_parallel": False,
        "tp_comm_overlap": False,
        "overlap_p2p_comm": False,
        "batch_p2p_comm": True,
        "overlap_moe_expert_parallel_comm": True,
    }
    ddp = SimpleNamespace(
        use_distributed_optimizer=True, overlap_grad_reduce=False, overlap_param_gather=False
    )
    return SimpleNamespace(**{**defaults, **model}), SimpleNamespace(overlap_param_gather=False), ddp


def lines(config, *sections, **known_facts):
    return [str(line) for line in explain(config, *sections, **{"facts": FACTS, **known_facts})]


def test_explanations_print_state_rule_and_how_to_enable():
    config = CommOverlapConfig(tp_comm_overlap=True, overlap_grad_reduce=False, data_parallel_size=8)
    assert lines(config, *sections()) == [
        "tensor parallel     off  O02: needs tensor parallelism (tp=1), because a single rank has no "
        "tensor-parallel communication to hide. Set model.tensor_model_parallel_size=2 or more, or "
        "comm_overlap.tp_comm_overlap=false.; to enable it: model.tensor_model_parallel_size=2 or more and "
        "model.sequence_parallel=true",
        "pipeline            on   O05: pp=2, vp=2: sends hide under another chunk's computation",
        "gradients           off  O15: set by the user; to enable it: comm_overlap.overlap_grad_reduce=null, and "
        "no overlap_grad_reduce=false on ddp or optimizer",
        "parameters          on   O12: dp=8 with the distributed optimizer",
        "experts             on   model.overlap_moe_expert_parallel_comm=True is kept: no rule decides it",
        "embedding gradient  off  no section has the field defer_embedding_wgrad_compute; to enable it: use "
        "sections with this field",
    ]


WAYS = [
    ("tensor parallel", {}, {}, "comm_overlap.tp_comm_overlap=true and model.tensor_model_parallel_size=2 or more "
     "and model.sequence_parallel=true"),
    ("pipeline", {"pipeline_model_parallel_size": 1}, {},
     "model.pipeline_model_parallel_size=2 or more, with model.virtual_pipeline_model_parallel_size"),
    ("pipeline", {"virtual_pipeline_model_parallel_size": None}, {},
     "model.virtual_pipeline_model_parallel_size=2 or more"),
    ("pipeline", {}, {"overlap_p2p_comm": False},
     "comm_overlap.overlap_p2p_comm=null and comm_overlap.batch_p2p_comm=null"),
    ("gradients", {}, {"data_parallel_size": 1},
     "more processes than tensor, pipeline and context parallelism use"),
    ("experts", {"overlap_moe_expert_parallel_comm": False, "num_moe_experts": 8, "bf16": True,
                 "moe_token_dispatcher_type": "alltoall"}, {},
     "comm_overlap.overlap_moe_expert_parallel_comm=true and model.expert_model_parallel_size=2 or more"),
    ("embedding gradient", {"defer_embedding_wgrad_compute": False, "gradient_accumulation_fusion": False}, {},
     "comm_overlap.defer_embedding_wgrad_compute=true and model.gradient_accumulation_fusion=true"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "model", "requests", "way"), WAYS)
def test_how_to_enable(kind, model, requests, way):
    config = CommOverlapConfig(**{"tp_comm_overlap": False, "data_parallel_size": 8, **requests})
    found = {each.kind: each for each in explain(config, *sections(**model), facts=FACTS)}
    assert (found[kind].on, found[kind].how_to_enable) == (False, way)


def test_without_the_distributed_optimizer_its_field_is_named():
    model, optimizer, ddp = sections()
    ddp.use_distributed_optimizer = False
    found = explain(CommOverlapConfig(tp_comm_overlap=False), model, optimizer, ddp, facts=FACTS)
    assert [each.how_to_enable for each in found[2:4]] == [
        "ddp.use_distributed_optimizer=true, or ddp.overlap_grad_reduce=true directly",
        "ddp.use_distributed_optimizer=true",
    ]


def test_request_with_missing_requirements_is_off_and_lists_them():
    config = CommOverlapConfig(
        tp_comm_overlap=False, overlap_moe_expert_parallel_comm=True, data_parallel_size=8
    )
    found = explain(config, *sections(num_moe_experts=8, expert_model_parallel_size=2), facts=FACTS)[4]
    assert (found.on, found.decided_by) == (False, "O09c")
    assert found.why.startswith(
        "needs the alltoall or the flex dispatcher (moe_token_dispatcher_type=null); needs"
    )
    assert found.how_to_enable == "model.moe_token_dispatcher_type=alltoall and mixed_precision=bf16_mixed"


def test_overlap_with_default_settings_of_transformer_engine_is_reported():
    section = sections(tensor_model_parallel_size=4, sequence_parallel=True)
    untuned = CommOverlapConfig(tp_comm_overlap=True, data_parallel_size=8)
    tuned = CommOverlapConfig(
        tp_comm_overlap=True,
        tp_comm_overlap_cfg=preset("userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen8192"),
        data_parallel_size=8,
    )
    assert [explain(each, *section, facts=FACTS)[0].why for each in (untuned, tuned)] == [
        "set by the user; Transformer Engine's default settings (find_preset returns tuned settings)",
        "set by the user",
    ]


def test_request_without_effect_reports_the_value_of_the_section():
    model, optimizer, ddp = sections()
    ddp.use_distributed_optimizer, ddp.overlap_grad_reduce = False, True
    config = CommOverlapConfig(tp_comm_overlap=False, overlap_grad_reduce=False)
    found = lines(config, model, optimizer, ddp)
    assert found[2].startswith(
        "gradients           on   O22: has no effect (ddp.use_distributed_optimizer=False)"
    )
    assert found[3].startswith(
        "parameters          off  ddp.overlap_param_gather=False is kept: no rule decides it; to enable it: ddp"
    )


def test_explain_writes_nothing():
    before = sections()
    after = deepcopy(before)
    explain(CommOverlapConfig(tp_comm_overlap=False, data_parallel_size=8), *after)
    assert after == before


def test_explain_raises_like_setup():
    with pytest.raises(DataParallelSizeError):
        explain(CommOverlapConfig(tp_comm_overlap=False), *sections())


def test_strict_explain_raises_for_rejected_requests():
    config = CommOverlapConfig(
        tp_comm_overlap=True, overlap_moe_expert_parallel_comm=True, data_parallel_size=8
    )
    with pytest.raises(
        OverlapRejectedError, match=r"(?s)\[O09a\] comm_overlap.*\[O02\] comm_overlap.tp_comm_overlap: needs"
    ):
        explain(config, *sections(), strict=True)
