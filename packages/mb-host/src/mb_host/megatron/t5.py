"""Encoder and decoder of a T5 on the CPU: Megatron's layers with this package's norms and attention.

Needs `megatron.core` (the `mcore` extra), and `mb_host.install()` before it.
"""

from megatron.core.models.T5.t5_spec import decoder_model_with_local_spec, encoder_model_with_local_spec
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig

from mb_host.megatron.layers import HostCoreAttention, HostNorm, reject_ignored


def host_t5_spec(
    config: TransformerConfig, *, vp_stage: int | None = None, pp_rank: int | None = None
) -> tuple[TransformerBlockSubmodules, TransformerBlockSubmodules]:
    """Return the layers of encoder and decoder, each with a final norm, which Megatron's local block lacks.

    Both have `config.num_layers` layers; for another number, repeat the spec of the first layer.

    Raises:
        ValueError: `config` sets an option that these layers would silently ignore.
    """
    reject_ignored(config)
    encoder, decoder = (
        TransformerBlockSubmodules(
            layer_specs=[_with_host_parts(layer)] * config.num_layers, layer_norm=HostNorm
        )
        for layer in (encoder_model_with_local_spec(), decoder_model_with_local_spec())
    )
    return encoder, decoder


def _with_host_parts(layer: ModuleSpec) -> ModuleSpec:
    """Replace components of a layer's spec in place; the spec is a new object."""
    parts = layer.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = HostNorm
    parts.self_attention.submodules.core_attention = HostCoreAttention
    if isinstance(parts.cross_attention, ModuleSpec):
        parts.pre_cross_attn_layernorm = HostNorm
        parts.cross_attention.submodules.core_attention = HostCoreAttention
    return layer
