"""Forward pre-hooks of Megatron's overlapped parameter gather.

With the distributed optimizer and `overlap_param_gather`, each module gathers its parameters just before its forward
pass. Between an optimizer step and the next forward pass, parameters are therefore incomplete: saving and evaluating
must disable the hooks, which gathers all parameters, and enable them again afterwards.

With `reuse_grad_buf_for_mxfp8_param_ag` parameters are gathered through the gradient buffer, which holds gradients
after an optimizer step. The optimizer's copies are put into it before each gather: by `parameter_copy` in a step, and
by Megatron's `prepare_model_params_for_param_sync` when the hooks are disabled. Does not import torch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

from mb_loop.errors import ParallelSetupError
from mb_loop.settings import LoopSettings


class OverlapConfig(Protocol):
    """Field of a Megatron model config that is cleared for the first step."""

    param_sync_func: Callable[..., Any] | list[Callable[..., Any]] | None


class HookedChunk(Protocol):
    """Methods that are used of Megatron's DistributedDataParallel."""

    @property
    def config(self) -> OverlapConfig:
        """Config of the model; chunks may share one."""

    @property
    def remove_forward_pre_hook_handles(self) -> Mapping[Any, Any]:
        """One handle per hooked module; empty while the hooks are disabled."""

    def enable_forward_pre_hook(self) -> None:
        """Register the hooks."""

    def disable_forward_pre_hook(self, param_sync: bool = True) -> None:
        """Remove the hooks. With `param_sync`, gather all parameters (collective over the data-parallel group)."""


@runtime_checkable
class GatheringOptimizer(Protocol):
    """Optimizer that prepares a gather of its parameters, as Megatron's do."""

    def prepare_model_params_for_param_sync(self) -> None:
        """Put the updated parameters into the buffer from which they are gathered, if they are not there."""


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


def should_disable_forward_pre_hook(
    use_megatron_fsdp: bool, use_distributed_optimizer: bool, overlap_param_gather: bool
) -> bool:
    """Return whether a run with these settings uses forward pre-hooks, which saves and evaluations then disable."""
    return not use_megatron_fsdp and use_distributed_optimizer and overlap_param_gather


def enable_forward_pre_hook(model: Sequence[HookedChunk]) -> None:
    """Enable the hooks of every chunk. They must be disabled: Megatron fails otherwise. Not collective."""
    for chunk in model:
        chunk.enable_forward_pre_hook()


def disable_forward_pre_hook(
    model: Sequence[HookedChunk], param_sync: bool = True, *, optimizer: object = None
) -> None:
    """Disable the hooks of every chunk. They must be enabled: Megatron fails otherwise.

    With `param_sync` gather all parameters; collective over the data-parallel group.

    Args:
        model: model chunks.
        param_sync: gather all parameters.
        optimizer: Megatron's optimizer; needed to gather MXFP8 parameters through the gradient buffer.

    Raises:
        ParallelSetupError: parameters would be gathered from a buffer that holds gradients.
    """
    if param_sync and isinstance(optimizer, GatheringOptimizer):
        optimizer.prepare_model_params_for_param_sync()
    elif param_sync and any(_gathers_from_gradients(chunk) for chunk in model):
        raise ParallelSetupError(
            f"optimizer: is {'None' if optimizer is None else type(optimizer).__name__} with "
            "ddp.reuse_grad_buf_for_mxfp8_param_ag=true, so gradients would be gathered as parameters. Pass Megatron's "
            "optimizer, which first puts the updated parameters into the buffer."
        )
    for chunk in model:
        chunk.disable_forward_pre_hook(param_sync=param_sync)


class ForwardPreHooks:
    """Forward pre-hooks of one run: disabled until a step changed the weights, and during saves and evaluations.

    The current state is read from the chunks each time, so that callbacks may toggle the hooks as well.

    Args:
        model: model chunks; read only if `used`.
        used: return value of `should_disable_forward_pre_hook`.
        optimizer: see `disable_forward_pre_hook`.
    """

    def __init__(self, model: Sequence[HookedChunk], *, used: bool, optimizer: object = None) -> None:
        self._model = model if used else ()
        self._optimizer = optimizer
        self._saved_param_sync: list[Any] | None = None

    @property
    def on(self) -> bool:
        """Whether the hooks are currently enabled."""
        return any(chunk.remove_forward_pre_hook_handles for chunk in self._model)

    def begin(self) -> None:
        """Disable the hooks before the first step, without a gather: parameters are complete, as loaded.

        Until the first step that changed the weights, the configs of the chunks have no function for a gather, which
        the pipeline schedule would call in advance of a forward pass.
        """
        if self.on:
            disable_forward_pre_hook(self._model, param_sync=False)
        # Chunks may share a config: all functions are read before the first one is removed.
        self._saved_param_sync = [chunk.config.param_sync_func for chunk in self._model]
        for chunk in self._model:
            chunk.config.param_sync_func = None

    def after_step(self, *, skipped: bool) -> None:
        """Enable the hooks after the first step that changed the weights."""
        if skipped or self._saved_param_sync is None:
            return
        self.restore_param_sync()
        if not self.on:
            enable_forward_pre_hook(self._model)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Gather all parameters for the block. Collective over the data-parallel group if the hooks are enabled."""
        was_on = self.on
        if was_on:
            disable_forward_pre_hook(self._model, optimizer=self._optimizer)
        try:
            yield
        finally:
            if was_on:
                enable_forward_pre_hook(self._model)

    def end(self) -> None:
        """Disable the hooks after the last step and gather all parameters. Collective if the hooks are enabled."""
        self.restore_param_sync()
        if self.on:
            disable_forward_pre_hook(self._model, optimizer=self._optimizer)

    def restore_param_sync(self) -> None:
        """Restore what `begin` changed in the configs of the chunks. Not collective, so also for use after an error."""
        if self._saved_param_sync is None:  # `begin` was not called, or this was already done
            return
        for chunk, function in zip(self._model, self._saved_param_sync, strict=True):
            chunk.config.param_sync_func = function
        self._saved_param_sync = None


def forward_pre_hooks(cfg: LoopSettings, model: Sequence[Any], optimizer: object) -> ForwardPreHooks:
    """Return the parameter-gather hooks of a model. Without overlapped parameter gather all methods do nothing."""
    used = should_disable_forward_pre_hook(
        cfg.ddp.use_megatron_fsdp, cfg.optimizer.use_distributed_optimizer, cfg.ddp.overlap_param_gather
    )
    return ForwardPreHooks(model, used=used, optimizer=optimizer)


def _gathers_from_gradients(chunk: HookedChunk) -> bool:
    """Return whether parameters and gradients of a chunk of Megatron share a buffer."""
    return bool(getattr(getattr(chunk, "ddp_config", None), "reuse_grad_buf_for_mxfp8_param_ag", False))


def parameter_copy(cfg: LoopSettings, optimizer: Any, *, hooks: ForwardPreHooks) -> Callable[[], None] | None:
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
