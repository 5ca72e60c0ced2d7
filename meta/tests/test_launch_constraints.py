"""CloudAI's constraints: for each a launch that breaks exactly this one, and one that does not."""

import pytest

from mb_config import check
from mb_trainer.launch.constraints import CONSTRAINTS, SweepError, broken_constraints, read_request
from mb_trainer.launch.rules import ELSEWHERE, RULES
from mb_trainer.preflight import RULES as ALL_RULES

TE = {"cuda_graph_impl": "transformer_engine"}
CASES = [
    ("C01", {"tp": 3}, {"tp": 2, "pp": 2, "cp": 2}),
    ("C02", {"pp": 4, "vp": 2, "num_layers": 4, "pipeline_model_parallel_layout": "Et|t"}, {"pp": 4, "vp": 2}),
    ("C03", {"tp": 16, "num_gpus": 0}, {"tp": 8}),
    ("C04", {"mb": 3, "gb": 32}, {"mb": 2, "gb": 32}),
    ("C04", {"mb": 1, "gb": 8, "use_megatron_fsdp": True, "num_distributed_optimizer_instances": 2},
     {"mb": 1, "gb": 16, "use_megatron_fsdp": True, "num_distributed_optimizer_instances": 2}),
    ("C05", {"use_megatron_fsdp": True, **TE, "cuda_graph_scope": "attn"}, {"use_megatron_fsdp": True, **TE}),
    ("C06", {"use_megatron_fsdp": True, "cp": 2}, {"use_megatron_fsdp": True, "vp": 1}),
    ("C06", {"use_megatron_fsdp": True, "pp": 2}, {"use_megatron_fsdp": False, "pp": 2}),
    ("C07", {"ep": 8, "et": 2}, {"ep": 8, "et": 1}),
    ("C07", {"ep": 0, "et": 1}, {"ep": 16}),
    ("C08", {"pp": 2, "vp": 3, "num_layers": 8}, {"pp": 2, "vp": 4, "num_layers": 8}),
    ("C08", {"pp": 4, "num_layers": 6}, {"pp": 4, "num_layers": 6, "pipeline_model_parallel_layout": "Et|t"}),
    ("C08", {"vp": -1}, {"vp": 1}),
    ("C09", {"num_distributed_optimizer_instances": 2},
     {"num_distributed_optimizer_instances": 2, "use_megatron_fsdp": True}),
    ("C10", {"pp": 2, "activation_offload_layers": 1}, {"pp": 1, "activation_offload_layers": 1}),
    ("C11", {"moe_a2a_overlap": True, "cuda_graph_impl": "LOCAL "},
     {"moe_a2a_overlap": True, "cuda_graph_impl": "none"}),
    ("C12", {**TE, "cuda_graph_scope": ["attn"], "activation_offload_layers": 2},
     {**TE, "activation_offload_layers": 2}),
    ("C13", {"cuda_graph_impl": "te"}, {"cuda_graph_impl": "null"}),
    ("C14", {"cuda_graph_impl": "local", "cuda_graph_scope": "attn"},
     {"cuda_graph_impl": "local", "cuda_graph_scope": "full_iteration"}),
    ("C14", {**TE, "cuda_graph_scope": "full_iteration"}, {**TE, "cuda_graph_scope": "['attn', mamba]"}),
    ("C14", {**TE, "cuda_graph_scope": "attn,heads"}, {"cuda_graph_impl": "none", "cuda_graph_scope": "attn,heads"}),
    ("C15", {"cuda_graph_scope": "moe,moe_router"}, {"cuda_graph_scope": "moe_router"}),
    ("C16", {"cuda_graph_scope": "moe_preprocess"}, {"cuda_graph_scope": "moe_preprocess,moe_router"}),
    ("C17", {"cuda_graph_scope": "attn", "recompute_modules": "core_attn"},
     {"cuda_graph_scope": "attn", "recompute_modules": "mlp"}),
    ("C17", {"cuda_graph_scope": "mlp", "recompute_modules": ["mlp"]}, {"recompute_modules": ["mlp"]}),
    ("C17", {"cuda_graph_scope": "moe", "recompute_modules": "shared_experts"}, {"cuda_graph_scope": "moe"}),
    ("C17", {"cuda_graph_scope": "moe_router", "recompute_modules": "moe"},
     {"cuda_graph_scope": "moe_router", "recompute_modules": "moe_act"}),
    ("C17", {"cuda_graph_scope": "attn,mlp,moe", "recompute_modules": "layernorm"},
     {"cuda_graph_scope": "attn,moe", "recompute_modules": "layernorm"}),
    ("C18", {"model_recipe_name": "DeepSeek_V3", "pp": 2}, {"model_recipe_name": "deepseekv3", "pp": 4, "vp": 2}),
    ("C19", {"vp": 2}, {"vp": 2, "pp": 2}),
    ("C20", {"moe_a2a_overlap": True, "pp": 2}, {"moe_a2a_overlap": True, "pp": 2, "vp": 2}),
]  # fmt: skip


