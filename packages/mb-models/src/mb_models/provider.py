"""Base class of the providers of all model families."""

from abc import ABC, abstractmethod
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import torch
from megatron.core import tensor_parallel
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.moe.moe_logging import destroy_moe_metrics_tracker
from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper
from megatron.core.transformer.transformer_config import TransformerConfig

from mb_models.training.chunks import build_chunks
from mb_models.training.vocab import model_vocab_size


class LanguageModelSection(Protocol):
    """Fields that the section of every language model has."""

    vocab_size: int | None
    make_vocab_size_divisible_by: int
    tensor_model_parallel_size: int
    fp16_lm_cross_entropy: bool
    parallel_output: bool
    share_embeddings_and_output_weights: bool
    rotary_percent: float
    seq_len_interpolation_factor: float | None


Section = TypeVar("Section", bound=LanguageModelSection)
Layers = TypeVar("Layers")
Chunk = TypeVar("Chunk", bound=torch.nn.Module)


class ModelProvider(ABC, Generic[Section, Layers, Chunk]):
    """Builder of chunks that share one TransformerConfig, under explicit groups; a family implements two methods.

    Attributes:
        config: the section, unmodified.
        transformer: Megatron's configuration; the trainer sets its run-time hooks (grad_scale_func, no_sync_func, ...).
        vocab_size: rows of the embedding over all ranks, padding included.
        device: device of the parameters.
    """

    def __init__(
        self,
        config: Section,
        *,
        layer_spec: Layers,
        device: torch.device,
        tokenizer_vocab_size: int | None = None,
    ) -> None:
        self.config = config
        self.device = device
        self.transformer = self._transformer_config()
        self.vocab_size = model_vocab_size(
            config.vocab_size,
            tokenizer_vocab_size=tokenizer_vocab_size,
            divisible_by=config.make_vocab_size_divisible_by,
            tensor_parallel_size=config.tensor_model_parallel_size,
        )
        self._layer_spec = layer_spec
        self._tokenizer_vocab_size = tokenizer_vocab_size or 0

    @abstractmethod
    def _transformer_config(self) -> TransformerConfig:
        """Build Megatron's configuration of the section, for the device."""

    @abstractmethod
    def _build(
        self,
        *,
        pre_process: bool,
        post_process: bool,
        vp_stage: int | None,
        groups: ProcessGroupCollection,
    ) -> Chunk:
        """Build one chunk; its parameters may be on any device."""

    def provide(
        self,
        *,
        pre_process: bool,
        post_process: bool,
        vp_stage: int | None = None,
        pg_collection: ProcessGroupCollection | None = None,
    ) -> Chunk:
        """Build one chunk, with the embedding if `pre_process` and the output layer if `post_process`.

        Initial weights come from Megatron's random-state tracker, which the caller has seeded. Without
        `pg_collection` the groups are those of Megatron's parallel_state; a chunk with layers of multi-token prediction
        reads from parallel_state in any case. With tied embeddings, collective over the embedding
        group: every rank builds its chunks in the same order.
        """
        groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups()
        chunk = self._build(
            pre_process=pre_process, post_process=post_process, vp_stage=vp_stage, groups=groups
        )
        for parameter in chunk.parameters():
            tensor_parallel.set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
        copy_outputs_of_biased_experts(chunk)
        return chunk.to(self.device)

    def provide_chunks(self, pg_collection: ProcessGroupCollection | None = None) -> list[Chunk]:
        """Build this rank's chunks in the order of their virtual stages; without interleaving, a single chunk.

        All ranks of the model call it. Hooks that modify modules (heads, adapters) are called between this method and
        `wrap_ddp`. Clears the router and prediction metrics of previous models in this process, because
        Megatron keeps them in process-wide arrays with the size of that model.
        """
        destroy_moe_metrics_tracker()
        MTPLossLoggingHelper.tracker.clear()
        vp_size = self.transformer.virtual_pipeline_model_parallel_size
        return build_chunks(self.provide, vp_size=vp_size, pg_collection=pg_collection)

    def _exclude_padding(
        self, chunk: Any, unpadded_vocab_size: int | None, *, groups: ProcessGroupCollection
    ) -> None:
        """Give the rows of the output layer beyond the vocabulary no probability; None: there are none.

        A row with a token of the tokenizer remains, such as one of a special token that was added to it.
        """
        if unpadded_vocab_size is not None and chunk.post_process:
            tokens = max(unpadded_vocab_size, self._tokenizer_vocab_size)
            chunk.output_layer.register_forward_hook(partial(_without_padding, tokens, groups.tp.rank()))

    def _arguments(
        self, *, pre_process: bool, post_process: bool, groups: ProcessGroupCollection
    ) -> dict[str, Any]:
        """Return the arguments that all of Megatron's language models take."""
        config = self.config
        return {
            "config": self.transformer,
            "vocab_size": self.vocab_size,
            "pre_process": pre_process,
            "post_process": post_process,
            "fp16_lm_cross_entropy": config.fp16_lm_cross_entropy,
            "parallel_output": config.parallel_output,
            "share_embeddings_and_output_weights": config.share_embeddings_and_output_weights,
            "rotary_percent": config.rotary_percent,
            "seq_len_interpolation_factor": config.seq_len_interpolation_factor,
            "pg_collection": groups,
        }


def _without_padding(
    tokens: int, tp_rank: int, layer: Any, _inputs: object, output: tuple[torch.Tensor, object]
) -> tuple[torch.Tensor, object]:
    """Set the logits of padding to the lowest finite number; kernels of the loss may turn infinity into NaN."""
    logits, bias = output
    rows = logits.shape[-1]
    is_part = rows < layer.output_size  # not gathered
    padding = logits[..., max(0, tokens - is_part * tp_rank * rows) :]
    if padding.shape[-1]:
        padding.fill_(torch.finfo(logits.dtype).min)
    return logits, bias


def copy_outputs_of_biased_experts(chunk: torch.nn.Module) -> None:
    """Copy the output of each local expert with a bias.

    Megatron's MLP adds the bias in place, and autograd protects the output of its linear layers.
    """
    for name, module in chunk.named_modules():
        local = ".local_experts." in name and isinstance(module, tensor_parallel.RowParallelLinear)
        if local and module.bias is not None:
            module.register_forward_hook(_copied)


def _copied(
    _module: torch.nn.Module, _inputs: object, answer: tuple[torch.Tensor, object]
) -> tuple[torch.Tensor, object]:
    return answer[0].clone(), answer[1]


def drop_unused_output_weight(chunk: Any) -> None:
    """Set the output layer's weight of a GPT or hybrid to None if it computes with a copy of the embedding instead.

    This is so on a last stage with tied embeddings and multi-token prediction, which has both. Megatron Core never uses
    the output layer's own weight, and rejects a chunk that has it when saving.
    """
    ahead = chunk.post_process and not chunk.pre_process and chunk.mtp_process
    if ahead and chunk.share_embeddings_and_output_weights:
        chunk.output_layer.weight = None
