"""Variants of layers: soft caps compared with their formula, zero-centred norms with those of mb-host."""

from types import SimpleNamespace

import pytest
import torch

from mb_host.megatron.layers import host_block_spec
from mb_models import GPTModelConfig, GPTModelProvider, local_spec, make_value_model, transformer_config
from mb_models.errors import ModelConfigError
from mb_models.gpt.layer_variants import apply_layer_variants
from mb_models.gpt.norms import BiaslessLayerNorm

CPU = torch.device("cpu")
HEADS, GROUPS, CHANNELS, LENGTH = 4, 2, 16, 12


def attention(tiny, groups, softcap, **settings):
    from megatron.core.transformer.enums import AttnMaskType

    from mb_models.gpt.softcapped_attention import SoftcappedAttention

    mask = settings.pop("mask", "causal")
    config = transformer_config(GPTModelConfig(**{**tiny, **settings}), device=CPU)
    return SoftcappedAttention(
        config, 1, AttnMaskType[mask], pg_collection=groups, softcap=softcap, softmax_scale=0.5
    )


def inputs():
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(LENGTH, 2, heads, CHANNELS, generator=generator) for heads in (HEADS, GROUPS, GROUPS)]


def test_scores_are_capped(tiny, groups):
    query, key, value = inputs()
    found = attention(tiny, groups, 2.0, window_size=(4, 0))(query, key, value)
    key, value = (each.repeat_interleave(HEADS // GROUPS, dim=2) for each in (key, value))
    scores = 2.0 * torch.tanh(torch.einsum("sbnd,tbnd->bnst", query, key) * 0.5 / 2.0)
    distance = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    scores = scores.masked_fill((distance < 0) | (distance > 4), -torch.inf)
    expected = torch.einsum("bnst,tbnd->sbnd", scores.softmax(-1), value).flatten(2)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_packed_sequences_attend_only_to_themselves(tiny, groups):
    from megatron.core.packed_seq_params import PackedSeqParams

    module, parts = attention(tiny, groups, 2.0), [each[:, 0] for each in inputs()]
    packed = PackedSeqParams(qkv_format="thd", cu_seqlens_q=torch.tensor([0, 5, 5, LENGTH]))
    found = module(*parts, packed_seq_params=packed)
    separate = [
        module(*(part[start:stop, None] for part in parts))[:, 0] for start, stop in ((0, 5), (5, LENGTH))
    ]
    torch.testing.assert_close(found, torch.cat(separate))


def test_a_mask_restricts_the_causal_one(tiny, groups):
    masked = torch.zeros(2, 1, LENGTH, LENGTH, dtype=torch.bool)
    masked[..., :3] = True
    query, key, value = inputs()
    module = attention(tiny, groups, 2.0)
    found = module(query, key, value, masked)[3:]
    torch.testing.assert_close(found, module(query[3:], key[3:], value[3:]))


def test_dropout_is_applied_in_training_only(tiny, groups):
    module = attention(tiny, groups, 2.0, attention_dropout=0.5)
    assert not torch.equal(module(*inputs()), module(*inputs()))
    module.eval()
    assert torch.equal(module(*inputs()), module(*inputs()))


def test_unsupported_arguments_are_rejected(tiny, groups):
    with pytest.raises(ValueError, match="attention_bias, or attention_mask with packed sequences"):
        attention(tiny, groups, 2.0)(*inputs(), attention_bias=torch.zeros(1))
    with pytest.raises(ModelConfigError, match="in attention with the mask no_mask"):
        attention(tiny, groups, 2.0, mask="no_mask")


def test_heads_that_ranks_cannot_share_are_rejected(tiny):
    from mb_models.gpt.norms import AllHeadsRMSNorm

    ranks = SimpleNamespace(size=lambda: 4)
    config = transformer_config(GPTModelConfig(**tiny), device=CPU)
    with pytest.raises(
        ModelConfigError, match="with 2 heads of queries or keys, which 4 tensor-parallel ranks"
    ):
        AllHeadsRMSNorm(config, 16, heads=2, tp_group=ranks)


def test_a_value_head_has_no_cap(tiny, groups):
    config = GPTModelConfig(**tiny, final_logit_softcapping=0.01)
    chunks = GPTModelProvider(config, layer_spec=local_spec, device=CPU).provide_chunks(groups)
    tokens = torch.arange(8)[None]
    assert chunks[0](tokens, tokens, None).abs().max() <= 0.01
    (model,) = make_value_model(config.hidden_size, False)(chunks)
    assert model(tokens, tokens, None).abs().max() > 0.01


@pytest.mark.parametrize("kind", ["RMSNorm", "LayerNorm"])
def test_zero_centred_norms_of_local_layers_equal_those_for_the_cpu(kind, tiny, groups):
    changes = {"normalization": kind, "layernorm_zero_centered_gamma": True, "qk_layernorm": True}
    config = GPTModelConfig(**{**tiny, **changes})
    chunks = [
        GPTModelProvider(config, layer_spec=spec, device=CPU).provide_chunks(groups)[0]
        for spec in (local_spec, host_block_spec)
    ]
    assert not chunks[0].decoder.final_layernorm.weight.any()
    torch.manual_seed(2)
    noise = {name: value + 0.05 * torch.randn_like(value) for name, value in chunks[0].named_parameters()}
    tokens = torch.arange(8)[None]
    outputs = []
    for chunk in chunks:
        chunk.load_state_dict(noise, strict=False)
        outputs.append(chunk(tokens, tokens, None))
    torch.testing.assert_close(*outputs, atol=1e-5, rtol=0)


def test_layers_of_one_kind_are_changed_once(tiny, groups):
    config = GPTModelConfig(**tiny, norm_position="post")
    megatron = transformer_config(config, device=CPU)
    block = apply_layer_variants(local_spec(megatron), config, config=megatron, tp_group=groups.tp)
    assert block.layer_specs[0] is block.layer_specs[1]
    (chunk,) = GPTModelProvider(config, layer_spec=local_spec, device=CPU).provide_chunks(groups)
    norms = [name for name, _ in chunk.decoder.layers[1].named_parameters() if "norm" in name]
    assert norms == ["self_attn_bda.norm.weight", "mlp_bda.norm.weight"]
    stored = {value.key for value in chunk.sharded_state_dict().values() if hasattr(value, "data")}
    assert "decoder.layers.self_attention.linear_proj.post_layernorm.weight" in stored


def engine_layers(tiny, groups, **variant):
    """Return the parts of a layer of Transformer Engine's specification, which need not be installed."""
    from megatron.core.extensions.transformer_engine import TELayerNormColumnParallelLinear, TENorm
    from megatron.core.transformer.identity_op import IdentityOp

    config = GPTModelConfig(**{**tiny, **variant})
    megatron = transformer_config(config, device=CPU)
    block = local_spec(megatron)
    block.layer_norm, layer = TENorm, block.layer_specs[0].submodules
    layer.input_layernorm = layer.pre_mlp_layernorm = IdentityOp
    layer.sharded_state_dict_keys_map = {}
    layer.self_attention.submodules.linear_qkv = TELayerNormColumnParallelLinear
    layer.mlp.keywords["submodules"].linear_fc1 = TELayerNormColumnParallelLinear
    apply_layer_variants(block, config, config=megatron, tp_group=groups.tp)
    linears = (layer.self_attention.submodules.linear_qkv, layer.mlp.keywords["submodules"].linear_fc1)
    return [*linears, layer.input_layernorm, layer.pre_mlp_layernorm], layer.sharded_state_dict_keys_map


def test_norms_are_separate_from_the_linear_layers_of_transformer_engine_where_they_must(tiny, groups):
    from megatron.core.extensions.transformer_engine import (
        TEColumnParallelLinear,
        TELayerNormColumnParallelLinear,
        TENorm,
    )
    from megatron.core.transformer.identity_op import IdentityOp

    fused, plain = [TELayerNormColumnParallelLinear] * 2, [TEColumnParallelLinear] * 2
    none = [IdentityOp, IdentityOp]
    assert engine_layers(tiny, groups, norm_position="pre_and_post")[0] == [*fused, *none]
    assert engine_layers(tiny, groups, residual_branches="parallel")[0] == [*fused, *none]
    assert engine_layers(tiny, groups, norm_position="post")[0] == [*plain, *none]
    parts, names = engine_layers(tiny, groups, residual_branches="parallel_shared_norm")
    assert parts == [*plain, TENorm, IdentityOp]
    # as Megatron's local layers, whose checkpoints Transformer Engine's fused layers load
    assert names["input_layernorm."] == "self_attention.linear_qkv.layer_norm_"
    assert names["pre_mlp_layernorm."] == "mlp.linear_fc1.layer_norm_"
    biasless = engine_layers(tiny, groups, normalization="LayerNorm", layernorm_bias=False)[0]
    assert biasless == [*plain, BiaslessLayerNorm, BiaslessLayerNorm]
