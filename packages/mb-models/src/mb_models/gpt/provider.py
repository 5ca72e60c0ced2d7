"""Provider of Megatron Core GPT models: one chunk, or all chunks of a pipeline rank."""

from dataclasses import fields
from typing import Protocol

from megatron.core.models.gpt.gpt_layer_specs import get_gpt_mtp_block_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.multi_token_prediction import MultiTokenPredictionBlockSubmodules
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig

from mb_models.config import GPTModelConfig
from mb_models.errors import ModelConfigError
from mb_models.gpt.layer_variants import (
    apply_layer_variants,
    scale_embedding,
    scale_logits,
    use_local_rotation,
    use_uncompressed_queries,
)
from mb_models.gpt.transformer import transformer_config
from mb_models.gpt.variant_fields import LayerVariantFields
from mb_models.provider import ModelProvider, drop_unused_output_weight


class LayerSpec(Protocol):
    """Specification of the modules that make up the layers of a chunk."""

    def __call__(
        self, config: TransformerConfig, /, *, vp_stage: int | None, pp_rank: int | None
    ) -> TransformerBlockSubmodules:
        """Return the layers of one virtual stage (None: not interleaved) on pipeline rank `pp_rank`."""


class GPTModelProvider(ModelProvider[GPTModelConfig, LayerSpec, GPTModel]):
    """Builder of GPT chunks that share one TransformerConfig, under explicit process groups.

    Layers of multi-token prediction are built like the last layer of the model, and their norms like its final norm.
    """

    def _transformer_config(self) -> TransformerConfig:
        return transformer_config(self.config, device=self.device)

    def _build(
        self,
        *,
        pre_process: bool,
        post_process: bool,
        vp_stage: int | None,
        groups: ProcessGroupCollection,
    ) -> GPTModel:
        config = self.config
        layers = self._layer_spec(self.transformer, vp_stage=vp_stage, pp_rank=groups.pp.rank())
        if [item for item in fields(LayerVariantFields) if getattr(config, item.name) != item.default]:
            layers = apply_layer_variants(layers, config, config=self.transformer, tp_group=groups.tp)
        use_uncompressed_queries(layers, self.transformer)
        chunk = GPTModel(
            **self._arguments(pre_process=pre_process, post_process=post_process, groups=groups),
            transformer_layer_spec=layers,
            mtp_block_spec=self._prediction(layers, vp_stage=vp_stage, groups=groups),
            max_sequence_length=config.max_position_embeddings or config.seq_length,
            position_embedding_type=config.position_embedding_type,
            rotary_base=config.rotary_base,
            rope_scaling=config.rope_scaling,
            rope_scaling_factor=config.rope_scaling_factor,
            vp_stage=vp_stage,
        )
        if config.position_embedding_type == "yarn":
            _require_partial_rotation(chunk, config.rotary_percent)
        if config.rotary_base_local is not None:
            use_local_rotation(chunk, config, groups=groups)
        if config.embedding_multiplier != 1.0:
            scale_embedding(chunk, config.embedding_multiplier)
        if config.logits_multiplier != 1.0 or config.final_logit_softcapping is not None:
            scale_logits(chunk, config.logits_multiplier, cap=config.final_logit_softcapping)
        self._exclude_padding(chunk, config.unpadded_vocab_size, groups=groups)
        drop_unused_output_weight(chunk)
        return chunk

    def _prediction(
        self, layers: TransformerBlockSubmodules, *, vp_stage: int | None, groups: ProcessGroupCollection
    ) -> MultiTokenPredictionBlockSubmodules | None:
        """Return the layers of multi-token prediction on this stage, or None."""
        if not self.transformer.mtp_num_layers:
            return None
        pp_rank = groups.pp.rank()
        last = self._with_last_layer(layers, vp_stage=vp_stage, pp_rank=pp_rank)
        use_uncompressed_queries(last, self.transformer)
        block = get_gpt_mtp_block_spec(
            self.transformer,
            apply_layer_variants(last, self.config, config=self.transformer, tp_group=groups.tp),
            use_transformer_engine=self.transformer.transformer_impl == "transformer_engine",
            vp_stage=vp_stage,
            pp_rank=pp_rank,
        )
        for spec in block.layer_specs if block else ():
            parts = spec.submodules
            parts.enorm = parts.hnorm = parts.layer_norm = layers.layer_norm
        return block

    def _with_last_layer(
        self, layers: TransformerBlockSubmodules, *, vp_stage: int | None, pp_rank: int
    ) -> TransformerBlockSubmodules:
        """Return the layers of this stage or, if a layout assigns it none, those of the nearest previous stage."""
        stages, number = self.transformer.pipeline_model_parallel_size, (vp_stage or 0)
        position = number * stages + pp_rank
        while not layers.layer_specs and position > 0:
            position -= 1
            previous = None if vp_stage is None else position // stages
            layers = self._layer_spec(self.transformer, vp_stage=previous, pp_rank=position % stages)
        return layers


def _require_partial_rotation(chunk: GPTModel, share: float) -> None:
    """Reject a Megatron Core whose YaRN rotates whole heads, whatever the share of them is."""
    width, rotated = int(chunk.config.kv_channels * share), chunk.rotary_pos_emb.dim
    if rotated != width:
        raise ModelConfigError(
            [
                f"model.rotary_percent: is {share}, but YaRN rotates {rotated} channels of a head instead of {width}, "
                "because this Megatron Core ignores it. Call mb_guard.install() (package mb-guard) before Megatron "
                "Core is imported, or set rotary_percent=1."
            ]
        )