def broken(arguments):
    return [each.id for each in broken_constraints(read_request({"num_gpus": 8, **arguments}))]


@pytest.mark.parametrize(("constraint", "fails", "passes"), CASES)
def test_a_constraint_holds_for_the_one_and_not_for_the_other(constraint, fails, passes):
    assert constraint in broken(fails)
    assert set(broken(fails)) <= {constraint, "C01", "C03"}
    assert broken(passes) == []


def test_every_constraint_has_a_case():
    assert {constraint for constraint, _, _ in CASES} == set(CONSTRAINTS)
    assert list(CONSTRAINTS) == [f"C{number:02d}" for number in range(1, 21)]


def test_too_few_gpus_break_what_follows_from_it_too():
    assert broken({"tp": 16, "mb": 1, "gb": 8}) == ["C01", "C03", "C04"]


def test_nothing_given_is_one_gpu_a_copy():
    assert broken({}) == []
    assert broken({"tp": 0, "pp": 0, "cp": 0}) == []


def test_a_reason_has_the_values():
    (found,) = broken_constraints(read_request({"num_gpus": 8, "mb": 3, "gb": 32}))
    assert str(found) == "C04: gb=32 is no multiple of mb x dp = 24"


@pytest.mark.parametrize(
    "arguments", [{"tp": [1, 2]}, {"use_megatron_fsdp": [True, False]}, {"cuda_graph_impl": ["none"]}]
)
def test_a_sweep_is_expanded_first(arguments):
    with pytest.raises(SweepError, match=r"is a list, because it stands for several launches"):
        read_request({"num_gpus": 8, **arguments})


def sections(values):
    tree = {}
    for path, value in values.items():
        name, _, leaf = path.partition(".")
        tree[name] = {**tree.get(name, {}), leaf: value}
    return tree


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_holds_on_its_own_examples(rule):
    assert [problem.id for problem in check(sections(rule.fails), [rule])] == [rule.id]
    assert check(sections(rule.passes), [rule]) == []


SAME = {
    "C01": ["V030"], "C02": ["P05"], "C03": ["V030"], "C04": ["V242"], "C07": ["P09"], "C08": ["P05"],
    "C11": ["O09m"], "C13": ["V150"], "C14": ["V152", "V153"], "C19": ["P07"], "C20": ["O09f"],
}  # fmt: skip
"""Constraints that a rule of a package already says about a configuration."""

LEFT_OUT = {
    "C05": "Megatron Core allows it",
    "C06": "Megatron Core allows it but for pipeline stages, which FS05 refuses",
    "C09": "Megatron Core allows it: instances of the distributed optimizer need no FSDP",
    "C18": "there is no recipe of DeepSeek V3",
}


def test_every_constraint_is_a_rule_or_has_a_reason():
    known = {rule.id for rule in ALL_RULES}
    assert [name for names in SAME.values() for name in names if name not in known] == []
    assert sorted([*SAME, *LEFT_OUT, *(rule.id for rule in RULES)]) == sorted(CONSTRAINTS)


def test_each_constraint_is_a_rule_or_says_what_becomes_of_it():
    known = {rule.id for rule in ALL_RULES}
    assert {*CONSTRAINTS} - known == {*ELSEWHERE}
    assert {rule for each in ELSEWHERE.values() for rule in each.rules} <= known
    assert all(each.rules or each.allowed for each in ELSEWHERE.values())
