"""Patches for bugs of Megatron Core, one function each.

The first four fix how `DistributedOptimizer` loads a checkpoint if neither Transformer Engine nor Apex is installed.
The loader is written for their FusedAdam, which keeps one step per parameter group and whose state the loader
allocates; torch's AdamW keeps one step tensor per parameter and creates its state in the first step.

A patch with `host_only` concerns gloo or tensors on the CPU, and is applied only if CUDA calls run on the CPU. Every
other patch is also applied on a machine with a GPU. `needed` is evaluated after Megatron's module is imported, so that
the optimizer patches depend on which packages can be imported, not on the device.
"""

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from mb_host.after_import import AfterImport
from mb_host.matrix_products import OneDnnProducts, is_onednn_faster

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """Patch that replaces `target`, a dotted path inside `module`, with `wrap(original)` if it is needed."""

    wrap: Callable[[Function], Function]
    module: str
    target: str
    needed: Callable[[ModuleType], bool]
    host_only: bool = False
    """Whether the patch concerns gloo or tensors on the CPU, and is not applied with a GPU."""

    @property
    def name(self) -> str:
        """Name of the patch: the name of its function."""
        return self.wrap.__name__


def allocate_optimizer_state(state_dict: Function) -> Function:
    """Allocate the state of AdamW before it is read; otherwise an assertion on the number of steps fails."""

    @functools.wraps(state_dict)
    def patched(self: Any, *args: Any, **kwargs: Any) -> Any:
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                state = self.optimizer.state[parameter]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"] = torch.zeros_like(parameter.data)
                    state["exp_avg_sq"] = torch.zeros_like(parameter.data)
        return state_dict(self, *args, **kwargs)

    return patched


def separate_step_tensors(load_state_dict: Function) -> Function:
    """Give each parameter a separate step tensor after loading.

    A shared tensor counts every update once per parameter, so that the resumed run diverges without an error.
    """

    @functools.wraps(load_state_dict)
    def patched(self: Any, *args: Any, **kwargs: Any) -> Any:
        loaded = load_state_dict(self, *args, **kwargs)
        for state in self.optimizer.state.values():
            if "step" in state:
                state["step"] = state["step"].clone()
        return loaded

    return patched


def exclude_step_tensor(set_states: Function) -> Function:
    """Exclude the step from the tensors that are loaded per parameter; a checkpoint without it raises a KeyError."""

    @functools.wraps(set_states)
    def patched(self: Any, model_param: Any, *args: Any, **kwargs: Any) -> Any:
        group, order = self.model_param_group_index_map[model_param]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
        step = state.pop("step", None)
        try:
            return set_states(self, model_param, *args, **kwargs)
        finally:
            if step is not None:
                state["step"] = step

    return patched


def load_without_grad(set_states: Function) -> Function:
    """Load without autograd; with it, writing in place to main parameters that are views of leaves raises an error."""
    return torch.no_grad()(set_states)


def cpu_tensor_to_numpy(maybe_move_tensor_to_cpu: Function) -> Function:
    """Convert CPU tensors to numpy as well: Megatron skips this conversion, which all-to-all needs, for CPU tensors."""

    @functools.wraps(maybe_move_tensor_to_cpu)
    def patched(tensor: Any, as_numpy: bool = False, *args: Any, **kwargs: Any) -> Any:
        if as_numpy and torch.is_tensor(tensor) and not tensor.is_cuda:
            return tensor.numpy()
        return maybe_move_tensor_to_cpu(tensor, as_numpy, *args, **kwargs)

    return patched


def gather_uneven_parts(gather_along_first_dim: Function) -> Function:
    """Gather parts of unequal length (expert tensor parallelism) by padding; gloo supports equal lengths only."""

    @functools.wraps(gather_along_first_dim)
    def patched(part: Any, group: Any, output_split_sizes: Any = None, *args: Any, **kwargs: Any) -> Any:
        if output_split_sizes is None or group.size() == 1 or len({*output_split_sizes}) == 1:
            return gather_along_first_dim(part, group, output_split_sizes, *args, **kwargs)
        padded = part.new_zeros(max(output_split_sizes), *part.shape[1:])
        padded[: part.size(0)] = part
        parts = [torch.empty_like(padded) for _ in output_split_sizes]
        torch.distributed.all_gather(parts, padded, group=group)
        return torch.cat([whole[:size] for whole, size in zip(parts, output_split_sizes, strict=True)])

    return patched


