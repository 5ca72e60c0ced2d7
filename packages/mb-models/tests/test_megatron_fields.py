"""Fields of Megatron's TransformerConfig in a section that does not declare them."""

from copy import deepcopy
from dataclasses import MISSING, fields, replace

import pytest
import torch
from megatron.core.transformer.enums import AttnBackend, CudaGraphModule
from megatron.core.transformer.transformer_config import TransformerConfig

from mb_models import GPTModelConfig, transformer_config
from mb_models.errors import FixedValueError
from mb_models.megatron_fields import megatron_fields
from mb_models.peft.config import LoRA

SIZES = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 2}


def test_names_and_plain_defaults_are_those_of_the_imported_class():
    found = megatron_fields()
    assert {item.name for item in fields(TransformerConfig)} <= found.keys()
    plain = (bool, int, float, str, type(None))
    for item in fields(TransformerConfig):
        if item.default is not MISSING and type(item.default) in plain and found[item.name] is not ...:
            assert found[item.name] == item.default, item.name


def test_a_field_that_is_not_declared_is_an_entry_of_transformer():
    section = GPTModelConfig(**SIZES, offload_modules=["core_attn"], transformer={"moe_deepep_num_sms": 8})
    section.moe_router_padding_for_fp8 = True
    assert section.transformer == {
        "offload_modules": ["core_attn"],
        "moe_deepep_num_sms": 8,
        "moe_router_padding_for_fp8": True,
    }
    assert (section.offload_modules, section.moe_deepep_num_sms) == (["core_attn"], 8)
    assert "transformer" in section._given
    other = replace(section, offload_modules=[])
    assert (other.offload_modules, deepcopy(other)) == ([], other)


def test_it_reaches_megatron():
    section = GPTModelConfig(**SIZES, cpu_offloading_num_layers=1, transformer_impl="local")
    assert transformer_config(section, device=torch.device("cpu")).cpu_offloading_num_layers == 1


def test_an_unset_field_is_read_with_megatrons_default():
    section = GPTModelConfig(**SIZES)
    assert (section.cpu_offloading, section.offload_modules) == (False, [])
    with pytest.raises(AttributeError, match="has no attribute 'cpu_offload'"):
        section.cpu_offload  # noqa: B018
    with pytest.raises(AttributeError, match="cpu_offload: GPTModelConfig has no such field"):
        section.cpu_offload = True


def test_values_of_torch_and_megatron_become_names():
    section = GPTModelConfig(
        **SIZES,
        activation_func=torch.nn.functional.silu,
        params_dtype=torch.bfloat16,
        attention_backend=AttnBackend.flash,
        cuda_graph_scope=[CudaGraphModule.attn],
    )
    assert (section.activation_func, section.params_dtype, section.attention_backend) == (
        "silu",
        "bfloat16",
        "flash",
    )
    assert section.cuda_graph_modules == ["attn"]


def test_an_argument_of_another_trainer_is_accepted_with_what_is_implemented():
    adapters = LoRA(dim=8, a2a_experimental=False, lora_dtype=None)
    assert (adapters.a2a_experimental, adapters.dim) == (False, 8)
    with pytest.raises(FixedValueError, match=r"LoRA\.a2a_experimental: True is not supported"):
        LoRA(a2a_experimental=True)
    with pytest.raises(FixedValueError, match=r"LoRA\.experts_shared_outer_loras: True"):
        adapters.experts_shared_outer_loras = True
    with pytest.raises(AttributeError, match="LoRA has no attribute 'rank'"):
        adapters.rank  # noqa: B018
