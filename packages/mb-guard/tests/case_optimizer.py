"""Functions that run on ranks of `test_optimizer.py`: a small GPT, saved and resumed with its optimizer."""

import inspect
import textwrap
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer
from megatron.core.transformer.transformer_config import TransformerConfig

import mb_guard
from mb_host.megatron.layers import host_block_spec

STEPS, SEQUENCE, VOCABULARY = 4, 16, 64


class Run:
    """A small GPT under the distributed optimizer."""

    def __init__(
        self, seed: int, *, buckets: dict[str, Any] | None = None, odd: bool = False, **settings: object
    ) -> None:
        parallel_state.initialize_model_parallel()
        tensor_parallel.model_parallel_cuda_manual_seed(seed)
        self.config = TransformerConfig(
            num_layers=2,
            hidden_size=32,
            num_attention_heads=2,
            attention_dropout=0.0,
            hidden_dropout=0.0,
            transformer_impl="local",
            bf16=bool(settings.get("bf16")),
            params_dtype=torch.bfloat16 if settings.get("bf16") else torch.float32,
        )
        self.gpt = GPTModel(
            config=self.config,
            transformer_layer_spec=host_block_spec(self.config),
            vocab_size=VOCABULARY,
            max_sequence_length=SEQUENCE,
            position_embedding_type="rope",
            share_embeddings_and_output_weights=False,
        ).cuda()
        if settings.get("bf16"):
            self.gpt.bfloat16()
        if odd:  # as the embedding of a hybrid: its own bucket, after one that ends in padding of both kinds
            self.gpt.embedding.word_embeddings.weight.shared_embedding = True
            self.gpt.decoder.final_layernorm.weight.requires_grad = False
        ddp = DistributedDataParallelConfig(use_distributed_optimizer=True, **(buckets or {}))
        self.model = DistributedDataParallel(self.config, ddp, self.gpt)
        self.optimizer = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam", lr=3e-3, weight_decay=0.01, use_distributed_optimizer=True, **settings
            ),
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


def uninterrupted(root: str, formats: list[str], settings: dict[str, object]) -> list[float]:
    """Train, save in each format, and continue; return the losses after the save."""
    run = Run(seed=1, **settings)
    for number in range(STEPS):
        run.step(number)
    for name in formats:
        folder = Path(root, name)
        folder.mkdir()
        dist_checkpointing.save(run.state(name, is_loading=False), str(folder))
    return [run.step(number) for number in range(STEPS, 2 * STEPS)]


def resumed(root: str, optimizer_format: str, fault: str | None, settings: dict[str, object]) -> list[float]:
    """Load and continue without the correction of a fault; return the losses."""
    with mb_guard.without(fault) if fault else nullcontext():
        run = Run(seed=99, **settings)
        state = dist_checkpointing.load(
            run.state(optimizer_format, is_loading=True), str(Path(root, optimizer_format))
        )
        run.gpt.load_state_dict(state["model"])
        run.optimizer.load_state_dict(state["optimizer"])
        return [run.step(number) for number in range(STEPS, 2 * STEPS)]


def saved_gaps(fault: str | None) -> int:
    """Return the number of values that a save takes from memory that nothing was written to."""
    run = Run(seed=1)
    run.step(0)
    empty = torch.empty
    with (
        mb_guard.without(fault) if fault else nullcontext(),
        patch.object(torch, "empty", lambda *args, **options: empty(*args, **options).fill_(torch.nan)),
    ):
        state = run.state("dp_reshardable", is_loading=False)
    parts = [part.data for part in nested_values(state["optimizer"]) if isinstance(part, ShardedTensor)]
    return sum(int(part.isnan().sum()) for part in parts)


PADDED: dict[str, dict[str, Any]] = {
    "MANY": {"buckets": {"overlap_grad_reduce": True, "bucket_size": 3000}},
    "LARGE": {"buckets": {"pad_buckets_for_high_nccl_busbw": True}},
    "ODD": {"odd": True},
}
"""Many buckets with padding between them; one that is mostly padding; one that ends in padding of both kinds."""


