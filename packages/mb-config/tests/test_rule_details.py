"""Edge cases of individual rules."""

from enum import Enum
from types import SimpleNamespace

import pytest

from mb_config import RULES, MixedPrecisionConfig, check
from mb_config.resolve.precision_table import PRECISIONS, precision_field
from mb_config.rules.cuda_graphs import full_iteration, module_names
from mb_config.rules.hardware import CAPABILITIES, capability
from mb_config.rules.versions import at_least

BY_ID = {rule.id: rule for rule in RULES}


def message_of(name, values):
    rule = BY_ID[name]
    return rule.test(*(values.get(path) for path in rule.fields))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_missing_values_raise_no_exception(rule):
    for example in (rule.fails, rule.passes):
        for path in [path for path in rule.fields if "." in path and not path.startswith("facts.")]:
            filled = {"facts.world_size": 8, "facts.env": {}, **example, path: None}
            rule.test(*(filled.get(name) for name in rule.fields))


@pytest.mark.parametrize(
    ("version", "minimum", "expected"),
    [
        ("2.7.0.dev0", (2, 7), True),
        ("2.7.0+abc", (2, 7), True),
        ("2.10", (2, 9), True),
        ("2.11.0a0+5228986c39.nv25.05", (2, 11), True),
        ("2.6.9", (2, 7), False),
        ("2", (2, 1), False),
        ("unknown", (1,), False),
    ],
)
def test_versions_compare_by_their_numbers(version, minimum, expected):
    assert at_least(version, *minimum) is expected


def test_gpus_by_name():
    assert capability("H100") == CAPABILITIES["h200"] == (9, 0)
    assert capability("tpu") is None


@pytest.mark.parametrize(
    ("gpu", "rejected"),
    [
        ("a100", {"fp8", "blockwise", "mxfp8", "nvfp4"}),
        ("l40s", {"blockwise", "mxfp8", "nvfp4"}),
        ("h100", {"mxfp8", "nvfp4"}),
        ("b300", set()),
    ],
)
def test_formats_by_generation(gpu, rejected):
    recipes = {
        "bf16": "bf16_mixed",
        "fp8": "bf16_with_fp8_current_scaling_mixed",
        "blockwise": "bf16-with-fp8-subchannel-scaling-mixed",
        "mxfp8": "bf16_with_mxfp8_mixed",
        "nvfp4": "bf16_with_nvfp4_mixed",
    }
    found = {
        name
        for name, recipe in recipes.items()
        if check({"mixed_precision": recipe}, [BY_ID["H02"]], facts={"gpu": gpu})
    }
    assert found == rejected


def test_a_field_of_a_recipe_that_is_a_name_a_section_or_a_mapping():
    assert precision_field("bf16-with-nvfp4-mixed", "fp4") == "e2m1"
    assert precision_field(MixedPrecisionConfig(fp4="e2m1"), "fp4") == "e2m1"
    assert precision_field({"fp4": "e2m1"}, "fp4") == "e2m1"
    assert precision_field("no such recipe", "fp4") is None
    assert len(PRECISIONS) == 14


class Module(Enum):
    attn = 1


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (None, set()),
        ("", set()),
        ("full", set()),
        ("attn, mlp", {"attn", "mlp"}),
        (["attn", Module.attn, "mlp"], {"attn", "mlp"}),
        (Module.attn, {"attn"}),
        ("CudaGraphScope.full_iteration", {"full_iteration"}),
    ],
)
def test_v153_names_of_modules(value, names):
    assert module_names(value) == names


def test_v151_a_full_iteration_under_its_new_and_its_legacy_name():
    assert full_iteration("full_iteration", None, None)
    assert full_iteration("local", None, ["full_iteration"])
    assert not full_iteration("transformer_engine", ["full_iteration"], None)


def test_v152_local_graphs_for_inference_are_accepted():
    graph = {"model.cuda_graph_impl": "local", "model.inference_cuda_graph_scope": "layer"}
    assert message_of("V152", graph) is None
    assert message_of("V152", {**graph, "model.cuda_graph_modules": "attn"}) is not None


def test_v139_packs_as_section_or_mapping():
    packs = SimpleNamespace(packed_sequence_size=2048)
    message = message_of("V139", {"dataset.packed_sequence_specs": packs, "train.micro_batch_size": 2})
    assert message.endswith("the equivalent is micro_batch_size=1 and packs of 4096 tokens")
    assert message_of("V139", {"dataset.packed_sequence_specs": {"packed_sequence_size": 0}}) == (
        "packed_sequence_size=0 is not positive"
    )


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ({"pad_seq_to_mult": 0}, "pad_seq_to_mult=0 is below 1"),
        ({"packed_sequence_size": 8, "max_single_sequence_length": 0}, "is not from 1 to"),
        ({"packed_sequence_size": 8, "max_single_sequence_length": 8}, None),
    ],
)
def test_v048_numbers_of_packs(specs, words):
    message = message_of("V048", {"dataset.packed_sequence_specs": specs})
    assert message is None if words is None else words in message


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


def test_v130_fsdp_dtensor_with_torch_fsdp2():
    values = {
        "checkpoint.ckpt_format": "fsdp_dtensor",
        "checkpoint.load": "/c",
        "ddp.use_megatron_fsdp": True,
    }
    assert (
        message_of("V130", {**values, "dist.use_torch_fsdp2": True})
        == "is fsdp_dtensor, but use_torch_fsdp2 is true"
    )
    assert message_of("V130", {"checkpoint.ckpt_format": "fsdp_dtensor"}) is None


def test_f01_the_outer_strategy():
    assert message_of("F01", {"ddp.outer_dp_sharding_strategy": "optim_grads"}) == (
        "outer_dp_sharding_strategy='optim_grads' is not one of no_shard, optim"
    )


def test_v122a_megatron_fsdp_requires_no_shared_buffer():
    values = {"ddp.fp8_param_gather": True, "model.fp8": "e4m3", "model.fp8_recipe": "mxfp8"}
    assert message_of("V122a", values) is not None
    assert message_of("V122a", {**values, "dist.use_megatron_fsdp": True}) is None


@pytest.mark.parametrize("rampup", [[8, 8], [0, 8, 8], "8 8 8"])
def test_tr02_a_ramp_has_three_positive_numbers(rampup):
    assert "must be three positive numbers" in message_of("TR02", {"train.rampup_batch_size": rampup})


def test_tr02_a_ramp_has_steps_that_can_be_counted():
    values = {"train.rampup_batch_size": [8, 8, 9 * 10**10], "train.global_batch_size": 8 * 10**9}
    assert message_of("TR02", values) == "has 999,999,999 steps, more than 10,000"


@pytest.mark.parametrize("name", ["", "  ", "A=B", 3])
def test_v001_names_of_variables(name):
    assert message_of("V001", {"env_vars": {name: "1"}}) == f"{name!r} is not the name of a variable"


def test_v051e_state_can_be_sharded_by_the_wrapper_or_by_fsdp():
    aware = {"optimizer.use_precision_aware_optimizer": True}
    assert message_of("V051e", aware) == "requires use_distributed_optimizer"
    for path in ("ddp.use_distributed_optimizer", "ddp.use_megatron_fsdp", "dist.use_megatron_fsdp"):
        assert message_of("V051e", {**aware, path: True}) is None