def scatter_uneven_parts(reduce_scatter_along_first_dim: Function) -> Function:
    """Reduce and scatter parts of unequal length; the inverse of `gather_uneven_parts`."""

    @functools.wraps(reduce_scatter_along_first_dim)
    def patched(whole: Any, group: Any, input_split_sizes: Any = None, *args: Any, **kwargs: Any) -> Any:
        if input_split_sizes is None or group.size() == 1 or len({*input_split_sizes}) == 1:
            return reduce_scatter_along_first_dim(whole, group, input_split_sizes, *args, **kwargs)
        total = whole.clone()
        torch.distributed.all_reduce(total, group=group)
        return torch.split(total, list(input_split_sizes))[group.rank()].contiguous()

    return patched


def reduce_rotary_key_gradient(qkv_down_projection: Function) -> Function:
    """Sum the gradient of the rotary part of latent attention's keys over the heads of all ranks.

    If the projection is split over tensor-parallel ranks, as without Transformer Engine, the gradient of that part
    would come from the local heads only, and the model would train incorrectly without an error.
    """
    known = qkv_down_projection.__globals__

    @functools.wraps(qkv_down_projection)
    def patched(self: Any, *args: Any, **kwargs: Any) -> Any:
        queries, keys = qkv_down_projection(self, *args, **kwargs)
        sizes = [self.config.kv_lora_rank, self.config.qk_pos_emb_head_dim]
        if keys.size(-1) == sum(sizes):
            return queries, keys
        whole = known["gather_from_tensor_model_parallel_region"](keys, group=self.tp_group)
        if self.config.sequence_parallel:
            # Equivalent to an unsplit projection on every rank: the caller gathers the rotary part and sums gradients.
            return queries, known["scatter_to_sequence_parallel_region"](whole, group=self.tp_group)
        latent, rotated = torch.split(whole, sizes, dim=-1)
        rotated = rotated.clone()
        if rotated.requires_grad:
            sum_over_ranks = functools.partial(_summed, group=self.tp_group)
            rotated.register_hook(sum_over_ranks)  # type: ignore[no-untyped-call]
        return queries, torch.cat([latent, rotated], dim=-1)

    return patched


def _summed(gradient: torch.Tensor, *, group: Any) -> torch.Tensor:
    total = gradient.clone()
    torch.distributed.all_reduce(total, group=group)
    return total


def onednn_products(function: Function) -> Function:
    """Compute the products of linear layers with oneDNN, about twice as fast where MKL does not use AVX-512."""

    @functools.wraps(function)
    def patched(*args: Any, **kwargs: Any) -> Any:
        with OneDnnProducts():
            return function(*args, **kwargs)

    return patched


def torch_optimizer(module: ModuleType) -> bool:
    """Return whether `module` fell back to torch's optimizers."""
    return not module.__dict__["HAVE_APEX_OR_TE"]


def _of_optimizer(wrap: Callable[[Function], Function], *, target: str) -> Patch:
    return Patch(
        wrap=wrap,
        module="megatron.core.optimizer.distrib_optimizer",
        target=f"DistributedOptimizer.{target}",
        needed=torch_optimizer,
    )


def _of_exchange(wrap: Callable[[Function], Function], *, target: str) -> Patch:
    return Patch(
        wrap=wrap,
        module="megatron.core.tensor_parallel.mappings",
        target=target,
        needed=lambda module: True,
        host_only=True,
    )


def _of_linear(target: str) -> Patch:
    return Patch(
        wrap=onednn_products,
        module="megatron.core.tensor_parallel.layers",
        target=target,
        needed=lambda module: is_onednn_faster(),
        host_only=True,
    )


