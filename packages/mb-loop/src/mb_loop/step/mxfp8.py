"""Gather of MXFP8 parameters through the gradient buffer. Does not import torch."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from mb_loop.settings import LoopSettings


class HookState(Protocol):
    """State of the forward pre-hooks; see `ForwardPreHooks`."""

    @property
    def on(self) -> bool:
        """Whether the hooks are currently enabled."""


@runtime_checkable
class ShardedOptimizer(Protocol):
    """Optimizer with the (private) method of Megatron's DistributedOptimizer that fills the shared buffer."""

    def _copy_main_params_to_param_buffer(self) -> None: ...


@runtime_checkable
class ChainedOptimizerLike(Protocol):
    """Interface of Megatron's ChainedOptimizer."""

    @property
    def chained_optimizers(self) -> list[Any]:
        """Chained optimizers."""


def parameter_copy(cfg: LoopSettings, optimizer: Any, *, hooks: HookState) -> Callable[[], None] | None:
    """Return a function that copies the parameters into the gradient buffer; call it after zeroing the gradients.

    None unless both settings are enabled. While the hooks are disabled (first step), nothing is copied: the
    parameters would not be gathered from the buffer and would be used as gradients.
    """
    if not (cfg.optimizer.reuse_grad_buf_for_mxfp8_param_ag and cfg.ddp.overlap_param_gather):
        return None
    members = optimizer.chained_optimizers if isinstance(optimizer, ChainedOptimizerLike) else [optimizer]
    sharded = [member for member in members if isinstance(member, ShardedOptimizer)]

    def copy() -> None:
        if hooks.on:
            for member in sharded:
                member._copy_main_params_to_param_buffer()

    return copy
