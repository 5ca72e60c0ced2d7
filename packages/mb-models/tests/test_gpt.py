from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

import mb_guard
from mb_host.megatron.layers import host_block_spec
from mb_models import (
    GPTModelConfig,
    GPTModelProvider,
    local_spec,
    parameter_count,
    transformer_config,
    transformer_engine_spec,
    wrap_ddp,
)
from mb_models.errors import ModelConfigError
from mb_models.provider import ModelProvider

CPU = torch.device("cpu")
LEARNED = {
    "normalization": "LayerNorm",
    "position_embedding_type": "learned_absolute",
    "add_bias_linear": True,
}
GELU = {"gated_linear_unit": False, "activation_func": "gelu"}
EXPERTS = {"num_moe_experts": 4, "moe_ffn_hidden_size": 48, "moe_token_dispatcher_type": "alltoall"}


def provider(tiny, **settings):
    return GPTModelProvider(GPTModelConfig(**{**tiny, **settings}), layer_spec=local_spec, device=CPU)


def test_the_ddp_configuration_is_not_modified(tiny, groups):
    from megatron.core.distributed import DistributedDataParallelConfig

    ddp = DistributedDataParallelConfig(num_buckets=4, overlap_grad_reduce=True)
    (chunk,) = wrap_ddp(provider(tiny).provide_chunks(groups), ddp, pg_collection=groups)
    assert (ddp.bucket_size, chunk.ddp_config.bucket_size) == (
        None,
        parameter_count(GPTModelConfig(**tiny)) // 4,
    )


def test_buffers_of_nccl_are_off_without_a_gpu(tiny, groups):
    from megatron.core.distributed import DistributedDataParallelConfig

    ddp = DistributedDataParallelConfig(nccl_ub=True, use_distributed_optimizer=True)
    (chunk,) = wrap_ddp(provider(tiny).provide_chunks(groups), ddp, pg_collection=groups)
    assert (ddp.nccl_ub, chunk.ddp_config.nccl_ub) == (True, False)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"share_embeddings_and_output_weights": True},
        {"num_query_groups": None, "qk_layernorm": True, "add_qkv_bias": True},
        {**LEARNED, **GELU, "max_position_embeddings": 48},
        {**LEARNED, "qk_layernorm": True, "ffn_hidden_size": None, "kv_channels": 24},
        EXPERTS,
        {**EXPERTS, "moe_layer_freq": [0, 1]},
        {
            **EXPERTS,
            "moe_layer_freq": 2,
            "moe_shared_expert_intermediate_size": 32,
            "moe_shared_expert_gate": True,
        },
        {"softmax_type": "learnable", "attention_output_gate": True},
        {**EXPERTS, **GELU, "add_bias_linear": True},
        {"position_embedding_type": "yarn", "mtp_num_layers": 1},
        {"norm_position": "pre_and_post", "layernorm_zero_centered_gamma": True, "mtp_num_layers": 1},
        {"residual_branches": "parallel_shared_norm", "normalization": "LayerNorm", "layernorm_bias": False},
        {"residual_branches": "parallel", "normalization": "LayerNorm"},
        {"norm_position": "post", "qk_layernorm": True, "qk_layernorm_scope": "all_heads"},
    ],
)
def test_the_parameter_formula_equals_the_built_model(tiny, groups, settings):
    (chunk,) = provider(tiny, **settings).provide_chunks(groups)
    built = sum(parameter.numel() for parameter in chunk.parameters())
    assert parameter_count(GPTModelConfig(**{**tiny, **settings})) == built


def test_experts_with_biases_are_trained(tiny, groups):
    (chunk,) = provider(tiny, **EXPERTS, **GELU, add_bias_linear=True).provide_chunks(groups)
    tokens = torch.arange(16).expand(2, 16)
    chunk(tokens, tokens, None, labels=tokens).mean().backward()
    biases = [
        value for name, value in chunk.named_parameters() if "experts" in name and name.endswith("fc2.bias")
    ]
    assert len(biases) == 8
    assert any(bool(value.grad.any()) for value in biases)


