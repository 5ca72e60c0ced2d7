"""Layers of Megatron's and torch's own modules, in the form that the providers take."""

from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig


def local_spec(
    config: TransformerConfig, /, *, vp_stage: int | None = None, pp_rank: int | None = None
) -> TransformerBlockSubmodules:
    """Return layers of Megatron's and torch's own modules, on any device.

    They know no sequence parallelism (torch's norms) and no context parallelism (unfused attention).
    """
    return get_gpt_decoder_block_spec(
        config,
        use_transformer_engine=False,
        normalization=config.normalization,
        vp_stage=vp_stage,
        pp_rank=pp_rank,
    )
