"""Layer specifications for the providers, from Megatron Core's own modules and Transformer Engine's."""

from functools import partial
from importlib.util import find_spec

from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig

from mb_models.gpt.norms import replace_norms, zero_centred_norm

EXPERT_NAMES = {"input_layernorm.": "self_attention.linear_qkv.layer_norm_"}
"""Prefixes of weights in a layer with experts -> their prefixes in checkpoints, as with Transformer Engine.

Megatron's table for local layers also renames the norm before the experts, which Transformer Engine does not fuse.
"""


def local_spec(
    config: TransformerConfig, /, *, vp_stage: int | None = None, pp_rank: int | None = None
) -> TransformerBlockSubmodules:
    """Return layers of Megatron's and torch's own modules, for any device.

    They do not support sequence parallelism (torch's norms), context parallelism (unfused attention) and multi-latent
    attention.

    Raises:
        ValueError: `config` enables multi-latent attention.
    """
    if config.multi_latent_attention:
        raise ValueError(
            "model.multi_latent_attention: True is not supported by Megatron's unfused attention, because its "
            "values are as wide as its keys. Use Transformer Engine, or mb_host.megatron.layers without a GPU."
        )
    block = get_gpt_decoder_block_spec(
        config,
        use_transformer_engine=False,
        normalization=config.normalization,
        vp_stage=vp_stage,
        pp_rank=pp_rank,
    )
    for layer in block.layer_specs:
        if isinstance(layer.submodules.mlp, partial) and layer.submodules.mlp.func is MoELayer:
            layer.submodules.sharded_state_dict_keys_map = EXPERT_NAMES
    if config.layernorm_zero_centered_gamma:
        replace_norms(block, zero_centred_norm)  # Megatron's wrapper of torch's norms rejects such weights
    return block


def transformer_engine_spec(
    config: TransformerConfig, /, *, vp_stage: int | None = None, pp_rank: int | None = None
) -> TransformerBlockSubmodules:
    """Return layers of Transformer Engine's modules, for GPUs only.

    Raises:
        ModuleNotFoundError: Transformer Engine is not installed (Megatron would fail later, on a class that is None).
    """
    if find_spec("transformer_engine") is None:
        raise ModuleNotFoundError(
            "transformer_engine_spec: Transformer Engine is not installed, because mb-models does not require it. "
            "Install mb-models[te], or use local_spec."
        )
    return get_gpt_decoder_block_spec(
        config,
        use_transformer_engine=True,
        normalization=config.normalization,
        qk_l2_norm=config.qk_l2_norm,
        vp_stage=vp_stage,
        pp_rank=pp_rank,
    )
