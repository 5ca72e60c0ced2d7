"""Each rule is a condition of Megatron Core: it rejects the failing example and accepts the passing one."""

import pytest

from mb_models import GPTModelConfig
from mb_models.gpt.transformer import megatron_class, resolve_names
from mb_models.rules import cuda_graphs, layers, moe, precision, recompute, variants, widths

RULES = [
    rule
    for topic in (recompute, precision, moe, layers, cuda_graphs, variants, widths)
    for rule in topic.RULES
    if rule.id.startswith("K")
]
ALSO = {
    "K06": {"tensor_model_parallel_size": 2},
    "K13": {"fp8_recipe": "tensorwise"},
    "K33": {"recompute_method": "uniform", "recompute_num_layers": 1},
}
"""Further settings that an example needs, so that only the fields of its rule decide."""


def build(rule, example):
    """Build Megatron's configuration of a small model with these values, without checking our rules."""
    values = {path.removeprefix("model."): value for path, value in example.items()} | ALSO.get(rule.id, {})
    section = GPTModelConfig(**{"num_layers": 4, "hidden_size": 32, "num_attention_heads": 4} | values)
    kind, names = megatron_class(section)
    given = {name: getattr(section, name) for name in names} | section.transformer
    if section.cuda_graph_modules == "full":
        given["cuda_graph_modules"] = []
    given["pipeline_dtype"] = section.params_dtype
    return kind(**resolve_names(given))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_megatron_rejects_the_failing_example(rule):
    with pytest.raises((ValueError, AssertionError, NotImplementedError)):
        build(rule, rule.fails)


def test_the_former_name_of_a_full_iteration_graph_is_supported():
    values = {"model.recompute_granularity": "full", "model.cuda_graph_impl": "local"}
    (rule,) = [rule for rule in RULES if rule.id == "K33"]
    assert rule.test(*values.values(), ["full_iteration"]) is None
    assert (
        build(rule, {**values, "model.cuda_graph_modules": ["full_iteration"]}).cuda_graph_impl
        == "full_iteration"
    )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_megatron_accepts_the_passing_example(rule):
    assert build(rule, rule.passes).num_layers == rule.passes.get("model.num_layers", 4)
