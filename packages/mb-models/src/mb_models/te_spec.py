"""Layers of Transformer Engine's modules, in the form that the providers take; importing this needs the `te` extra."""

import transformer_engine  # noqa: F401  (Megatron goes on without it and fails where nobody looks)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig


def transformer_engine_spec(
    config: TransformerConfig, /, *, vp_stage: int | None = None, pp_rank: int | None = None
) -> TransformerBlockSubmodules:
    """Return layers of Transformer Engine's modules; they run on a GPU only."""
    return get_gpt_decoder_block_spec(
        config,
        use_transformer_engine=True,
        normalization=config.normalization,
        qk_l2_norm=config.qk_l2_norm,
        vp_stage=vp_stage,
        pp_rank=pp_rank,
    )
