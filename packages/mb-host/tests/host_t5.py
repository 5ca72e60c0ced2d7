"""Small T5, trained on each rank by the parity tests."""

import copy
import dataclasses

import torch
from host_gpt import SEQUENCE, VOCABULARY, Trainer, model_config, sum_loss
from host_gpt import train as train_any
from host_gpt import write_start as write_start_of_any
from host_layouts import Curve, Layout
from megatron.core.models.T5.t5_model import T5Model
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.transformer_config import TransformerConfig

from mb_host.megatron.t5 import host_t5_spec


class T5Trainer(Trainer):
    """Model, optimizer and step of one rank; the encoder reads tokens, the decoder predicts the following ones."""

    def _build_config(self) -> TransformerConfig:
        config = model_config(dataclasses.replace(self.layout, experts=None))
        config.num_query_groups = config.num_attention_heads  # cross-attention does not support query groups
        return config

    def _build_chunk(self, vp_stage: int) -> torch.nn.Module:
        encoder, decoder = host_t5_spec(self.config)
        model = T5Model(
            config=self.config,
            encoder_config=copy.deepcopy(self.config),
            transformer_encoder_layer_spec=encoder,
            transformer_decoder_layer_spec=decoder,
            vocab_size=VOCABULARY,
            max_sequence_length=SEQUENCE,
            position_embedding_type="rope",
            share_embeddings_and_output_weights=True,
            pg_collection=ProcessGroupCollection.use_mpu_process_groups(),
        )
        return model.cuda(torch.cuda.current_device())

    def _forward(self, batches, model):
        batch = next(batches)
        (pairs, length), blank = batch["tokens"].shape, torch.zeros_like(batch["tokens"])
        seen = torch.zeros(pairs, 1, length, length, dtype=torch.bool)
        future = torch.ones(length, length, dtype=torch.bool).triu(1).expand_as(seen)
        return model(batch["tokens"], blank, seen, future, seen, lm_labels=batch["labels"]), sum_loss


def write_start(folder: str, layout: Layout) -> None:
    """Save the initial weights."""
    write_start_of_any(folder, layout, T5Trainer)


def train(folder: str, layout: Layout, steps: int) -> Curve:
    """Train from the weights in `folder`."""
    return train_any(folder, layout, steps, T5Trainer)
