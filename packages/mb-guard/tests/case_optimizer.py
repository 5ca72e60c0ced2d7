"""Functions that run on ranks of `test_optimizer.py`: a small GPT, saved and resumed with its optimizer."""

from contextlib import nullcontext
from pathlib import Path

import torch
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer.transformer_config import TransformerConfig

import mb_guard
from mb_host.megatron.layers import host_block_spec

STEPS, SEQUENCE, VOCABULARY = 4, 16, 64


class Run:
    """A small GPT under the distributed optimizer, with float32 weights."""

    def __init__(self, seed: int) -> None:
        parallel_state.initialize_model_parallel()
        tensor_parallel.model_parallel_cuda_manual_seed(seed)
        self.config = TransformerConfig(
            num_layers=2,
            hidden_size=32,
            num_attention_heads=2,
            attention_dropout=0.0,
            hidden_dropout=0.0,
            transformer_impl="local",
        )
        self.gpt = GPTModel(
            config=self.config,
            transformer_layer_spec=host_block_spec(self.config),
            vocab_size=VOCABULARY,
            max_sequence_length=SEQUENCE,
            position_embedding_type="rope",
            share_embeddings_and_output_weights=False,
        ).cuda()
        ddp = DistributedDataParallelConfig(use_distributed_optimizer=True)
        self.model = DistributedDataParallel(self.config, ddp, self.gpt)
        self.optimizer = get_megatron_optimizer(
            OptimizerConfig(optimizer="adam", lr=3e-3, weight_decay=0.01, use_distributed_optimizer=True),
            [self.model],
        )

    def step(self, number: int) -> float:
        """Train one step and return its loss."""
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        row = torch.randint(
            VOCABULARY, (2, SEQUENCE + 1), generator=torch.Generator().manual_seed(number)
        ).cuda()
        positions = torch.arange(SEQUENCE).expand(2, -1).cuda()
        loss = self.model(row[:, :-1], positions, None, labels=row[:, 1:]).mean()
        loss.backward()
        finalize_model_grads([self.model])
        self.optimizer.step()
        return loss.item()

    def state(self, optimizer_format: str, *, is_loading: bool) -> dict:
        """Return the sharded state."""
        state = {"model": self.gpt.sharded_state_dict()}
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        state["optimizer"] = self.optimizer.sharded_state_dict(
            state,
            is_loading=is_loading,
            metadata={"distrib_optim_sharding_type": optimizer_format, "dp_cp_group": group},
        )
        return state


def uninterrupted(root: str, formats: list[str]) -> list[float]:
    """Train, save in each format, and continue; return the losses after the save."""
    run = Run(seed=1)
    for number in range(STEPS):
        run.step(number)
    for name in formats:
        folder = Path(root, name)
        folder.mkdir()
        dist_checkpointing.save(run.state(name, is_loading=False), str(folder))
    return [run.step(number) for number in range(STEPS, 2 * STEPS)]


def resumed(root: str, optimizer_format: str, fault: str | None) -> list[float]:
    """Load and continue without the correction of a fault; return the losses."""
    with mb_guard.without(fault) if fault else nullcontext():
        run = Run(seed=99)
        state = dist_checkpointing.load(
            run.state(optimizer_format, is_loading=True), str(Path(root, optimizer_format))
        )
        run.gpt.load_state_dict(state["model"])
        run.optimizer.load_state_dict(state["optimizer"])
        return [run.step(number) for number in range(STEPS, 2 * STEPS)]
