"""Forward pre-hooks of Megatron's overlapped parameter gather: off where parameters must be whole.

With the distributed optimizer and `overlap_param_gather`, each module gathers its parameters just before its forward
pass. Between an optimizer step and the next forward pass they are therefore not whole: saving and evaluating must
switch the hooks off, which gathers everything, and on again afterwards.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from mb_loop.settings import LoopSettings


class OverlapConfig(Protocol):
    """The field of a Megatron model config that the first step switches off."""

    param_sync_func: Callable[..., Any] | list[Callable[..., Any]] | None


class HookedChunk(Protocol):
    """What is used of Megatron's DistributedDataParallel."""

    @property
    def config(self) -> OverlapConfig:
        """The model's config; chunks may share one."""

    @property
    def remove_forward_pre_hook_handles(self) -> Mapping[Any, Any]:
        """One handle per hooked module; empty while the hooks are off."""

    def enable_forward_pre_hook(self) -> None:
        """Register the hooks."""

    def disable_forward_pre_hook(self, param_sync: bool = True) -> None:
        """Remove the hooks and, if asked, gather all parameters (collective over the data-parallel group)."""


def should_disable_forward_pre_hook(
    use_megatron_fsdp: bool, use_distributed_optimizer: bool, overlap_param_gather: bool
) -> bool:
    """Say whether this run has such hooks at all."""
    return not use_megatron_fsdp and use_distributed_optimizer and overlap_param_gather


def enable_forward_pre_hook(model: Sequence[HookedChunk]) -> None:
    """Switch the hooks of every chunk on. They must be off."""
    for chunk in model:
        chunk.enable_forward_pre_hook()


def disable_forward_pre_hook(model: Sequence[HookedChunk], param_sync: bool = True) -> None:
    """Switch the hooks of every chunk off. They must be on.

    Collective over the data-parallel group when `param_sync`.
    """
    for chunk in model:
        chunk.disable_forward_pre_hook(param_sync=param_sync)


class ForwardPreHooks:
    """The hooks of one run: off for the first good step, on after it, off around saves and evaluations.

    Whether the hooks are on is read from the chunks each time, so callbacks may toggle them too.

    Args:
        model: the chunks; looked at only when `used`.
        used: what `should_disable_forward_pre_hook` says.
    """

    def __init__(self, model: Sequence[HookedChunk], *, used: bool) -> None:
        self._model = model if used else ()
        self._saved_param_sync: list[Any] | None = None

    @property
    def on(self) -> bool:
        """Whether parameters are being gathered by hooks right now."""
        return any(chunk.remove_forward_pre_hook_handles for chunk in self._model)

    def begin(self) -> None:
        """Before the first step: off, without a gather, because the parameters are whole and must stay as loaded."""
        if self.on:
            disable_forward_pre_hook(self._model, param_sync=False)
        self._saved_param_sync = [chunk.config.param_sync_func for chunk in self._model]
        for chunk in self._model:
            chunk.config.param_sync_func = None

    def after_step(self, *, skipped: bool) -> None:
        """On after the first step that changed the weights, wherever in the run that is."""
        if skipped or self._saved_param_sync is None:
            return
        self._restore_param_sync()
        if not self.on:
            enable_forward_pre_hook(self._model)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Whole parameters inside the block. Collective over the data-parallel group when the hooks are on."""
        was_on = self.on
        if was_on:
            disable_forward_pre_hook(self._model)
        try:
            yield
        finally:
            if was_on:
                enable_forward_pre_hook(self._model)

    def end(self) -> None:
        """After the last step: off for good, parameters whole. Collective when the hooks are on."""
        self._restore_param_sync()
        if self.on:
            disable_forward_pre_hook(self._model)

    def _restore_param_sync(self) -> None:
        for chunk, function in zip(self._model, self._saved_param_sync or (), strict=False):
            chunk.config.param_sync_func = function
        self._saved_param_sync = None


def forward_pre_hooks(cfg: LoopSettings, model: Sequence[Any]) -> ForwardPreHooks:
    """Return the parameter-gather hooks of a model; none at all in most set-ups."""
    used = should_disable_forward_pre_hook(
        cfg.ddp.use_megatron_fsdp, cfg.optimizer.use_distributed_optimizer, cfg.ddp.overlap_param_gather
    )
    return ForwardPreHooks(model, used=used)
