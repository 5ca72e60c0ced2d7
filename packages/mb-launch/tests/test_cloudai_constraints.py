"""CloudAI's constraints: for each one a launch that violates exactly this one, and one that does not."""

import random

import pytest

from mb_launch.cloudai.constraints import (
    ADDITIONAL,
    CONSTRAINTS,
    SweepError,
    explain_coverage,
    read_launch_request,
    violated_constraints,
)

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


def violated(arguments):
    request = read_launch_request({"num_gpus": 8, **arguments})
    return [each.id for each in violated_constraints(request, additional=True)]


@pytest.mark.parametrize(("constraint", "fails", "passes"), CASES)
def test_a_constraint_holds_for_the_one_and_not_for_the_other(constraint, fails, passes):
    assert constraint in violated(fails)
    assert set(violated(fails)) <= {constraint, "C01", "C03"}
    assert violated(passes) == []


def test_every_constraint_has_a_case():
    assert {constraint for constraint, _, _ in CASES} == set(CONSTRAINTS)
    assert list(CONSTRAINTS) == [f"C{number:02d}" for number in range(1, 21)]


def test_too_few_gpus_violate_the_constraints_that_follow():
    assert violated({"tp": 16, "mb": 1, "gb": 8}) == ["C01", "C03", "C04"]


CHOICES = {
    "num_gpus": [0, 1, 4, 8, 16, 24, 64],
    **{name: [None, None, None, 0, 1, 1, 2, 4, 8, -1] for name in ("tp", "pp", "cp", "vp", "ep", "et")},
    "mb": [None, None, 0, 1, 2, 3],
    "gb": [None, 0, 8, 32, 96, 512],
    "use_megatron_fsdp": [None, None, False, True],
    "num_distributed_optimizer_instances": [None, None, None, 0, 1, 2],
    "cuda_graph_impl": [None, None, "", " None", "null", "local", "Transformer_Engine", "transformer_engine", "te"],
    "cuda_graph_scope": [
        None, None, None, "", "[]", "attn", "full_iteration", "['attn', \"MLP\"]", "moe,moe_router",
        "moe_router,moe_preprocess", "moe_preprocess", "attn,heads", "attn,''", "''", "attn,,mlp",
        "attn,mlp,moe_router", ["attn", "[mlp, moe]"], ["attn", "''"], [],
    ],
    "recompute_modules": [
        None, None, "core_attn", "mlp", "[moe_act]", "shared_experts", ["layernorm"], "layernorm,mla_up_proj", "moe",
    ],
    "moe_a2a_overlap": [None, None, False, True],
    "activation_offload_layers": [None, None, None, 0, 1, -1],
    "num_layers": [None, 2, 8, 9],
    "model_recipe_name": ["llama3_8b", "llama3_8b", "llama3_8b", "DeepSeek_V3", "deepseekv3_671b"],
}  # fmt: skip
"""Values of random launches are drawn; frequent values appear more than once."""


def launches(count, seed=7):
    """Yield random launches, half of them with few arguments, so that some violate no constraint."""
    draw = random.Random(seed)
    for _ in range(count):
        share = draw.choice((0.15, 0.3, 1.0))
        names = [name for name in CHOICES if name == "num_gpus" or draw.random() < share]
        yield {name: draw.choice(CHOICES[name]) for name in names}


def scope_list(value):
    """Return the items of a list argument as CloudAI reads them: in a text, an empty pair of quotes is an item."""
    if value is None:
        return []
    items = []
    for part in value if isinstance(value, list) else [value]:
        text = part.strip().strip("\"'")
        text = text[1:-1] if text[:1] == "[" and text[-1:] == "]" else text
        bare = [item.strip().strip("\"'").lower() for item in text.split(",") if item.strip()]
        items += [item for item in bare if item or not isinstance(value, list)]
    return items