LATENT = {
    "multi_latent_attention": True,
    "num_query_groups": None,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_head_dim": 12,
    "qk_pos_emb_head_dim": 8,
    "v_head_dim": 10,
    "rope_type": "rope",
}


@pytest.mark.parametrize(
    "settings",
    [
        LATENT,
        {**LATENT, "q_lora_rank": None, "add_bias_linear": True},
        {**LATENT, **EXPERTS, "qk_layernorm": True, "mtp_num_layers": 2, "moe_layer_freq": [0, 1]},
        {"mtp_num_layers": 2, "mtp_use_repeated_layer": True},
    ],
)
def test_the_formula_counts_latent_attention_and_multi_token_prediction(tiny, groups, settings):
    config = GPTModelConfig(**{**tiny, **settings})
    (chunk,) = GPTModelProvider(config, layer_spec=host_block_spec, device=CPU).provide_chunks(groups)
    assert parameter_count(config) == sum(parameter.numel() for parameter in chunk.parameters())


def test_local_layers_do_not_support_latent_attention(tiny, groups):
    with pytest.raises(ValueError, match="multi_latent_attention: True is not supported"):
        provider(tiny, **LATENT).provide_chunks(groups)


def test_a_yarn_that_rotates_whole_heads_is_rejected(tiny, groups):
    yarn = {"position_embedding_type": "yarn", "rotary_percent": 0.5}
    provider(tiny, **yarn).provide_chunks(groups)
    with (
        mb_guard.without("yarn-rotates-whole-heads"),
        pytest.raises(
            ModelConfigError, match=r"rotary_percent: is 0\.5, but YaRN rotates .* mb_guard\.install"
        ),
    ):
        provider(tiny, **yarn).provide_chunks(groups)


def test_mtp_layers_on_a_stage_without_layers_are_like_the_last_layer(tiny):
    built = GPTModelProvider(
        GPTModelConfig(**tiny, pipeline_model_parallel_size=2), layer_spec=host_block_spec, device=CPU
    )
    before = built._layer_spec(built.transformer, vp_stage=None, pp_rank=0)
    empty = replace(before, layer_specs=[])
    assert len(built._with_last_layer(empty, vp_stage=None, pp_rank=1).layer_specs) == 1


def test_a_tokenizer_size_is_padded(tiny):
    config = GPTModelConfig(**{**tiny, "vocab_size": None})
    built = GPTModelProvider(config, layer_spec=local_spec, device=CPU, tokenizer_vocab_size=1000)
    assert built.vocab_size == 1024


def test_groups_default_to_those_of_megatron(tiny, groups):
    chunk = provider(tiny).provide(pre_process=True, post_process=False)
    assert (hasattr(chunk, "embedding"), hasattr(chunk, "output_layer")) == (True, False)


def test_the_first_replicas_weights_can_be_broadcast(tiny, groups):
    from megatron.core.distributed import DistributedDataParallelConfig

    (chunk,) = provider(tiny).provide_chunks(groups)
    before = {name: value.clone() for name, value in chunk.named_parameters()}
    wrap_ddp([chunk], DistributedDataParallelConfig(), pg_collection=groups, broadcast_parameters=True)
    assert all(torch.equal(before[name], value) for name, value in chunk.named_parameters())


@pytest.mark.skipif(find_spec("transformer_engine") is not None, reason="Transformer Engine is installed")
def test_transformer_engine_layers_need_transformer_engine(tiny, groups):
    config = GPTModelConfig(**tiny)
    built = GPTModelProvider(config, layer_spec=transformer_engine_spec, device=CPU)
    with pytest.raises(ModuleNotFoundError, match=r"Install mb-models\[te\], or use local_spec"):
        built.provide_chunks(groups)


def test_a_custom_provider_must_configure_and_build(tiny):
    class Half(ModelProvider):
        def _transformer_config(self):
            return transformer_config(self.config, device=self.device)

    arguments = {"layer_spec": local_spec, "device": CPU}
    with pytest.raises(TypeError, match=r"ModelProvider.*_transformer_config"):
        ModelProvider(GPTModelConfig(**tiny), **arguments)
    with pytest.raises(TypeError, match=r"Half.*_build"):
        Half(GPTModelConfig(**tiny), **arguments)
