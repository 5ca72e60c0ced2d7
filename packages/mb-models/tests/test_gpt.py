from importlib.util import find_spec

import pytest
import torch

from mb_models import (
    GPTModelConfig,
    GPTModelProvider,
    local_spec,
    parameter_count,
    transformer_engine_spec,
    wrap_ddp,
)

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


def test_the_ddp_configuration_is_not_written_to(tiny, groups):
    from megatron.core.distributed import DistributedDataParallelConfig

    ddp = DistributedDataParallelConfig(num_buckets=4, overlap_grad_reduce=True)
    (chunk,) = wrap_ddp(provider(tiny).provide_chunks(groups), ddp, pg_collection=groups)
    assert (ddp.bucket_size, chunk.ddp_config.bucket_size) == (
        None,
        parameter_count(GPTModelConfig(**tiny)) // 4,
    )


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
        {**EXPERTS, "add_bias_linear": True, **GELU},
    ],
)
def test_the_parameter_formula_equals_the_built_model(tiny, groups, settings):
    (chunk,) = provider(tiny, **settings).provide_chunks(groups)
    built = sum(parameter.numel() for parameter in chunk.parameters())
    assert parameter_count(GPTModelConfig(**{**tiny, **settings})) == built


def test_a_tokenizer_size_is_padded(tiny):
    config = GPTModelConfig(**{**tiny, "vocab_size": None})
    built = GPTModelProvider(config, layer_spec=local_spec, device=CPU, tokenizer_vocab_size=1000)
    assert built.vocab_size == 1024


def test_groups_default_to_those_of_megatron(tiny, groups):
    chunk = provider(tiny).provide(pre_process=True, post_process=False)
    assert (hasattr(chunk, "embedding"), hasattr(chunk, "output_layer")) == (True, False)


def test_all_replicas_can_be_given_the_first_ones_weights(tiny, groups):
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