def accepted_by_cloudai(launch):
    """Return CloudAI's verdict on a launch: a transcript of its 18 conditions."""
    get = launch.get
    gpus, vp, ep, et = launch["num_gpus"], get("vp"), get("ep"), get("et")
    tp, pp, cp = (get(name) or 1 for name in ("tp", "pp", "cp"))
    copies = gpus // (tp * pp * cp) if tp * pp * cp > 0 else 0
    fsdp, instances = bool(get("use_megatron_fsdp")), get("num_distributed_optimizer_instances") or 1
    graphs = (get("cuda_graph_impl") or "").strip().lower()
    scopes, recomputed = scope_list(get("cuda_graph_scope")), {*scope_list(get("recompute_modules"))}
    captures, offload = graphs not in ("", "none", "null"), (get("activation_offload_layers") or 0) > 0
    divisor = (get("mb") or 0) * copies * (instances if fsdp else 1)
    forbidden = {"attn": {"core_attn", "mla_up_proj"}, "mlp": {"mlp"}, "moe": {"moe_act", "moe", "shared_experts"},
                 "moe_router": {"moe", "shared_experts"}}  # fmt: skip
    modules = {"attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba"}
    scopes_fit = {
        "local": scopes in ([], ["full_iteration"]),
        "transformer_engine": set(scopes) <= modules,
    }.get(graphs, True)
    deepseek = any(name in get("model_recipe_name", "").lower() for name in ("deepseek_v3", "deepseekv3"))
    stages = (pp, 1 if vp is None else vp)
    return all(
        (
            copies != 0 and gpus % (tp * pp * cp) == 0,
            not (get("mb") and get("gb")) or (divisor != 0 and get("gb") % divisor == 0),
            not (fsdp and captures and scopes),
            not fsdp or (pp == cp == 1 and vp in (None, 1)),
            et is None or ep is None or (et * ep * pp != 0 and gpus % (et * ep * pp) == 0),
            instances <= 1 or fsdp,
            not (pp > 1 and offload),
            not (captures and get("moe_a2a_overlap")),
            not (captures and scopes and offload),
            graphs in ("", "none", "null", "transformer_engine", "local"),
            scopes_fit,
            not {"moe", "moe_router"} <= set(scopes),
            "moe_preprocess" not in scopes or "moe_router" in scopes,
            not any(scope in scopes and recomputed & names for scope, names in forbidden.items()),
            not (
                "layernorm" in recomputed
                and {"attn", "mlp"} <= set(scopes)
                and {"moe", "moe_router"} & set(scopes)
            ),
            not deepseek or stages in {(1, 1), (4, 1), (8, 1), (4, 2), (16, 1), (8, 2), (4, 4)},
        )
    )


def test_the_verdict_is_cloudais_on_thousands_of_launches():
    verdicts = [(launch, not violated_constraints(read_launch_request(launch))) for launch in launches(5000)]
    assert [launch for launch, accepted in verdicts if accepted != accepted_by_cloudai(launch)] == []
    assert 500 < sum(accepted for _, accepted in verdicts) < 4500


def test_constraints_of_megatron_are_reported_only_on_request():
    for constraint, fails, _ in CASES:
        if constraint in ADDITIONAL:
            request = read_launch_request({"num_gpus": 8, **fails})
            assert constraint not in [each.id for each in violated_constraints(request)]
            assert constraint in [each.id for each in violated_constraints(request, additional=True)]


def test_nothing_given_is_one_gpu_a_copy():
    assert violated({}) == []
    assert violated({"tp": 0, "pp": 0, "cp": 0}) == []


def test_a_reason_has_the_values():
    (found,) = violated_constraints(read_launch_request({"num_gpus": 8, "mb": 3, "gb": 32}))
    assert str(found) == "C04: gb=32 is not a multiple of mb x dp = 24"


@pytest.mark.parametrize(
    "arguments", [{"tp": [1, 2]}, {"use_megatron_fsdp": [True, False]}, {"cuda_graph_impl": ["none"]}]
)
def test_a_sweep_is_an_error(arguments):
    with pytest.raises(SweepError, match=r"is a list, because it describes several launches"):
        read_launch_request({"num_gpus": 8, **arguments})


def test_a_constraint_that_is_no_rule_is_explained():
    text, rules = explain_coverage("c09")
    assert text.startswith("C09 is a constraint of CloudAI's on a launch")
    assert "takes one only" in text
    assert rules == ("FS10",)
    assert "reported by V152 and V153." in explain_coverage("C14")[0]
    assert explain_coverage("C10") is None
