"""MXFP8 parameters that are gathered through the gradient buffer. No torch."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from mb_loop.settings import LoopSettings


class HookState(Protocol):
    """The forward pre-hooks: see `ForwardPreHooks`."""

    @property
    def on(self) -> bool:
        """Whether parameters are being gathered by hooks right now."""


@runtime_checkable
class ShardedOptimizer(Protocol):
    """The method of Megatron's DistributedOptimizer that fills the shared buffer. Private there, so named only here."""

    def _copy_main_params_to_param_buffer(self) -> None: ...


@runtime_checkable
class ChainedOptimizerLike(Protocol):
    """Megatron's ChainedOptimizer."""

    @property
    def chained_optimizers(self) -> list[Any]:
        """Its members."""


def do_nothing() -> None:
    """Do nothing."""


def parameter_copy(cfg: LoopSettings, optimizer: Any, *, hooks: HookState) -> Callable[[], None]:
    """Return what puts the parameters into the gradient buffer, to be called each time the gradients were zeroed.

    Both settings must be on, or there is nothing to do. While the hooks are off (the first step), nothing is copied:
    nobody would gather the parameters out of the buffer, and they would be taken for gradients.
    """
    if not (cfg.optimizer.reuse_grad_buf_for_mxfp8_param_ag and cfg.ddp.overlap_param_gather):
        return do_nothing
    members = optimizer.chained_optimizers if isinstance(optimizer, ChainedOptimizerLike) else [optimizer]
    sharded = [member for member in members if isinstance(member, ShardedOptimizer)]

    def copy() -> None:
        if hooks.on:
            for member in sharded:
                member._copy_main_params_to_param_buffer()

    return copy
