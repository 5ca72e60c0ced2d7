"""Functions that run on a rank for the tests of the patches."""

import inspect
from contextlib import nullcontext
from pathlib import Path

import torch
from host_gpt import Trainer
from host_layouts import Layout
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.tensor_parallel import (
    gather_from_sequence_parallel_region,
    model_parallel_cuda_manual_seed,
)
from megatron.core.tensor_parallel.layers import (
    LinearWithFrozenWeight,
    LinearWithGradAccumulationAndAsyncCommunication,
)
from megatron.core.transformer.multi_latent_attention import MLASelfAttention
from megatron.core.transformer.spec_utils import build_module
from megatron.core.transformer.transformer_config import MLATransformerConfig

from mb_host.layers import host_block_spec
from mb_host.patches import PATCH_MARK, patch_megatron, without

LAYOUT = Layout(distributed_optimizer=True)
STEPS = 4


def uninterrupted(root: str, formats: list[str]) -> list[float]:
    """Train, save in each format, and continue; return the losses after the save."""
    trainer = Trainer(LAYOUT)
    for number in range(STEPS):
        trainer.step(number)
    for name in formats:
        folder = Path(root, name)
        folder.mkdir()
        trainer.save(str(folder), optimizer_format=name)
    return [trainer.step(number) for number in range(STEPS, 2 * STEPS)]


def resumed(root: str, optimizer_format: str, fault: str | None) -> list[float]:
    """Load and continue without the patch called `fault`; return the losses."""
    with without(fault) if fault else nullcontext():
        trainer = Trainer(LAYOUT, seed=99)
        trainer.load(str(Path(root, optimizer_format)), optimizer_format=optimizer_format)
        return [trainer.step(number) for number in range(STEPS, 2 * STEPS)]


def linear_layers() -> tuple[bool, dict[str, float]]:
    """Return whether linear layers are patched, and the relative difference of each result without the patch."""
    frozen, trained = LinearWithFrozenWeight, LinearWithGradAccumulationAndAsyncCommunication
    with_patch, without_patch = _linear_results(frozen, trained), {}
    with without("onednn_products"):
        without_patch = _linear_results(frozen, trained)
    differences = {
        name: float((value - without_patch[name]).norm() / value.norm()) for name, value in with_patch.items()
    }
    return hasattr(frozen.forward, PATCH_MARK), differences


def _linear_results(frozen: type, trained: type) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    found = {}
    for kind, prefix in ((frozen, "frozen "), (trained, "")):
        hidden, weight = (torch.randn(size, generator=generator) for size in ((64, 4, 128), (192, 128)))
        hidden.requires_grad_()
        weight.requires_grad_(kind is trained)
        others = {"weight": weight, "gtp_remat_size": 1, "bias": None, "tp_group": None}
        others |= {"grad_output_buffer": None, "wgrad_deferral_limit": None}
        names = [*inspect.signature(inspect.unwrap(kind.forward)).parameters][2:]
        output = kind.apply(hidden, *(others.get(name, False) for name in names))
        output.backward(torch.randn(output.shape, generator=generator))
        found |= {f"{prefix}output": output.detach(), f"{prefix}input": hidden.grad}
        if kind is trained:
            found["weight"] = weight.grad
    return found


def patched_afterwards(root: str, optimizer_format: str) -> list[object]:
    """Remove the patches from imported modules, as on a machine with a GPU, and apply them again.

    Return the failure of a resume without them, the names of the applied patches, and the losses with them.
    """
    owners = [DistributedOptimizer, MLASelfAttention, DistributedDataParallel]
    targets = [
        (owner, name) for owner in owners for name in vars(owner) if hasattr(vars(owner)[name], PATCH_MARK)
    ]
    for owner, name in targets:
        setattr(
            owner, name, inspect.unwrap(vars(owner)[name], stop=lambda each: not hasattr(each, PATCH_MARK))
        )
    try:
        failure = str(resumed(root, optimizer_format, None))
    except AssertionError as error:
        failure = type(error).__name__
    finally:
        names = patch_megatron()
    parallel_state.destroy_model_parallel()
    patched = [vars(owner)[name] for owner, name in targets]
    patch_megatron()  # a second call has no effect
    assert patched == [vars(owner)[name] for owner, name in targets]
    return [failure, sorted(names), resumed(root, optimizer_format, None)]


def unequal_parts(fault: str | None) -> tuple[list[float], list[float]]:
    """Gather one number of rank 0 and two of rank 1; return them and the gradient of their sum."""
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
    group = parallel_state.get_tensor_model_parallel_group()
    part = torch.full((group.rank() + 1,), float(group.rank()), requires_grad=True)
    with without(fault) if fault else nullcontext():
        whole = gather_from_sequence_parallel_region(part, group=group, output_split_sizes=[1, 2])
        whole.sum().backward()
    return whole.tolist(), part.grad.tolist()


def gradient_of_keys(together: bool, fault: str | None) -> list[float]:
    """Return the row sums of the gradient of this rank's part of the down projection of keys."""
    size = torch.distributed.get_world_size()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=size)
    model_parallel_cuda_manual_seed(1)
    config = MLATransformerConfig(
        num_layers=1,
        hidden_size=16,
        num_attention_heads=4,
        tensor_model_parallel_size=size,
        sequence_parallel=together,
        q_lora_rank=None,
        kv_lora_rank=8,
        qk_head_dim=4,
        qk_pos_emb_head_dim=4,
        v_head_dim=4,
        rope_type="rope",
        add_bias_linear=False,
        attention_dropout=0.0,
        transformer_impl="local",
    )
    [layer] = host_block_spec(config).layer_specs
    attention = build_module(layer.submodules.self_attention, config=config, layer_number=1)
    rank = torch.distributed.get_rank()
    for number, weight in enumerate(attention.parameters()):
        if weight.dim() > 1:  # a part of the same matrix for any number of ranks
            rows, columns = weight.shape
            split = weight.partition_dim
            row = torch.arange(rows)[:, None] + (rank * rows if split == 0 else 0)
            column = torch.arange(columns) + (rank * columns if split == 1 else 0)
            weight.data = torch.sin(row * 1.7 + column * 0.9 + number) * 0.5
    hidden = torch.sin(torch.arange(8 * 2 * 16) * 0.37).reshape(8, 2, 16)
    with without(fault) if fault else nullcontext():
        output, _ = attention(hidden.chunk(size)[rank] if together else hidden, None)
        output.square().sum().backward()
    return attention.linear_kv_down_proj.weight.grad.sum(1).tolist()
