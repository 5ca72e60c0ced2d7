"""Build a Megatron Core GPT from its section: one model chunk, or all chunks of a pipeline rank."""

from typing import Protocol

import torch
from megatron.core import tensor_parallel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_mtp_block_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.moe.moe_logging import destroy_moe_metrics_tracker
from megatron.core.transformer.multi_token_prediction import (
    MTPLossLoggingHelper,
    MultiTokenPredictionBlockSubmodules,
)
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig

from mb_models.config import GPTModelConfig
from mb_models.transformer import transformer_config
from mb_models.vocab import model_vocab_size


class LayerSpec(Protocol):
    """Says which modules make up the layers of a chunk."""

    def __call__(
        self, config: TransformerConfig, /, *, vp_stage: int | None, pp_rank: int | None
    ) -> TransformerBlockSubmodules:
        """Return the layers of one virtual stage (None: not interleaved) on pipeline rank `pp_rank`."""


class GPTModelProvider:
    """Builds GPT chunks that share one TransformerConfig, under explicit process groups.

    Attributes:
        config: the section, unchanged.
        transformer: Megatron's configuration; the trainer sets its run-time hooks (grad_scale_func, no_sync_func, ...).
        vocab_size: rows of the embedding over all ranks, padding included.
        device: where parameters are.
    """

    def __init__(
        self,
        config: GPTModelConfig,
        *,
        layer_spec: LayerSpec,
        device: torch.device,
        tokenizer_vocab_size: int | None = None,
    ) -> None:
        self.config = config
        self.device = device
        self.transformer = transformer_config(config, device=device)
        self.vocab_size = model_vocab_size(
            config.vocab_size,
            tokenizer_vocab_size=tokenizer_vocab_size,
            divisible_by=config.make_vocab_size_divisible_by,
            tensor_parallel_size=config.tensor_model_parallel_size,
        )
        self._layer_spec = layer_spec

    def provide(
        self,
        *,
        pre_process: bool,
        post_process: bool,
        vp_stage: int | None = None,
        pg_collection: ProcessGroupCollection | None = None,
    ) -> GPTModel:
        """Build one chunk, with the embedding if `pre_process` and the output layer if `post_process`.

        Initial weights come from Megatron's random-state tracker, which the caller has seeded. Without
        `pg_collection` the groups are those of Megatron's parallel_state. With tied embeddings, collective over the
        embedding group: every rank builds its chunks in the same order. Layers of multi-token prediction are like the
        last layer of the model, and their norms like its last norm; where they stand, Megatron reads from
        parallel_state.
        """
        groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups()
        config = self.config
        layers = self._layer_spec(self.transformer, vp_stage=vp_stage, pp_rank=groups.pp.rank())
        chunk = GPTModel(
            config=self.transformer,
            transformer_layer_spec=layers,
            mtp_block_spec=self._prediction(layers, vp_stage=vp_stage, pp_rank=groups.pp.rank()),
            vocab_size=self.vocab_size,
            max_sequence_length=config.max_position_embeddings or config.seq_length,
            pre_process=pre_process,
            post_process=post_process,
            fp16_lm_cross_entropy=config.fp16_lm_cross_entropy,
            parallel_output=config.parallel_output,
            share_embeddings_and_output_weights=config.share_embeddings_and_output_weights,
            position_embedding_type=config.position_embedding_type,
            rotary_percent=config.rotary_percent,
            rotary_base=config.rotary_base,
            rope_scaling=config.rope_scaling,
            rope_scaling_factor=config.rope_scaling_factor,
            seq_len_interpolation_factor=config.seq_len_interpolation_factor,
            pg_collection=groups,
            vp_stage=vp_stage,
        )
        for parameter in chunk.parameters():
            tensor_parallel.set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
        return chunk.to(self.device)

    def provide_chunks(self, pg_collection: ProcessGroupCollection | None = None) -> list[GPTModel]:
        """Build this rank's chunks in the order of their virtual stages: one without interleaving.

        All ranks of the model call it. Hooks that change modules (heads, adapters) go between this and
        `mb_models.wrap.wrap_ddp`. What routers and predictions of an earlier model of this process measured is
        forgotten: Megatron keeps it in process-wide arrays of that model's size.
        """
        destroy_moe_metrics_tracker()
        MTPLossLoggingHelper.tracker.clear()
        groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups()
        first, last = groups.pp.rank() == 0, groups.pp.rank() == groups.pp.size() - 1
        stages = self.transformer.virtual_pipeline_model_parallel_size
        if stages is None:
            return [self.provide(pre_process=first, post_process=last, pg_collection=groups)]
        return [
            self.provide(
                pre_process=first and stage == 0,
                post_process=last and stage == stages - 1,
                vp_stage=stage,
                pg_collection=groups,
            )
            for stage in range(stages)
        ]

    def _prediction(
        self, layers: TransformerBlockSubmodules, *, vp_stage: int | None, pp_rank: int
    ) -> MultiTokenPredictionBlockSubmodules | None:
        """Return the layers of multi-token prediction that stand here; None: there are none."""
        if not self.transformer.mtp_num_layers:
            return None
        block = get_gpt_mtp_block_spec(
            self.transformer,
            self._with_last_layer(layers, vp_stage=vp_stage, pp_rank=pp_rank),
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
        """Return the layers here or, where a layout leaves this stage none, those of the nearest stage before it."""
        stages, number = self.transformer.pipeline_model_parallel_size, (vp_stage or 0)
        place = number * stages + pp_rank
        while not layers.layer_specs and place > 0:
            place -= 1
            before = None if vp_stage is None else place // stages
            layers = self._layer_spec(self.transformer, vp_stage=before, pp_rank=place % stages)
        return layers
