"""Layer specification of a T5 with Transformer Engine's modules."""

from importlib.util import find_spec

from megatron.core.models.T5.t5_spec import (
    get_t5_decoder_with_transformer_engine_block_spec,
    get_t5_encoder_with_transformer_engine_block_spec,
)
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig


def t5_transformer_engine_spec(
    config: TransformerConfig, /, *, vp_stage: int | None = None, pp_rank: int | None = None
) -> tuple[TransformerBlockSubmodules, TransformerBlockSubmodules]:
    """Return layers of Transformer Engine's modules for encoder and decoder, for GPUs only.

    Raises:
        ModuleNotFoundError: Transformer Engine is not installed (Megatron would fail later, on a class that is None).
    """
    if find_spec("transformer_engine") is None:
        raise ModuleNotFoundError(
            "t5_transformer_engine_spec: Transformer Engine is not installed, because mb-models does not require it. "
            "Install mb-models[te], or use mb_host.megatron.t5 without a GPU."
        )
    layers = config.num_layers
    return (
        get_t5_encoder_with_transformer_engine_block_spec(layers),
        get_t5_decoder_with_transformer_engine_block_spec(layers),
    )
