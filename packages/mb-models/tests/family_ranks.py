"""Functions that ranks run for `family_cases`: build, load the common checkpoint, train, return the losses."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from family_cases import FAMILIES, SHAPE, Family, FamilyCase
from megatron.core import dist_checkpointing, tensor_parallel
from megatron.core.models.common.language_module.language_module import LanguageModule
from megatron.core.process_groups_config import ProcessGroupCollection
from tiny_training import prepare, start

from mb_host.megatron.hybrid import host_hybrid_spec
from mb_host.megatron.layers import host_block_spec
from mb_host.megatron.t5 import host_t5_spec
from mb_models import (
    GPTModelConfig,
    GPTModelProvider,
    MambaModelConfig,
    MambaModelProvider,
    MimoForwardStep,
    MimoModelConfig,
    MimoModelProvider,
    T5ForwardStep,
    T5ModelConfig,
    T5ModelProvider,
    gpt_forward_step,
)
from mb_models.peft.config import KINDS

CPU = torch.device("cpu")
STEPS, GLOBAL_BATCH, MICRO_BATCH = 3, 8, 2
SHARDED = {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "bucket_size": 3000}
SECTIONS = {"gpt": GPTModelConfig, "hybrid": MambaModelConfig, "t5": T5ModelConfig, "mimo": MimoModelConfig}
PROVIDERS = {
    "gpt": (GPTModelProvider, host_block_spec),
    "hybrid": (MambaModelProvider, host_hybrid_spec),
    "t5": (T5ModelProvider, host_t5_spec),
    "mimo": (MimoModelProvider, host_block_spec),
}


def settings_of(row: FamilyCase) -> dict[str, Any]:
    """Return all fields of the section."""
    return {**SHAPE, **FAMILIES[row.family].settings, **row.model, **row.layout}


def section_of(row: FamilyCase) -> Any:
    """Return the section of a run."""
    return SECTIONS[FAMILIES[row.family].kind](**settings_of(row))


def build(row: FamilyCase, groups: ProcessGroupCollection) -> tuple[Any, list[LanguageModule]]:
    """Build this rank's chunks, with the adapters of the family."""
    family = FAMILIES[row.family]
    provider_of, layers = PROVIDERS[family.kind]
    provider = provider_of(section_of(row), layer_spec=layers, device=CPU)
    chunks = provider.provide_chunks(groups)
    if family.peft:
        KINDS[family.peft](dim=4).install(chunks)
    return provider, chunks


def write_start(row: FamilyCase, folder: str, groups: ProcessGroupCollection) -> None:
    """Save the initial weights of a model on one rank; adapters have an effect from the start."""
    tensor_parallel.model_parallel_cuda_manual_seed(1234)
    _, [chunk] = build(row, groups)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in chunk.named_parameters():
            if ".adapter." in name:
                value.add_(0.05 * torch.randn(value.shape, generator=generator))
    dist_checkpointing.save(chunk.sharded_state_dict(), folder)


def read_start(chunks: list[LanguageModule], folder: str) -> None:
    """Load the initial weights under any layout."""
    state = dist_checkpointing.load(
        {str(i): chunk.sharded_state_dict() for i, chunk in enumerate(chunks)}, folder
    )
    for number, chunk in enumerate(chunks):
        chunk.load_state_dict(state[str(number)])


def train_here(row: FamilyCase, folder: str) -> list[float]:
    """Train on this rank of several."""
    return train(row, folder, start(settings_of(row)))


def train(row: FamilyCase, folder: str, groups: ProcessGroupCollection) -> list[float]:
    """Train from the common checkpoint and return the loss of each step, or nothing on other stages."""
    family = FAMILIES[row.family]
    provider, chunks = build(row, groups)
    read_start(chunks, folder)
    ddp = SHARDED if row.sharded else {}
    training = prepare(provider, chunks, groups, **ddp)
    losses = [
        training.step(
            lambda: micro_batches(family, groups),
            micro_batches=GLOBAL_BATCH // (MICRO_BATCH * groups.dp.size()),
            micro_batch_size=MICRO_BATCH,
            forward_step=FORWARD_STEPS[family.kind],
        )
        for _ in range(STEPS)
    ]
    return [loss for loss in losses if loss is not None]


def micro_batches(family: Family, groups: ProcessGroupCollection) -> Iterator[dict[str, torch.Tensor]]:
    """Yield this rank's part of a batch that is the same in every step."""
    length, vocabulary = SHAPE["seq_length"], SHAPE["vocab_size"]
    tokens = torch.randint(vocabulary, (GLOBAL_BATCH, length + 1), generator=torch.Generator().manual_seed(0))
    for rows in tokens.chunk(groups.dp.size())[groups.dp.rank()].split(MICRO_BATCH):
        yield BATCHES[family.kind](rows)


def text(rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a microbatch of text."""
    return {
        "tokens": rows[:, :-1],
        "labels": rows[:, 1:],
        "loss_mask": torch.ones(rows[:, 1:].shape),
        "position_ids": torch.arange(rows.shape[1] - 1).expand(rows.shape[0], -1),
    }


def pairs(rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a microbatch of pairs: the decoder predicts the first half of the encoder's input from its own past."""
    read = rows[:, :-1]
    written = read[:, : read.shape[1] // 2]
    padded = torch.ones(read.shape)
    padded[0, -2:] = 0
    return {
        "text_enc": read,
        "enc_mask": padded,
        "text_dec": written.roll(1, dims=1),
        "labels": written,
        "loss_mask": torch.ones(written.shape),
    }


def images(rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a microbatch of text with an image of four patches, whose colours are its first tokens."""
    batch = text(rows)
    placed = torch.zeros(batch["tokens"].shape, dtype=torch.bool)
    placed[:, 3:7] = True
    colours = (rows[:, :12] / SHAPE["vocab_size"]).reshape(-1, 3, 2, 2)
    return batch | {
        "tokens": batch["tokens"].masked_fill(placed, -200),
        "loss_mask": batch["loss_mask"].masked_fill(placed, 0),
        "images": colours.repeat_interleave(4, dim=2).repeat_interleave(4, dim=3),
    }


BATCHES: dict[str, Callable[[torch.Tensor], dict[str, torch.Tensor]]] = {
    "gpt": text,
    "hybrid": text,
    "t5": pairs,
    "mimo": images,
}


FORWARD_STEPS = {
    "gpt": gpt_forward_step,
    "hybrid": gpt_forward_step,
    "t5": T5ForwardStep(),
    "mimo": MimoForwardStep(),
}


def alone(row: FamilyCase) -> FamilyCase:
    """Return the same model on one rank."""
    return dataclasses.replace(row, layout={}, ranks=1, sharded=False)
