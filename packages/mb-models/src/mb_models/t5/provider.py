"""T5 models: provider, batches and forward step.

Shapes: B pairs of a microbatch, E tokens of the encoder's input, D tokens of the decoder's output.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from importlib.util import find_spec
from typing import Protocol

import torch
from megatron.core.models.T5.t5_model import T5Model
from megatron.core.models.T5.t5_spec import (
    get_t5_decoder_with_transformer_engine_block_spec,
    get_t5_encoder_with_transformer_engine_block_spec,
)
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import get_attr_wrapped_model

from mb_models.config import TransformerFields
from mb_models.evaluation.metrics import ComputeMetrics, recorded_logits, with_metrics
from mb_models.gpt.transformer import reject_violations, transformer_config
from mb_models.provider import ModelProvider
from mb_models.t5.config import T5ModelConfig
from mb_models.training.batches import next_microbatch, to_device
from mb_models.training.forward_step import NO_SCHEDULE_PLAN, Loss, masked_next_token_loss

KEYS = ("text_enc", "text_dec", "labels", "loss_mask", "enc_mask")
"""Keys of a microbatch, as named by Megatron's T5 dataset."""


class T5LayerSpec(Protocol):
    """Specification of the modules that make up the layers of encoder and decoder."""

    def __call__(
        self, config: TransformerConfig, /, *, vp_stage: int | None, pp_rank: int | None
    ) -> tuple[TransformerBlockSubmodules, TransformerBlockSubmodules]:
        """Return the layers of the encoder and of the decoder; the first layer of each is used for all."""


class T5ModelProvider(ModelProvider[T5ModelConfig, T5LayerSpec, T5Model]):
    """Builder of a T5 under explicit groups, on one pipeline stage; `transformer` is the decoder's configuration."""

    def _transformer_config(self) -> TransformerConfig:
        return t5_transformer_config(self.config, device=self.device)

    def _build(
        self,
        *,
        pre_process: bool,
        post_process: bool,
        vp_stage: int | None,
        groups: ProcessGroupCollection,
    ) -> T5Model:
        config, encoder = self.config, copy.deepcopy(self.transformer)
        encoder.num_layers = config.encoder_num_layers or config.num_layers
        specs = self._layer_spec(self.transformer, vp_stage=vp_stage, pp_rank=groups.pp.rank())
        return T5Model(
            **self._arguments(pre_process=pre_process, post_process=post_process, groups=groups),
            encoder_config=encoder,
            transformer_encoder_layer_spec=_repeated(specs[0], encoder.num_layers),
            transformer_decoder_layer_spec=_repeated(specs[1], config.num_layers),
            max_sequence_length=config.max_position_embeddings
            or max(config.seq_length, config.decoder_seq_length),
            position_embedding_type=config.position_embedding_type,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class T5ForwardStep:
    """Callable forward step; `inspect_loss` receives every microbatch's loss sum."""

    inspect_loss: Callable[[torch.Tensor], None] | None = None
    compute_metrics: ComputeMetrics | None = None
    """Metrics of the user, logged with the losses of evaluations; see `GPTForwardStep`."""

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
            ValueError: `return_schedule_plan` is set.
        """
        if return_schedule_plan:
            raise ValueError(NO_SCHEDULE_PLAN.format("a T5"))
        microbatch = next_microbatch(
            data_iterator, KEYS, reader="a T5 reads and writes", remedy="Use a dataset for T5."
        )
        batch = to_device(microbatch, KEYS, device=next(model.parameters()).device)
        chunk = get_attr_wrapped_model(model, "encoder", return_model_obj=True)
        kernels = chunk.config.transformer_impl == "transformer_engine"
        masks = kernel_masks(batch) if kernels else attention_masks(batch)
        compute_metrics = None if model.training else self.compute_metrics
        with recorded_logits(chunk, needed=compute_metrics is not None) as logits:
            losses = model(batch["text_enc"], batch["text_dec"], *masks, lm_labels=batch["labels"])
        loss_function: Callable[[torch.Tensor], Loss] = partial(
            masked_next_token_loss, batch["loss_mask"], inspect_loss=self.inspect_loss
        )
        if compute_metrics is not None:
            loss_function = with_metrics(
                loss_function,
                compute_metrics,
                labels_BS=batch["labels"],
                loss_mask_BS=batch["loss_mask"],
                logits=logits,
            )
        return losses, loss_function


def attention_masks(batch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return masks of encoder [B, 1, E, E], decoder [B, 1, D, D] and cross-attention [B, 1, D, E]; True is masked."""
    padding_B11E = (batch["enc_mask"] == 0)[:, None, None]
    (pairs, encoder_length), decoder_length = batch["text_enc"].shape, batch["text_dec"].size(1)
    later_DD = torch.ones(decoder_length, decoder_length, dtype=torch.bool, device=padding_B11E.device).triu(
        1
    )
    return (
        padding_B11E.expand(pairs, 1, encoder_length, encoder_length),
        later_DD.expand(pairs, 1, decoder_length, decoder_length),
        padding_B11E.expand(pairs, 1, decoder_length, encoder_length),
    )


def kernel_masks(
    batch: Mapping[str, torch.Tensor],
) -> tuple[torch.Tensor, None, tuple[torch.Tensor, torch.Tensor]]:
    """Return the same masks in the form of Transformer Engine (1.10 and later), by key and query instead of by pair.

    The encoder's mask is [B, 1, 1, E]. The decoder, whose layers are causal, has none. Cross-attention has a mask of
    queries, [B, 1, 1, D], which masks none (the decoder's padding does not count in the loss), and of keys, [B, 1, 1,
    E].
    """
    padding_B11E = (batch["enc_mask"] == 0)[:, None, None]
    queries_B11D = torch.zeros_like(batch["text_dec"], dtype=torch.bool)[:, None, None]
    return padding_B11E, None, (queries_B11D, padding_B11E)


def t5_transformer_config(config: T5ModelConfig, *, device: torch.device) -> TransformerConfig:
    """Build Megatron's configuration of the decoder; the encoder's differs in its number of layers.

    Raises:
        ModelConfigError: as `mb_models.transformer_config`, or a rule on T5 sections is violated.
    """
    reject_violations(config, device=device)
    shared = {item.name: getattr(config, item.name) for item in fields(TransformerFields)}
    return transformer_config(TransformerFields(**shared), device=device)


def _repeated(block: TransformerBlockSubmodules, layers: int) -> TransformerBlockSubmodules:
    return TransformerBlockSubmodules(
        layer_specs=[block.layer_specs[0]] * layers, layer_norm=block.layer_norm
    )


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
