"""Which family a model section belongs to, and which layers it gets on which device."""

from dataclasses import dataclass, fields, replace

import pytest
import torch

from mb_config import check
from mb_models import ModelConfigError
from mb_models.rules import RULES, violated_rules
from mb_trainer.config import ConfigContainer, GPTModelConfig
from mb_trainer.families import GPT, HYBRID, family_of
from mb_trainer.layers import choose_layers
from mb_trainer.recipes import RECIPES, hybrid_tiny

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@dataclass(kw_only=True)
class OwnConfig(GPTModelConfig):
    """A user's section with more fields."""


def test_a_subclass_belongs_to_its_parents_family():
    assert family_of(OwnConfig(num_layers=1, hidden_size=8, num_attention_heads=1)) is GPT


def test_a_hybrid_comes_back_from_a_file_as_a_hybrid(tmp_path):
    config = hybrid_tiny()
    config.to_yaml(tmp_path / "run_config.yaml")
    read = ConfigContainer.from_yaml(tmp_path / "run_config.yaml")
    assert read.model == config.model
    assert family_of(read.model) is HYBRID


def test_a_section_of_no_family_is_refused_with_the_known_ones():
    with pytest.raises(TypeError, match=r"model: int belongs to no family .* GPTModelConfig"):
        family_of(3)


@pytest.mark.parametrize(
    ("device", "wanted", "installed", "why"),
    [
        (CPU, "transformer_engine", True, "host layers (there is no GPU)"),
        (GPU, "transformer_engine", True, "Transformer Engine layers"),
        (GPU, "transformer_engine", None, "Megatron's local layers (Transformer Engine is not installed)"),
        (GPU, "local", True, "Megatron's local layers (model.transformer_impl=local)"),
    ],
)
def test_layers_follow_the_device_and_what_is_installed(device, wanted, installed, why):
    assert choose_layers(GPT, device, wanted=wanted, installed=lambda name: installed).why == why


def test_a_family_that_needs_transformer_engine_says_so():
    with pytest.raises(ModelConfigError, match="no other layers on a GPU"):
        choose_layers(replace(GPT, local=None), GPU, wanted="local", installed=lambda name: True)


@pytest.mark.parametrize("recipe", ["gpt_tiny", "hybrid_tiny", "t5_tiny", "mimo_tiny"])
def test_the_check_before_launch_and_the_provider_refuse_the_same(recipe):
    for rule in RULES:
        model = RECIPES[recipe].build().model
        known = {field.name for field in fields(model)}
        for path, value in rule.fails.items():
            if path.removeprefix("model.") in known:
                setattr(model, path.removeprefix("model."), value)
        values = {f"model.{name}": getattr(model, name) for name in known}
        refused = [problem for problem in check({"model": model}, RULES) if problem.severity == "error"]
        found = [line.rpartition("[")[2].rstrip("]") for line in violated_rules(RULES, values)]
        assert found == [problem.id for problem in refused]
