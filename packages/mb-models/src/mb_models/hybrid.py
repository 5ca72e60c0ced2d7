"""Build a hybrid model from its section: one chunk, or all chunks of a pipeline rank."""

from dataclasses import fields
from importlib.util import find_spec

import torch
from megatron.core import tensor_parallel
from megatron.core.models.hybrid.hybrid_model import HybridModel
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import scaled_init_method_normal

from mb_models.chunks import StackSpec, chunks_of_rank
from mb_models.config import TransformerFields
from mb_models.forward_step import GPTForwardStep
from mb_models.hybrid_config import GatedDeltaFields, MambaModelConfig, StateSpaceFields, layers_ahead
from mb_models.kernels import gpu_only_settings
from mb_models.rules import BUILD_RULES, ModelConfigError, broken_rules
from mb_models.transformer import transformer_config
from mb_models.vocab import model_vocab_size


class MambaModelProvider:
    """Builds hybrid chunks that share one TransformerConfig, under explicit process groups.

    Attributes:
        config: the section, unchanged.
        transformer: Megatron's configuration; the trainer sets its run-time hooks (grad_scale_func, no_sync_func, ...).
        vocab_size: rows of the embedding over all ranks, padding included.
        device: where parameters are.
    """

    def __init__(
        self,
        config: MambaModelConfig,
        *,
        layer_spec: StackSpec,
        device: torch.device,
        tokenizer_vocab_size: int | None = None,
    ) -> None:
        self.config = config
        self.device = device
        self.transformer = hybrid_transformer_config(config, device=device)
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
    ) -> HybridModel:
        """Build one chunk, with the embedding if `pre_process` and the output layer if `post_process`.

        Initial weights come from Megatron's random-state tracker, which the caller has seeded. Without
        `pg_collection` the groups are those of Megatron's parallel_state; a pattern that predicts further tokens
        reads parallel_state in any case, because Megatron looks there for the last stage.
        """
        groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups()
        config = self.config
        chunk = HybridModel(
            config=self.transformer,
            hybrid_stack_spec=self._layer_spec(self.transformer, vp_stage=vp_stage, pp_rank=groups.pp.rank()),
            vocab_size=self.vocab_size,
            max_sequence_length=config.max_position_embeddings or config.seq_length,
            hybrid_layer_pattern=config.hybrid_layer_pattern,
            pre_process=pre_process,
            post_process=post_process,
            fp16_lm_cross_entropy=config.fp16_lm_cross_entropy,
            parallel_output=config.parallel_output,
            share_embeddings_and_output_weights=config.share_embeddings_and_output_weights,
            position_embedding_type=config.position_embedding_type,
            rotary_percent=config.rotary_percent,
            rotary_base=config.rotary_base,
            seq_len_interpolation_factor=config.seq_len_interpolation_factor,
            pg_collection=groups,
            vp_stage=vp_stage,
        )
        for parameter in chunk.parameters():
            tensor_parallel.set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
        return chunk.to(self.device)

    def provide_chunks(self, pg_collection: ProcessGroupCollection | None = None) -> list[HybridModel]:
        """Build this rank's chunks in the order of their virtual stages: one without interleaving.

        All ranks of the model call it.
        """
        stages = self.transformer.virtual_pipeline_model_parallel_size
        return chunks_of_rank(self.provide, stages=stages, pg_collection=pg_collection)


HybridModelProvider = MambaModelProvider
"""The same provider by the name that Megatron Core now gives the family."""

MambaForwardStep = GPTForwardStep
"""Hybrid chunks take the same batches as GPT chunks, and return the same losses."""

HybridForwardStep = GPTForwardStep
"""The same by the other name of the family."""


def hybrid_transformer_config(config: MambaModelConfig, *, device: torch.device) -> TransformerConfig:
    """Build Megatron's configuration of a hybrid model from its section; the section is not changed.

    Output layers start smaller by the root of the number of layers, not of twice that: a layer here is either mixing
    or MLP.

    Raises:
        ModelConfigError: as `mb_models.transformer_config`, and where a rule on hybrid sections is broken.
    """
    replaced = {} if device.type == "cuda" else gpu_only_settings(config)
    section = {item.name: getattr(config, item.name) for item in fields(config)} | replaced
    problems = broken_rules(BUILD_RULES, {f"model.{name}": value for name, value in section.items()})
    if problems:
        raise ModelConfigError(problems)
    own, shared = (
        {item.name: getattr(config, item.name) for kind in kinds for item in fields(kind)}
        for kinds in ((StateSpaceFields, GatedDeltaFields), (TransformerFields,))
    )
    start = scaled_init_method_normal(config.init_method_std, config.num_layers, multiplier=1.0)
    extra = {"output_layer_init_method": start, **own, **config.transformer}
    transformer = transformer_config(TransformerFields(**{**shared, "transformer": extra}), device=device)
    transformer.is_hybrid_model = True
    transformer.mtp_num_layers = len(layers_ahead(config.hybrid_layer_pattern)) or None
    return transformer


def hybrid_transformer_engine_spec(
    config: TransformerConfig, /, *, vp_stage: int | None = None, pp_rank: int | None = None
) -> object:
    """Return Megatron's stack of Transformer Engine's modules; it runs on a GPU only.

    Mamba layers need mamba-ssm there, gated-delta layers flash-linear-attention.

    Raises:
        ModuleNotFoundError: Transformer Engine is not installed.
    """
    if find_spec("transformer_engine") is None:
        raise ModuleNotFoundError(
            "hybrid_transformer_engine_spec: Transformer Engine is not installed, because mb-models does not require "
            "it. Install mb-models[te], or use mb_host.hybrid.host_hybrid_spec where there is no GPU."
        )
    from megatron.core.models.hybrid.hybrid_layer_specs import hybrid_stack_spec  # noqa: PLC0415 - needs the engine

    return hybrid_stack_spec
