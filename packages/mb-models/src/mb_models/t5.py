"""Build a T5 from its section, and train it: provider, batches and forward step.

Shapes: B pairs of a microbatch, E tokens that the encoder reads, D tokens that the decoder writes.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Protocol

import torch
from megatron.core import tensor_parallel
from megatron.core.models.T5.t5_model import T5Model
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import get_attr_wrapped_model

from mb_models.batches import BatchError
from mb_models.config import TransformerFields
from mb_models.forward_step import Loss, masked_next_token_loss
from mb_models.kernels import gpu_only_settings
from mb_models.rules import BUILD_RULES, ModelConfigError, broken_rules
from mb_models.t5_config import T5ModelConfig
from mb_models.transformer import transformer_config
from mb_models.vocab import model_vocab_size

KEYS = ("text_enc", "text_dec", "labels", "loss_mask", "enc_mask")
"""What a microbatch holds, as Megatron's T5 dataset names it."""


class T5LayerSpec(Protocol):
    """Says which modules make up the layers of encoder and decoder."""

    def __call__(
        self, config: TransformerConfig, /, *, vp_stage: int | None, pp_rank: int | None
    ) -> tuple[TransformerBlockSubmodules, TransformerBlockSubmodules]:
        """Return the layers of the encoder and of the decoder; the first layer of each stands for all."""


class T5ModelProvider:
    """Builds a T5 under explicit process groups, on one pipeline stage.

    Attributes:
        config: the section, unchanged.
        transformer: Megatron's configuration of the decoder; the trainer sets its run-time hooks.
        vocab_size: rows of the embedding over all ranks, padding included.
        device: where parameters are.
    """

    def __init__(
        self,
        config: T5ModelConfig,
        *,
        layer_spec: T5LayerSpec,
        device: torch.device,
        tokenizer_vocab_size: int | None = None,
    ) -> None:
        self.config = config
        self.device = device
        self.transformer = t5_transformer_config(config, device=device)
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
        pre_process: bool = True,
        post_process: bool = True,
        vp_stage: int | None = None,
        pg_collection: ProcessGroupCollection | None = None,
    ) -> T5Model:
        """Build the model. Initial weights come from Megatron's random-state tracker, which the caller has seeded."""
        groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups()
        config, encoder = self.config, copy.deepcopy(self.transformer)
        encoder.num_layers = config.encoder_num_layers or config.num_layers
        specs = self._layer_spec(self.transformer, vp_stage=vp_stage, pp_rank=groups.pp.rank())
        model = T5Model(
            config=self.transformer,
            encoder_config=encoder,
            transformer_encoder_layer_spec=_repeated(specs[0], encoder.num_layers),
            transformer_decoder_layer_spec=_repeated(specs[1], config.num_layers),
            vocab_size=self.vocab_size,
            max_sequence_length=config.max_position_embeddings
            or max(config.seq_length, config.decoder_seq_length),
            pre_process=pre_process,
            post_process=post_process,
            fp16_lm_cross_entropy=config.fp16_lm_cross_entropy,
            parallel_output=config.parallel_output,
            share_embeddings_and_output_weights=config.share_embeddings_and_output_weights,
            position_embedding_type=config.position_embedding_type,
            rotary_percent=config.rotary_percent,
            seq_len_interpolation_factor=config.seq_len_interpolation_factor,
            pg_collection=groups,
        )
        for parameter in model.parameters():
            tensor_parallel.set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
        return model.to(self.device)

    def provide_chunks(self, pg_collection: ProcessGroupCollection | None = None) -> list[T5Model]:
        """Build this rank's one chunk. All ranks of the model call it."""
        return [self.provide(pg_collection=pg_collection)]


