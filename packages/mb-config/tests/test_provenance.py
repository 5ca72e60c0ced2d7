"""Origin of every value."""

from dataclasses import dataclass, field

import pytest

from mb_config import (
    ConfigError,
    OptimizerConfig,
    Provenance,
    apply_overrides,
    apply_yaml,
    given_fields,
    runtime_config_update,
    show,
)


def test_from_the_class_to_resolving(make, tmp_path):
    (tmp_path / "over.yaml").write_text("train:\n  global_batch_size: 16\n")
    config = make()
    provenance = Provenance.of(config, origin="recipe tiny")
    apply_yaml(config, tmp_path / "over.yaml", provenance=provenance)
    apply_overrides(config, ["train.micro_batch_size=1"], provenance=provenance)
    runtime_config_update(config, world_size=1, provenance=provenance)
    origins = provenance.origins
    assert {path: origin for path, origin in origins.items() if path.startswith("train.")} == {
        "train.train_iters": "recipe tiny",
        "train.global_batch_size": f"{tmp_path / 'over.yaml'}:2",
        "train.micro_batch_size": "command line",
    }
    assert origins["validation.eval_global_batch_size"] == "resolve: V118"
    assert provenance.origin("rng.seed") == "default"


def test_computed_values_are_shown_as_comments(make):
    config, provenance = make(), Provenance()
    runtime_config_update(config, world_size=2, provenance=provenance)
    lines = show(config, provenance, origin=True).splitlines()
    assert "# scheduler.lr_decay_steps: 800  # resolve: V202" in lines
    assert "# data_parallel_size: 2  # resolve: V031" in lines
    assert not any("lr_decay_steps" in line for line in show(make()).splitlines())


@dataclass
class Recorded:
    """A model of another package that keeps a record of its own."""

    bf16: bool = False
    num_layers: int = 2
    _given: set = field(default_factory=set, init=False, compare=False)


def test_a_section_of_another_package_can_have_a_record(make):
    model = Recorded()
    model._given = {"bf16"}
    assert given_fields(model) == {"bf16"}
    config = make(model=model, mixed_precision="bf16_mixed")
    provenance = Provenance.of(config, origin="recipe tiny")
    provenance.note("model.bf16", "code")
    with pytest.raises(ConfigError, match="V017"):
        runtime_config_update(config, world_size=1, provenance=provenance)


def test_resolved_values_do_not_count_as_set(make):
    config = make(mixed_precision="bf16_mixed", optimizer=OptimizerConfig(lr=1e-3))
    runtime_config_update(config, world_size=1)
    assert Provenance.of(config).origin("model.bf16") == "resolve: V017"
    config.mixed_precision = "fp16_mixed"
    runtime_config_update(config, world_size=1)
    assert (config.model.bf16, config.model.fp16, config.optimizer.fp16) == (False, True, True)


def test_a_value_that_is_changed_after_resolving_counts_as_set(make):
    config = make(mixed_precision="bf16_mixed")
    runtime_config_update(config, world_size=1)
    config.model.bf16 = False
    config.model.fp16 = True
    with pytest.raises(ConfigError, match="V017"):
        runtime_config_update(config, world_size=1)


def test_a_model_that_is_a_mapping_is_resolved_as_well(make):
    config = make(model={"num_layers": 2}, mixed_precision="bf16_mixed")
    provenance = Provenance.of(config, origin="recipe tiny")
    changes = runtime_config_update(config, world_size=1, provenance=provenance)
    expected = {"num_layers": 2, "params_dtype": "bfloat16", "bf16": True, "pipeline_dtype": "bfloat16"}
    assert {key: config.model[key] for key in expected} == expected
    assert ("model.bf16", False, True) in [(change.field, change.old, change.new) for change in changes]
    assert runtime_config_update(config, world_size=1, provenance=provenance) == []
    assert runtime_config_update(config, world_size=1) == []


def test_a_key_of_a_mapping_is_the_users(make):
    config = make(model={"num_layers": 2, "bf16": False}, mixed_precision="bf16_mixed")
    with pytest.raises(
        ConfigError, match=r"model.bf16: is false, but the precision recipe bf16_mixed sets true"
    ):
        runtime_config_update(config, world_size=1)
