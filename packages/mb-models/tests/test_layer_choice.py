"""Family of a model section, and its layers on each device."""

from dataclasses import dataclass, replace

import pytest
import torch

from mb_host.megatron.families import HOST_LAYERS
from mb_models import GPTModelConfig, ModelConfigError, choose_layers, family_of
from mb_models.families import FAMILIES, GPT, HYBRID
from mb_models.gpt.layer_choice import AvailableLayers

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@dataclass(kw_only=True)
class OwnConfig(GPTModelConfig):
    """A user's section with more fields."""


def test_a_subclass_belongs_to_the_family_of_its_parent():
    assert family_of(OwnConfig(num_layers=1, hidden_size=8, num_attention_heads=1)) is GPT


def test_a_section_of_no_family_is_rejected_with_the_known_ones():
    with pytest.raises(TypeError, match=r"model: int belongs to no family .* GPTModelConfig"):
        family_of(3)


def test_every_family_has_layers_for_the_cpu():
    assert {family.name for family in FAMILIES.values()} == {*HOST_LAYERS}


@pytest.mark.parametrize(
    ("device", "wanted", "installed", "reason"),
    [
        (CPU, "transformer_engine", True, "host layers (there is no GPU)"),
        (GPU, "transformer_engine", True, "Transformer Engine layers"),
        (GPU, "transformer_engine", None, "Megatron's local layers (Transformer Engine is not installed)"),
        (GPU, "local", True, "Megatron's local layers (model.transformer_impl=local)"),
    ],
)
def test_layers_follow_the_device_and_the_installed_packages(device, wanted, installed, reason):
    available = AvailableLayers(host=HOST_LAYERS, installed=lambda name: installed)
    assert choose_layers(GPT, device, wanted=wanted, available=available).reason == reason


def test_local_layers_replace_missing_host_layers():
    found = choose_layers(GPT, CPU, wanted="transformer_engine")
    assert (found.spec, found.reason) == (GPT.local, "Megatron's local layers (there is no GPU)")


def test_a_family_that_requires_transformer_engine_is_rejected_without_it():
    with pytest.raises(ModelConfigError, match="no other layers on a GPU"):
        choose_layers(replace(GPT, local=None), GPU, wanted="local", available=AvailableLayers())


def test_a_family_without_layers_for_the_cpu_is_rejected():
    with pytest.raises(ModelConfigError, match="a hybrid model has no layers for the CPU"):
        choose_layers(HYBRID, CPU, wanted="local")
