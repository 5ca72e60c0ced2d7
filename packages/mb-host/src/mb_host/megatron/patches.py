"""Patches of Megatron Core for gloo and tensors on the CPU, one function each.

They are applied when Megatron's module is imported, and only if CUDA calls run on the CPU. Bugs of Megatron Core that
have nothing to do with the CPU are fixed by mb-guard.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from mb_host.cpu.matrix_products import OneDnnProducts, is_onednn_faster
from mb_host.cpu.signal_stack import use_signal_stack

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """Patch that replaces `target`, a dotted path inside `module`, with `wrap(original)` if it is needed."""

    wrap: Callable[[Function], Function]
    module: str
    target: str
    needed: Callable[[ModuleType], bool]

    @property
    def name(self) -> str:
        """Name of the patch: the name of its function."""
        return self.wrap.__name__


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


def onednn_products(function: Function) -> Function:
    """Compute the products of linear layers with oneDNN, about twice as fast where MKL does not use AVX-512."""

    @functools.wraps(function)
    def patched(*args: Any, **kwargs: Any) -> Any:
        with OneDnnProducts():
            return function(*args, **kwargs)

    return patched


def _of_exchange(wrap: Callable[[Function], Function], *, target: str) -> Patch:
    return Patch(
        wrap=wrap,
        module="megatron.core.tensor_parallel.mappings",
        target=target,
        needed=lambda module: True,
    )


def _of_linear(target: str) -> Patch:
    return Patch(
        wrap=onednn_products,
        module="megatron.core.tensor_parallel.layers",
        target=target,
        needed=lambda module: is_onednn_faster() and use_signal_stack(),
    )


PATCHES: tuple[Patch, ...] = (
    Patch(
        wrap=cpu_tensor_to_numpy,
        module="megatron.core.transformer.moe.moe_utils",
        target="maybe_move_tensor_to_cpu",
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
        # Decided at each call, because other modules have copied this function by its name.
        return (original if patch.name in _disabled.get() else patched)(*args, **kwargs)

    setattr(call, PATCH_MARK, (*getattr(original, PATCH_MARK, ()), patch.name))
    return call