PATCHES: tuple[Patch, ...] = (
    _of_optimizer(allocate_optimizer_state, target="state_dict"),
    _of_optimizer(separate_step_tensors, target="load_state_dict"),
    _of_optimizer(exclude_step_tensor, target="_set_main_param_and_optimizer_states"),
    _of_optimizer(load_without_grad, target="_set_main_param_and_optimizer_states"),
    Patch(
        wrap=cpu_tensor_to_numpy,
        module="megatron.core.transformer.moe.moe_utils",
        target="maybe_move_tensor_to_cpu",
        needed=lambda module: True,
        host_only=True,
    ),
    Patch(
        wrap=reduce_rotary_key_gradient,
        module="megatron.core.transformer.multi_latent_attention",
        target="MLASelfAttention._qkv_down_projection",
        needed=lambda module: True,
    ),
    _of_exchange(gather_uneven_parts, target="_gather_along_first_dim"),
    _of_exchange(scatter_uneven_parts, target="_reduce_scatter_along_first_dim"),
    _of_linear("LinearWithFrozenWeight.forward"),
    _of_linear("LinearWithFrozenWeight.backward"),
    _of_linear("LinearWithGradAccumulationAndAsyncCommunication.forward"),
    _of_linear("LinearWithGradAccumulationAndAsyncCommunication.backward"),
)
ALL_PATCHES: tuple[str, ...] = tuple(dict.fromkeys(patch.name for patch in PATCHES))
ANY_DEVICE_PATCHES: tuple[str, ...] = tuple(
    dict.fromkeys(patch.name for patch in PATCHES if not patch.host_only)
)
"""Names of the patches that are also applied on a machine with a GPU."""

_disabled: ContextVar[frozenset[str]] = ContextVar("disabled_patches", default=frozenset())


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Disable patches within the `with` block, in this thread.

    Raises:
        ValueError: There is no patch of that name.
    """
    check_names(names)
    token = _disabled.set(_disabled.get() | frozenset(names))
    try:
        yield
    finally:
        _disabled.reset(token)


def check_names(names: Iterable[str]) -> None:
    """Reject names that are not in `ALL_PATCHES`.

    Raises:
        ValueError: There is no patch of that name.
    """
    unknown = sorted(set(names) - set(ALL_PATCHES))
    if unknown:
        raise ValueError(
            f"patches: {', '.join(unknown)}: no patch of that name. Choose from {', '.join(ALL_PATCHES)}."
        )


def patch_megatron(names: Iterable[str] = ANY_DEVICE_PATCHES) -> tuple[str, ...]:
    """Apply patches to Megatron Core, with or without a GPU; return their names.

    `install` calls this function if there is a GPU. Modules that are already imported are patched immediately, others
    right after their import. torch is not changed. A second call has no effect.

    Args:
        names: Names out of `ANY_DEVICE_PATCHES`. Other names of `ALL_PATCHES` are accepted and ignored.

    Raises:
        ValueError: There is no patch of that name.
    """
    wanted = set(names)
    check_names(wanted)
    chosen = tuple(name for name in ANY_DEVICE_PATCHES if name in wanted)
    pending = patch_callbacks(chosen)
    for module in [name for name in pending if name in sys.modules]:
        pending.pop(module)(sys.modules[module])
    if pending:
        sys.meta_path.insert(0, AfterImport(pending))
    return chosen


def patch_callbacks(names: Iterable[str]) -> dict[str, Callable[[ModuleType], None]]:
    """Return, by Megatron module, the function that applies the patches called `names` to that module."""
    check_names(names)
    chosen = [patch for patch in PATCHES if patch.name in set(names)]
    return {
        module: functools.partial(_apply, patches=[patch for patch in chosen if patch.module == module])
        for module in {patch.module for patch in chosen}
    }


def _apply(module: ModuleType, *, patches: Sequence[Patch]) -> None:
    for patch in patches:
        *path, name = patch.target.split(".")
        owner = functools.reduce(getattr, path, module)
        original = getattr(owner, name)
        if patch.name not in getattr(original, PATCH_MARK, ()) and patch.needed(module):
            setattr(owner, name, _switchable(patch, original=original))


PATCH_MARK = "mb_host_patches"
"""Attribute of a patched function with the names of its patches."""


def _switchable(patch: Patch, *, original: Function) -> Function:
    patched = patch.wrap(original)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (original if patch.name in _disabled.get() else patched)(*args, **kwargs)

    setattr(call, PATCH_MARK, (*getattr(original, PATCH_MARK, ()), patch.name))
    return call
