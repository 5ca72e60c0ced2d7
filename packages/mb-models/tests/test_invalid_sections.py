"""Invalid model sections, the rules that each violates, and the fix, as changes to a valid section."""

import pytest

from mb_models import RULES, GPTModelConfig
from mb_schema.rules import check

TP, PP, CP = (f"{kind}_parallel_size" for kind in ("tensor_model", "pipeline_model", "context"))
VP, EP, EXPERTS = "virtual_pipeline_model_parallel_size", "expert_model_parallel_size", "num_moe_experts"
GRAPH, MODULES, DETERMINISTIC = "cuda_graph_impl", "cuda_graph_modules", "deterministic_mode"
FLEX = {"moe_token_dispatcher_type": "flex"}
OFFLOAD = {"fine_grained_activation_offloading": True, "facts.transformer_engine_version": "2.20"}

TABLE = [
    ({TP: 3}, {"P02", "G28"}, {TP: 2}),
    ({TP: 0}, {"P01"}, {TP: 1}),
    ({PP: 2, "num_layers": 3}, {"P05"}, {"num_layers": 4}),
    ({"sequence_parallel": True}, {"P06"}, {TP: 2}),
    ({VP: 2}, {"P07"}, {PP: 2}),
    ({"num_query_groups": 3}, {"P04"}, {"num_query_groups": 4}),
    ({"num_query_groups": 2, TP: 4, "num_attention_heads": 6, "hidden_size": 96}, {"P02"}, {TP: 2}),
    ({EP: 4, EXPERTS: 6}, {"P08"}, {EXPERTS: 8}),
    ({EP: 8, EXPERTS: 8}, {"P09"}, {EP: 4}),
    ({TP: 2, EXPERTS: 8}, {"P10"}, {"sequence_parallel": True}),
    ({CP: 2, "seq_length": 66}, {"V137"}, {CP: 1}),
    ({CP: 2, "cp_comm_type": ["p2p"]}, {"V154"}, {"cp_comm_type": "p2p"}),
    (
        {CP: 4, "cp_comm_type": "a2a+p2p"},
        {"V155"},
        {"hierarchical_context_parallel_sizes": [2, 2]},
    ),
    ({CP: 2, "hierarchical_context_parallel_sizes": [2, 2]}, {"V156"}, {CP: 4}),
    ({"hidden_dropout": 1.5}, {"MN01a"}, {"hidden_dropout": 0.1}),
    ({"init_method_std": -1.0}, {"MN02a"}, {"init_method_std": 0.02}),
    ({"fp8": "hybrid", "facts.gpu": "a100"}, {"H03"}, {"fp8": None}),
    (
        {**OFFLOAD, "facts.transformer_engine_version": "2.9", "transformer_impl": "local"},
        {"V148"},
        {"transformer_impl": "transformer_engine"},
    ),
    (
        {DETERMINISTIC: True, "cross_entropy_loss_fusion": True},
        {"V140"},
        {"cross_entropy_loss_fusion": False},
    ),
    ({GRAPH: "local", MODULES: ["attn"]}, {"V152"}, {GRAPH: "transformer_engine"}),
    ({GRAPH: "full_iteration", MODULES: ["attn"]}, {"V151"}, {MODULES: "full"}),
    ({GRAPH: "none", MODULES: "attn"}, {"V150a"}, {GRAPH: "transformer_engine"}),
    (
        {**FLEX, "moe_flex_dispatcher_backend": "deepep", "facts.gpu": "gb200"},
        {"V159"},
        {"moe_flex_dispatcher_backend": "hybridep"},
    ),
    ({"peft": {"dim": 8}}, {"V139a"}, {"checkpoint.pretrained_checkpoint": "/base"}),
    ({"vocab_size": 100, "tokenizer.vocab_size": 101}, {"V243"}, {"vocab_size": 128}),
    (
        {"vocab_size": 100, "dataset.vocab_size": 4096, "tokenizer.tokenizer_type": None},
        {"V243a"},
        {"vocab_size": None},
    ),
    (
        {TP: 16, "facts.world_size": 16, "facts.gpus_per_node": 8, "num_attention_heads": 16},
        {"H04"},
        {"facts.gpus_per_node": 72},
    ),
]
"""Changes to the model section, and to other sections and facts by their path."""


VALID = vars(
    GPTModelConfig(
        num_layers=4,
        hidden_size=64,
        num_attention_heads=8,
        seq_length=64,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        transformer={"offload_modules": ["core_attn"]},
    )
)


def violated(changes):
    """Return the ids of the rules that a section with these changes violates."""
    sections = {
        "model": dict(VALID),
        "dataset": {},
        "tokenizer": {},
        "checkpoint": {},
        "facts": {"world_size": 4},
    }
    for path, value in changes.items():
        section, _, name = path.rpartition(".")
        if path == "peft":
            sections[path] = value
        else:
            sections[section or "model"][name] = value
    return {problem.id for problem in check(sections, RULES, facts=sections.pop("facts"))}


@pytest.mark.parametrize(("invalid", "ids", "fix"), TABLE)
def test_an_invalid_section_violates_exactly_these_rules_and_can_be_fixed(invalid, ids, fix):
    assert violated(invalid) == ids
    assert violated({**invalid, **fix}) == set()
