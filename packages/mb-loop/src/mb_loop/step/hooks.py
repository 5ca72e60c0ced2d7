"""Forward pre-hooks of Megatron's overlapped parameter gather.

With the distributed optimizer and `overlap_param_gather`, each module gathers its parameters just before its forward
pass. Between an optimizer step and the next forward pass, parameters are therefore incomplete: saving and evaluating
must disable the hooks, which gathers all parameters, and enable them again afterwards.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

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


def should_disable_forward_pre_hook(
    use_megatron_fsdp: bool, use_distributed_optimizer: bool, overlap_param_gather: bool
) -> bool:
    """Return whether a run with these settings uses forward pre-hooks."""
    return not use_megatron_fsdp and use_distributed_optimizer and overlap_param_gather


def enable_forward_pre_hook(model: Sequence[HookedChunk]) -> None:
    """Enable the hooks of every chunk. They must be disabled."""
    for chunk in model:
        chunk.enable_forward_pre_hook()


def disable_forward_pre_hook(model: Sequence[HookedChunk], param_sync: bool = True) -> None:
    """Disable the hooks of every chunk. They must be enabled.

    With `param_sync` collective over the data-parallel group.
    """
    for chunk in model:
        chunk.disable_forward_pre_hook(param_sync=param_sync)


class ForwardPreHooks:
    """Forward pre-hooks of one run: disabled until the first successful step, and around saves and evaluations.

    The current state is read from the chunks each time, so that callbacks may toggle the hooks as well.

    Args:
        model: model chunks; read only if `used`.
        used: return value of `should_disable_forward_pre_hook`.
    """

    def __init__(self, model: Sequence[HookedChunk], *, used: bool) -> None:
        self._model = model if used else ()
        self._saved_param_sync: list[Any] | None = None

    @property
    def on(self) -> bool:
        """Whether the hooks are currently enabled."""
        return any(chunk.remove_forward_pre_hook_handles for chunk in self._model)

    def begin(self) -> None:
        """Disable the hooks before the first step, without a gather: parameters are complete, as loaded."""
        if self.on:
            disable_forward_pre_hook(self._model, param_sync=False)
        self._saved_param_sync = [chunk.config.param_sync_func for chunk in self._model]
        for chunk in self._model:
            chunk.config.param_sync_func = None

    def after_step(self, *, skipped: bool) -> None:
        """Enable the hooks after the first step that changed the weights."""
        if skipped or self._saved_param_sync is None:
            return
        self._restore_param_sync()
        if not self.on:
            enable_forward_pre_hook(self._model)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Gather all parameters for the block. Collective over the data-parallel group if the hooks are enabled."""
        was_on = self.on
        if was_on:
            disable_forward_pre_hook(self._model)
        try:
            yield
        finally:
            if was_on:
                enable_forward_pre_hook(self._model)

    def end(self) -> None:
        """Disable the hooks after the last step and gather all parameters. Collective if the hooks are enabled."""
        self._restore_param_sync()
        if self.on:
            disable_forward_pre_hook(self._model)

    def _restore_param_sync(self) -> None:
        for chunk, function in zip(self._model, self._saved_param_sync or (), strict=False):
            chunk.config.param_sync_func = function
        self._saved_param_sync = None


def forward_pre_hooks(cfg: LoopSettings, model: Sequence[Any]) -> ForwardPreHooks:
    """Return the parameter-gather hooks of a model. Without overlapped parameter gather all methods do nothing."""
    used = should_disable_forward_pre_hook(
        cfg.ddp.use_megatron_fsdp, cfg.optimizer.use_distributed_optimizer, cfg.ddp.overlap_param_gather
    )
    return ForwardPreHooks(model, used=used)
