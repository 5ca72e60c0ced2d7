"""One training step. Imports torch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mb_loop.rerun_machine import RerunMachine
from mb_loop.settings import GlobalState, LoopSettings, batch_plan
from mb_loop.step.attention_logits import AttentionLogits
from mb_loop.step.forward_backward import ForwardBackwardRunner, GradientBuffer, ParallelSetup
from mb_loop.step.hooks import forward_pre_hooks
from mb_loop.step.injection import ForwardStep, prepare_forward_step_func
from mb_loop.step.losses import LossGroups, reduce_losses
from mb_loop.step.microbatches import StepBatch
from mb_loop.step.mxfp8 import parameter_copy
from mb_loop.step.optimizer_sync import update_sync
from mb_loop.step.optimizers import (
    Optimizer,
    Scheduler,
    learning_rates,
    scheduler_step,
    step_optimizer,
)
from mb_loop.step.result import StepResult
from mb_loop.step.schedule import ForwardBackward


class TrainStep:
    """Training step: forward-backward, optimizer, scheduler.

    Adds no host synchronisation, and one collective: the all-reduce of the losses on the last pipeline stage.
    `rerun_machine` and `update_sync` may add collectives. The constructor is collective over `groups.mp`, if present.

    Args:
        forward_backward: runs the forward-backward passes.
        model: model chunks of this rank.
        optimizer: Megatron's or torch's optimizer.
        scheduler: Megatron's or torch's learning rate scheduler, or None.
        groups: losses are averaged over its `dp_cp` group; None: over microbatches only.
        cfg: `model.seq_length` and some fields of `train` are read, once.
        rerun_machine: decides whether the passes are repeated; None: they never are.
        after_zeroing: called each time the gradients have been zeroed; None: nothing is.
        before_update: called once per step after the gradients are reduced, before the optimizer unscales and clips
            them; None: nothing is.
        attention_logits: reads the largest attention logits; None: they are not read.
        empty_cache: releases unused device memory, according to `train.empty_unused_memory_level`.
    """

    def __init__(  # noqa: PLR0913 (the parts of a step, each by name)
        self,
        forward_backward: ForwardBackwardRunner,
        *,
        model: Sequence[Any],
        optimizer: Optimizer,
        scheduler: Scheduler | None,
        groups: LossGroups | None,
        cfg: LoopSettings,
        rerun_machine: RerunMachine | None = None,
        after_zeroing: Callable[[], None] | None = None,
        before_update: Callable[[], None] | None = None,
        attention_logits: AttentionLogits | None = None,
        empty_cache: Callable[[], object] = torch.cuda.empty_cache,
    ) -> None:
        self._forward_backward = forward_backward
        self._buffers = [chunk for chunk in model if isinstance(chunk, GradientBuffer)]
        self._optimizer = optimizer
        self._advance = scheduler_step(scheduler)
        self._groups = groups
        self._seq_length = cfg.model.seq_length
        self._empty_cache = empty_cache
        self._empty_cache_level = cfg.train.empty_unused_memory_level
        self._rerun_machine = rerun_machine
        self._after_zeroing = after_zeroing
        self._before_update = before_update
        self._logits = attention_logits
        self._synchronize = update_sync(optimizer, groups, settings=cfg.train)

    def __call__(self, step: int, batch: StepBatch) -> StepResult:
        """Train step number `step` on one batch. Collective over all ranks of the model."""
        save = False
        if self._rerun_machine is None:
            microbatches = self._run_passes(batch)
        else:
            microbatches = []
            while self._rerun_machine.should_run_forward_backward(self._forward_backward.data_iterator):
                microbatches = self._run_passes(batch)
            save, leave, exit_code = self._rerun_machine.should_checkpoint_and_exit()
            if leave:
                return self._rejected(step, batch, save=save, exit_code=exit_code)
        if self._empty_cache_level >= 1:
            self._empty_cache()

        # Read before the scheduler advances: the result holds the rate that this step was made with.
        rate, decoupled = learning_rates(self._optimizer)
        if self._before_update is not None:
            self._before_update()
        update = step_optimizer(self._optimizer)
        if self._synchronize is not None:
            update = self._synchronize(update)
        largest = None if self._logits is None else self._logits(successful=update.successful)
        if update.successful:
            self._advance(batch.samples)
        if self._empty_cache_level >= 2:
            self._empty_cache()

        return StepResult(
            step=step,
            losses=reduce_losses(microbatches, groups=self._groups),
            grad_norm=update.grad_norm,
            num_zeros_in_grad=update.num_zeros_in_grad,
            skipped=not update.successful,
            learning_rate=rate,
            decoupled_learning_rate=decoupled,
            max_attention_logit=largest,
            samples=batch.samples,
            tokens=None if self._seq_length is None else batch.samples * self._seq_length,
            should_checkpoint=save,
        )

    def _run_passes(self, batch: StepBatch) -> Sequence[Mapping[str, Tensor]]:
        """Zero the gradients and run the passes of all microbatches; return the losses of each."""
        for buffer in self._buffers:
            buffer.zero_grad_buffer()
        self._optimizer.zero_grad()
        if self._after_zeroing is not None:
            self._after_zeroing()
        if self._logits is not None:
            self._logits.reset()
        return self._forward_backward(batch, forward_only=False)

    @staticmethod
    def _rejected(step: int, batch: StepBatch, *, save: bool, exit_code: int) -> StepResult:
        return StepResult(
            step=step,
            losses={},
            skipped=True,
            samples=batch.samples,
            should_checkpoint=save,
            exit_code=exit_code,
        )


def train_step(  # noqa: PLR0913 (the seed's arguments, and the groups that it found in globals)
    forward_step_func: ForwardStep,
    data_iterator: Any,
    model: Sequence[Any],
    optimizer: Optimizer,
    scheduler: Scheduler | None,
    global_state: GlobalState,
    *,
    pg_collection: LossGroups | None = None,
    forward_backward_func: ForwardBackward | None = None,
    p2p_communicator: Any = None,
    rerun_machine: RerunMachine | None = None,
) -> tuple[dict[str, Tensor], int, bool, bool, int, Any, Any]:
    """Train one step outside of `train`. The counters of the state do not change.

    Collective over all ranks of the model. For many steps use `TrainStep`, which returns a `StepResult`. With a rerun
    machine, pass the iterator that its `begin` returned as `data_iterator`.

    Returns:
        losses, skipped (0 or 1), should_checkpoint, should_exit, exit_code, grad_norm, num_zeros_in_grad.
    """
    cfg, state = global_state.cfg, global_state.train_state
    parallel = ParallelSetup(
        forward_backward_func=forward_backward_func,
        pg_collection=pg_collection,
        p2p_communicator=p2p_communicator,
    )
    parallel.check(cfg, model)
    forward_backward = ForwardBackwardRunner(
        prepare_forward_step_func(forward_step_func, global_state),
        data_iterator=data_iterator,
        model=model,
        seq_length=cfg.model.seq_length,
        parallel=parallel,
    )
    make = TrainStep(
        forward_backward,
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        groups=pg_collection,
        cfg=cfg,
        rerun_machine=rerun_machine,
        after_zeroing=parameter_copy(cfg, optimizer, hooks=forward_pre_hooks(cfg, model)),
    )
    result = make(state.step + 1, batch_plan(cfg).at(state.consumed_train_samples))
    return (
        dict(result.losses),
        int(result.skipped),
        result.should_checkpoint,
        result.exit_code is not None,
        result.exit_code or 0,
        result.grad_norm,
        result.num_zeros_in_grad,
    )
