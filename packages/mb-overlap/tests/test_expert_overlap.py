"""Conditions of expert overlap, delayed and deferred weight gradients, each rejected by `setup` and by a rule."""

from types import SimpleNamespace

import pytest

from mb_overlap import RULES, CommOverlapConfig, OverlapConflictError, find_conflicts

FACTS = {"transformer_engine": True, "transformer_engine_version": "2.12.0", "torch_version": "2.6.0"}
EP_OVERLAP, DELAY_WGRAD = "overlap_moe_expert_parallel_comm", "delay_wgrad_compute"


def model_section(**fields):
    defaults = {
        "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 2,
        "virtual_pipeline_model_parallel_size": 2, "sequence_parallel": False,
        "overlap_p2p_comm": True, "batch_p2p_comm": False,
        "expert_model_parallel_size": 2, "num_moe_experts": 8, "moe_token_dispatcher_type": "alltoall",
        "bf16": True, "fp16": False, "recompute_granularity": None, "recompute_method": None,
        "recompute_num_layers": None, "recompute_modules": None, "moe_shared_expert_overlap": False,
        "moe_shared_expert_intermediate_size": None, "mtp_num_layers": None, EP_OVERLAP: False, DELAY_WGRAD: False,
        "gradient_accumulation_fusion": True, "transformer_impl": "transformer_engine", "cuda_graph_impl": "none",
        "cuda_graph_modules": [], "add_bias_linear": False, "add_qkv_bias": False,
        "defer_embedding_wgrad_compute": False, "wgrad_deferral_limit": 0,
    }  # fmt: skip
    return SimpleNamespace(**{**defaults, **fields})


def rejecting_rules(requests, *, model=None, ddp=None, facts=None):
    """Return the ids of the rules that `setup` reports as violated."""
    section, known_facts = model_section(**(model or {})), {**FACTS, **(facts or {})}
    before = vars(section).copy()
    try:
        CommOverlapConfig(tp_comm_overlap=False, **requests).setup(
            section, None, SimpleNamespace(**(ddp or {})), facts=known_facts
        )
    except OverlapConflictError as error:
        assert vars(section) == before
        return [conflict.id for conflict in error.conflicts]
    return []