@dataclass(frozen=True, slots=True, kw_only=True)
class T5ForwardStep:
    """Callable forward step; `inspect_loss` sees every microbatch's loss sum."""

    inspect_loss: Callable[[torch.Tensor], None] | None = None

    def __call__(
        self,
        data_iterator: Iterator[Mapping[str, torch.Tensor]] | None,
        model: torch.nn.Module,
        return_schedule_plan: bool = False,
    ) -> tuple[torch.Tensor, Callable[[torch.Tensor], Loss]]:
        """Run one microbatch: token losses, shape [B, D], and the loss function for them.

        A microbatch holds `text_enc` [B, E], `enc_mask` [B, E] (1: a token, 0: padding), and `text_dec`, `labels` and
        `loss_mask` [B, D]. Encoder and cross-attention see all tokens, the decoder its past.

        Raises:
            BatchError: there is no iterator, or a key is missing.
        """
        batch = t5_batch(data_iterator, device=next(model.parameters()).device)
        chunk = get_attr_wrapped_model(model, "encoder", return_model_obj=True)
        kernels = chunk.config.transformer_impl == "transformer_engine"
        masks = kernel_masks(batch) if kernels else attention_masks(batch)
        losses = model(batch["text_enc"], batch["text_dec"], *masks, lm_labels=batch["labels"])
        return losses, partial(masked_next_token_loss, batch["loss_mask"], inspect_loss=self.inspect_loss)


def t5_batch(
    data_iterator: Iterator[Mapping[str, torch.Tensor]] | None, *, device: torch.device
) -> dict[str, torch.Tensor]:
    """Take the next microbatch to the device.

    Raises:
        BatchError: there is no iterator, or a key is missing.
        StopIteration: the iterator has run out.
    """
    if data_iterator is None:
        raise BatchError("batch: no data iterator, because a T5 is one stage. Give every rank an iterator.")
    whole = next(data_iterator)
    missing = [key for key in KEYS if key not in whole]
    if missing:
        raise BatchError(
            f"batch: lacks {', '.join(missing)} (it has {', '.join(whole)}), because a T5 reads and writes. "
            "Use a dataset for T5."
        )
    return {key: whole[key].to(device, non_blocking=True) for key in KEYS}


def attention_masks(batch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the masks of encoder [B, 1, E, E], decoder [B, 1, D, D] and between them [B, 1, D, E]: True is hidden."""
    padding_B11E = (batch["enc_mask"] == 0)[:, None, None]
    (pairs, read), written = batch["text_enc"].shape, batch["text_dec"].size(1)
    later_DD = torch.ones(written, written, dtype=torch.bool, device=padding_B11E.device).triu(1)
    return (
        padding_B11E.expand(pairs, 1, read, read),
        later_DD.expand(pairs, 1, written, written),
        padding_B11E.expand(pairs, 1, written, read),
    )


def kernel_masks(
    batch: Mapping[str, torch.Tensor],
) -> tuple[torch.Tensor, None, tuple[torch.Tensor, torch.Tensor]]:
    """Return the same masks as Transformer Engine (1.10 and later) takes them, by key and query instead of by pair.

    The encoder's, [B, 1, 1, E]; none for the decoder, whose layers are causal; between them those of queries,
    [B, 1, 1, D], none of which is hidden (what the decoder's padding writes is not counted), and of keys, [B, 1, 1, E].
    """
    padding_B11E = (batch["enc_mask"] == 0)[:, None, None]
    queries_B11D = torch.zeros_like(batch["text_dec"], dtype=torch.bool)[:, None, None]
    return padding_B11E, None, (queries_B11D, padding_B11E)


def t5_transformer_config(config: T5ModelConfig, *, device: torch.device) -> TransformerConfig:
    """Build Megatron's configuration of the decoder; the encoder's differs in its number of layers.

    Raises:
        ModelConfigError: as `mb_models.transformer_config`, and where a rule on T5 sections is broken.
    """
    replaced = {} if device.type == "cuda" else gpu_only_settings(config)
    section = {item.name: getattr(config, item.name) for item in fields(config)} | replaced
    problems = broken_rules(BUILD_RULES, {f"model.{name}": value for name, value in section.items()})
    if problems:
        raise ModelConfigError(problems)
    shared = {item.name: getattr(config, item.name) for item in fields(TransformerFields)}
    return transformer_config(TransformerFields(**shared), device=device)


def _repeated(block: TransformerBlockSubmodules, layers: int) -> TransformerBlockSubmodules:
    return TransformerBlockSubmodules(
        layer_specs=[block.layer_specs[0]] * layers, layer_norm=block.layer_norm
    )
