import pytest

from mb_models import RULES, GPTModelConfig, ModelConfigError
from mb_models.hybrid.config import MambaModelConfig
from mb_models.mimo.config import MimoModelConfig
from mb_models.rules import BUILD_RULES, INTERLEAVING, violated_rules
from mb_models.t5.config import T5ModelConfig
from mb_schema.rules import check


@pytest.mark.parametrize("rule", BUILD_RULES, ids=lambda rule: rule.id)
def test_each_rule_rejects_its_failing_example_and_accepts_the_other(rule):
    assert rule.message(rule.fails)
    assert rule.message(rule.passes) is None
    assert {*rule.fails, *rule.passes} <= {*rule.fields}


@pytest.mark.parametrize("rule", BUILD_RULES, ids=lambda rule: rule.id)
def test_each_rule_reads_fields_that_exist(rule):
    sections = (GPTModelConfig, MambaModelConfig, MimoModelConfig, T5ModelConfig)
    names = {f"model.{name}" for section in sections for name in section.__dataclass_fields__}
    assert {path for path in rule.fields if path.startswith("model.")} <= names | OF_OTHER_PROVIDERS


OF_OTHER_PROVIDERS = {
    "model.cpu_offloading",
    "model.cpu_offloading_num_layers",
    "model.cuda_graph_scope",
    "model.inference_cuda_graph_scope",
    "model.moe_flex_dispatcher_backend",
    "model.restore_modelopt_state",
}
"""Fields of Megatron Core and Megatron-Bridge that no section of this package has, but another provider may have."""

BY_ID = {rule.id: rule for rule in RULES}
OF_ANY_PROVIDER = [rule for rule in RULES if rule.id.startswith(("C1", "H0", "MN", "P0", "P10", "SZ", "V"))]
"""Rules that also apply to sections of other packages, which may lack any field."""


@pytest.mark.parametrize("rule", OF_ANY_PROVIDER, ids=lambda rule: rule.id)
def test_rules_on_any_section_accept_missing_values(rule):
    for example in (rule.fails, rule.passes):
        for path in [path for path in rule.fields if "." in path and not path.startswith("facts.")]:
            filled = {"facts.world_size": 8, "facts.env": {}, **example, path: None}
            rule.message(filled)


def test_ids_are_unique():
    assert len({rule.id for rule in BUILD_RULES}) == len(BUILD_RULES)


def test_a_violated_rule_reports_field_values_reason_fix_and_id():
    (problem,) = violated_rules(RULES, {"model.num_query_groups": 3, "model.num_attention_heads": 8})
    assert problem.line == (
        "[P04] model.num_query_groups: 8 attention heads cannot be divided equally over 3 query groups, because each "
        "query group shares one key and value head. Make model.num_attention_heads a multiple of "
        "model.num_query_groups."
    )


def test_a_layout_with_other_letters_is_rejected():
    (rule,) = [rule for rule in RULES if rule.id == "G22"]
    assert rule.test("Ex|tL", 4, None, 2, None) == "'Ex|tL' holds x"
    assert (
        rule.test("Et*999999999|L", 4, None, 2, None) == "'Et*999999999|L' repeats 999,999,999 parts or more"
    )
    assert rule.test("Et|ttt|L", 4, None, 2, None) == "has 3 stages, but pp=2 and vpp=None make 2"
    assert rule.test([["embedding", "decoder"], ["decoder", "loss"]], 2, None, 2, None) is None


def test_a_rule_applies_if_its_first_field_is_present():
    assert violated_rules(RULES, {"model.num_attention_heads": 8}) == []
    (problem,) = violated_rules(RULES, {"model.fp8": "hybrid", "model.fp4": "e2m1"})
    assert str(problem).startswith("model.fp8: cannot be combined with fp4 (fp8=hybrid, fp4=e2m1)")
    assert violated_rules(RULES, {"model.fp8": "hybrid"}) == []


@pytest.mark.parametrize(
    ("vpp", "pp", "overlap", "batch", "sound"),
    [
        (None, 2, False, True, True),
        (1, 2, False, True, True),
        (2, 2, True, False, True),
        (2, 2, False, True, False),
        (2, 2, True, True, False),
        (2, 4, False, True, True),
        (2, 4, True, True, False),
    ],
)
def test_interleaving_needs_overlapped_exchange_between_two_stages(vpp, pp, overlap, batch, sound):
    assert (INTERLEAVING.test(vpp, pp, overlap, batch) is None) == sound


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"num_layers": 2}, "num_layers: set the field of the model section itself"),
        ({"_cpu_offloading_context": None}, "_cpu_offloading_context: private to Megatron"),
        (
            {"multi_latent_attention": True},
            "multi_latent_attention: set the field of the model section itself",
        ),
        ({"use_mup": True}, "use_mup: the optimizer's learning rates"),
    ],
)
def test_the_transformer_field_accepts_only_supported_names(extra, message):
    (problem,) = violated_rules(RULES, {"model.transformer": extra})
    assert str(problem).startswith(f"model.transformer: {message}")


def test_a_model_config_error_is_a_value_error_with_all_problems():
    error = ModelConfigError(["a: b", "c: d"])
    assert isinstance(error, ValueError)
    problems = violated_rules(RULES, {"model.fp8": "hybrid", "model.fp4": "e2m1"})
    assert ModelConfigError(problems).problems == (problems[0].line,)
    assert (str(error), error.problems) == ("a: b\nc: d", ("a: b", "c: d"))


def test_v152_local_graphs_for_inference_are_accepted():
    assert BY_ID["V152"].test("local", None, None, "layer") is None
    assert BY_ID["V152"].test("local", "attn", None, "layer") is not None


@pytest.mark.parametrize(
    ("values", "rejected"),
    [
        ({"backend": "deepep", "gpu": "gb200"}, True),
        ({"backend": "deepep", "gpu": "b200"}, False),
        ({"backend": "deepep", "gpu": "a100"}, False),
        ({"backend": "hybridep", "gpu": "gb300"}, False),
        ({"backend": "hybridep", "gpu": "v100"}, True),
    ],
)
def test_v159_v160_backends_by_gpu(values, rejected):
    model = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": values["backend"]}
    found = check({"model": model}, [BY_ID["V159"], BY_ID["V160"]], facts={"gpu": values["gpu"]})
    assert bool(found) is rejected


@pytest.mark.parametrize("name", ["V159", "V160"])
def test_v159_rules_on_gpus_query_no_device_and_skip_an_unknown_gpu(name):
    rules = [rule for rule in RULES if rule.id == name]
    model = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}
    assert check({"model": model}, rules) == []
    assert check({"model": model}, rules, facts={"gpu": None}) == []
    assert check({"model": model}, rules, facts={"gpu": "something new"}) == []


@pytest.mark.parametrize(
    ("topk", "group_topk", "accepted"), [(2, 2, True), (4, 2, True), (1, 2, False), (5, 2, False)]
)
def test_experts_are_chosen_from_groups_that_have_so_many(topk, group_topk, accepted):
    # Megatron Core ranks a group by the sum of its best topk // group_topk scores, and masks the other groups
    values = {"moe_router_topk": topk, "moe_router_group_topk": group_topk}
    sizes = {"moe_router_num_groups": 4, "num_moe_experts": 8}
    rule = BY_ID["K23"]
    message = rule.message({f"model.{name}": value for name, value in (values | sizes).items()})
    assert (message is None) is accepted
