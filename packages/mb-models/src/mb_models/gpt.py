"""Build a Megatron Core GPT from its section: one model chunk, or all chunks of a pipeline rank."""

from typing import Protocol

import torch
from megatron.core import tensor_parallel
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.transformer_config import TransformerConfig

from mb_models.config import GPTModelConfig
from mb_models.transformer import transformer_config
from mb_models.vocab import model_vocab_size


class LayerSpec(Protocol):
    """Says which modules make up the layers of a chunk, as a ModuleSpec or TransformerBlockSubmodules."""

    def __call__(self, config: TransformerConfig, /, *, vp_stage: int | None, pp_rank: int | None) -> object:
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
        embedding group: every rank builds its chunks in the same order.
        """
        groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups()
        config = self.config
        chunk = GPTModel(
            config=self.transformer,
            transformer_layer_spec=self._layer_spec(
                self.transformer, vp_stage=vp_stage, pp_rank=groups.pp.rank()
            ),
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
        `mb_models.wrap.wrap_ddp`.
        """
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
