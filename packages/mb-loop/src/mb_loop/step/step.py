"""One training step, as statements in order: a step of another kind is a changed copy of `__call__`. Imports torch."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from mb_loop.callbacks import EventDispatcher
from mb_loop.parts import TrainParts
from mb_loop.settings import GlobalState
from mb_loop.step.forward_backward import GradientBuffer
from mb_loop.step.hooks import ForwardPreHooks, forward_pre_hooks, parameter_copy
from mb_loop.step.losses import reduce_losses
from mb_loop.step.microbatches import StepBatch
from mb_loop.step.optimizers import (
    OptimizerUpdate,
    learning_rates,
    scheduler_step,
    step_optimizer,
    update_sync,
)
from mb_loop.step.result import StepResult


class TrainStep:
    """Training step: `step(number, batch)` runs the passes of a batch, the optimizer and the scheduler.

    Adds no host synchronisation, and one collective: the all-reduce of the losses on the last pipeline stage.
    `rerun_machine` and `update_sync` may add collectives. The constructor is collective over `pg_collection.mp`, if
    present.

    Args:
        parts: forward step, model, optimizer, scheduler, training data, schedule, rerun machine, attention logits.
        state: `cfg` is read, once; the counters neither read nor advanced.
        events: receives `on_before_optimizer_step`; None: the callbacks of `parts`.
        hooks: parameter-gather hooks of the model; None: those of `state.cfg`.
        empty_cache: releases unused device memory, according to `train.empty_unused_memory_level`.
    """

    def __init__(
        self,
        parts: TrainParts,
        state: GlobalState,
        *,
        events: EventDispatcher | None = None,
        hooks: ForwardPreHooks | None = None,
        empty_cache: Callable[[], object] = torch.cuda.empty_cache,
    ) -> None:
        cfg = state.cfg
        self.forward_backward = parts.forward_backward(state, parts.train_data_iterator)
        self.events = parts.events(state) if events is None else events
        self.optimizer = parts.optimizer
        self.advance_scheduler = scheduler_step(parts.scheduler)
        self.rerun_machine = parts.rerun_machine
        self.attention_logits = parts.attention_logits
        self.groups = parts.pg_collection
        self.gradient_buffers = [chunk for chunk in parts.model if isinstance(chunk, GradientBuffer)]
        hooks = forward_pre_hooks(cfg, parts.model, parts.optimizer) if hooks is None else hooks
        self.copy_parameters = parameter_copy(cfg, parts.optimizer, hooks=hooks) or _copy_nothing
        self.agree_on_update = (
            update_sync(parts.optimizer, parts.pg_collection, settings=cfg.train) or _unchanged
        )
        self.tokens_per_sample = (
            cfg.model.seq_length if parts.tokens_per_sample is None else parts.tokens_per_sample
        )
        self.empty_cache = empty_cache
        self.empty_cache_level = cfg.train.empty_unused_memory_level

    def __call__(self, step: int, batch: StepBatch) -> StepResult:
        """Train step number `step` (one-based) on one batch. Collective over all ranks of the model."""
        # Forward and backward. Megatron's schedule accumulates the gradients of all microbatches, and reduces them over
        # the data-parallel ranks in the last backward pass or after it.
        reported: Sequence[Mapping[str, Tensor]] = []
        for _ in self.attempts():
            for chunk in self.gradient_buffers:
                chunk.zero_grad_buffer()
            self.optimizer.zero_grad()
            self.copy_parameters()  # after zeroing: MXFP8 parameters are gathered through the gradient buffer
            if self.attention_logits is not None:
                self.attention_logits.reset()  # evaluations and rejected attempts measure logits, too
            reported = self.forward_backward(batch, forward_only=False)
        save = False
        if self.rerun_machine is not None:
            save, leave, exit_code = self.rerun_machine.should_checkpoint_and_exit()
            if leave:  # the result is wrong on this device: the weights stay as they are
                return _rejected(step, batch, save=save, exit_code=exit_code)
        if self.empty_cache_level >= 1:
            self.empty_cache()

        # Update. Megatron's optimizer unscales the gradients, takes their norm over all ranks, clips, and steps; on
        # overflow it leaves the weights unchanged. The rates are read first: the schedule has not advanced yet.
        rate, decoupled_rate = learning_rates(self.optimizer)
        self.events("on_before_optimizer_step")
        # A rank that trains no weights knows neither norm nor overflow, and learns both from the others.
        update = self.agree_on_update(step_optimizer(self.optimizer))
        max_logit = None
        if self.attention_logits is not None:
            max_logit = self.attention_logits(successful=update.successful)

        # Schedule. A skipped update is not a step of the schedule, although its samples are consumed.
        if update.successful:
            self.advance_scheduler(batch.samples)
        if self.empty_cache_level >= 2:
            self.empty_cache()

        # All values stay on the device: reading one waits for it.
        return StepResult(
            step=step,
            losses=reduce_losses(reported, groups=self.groups),
            grad_norm=update.grad_norm,
            num_zeros_in_grad=update.num_zeros_in_grad,
            skipped=not update.successful,
            learning_rate=rate,
            decoupled_learning_rate=decoupled_rate,
            max_attention_logit=max_logit,
            samples=batch.samples,
            tokens=None if self.tokens_per_sample is None else round(batch.samples * self.tokens_per_sample),
            should_checkpoint=save,
        )

    def attempts(self) -> Iterator[None]:
        """Yield for each run of the passes: once, or as often as the rerun machine requests."""
        if self.rerun_machine is None:
            yield
            return
        while self.rerun_machine.should_run_forward_backward(self.forward_backward.data_iterator):
            yield


def _copy_nothing() -> None:
    pass


def _unchanged(update: OptimizerUpdate) -> OptimizerUpdate:
    return update


def _rejected(step: int, batch: StepBatch, *, save: bool, exit_code: int) -> StepResult:
    return StepResult(
        step=step,
        losses={},
        skipped=True,
        samples=batch.samples,
        should_checkpoint=save,
        exit_code=exit_code,
    )
