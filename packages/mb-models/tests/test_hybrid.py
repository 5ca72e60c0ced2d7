"""Hybrid models: section, rules, formula, and training with the layers of a pattern."""

import dataclasses

import pytest
import torch

from mb_host.megatron.hybrid import host_hybrid_spec
from mb_models.hybrid.config import MambaModelConfig
from mb_models.hybrid.provider import (
    MambaModelProvider,
    hybrid_transformer_config,
    hybrid_transformer_engine_spec,
    require_kernels,
)
from mb_models.hybrid.rules import RULES
from mb_models.parameters import hybrid_parameter_count
from mb_models.rules import ModelConfigError
from mb_models.training.forward_step import gpt_forward_step

CPU = torch.device("cpu")


def tiny(pattern="MG*-", **changes):
    section = MambaModelConfig(
        num_layers=len(pattern.split("/")[0].replace("|", "")),
        hidden_size=64,
        num_attention_heads=4,
        num_query_groups=2,
        ffn_hidden_size=96,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func="silu",
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        hybrid_layer_pattern=pattern,
        mamba_state_dim=16,
        mamba_head_dim=16,
        mamba_num_groups=2,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        seq_length=32,
        vocab_size=128,
        transformer_impl="local",
    )
    return dataclasses.replace(section, **changes)


def build(config):
    [model] = MambaModelProvider(config, layer_spec=host_hybrid_spec, device=CPU).provide_chunks()
    return model


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_each_rule_rejects_its_failing_example_and_accepts_the_other(rule):
    assert rule.message(rule.fails)
    assert rule.message(rule.passes) is None
    assert {
        path.removeprefix("model.") for path in rule.fields
    } <= MambaModelConfig.__dataclass_fields__.keys()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hybrid_layer_pattern": "|"}, "has no layers"),
        ({"hybrid_layer_pattern": "M|M", "num_layers": 2}, "cannot be divided into 1 stages"),
        (
            {"hybrid_layer_pattern": "M|", "pipeline_model_parallel_size": 2, "num_layers": 1},
            "cannot be divided",
        ),
        ({"mtp_num_layers": 2}, "predicts 0 tokens beyond the next, mtp_num_layers=2"),
        ({"mamba_head_dim": 0}, "sizes must be positive"),
        ({"mamba_chunk_size": 0}, "sizes must be positive, .*chunk 0"),
        ({"mamba_num_groups": 3}, "heads in 3 groups"),
        (
            {"mamba_num_groups": 4, "context_parallel_size": 8, "linear_num_key_heads": 8},
            "4 key heads|8 key heads",
        ),
        ({"softmax_type": "learnable"}, "softmax_type: is learnable"),
        ({"linear_conv_kernel_dim": 0}, "sizes must be positive .*convolution 0"),
        ({"linear_key_head_dim": 0}, "sizes must be positive .key 0"),
        ({"linear_value_head_dim": 0}, "sizes must be positive .*value 0"),
        ({"linear_num_key_heads": 3}, "3 key heads and 4 value heads"),
        ({"transformer": {"mamba_state_dim": 8}}, "mamba_state_dim: set the field"),
    ],
)
def test_invalid_sections_are_rejected(changes, message):
    with pytest.raises(ModelConfigError, match=message):
        hybrid_transformer_config(tiny(**changes), device=CPU)


def test_the_initial_scale_of_output_layers_depends_on_the_number_of_layers():
    transformer = hybrid_transformer_config(tiny("M*M-"), device=CPU)
    torch.manual_seed(0)
    drawn = transformer.output_layer_init_method(torch.empty(400, 400))
    assert drawn.std().item() == pytest.approx(0.02 / 4**0.5, rel=0.02)
    assert transformer.is_hybrid_model


def test_a_missing_transformer_engine_is_named():
    with pytest.raises(ModuleNotFoundError, match="host_hybrid_spec"):
        hybrid_transformer_engine_spec(hybrid_transformer_config(tiny(), device=CPU))


@pytest.mark.parametrize(
    ("pattern", "changes"),
    [
        ("MG*-", {}),
        ("M*E", {"num_moe_experts": 4, "moe_ffn_hidden_size": 32}),
        ("M*/*-/*-", {"normalization": "LayerNorm", "add_bias_linear": True}),
        (
            "M*/*E/*E",
            {"num_moe_experts": 4, "moe_ffn_hidden_size": 32, "mtp_use_repeated_layer": True},
        ),
        (
            "ME",
            {"num_moe_experts": 4, "moe_ffn_hidden_size": 32, "transformer": {"moe_latent_size": 16}},
        ),
        ("M-", {"mamba_num_heads": 2, "position_embedding_type": "learned_absolute"}),
    ],
)
def test_the_formula_matches_the_built_model(pattern, changes, groups):
    config = tiny(pattern, **changes)
    built = sum(parameter.numel() for parameter in build(config).parameters())
    assert hybrid_parameter_count(config) == built


def test_the_chunk_size_of_the_scan_does_not_change_the_logits(groups):
    tokens = torch.arange(20)[None]
    models = [build(tiny("M*", mamba_chunk_size=size)).eval() for size in (4, 128)]
    sizes = [each.chunk_size for model in models for each in model.modules() if hasattr(each, "chunk_size")]
    models[0].load_state_dict(models[1].state_dict())
    assert sizes == [4, 128]
    torch.testing.assert_close(*(model(tokens, tokens, None) for model in models), rtol=1e-4, atol=1e-5)


def test_the_size_of_an_8b_hybrid():
    config = MambaModelConfig(
        num_layers=56,
        hidden_size=4096,
        num_attention_heads=32,
        num_query_groups=8,
        ffn_hidden_size=16384,
        activation_func="squared_relu",
        normalization="RMSNorm",
        add_bias_linear=False,
        hybrid_layer_pattern="M-M-M--M-M*-M-M-M-M--M*-M-M-M-M-M*--M-M-M-M-M*-M--M-M-M-",
    )
    assert hybrid_parameter_count(config, vocab_size=256000) == 8_654_517_248
    with pytest.raises(ValueError, match="vocab_size"):
        hybrid_parameter_count(config)


@pytest.mark.parametrize("pattern", ["MG*-", "M*/*-"])
def test_the_loss_decreases(pattern, groups):
    model = build(tiny(pattern))
    tokens = torch.arange(33).expand(4, 33)
    batch = {
        "tokens": tokens[:, :-1],
        "labels": tokens[:, 1:],
        "loss_mask": torch.ones(4, 32),
        "position_ids": torch.arange(32).expand(4, 32),
    }
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=3e-3), []
    for _ in range(10):
        output, loss_of = gpt_forward_step(iter([batch]), model)
        loss_sum, number, _ = loss_of(output)
        (loss_sum / number).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append((loss_sum / number).item())
    assert losses[0] > 4.5
    assert losses[-1] < 3.5


def test_kernels_that_are_not_installed_are_named_before_the_model_is_built():
    nothing = {}.get
    require_kernels("*-*-", installed=nothing)
    require_kernels("MG*-", installed={"mamba_ssm": 1, "fla": 1}.get)
    with pytest.raises(ModelConfigError, match=r"G layers, but flash-linear-attention is not installed"):
        require_kernels("MG*-", installed={"mamba_ssm": 1}.get)
    with pytest.raises(ModelConfigError, match=r"M layers, but mamba-ssm is not installed"):
        require_kernels("M-", installed=nothing)