def shifted(fault: str | None) -> float:
    """Return how far the main parameters of a save are from the weights, in float32."""
    with mb_guard.without(fault) if fault else nullcontext():
        run = Run(seed=1, **PADDED["MANY"])
        assert any(each.grad_data.numel() > each.numel_unpadded for each in run.model.buffers[0].buckets[:-1])
        run.step(0)
        state = run.state("fully_reshardable", is_loading=False)
    weights = {
        (each.key, each.global_offset): each.data.detach()
        for each in nested_values(state["model"])
        if isinstance(each, ShardedTensor)
    }
    stored = [each["param"] for each in state["optimizer"]["param_state"].values()]
    return max(
        float(
            (each.data - weights[each.key.removeprefix("optimizer.state.param."), each.global_offset])
            .abs()
            .max()
        )
        for each in stored
    )


def resumed_equally(root: str, fault: str | None, optimizer_format: str, shape: str) -> bool:
    """Save, load into another run, and continue both; return whether they have the same losses."""
    with mb_guard.without(fault) if fault else nullcontext():
        run, folder = Run(seed=1, **PADDED[shape]), Path(root, optimizer_format)
        for number in range(STEPS):
            run.step(number)
        folder.mkdir(parents=True, exist_ok=True)
        dist_checkpointing.save(run.state(optimizer_format, is_loading=False), str(folder))
        losses = [run.step(number) for number in range(STEPS, 2 * STEPS)]
        parallel_state.destroy_model_parallel()
        again = Run(seed=99, **PADDED[shape])
        state = dist_checkpointing.load(again.state(optimizer_format, is_loading=True), str(folder))
        again.gpt.load_state_dict(state["model"])
        again.optimizer.load_state_dict(state["optimizer"])
        return [again.step(number) for number in range(STEPS, 2 * STEPS)] == losses


OFFLOAD = {
    "bf16": True,
    "optimizer_cpu_offload": True,
    "optimizer_offload_fraction": 1.0,
    "use_precision_aware_optimizer": True,
    "overlap_cpu_optimizer_d2h_h2d": False,
    "pin_cpu_grads": False,
}
"""Adam on the host, with the weights on the device."""


def weights_on_a_device() -> Any:
    """Let the optimizer on the host take weights, which are on the host here, for weights on a device."""
    method = HybridDeviceOptimizer._get_sub_optimizer_param_groups
    source = textwrap.dedent(inspect.getsource(method))
    names = dict(method.__globals__)
    exec(source.replace("if param.is_cuda]", "]").replace(" and param.is_cuda", ""), names)
    return patch.object(HybridDeviceOptimizer, method.__name__, names[method.__name__])


def offloaded(root: str, formats: list[str]) -> list[float]:
    """Train with Adam on the host, as `uninterrupted`."""
    with weights_on_a_device():
        return uninterrupted(root, formats, OFFLOAD)


def resumed_offloaded(root: str, optimizer_format: str) -> list[float]:
    """Load and continue with Adam on the host."""
    with weights_on_a_device():
        return resumed(root, optimizer_format, None, OFFLOAD)


def weights_after_a_save() -> bool:
    """Return whether a save before the first step leaves the weights as they are."""
    with weights_on_a_device():
        run = Run(seed=1, **OFFLOAD)
        before = [each.detach().clone() for each in run.gpt.parameters()]
        run.state("fully_reshardable", is_loading=False)
        return all(torch.equal(*pair) for pair in zip(before, run.gpt.parameters(), strict=True))


def steps_without_parameters(fault: str | None) -> list[float]:
    """Return the step of each group that a rank saves whose pipeline stage has no parameters of the optimizer."""
    with mb_guard.without(fault) if fault else nullcontext():
        run = Run(seed=1)
        for group in run.optimizer.param_groups:
            group["params"] = []
        return [group["step"] for group in run.optimizer.state_dict()["optimizer"]["param_groups"]]


def reloaded(fault: str | None, precision_aware: bool) -> float:
    """Return how far an update with a learning rate of 0 moves weights that were loaded without the optimizer."""
    with weights_on_a_device(), mb_guard.without(fault) if fault else nullcontext():
        run = Run(seed=1, **{**OFFLOAD, "use_precision_aware_optimizer": precision_aware})
        for group in run.optimizer.param_groups:
            group["lr"] = 0.0
        for each in run.gpt.parameters():
            each.data.uniform_(-0.02, 0.02)
        loaded = [each.detach().clone() for each in run.gpt.parameters()]
        run.optimizer.reload_model_params()
        run.step(0)
        moved = [(a - b).abs().max() for a, b in zip(run.gpt.parameters(), loaded, strict=True)]
    return float(torch.stack(moved).max().detach())