EXCHANGE_CASES = [
    ("O09a", {"expert_model_parallel_size": 1}, {}),
    ("O09b", {"num_moe_experts": None}, {}),
    ("O09c", {"moe_token_dispatcher_type": "allgather"}, {}),
    ("O09d", {"bf16": False}, {}),
    ("O09e", {}, {"torch_version": "2.5.1"}),
    ("O09f", {"virtual_pipeline_model_parallel_size": None}, {}),
    ("O09g", {"recompute_granularity": "full"}, {}),
    ("O09h", {"recompute_method": "uniform"}, {}),
    ("O09i", {"recompute_num_layers": 1}, {}),
    ("O09j", {"recompute_modules": ["moe", "mlp"]}, {}),
    ("O09k", {"moe_shared_expert_overlap": True}, {}),
    ("O09l", {"mtp_num_layers": 2}, {}),
    ("O09m", {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": "moe,attn"}, {}),
]
GRAPH = {"cuda_graph_impl": "transformer_engine"}
DELAY_CASES = [
    ("O10b", {"transformer_impl": "local"}, {}),
    ("O10c", {}, {"transformer_engine_version": "2.6.0.post1"}),
    ("O10e", {**GRAPH, "cuda_graph_modules": ["mamba"]}, {"transformer_engine_version": "2.9.0"}),
    (
        "O10f",
        {**GRAPH, "cuda_graph_modules": [SimpleNamespace(name="attn")]},
        {"transformer_engine_version": "2.11.0"},
    ),
    ("O10g", {**GRAPH, "cuda_graph_modules": ["attn"], "gradient_accumulation_fusion": False}, {}),
    ("O10h", {**GRAPH, "cuda_graph_modules": ["attn"], "add_qkv_bias": True}, {}),
]


@pytest.mark.parametrize(("rule", "model", "facts"), EXCHANGE_CASES)
def test_each_expert_overlap_condition_is_rejected_by_id(rule, model, facts):
    assert rejecting_rules({EP_OVERLAP: True}, model=model, facts=facts) == [rule]
    assert rejecting_rules({EP_OVERLAP: False}, model=model, facts=facts) == []


@pytest.mark.parametrize(("rule", "model", "facts"), DELAY_CASES)
def test_each_delayed_wgrad_condition_is_rejected_by_id(rule, model, facts):
    assert rejecting_rules({EP_OVERLAP: True, DELAY_WGRAD: True}, model=model, facts=facts) == [rule]


def test_valid_requests_are_written():
    model = model_section()
    requests = CommOverlapConfig(tp_comm_overlap=False, **{EP_OVERLAP: True, DELAY_WGRAD: True})
    assert [change.field for change in requests.setup(model, None, None, facts=FACTS)][-2:] == [
        f"model.{EP_OVERLAP}", f"model.{DELAY_WGRAD}",
    ]  # fmt: skip


def test_delayed_wgrad_needs_expert_overlap_of_the_model_or_the_section():
    assert rejecting_rules({DELAY_WGRAD: True}) == ["O10a"]
    assert rejecting_rules({DELAY_WGRAD: True}, model={EP_OVERLAP: True}) == []


@pytest.mark.parametrize(("ddp", "requests"), [
    ({"overlap_grad_reduce": True}, {}),
    ({"overlap_grad_reduce": False, "use_distributed_optimizer": True}, {"data_parallel_size": 2}),
])  # fmt: skip
def test_delayed_wgrad_with_overlapped_reduction_needs_a_later_release(ddp, requests):
    both = {EP_OVERLAP: True, DELAY_WGRAD: True, **requests}
    assert rejecting_rules(both, ddp=ddp, facts={"transformer_engine_version": "2.7.0"}) == ["O10d"]
    assert rejecting_rules(both, ddp=ddp, facts={"transformer_engine_version": "2.8.0"}) == []


def test_model_without_the_field_is_rejecting_rules():
    model = model_section()
    delattr(model, EP_OVERLAP)
    with pytest.raises(OverlapConflictError, match=r"\[O08\] comm_overlap.overlap_moe"):
        CommOverlapConfig(tp_comm_overlap=False, **{EP_OVERLAP: True}).setup(model, None, None, facts=FACTS)


@pytest.mark.parametrize(
    ("rule", "requests", "model"),
    [
        ("O01a", {}, {"pipeline_model_parallel_size": 1}),
        ("O01b", {}, {"gradient_accumulation_fusion": False}),
        ("O01c", {"wgrad_deferral_limit": -1}, {}),
        ("O01d", {}, {"mtp_num_layers": 1}),
    ],
)
def test_deferred_embedding_gradient_has_the_requirements_of_megatron(rule, requests, model):
    assert rejecting_rules({"defer_embedding_wgrad_compute": True, **requests}, model=model) == [rule]


def test_values_set_on_the_model_are_also_rejecting_rules():
    model = model_section(expert_model_parallel_size=1, **{EP_OVERLAP: True})
    with pytest.raises(OverlapConflictError, match=r"\[O09aM\] model.overlap_moe"):
        CommOverlapConfig(tp_comm_overlap=False).setup(
            model, None, None, facts=FACTS, keep=[f"model.{EP_OVERLAP}"]
        )
    assert [found.id for found in find_conflicts(model, facts=FACTS)] == ["O09aM"]


def test_rules_cover_every_condition():
    ids = {rule.id for rule in RULES}
    cases = {rule for rule, _, _ in EXCHANGE_CASES + DELAY_CASES} | {
        "O10a",
        "O10d",
        "O01a",
        "O01b",
        "O01c",
        "O01d",
    }
    assert cases | {f"{rule}M" for rule in cases} <= ids
