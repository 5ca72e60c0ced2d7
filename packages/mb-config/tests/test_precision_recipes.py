"""Precision recipes: the ready functions, functions that users register, and sections that are set up directly."""

import subprocess
import sys

import pytest

from mb_config import (
    RULES,
    DistributedDataParallelConfig,
    MixedPrecisionConfig,
    OptimizerConfig,
    UnknownPrecisionError,
    apply_overrides,
    check,
    get_mixed_precision_config,
    given_fields,
    runtime_config_update,
)
from mb_config.overrides.registration import RegistrationError
from mb_config.resolve import precision_recipes
from mb_config.resolve.precision_recipes import bf16_mixed, fp16_mixed, register
from mb_config.resolve.precision_table import PRECISIONS, REGISTERED


@pytest.fixture(autouse=True)
def _restored():
    """Remove the registered recipes after each test."""
    yield
    REGISTERED.clear()


def bf16_with_e5m2():
    config = bf16_mixed()
    config.fp8, config.fp8_recipe = "hybrid", "tensorwise"
    return config


@pytest.mark.parametrize("name", PRECISIONS)
def test_every_ready_recipe_is_a_function(name):
    factory = getattr(precision_recipes, name)
    assert factory() == get_mixed_precision_config(name)
    assert (factory.__name__, factory.__doc__) == (name, f"Return the precision recipe {name}.")


def test_a_registered_function_is_a_recipe_in_both_spellings(make):
    assert register(bf16_with_e5m2) is bf16_with_e5m2
    assert get_mixed_precision_config("bf16-with-e5m2") == bf16_with_e5m2()
    config = make()
    provenance = apply_overrides(config, ["mixed_precision=bf16_with_e5m2"])
    found = check(config.sections(), RULES, facts={"gpu": "a100"}, provenance=provenance)
    assert [problem.id for problem in found] == ["H02"]
    runtime_config_update(config, world_size=1, provenance=provenance)
    assert (config.model.bf16, config.optimizer.bf16) == (True, True)
    with pytest.raises(UnknownPrecisionError, match=r"Use one of bf16_mixed, .*, bf16_with_e5m2$"):
        get_mixed_precision_config("bf17")


def test_a_field_of_a_registered_recipe_changes_only_that(make):
    register(bf16_with_e5m2)
    config = make(mixed_precision="bf16_with_e5m2")
    apply_overrides(config, ["mixed_precision.hysteresis=3"])
    expected = bf16_with_e5m2()
    expected.hysteresis = 3
    assert config.mixed_precision == expected


def test_registering_the_next_version_of_a_function_replaces_it():
    def bf16_wide():
        return fp16_mixed()

    register(bf16_wide)

    def bf16_wide():
        return bf16_mixed()

    register(bf16_wide)
    assert get_mixed_precision_config("bf16_wide").bf16


def test_names_that_are_taken_are_rejected():
    def bf16_mixed():
        return MixedPrecisionConfig()

    with pytest.raises(RegistrationError, match="mb_config has a precision recipe of this name"):
        register(bf16_mixed)
    register(bf16_with_e5m2)

    def other():
        return MixedPrecisionConfig()

    other.__name__, other.__module__ = "bf16_with_e5m2", "elsewhere"
    with pytest.raises(RegistrationError, match=r"elsewhere.bf16_with_e5m2: .* has a precision recipe"):
        register(other)


def test_a_function_that_returns_anything_else_is_rejected():
    REGISTERED["bf16_wide"] = lambda: 16
    with pytest.raises(
        RegistrationError, match=r"mixed_precision: bf16_wide: the function returns 16. Return a"
    ):
        get_mixed_precision_config("bf16_wide")


def test_setup_assigns_the_fields_of_every_section(make):
    config = make(ddp=DistributedDataParallelConfig(grad_reduce_in_fp32=True))
    fp16_mixed().setup(config.model, config.optimizer, config.ddp)
    assert (config.model.fp16, config.model.params_dtype, config.model.pipeline_dtype) == (
        True,
        "float16",
        "float16",
    )
    assert (config.optimizer.fp16, config.optimizer.params_dtype) == (True, "float16")
    assert config.ddp.grad_reduce_in_fp32 is False
    assert {"fp16", "params_dtype"} <= given_fields(config.optimizer)
    runtime_config_update(config, world_size=1)
    assert (config.model.fp16, config.optimizer.fp16) == (True, True)


def test_setup_of_a_model_alone_which_may_be_a_mapping():
    model = {"num_layers": 2, "bf16": False}
    bf16_mixed().setup(model)
    assert (model["bf16"], model["params_dtype"]) == (True, "bfloat16")


def test_setup_does_not_assign_none_to_a_required_field():
    optimizer = OptimizerConfig(params_dtype="bfloat16")
    MixedPrecisionConfig(hysteresis=3).setup(optimizer_config=optimizer, model_config=None)
    assert (optimizer.params_dtype, optimizer.hysteresis) == ("bfloat16", 3)


def test_a_dtype_of_torch_is_its_name():
    code = (
        "import torch; from mb_config import MixedPrecisionConfig as M; m = M(params_dtype=torch.bfloat16);"
        "m.pipeline_dtype = torch.half; print(m.params_dtype, m.pipeline_dtype)"
    )
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["bfloat16", "float16"]
