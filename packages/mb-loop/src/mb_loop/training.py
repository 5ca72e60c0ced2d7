"""Entry point of training: build the components of a run and run the loop. Imports torch."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch.nn import Module

from mb_loop.assembly import LoopAssembly
from mb_loop.callbacks import Callback, CallbackManager, normalize_callbacks
from mb_loop.collectives import any_rank, max_across_ranks
from mb_loop.errors import TrainSettingsError
from mb_loop.evaluation.evaluate import StopEvaluation
from mb_loop.evaluation.non_loss import NonLossData
from mb_loop.evaluation.validation import require_iterators
from mb_loop.exits.exit_conditions import ExitConditions, StopRequested
from mb_loop.exits.outcome import TrainOutcome
from mb_loop.exits.stop_signal import StopRequestSource
from mb_loop.graphs.capture_schedule import CudaGraphs, GraphCapture
from mb_loop.maintenance.checkpoint_saver import (
    Checkpointer,
    CheckpointSaver,
    checkpointer_of,
    require_checkpointer,
)
from mb_loop.maintenance.manual_gc import ManualGC
from mb_loop.maintenance.periodic import maintenance_tasks
from mb_loop.maintenance.replicas import ReplicaCheck
from mb_loop.rerun_machine import RerunMachine
from mb_loop.settings import GlobalState, TrainSettings, batch_plan
from mb_loop.step.attention_logits import AttentionLogits
from mb_loop.step.forward_backward import ParallelSetup
from mb_loop.step.hooks import ForwardPreHooks, forward_pre_hooks
from mb_loop.step.injection import ForwardStep
from mb_loop.step.losses import LossGroups
from mb_loop.step.optimizers import Optimizer, Scheduler
from mb_loop.step.result import StepResult, no_flops
from mb_loop.step.schedule import ForwardBackward
from mb_loop.train_loop import TrainLoop, run_train_loop


def train(  # noqa: PLR0913 (the seed's arguments, and what it found in globals)
    forward_step_func: ForwardStep,
    model: Sequence[Any] | Module,
    optimizer: Optimizer,
    scheduler: Scheduler | None,
    train_data_iterator: Any,
    valid_data_iterator: Any,
    global_state: GlobalState,
    checkpointing_context: object = None,
    process_non_loss_data_func: Callable[..., Any] | None = None,
    non_loss_data_func: Callable[..., Any] | None = None,
    *,
    forward_backward_func: ForwardBackward | None = None,
    pg_collection: LossGroups | None = None,
    p2p_communicator: Any = None,
    callbacks: Iterable[Callback] | Callback | CallbackManager | None = None,
    checkpointer: Checkpointer | None = None,
    stop_requested: StopRequested | None = None,
    straggler_stop_requested: StopRequested | None = None,
    duration_stop_requested: StopRequested | None = None,
    stop_evaluation: StopEvaluation | None = None,
    rerun_machine: RerunMachine | None = None,
    flops: Callable[[StepResult], float] = no_flops,
    cuda_graphs: CudaGraphs | None = None,
    attention_logits: AttentionLogits | None = None,
    non_loss_writer: Any = None,
    clock: Callable[[], float] = time.time,
) -> TrainOutcome:
    """Train from the step in `global_state.train_state` up to `train.train_iters`.

    Collective: all ranks of the model call it with the same settings and counters. Adds no host synchronisation to a
    step, and one collective: the all-reduce of the losses on the last pipeline stage. With
    `train.exit_duration_in_mins` and without `duration_stop_requested`, ranks compare their clocks a few dozen times
    per run, and before each batch of an evaluation; if steps become more than twice as slow, the run ends late.
    A `rerun_machine`, and models of which some ranks train nothing (`update_sync`), cost one additional collective and
    synchronisation per step. On return the forward pre-hooks are disabled and all parameters are gathered.
    `on_train_end` is fired on every exit, including exceptions.

    Args:
        forward_step_func: `(iterator, model)` or `(state, iterator, model)`; see `forward_backward_no_pipelining`.
        model: model chunks of this rank, one without interleaved pipelining; or the module itself.
        optimizer: Megatron's or torch's optimizer.
        scheduler: Megatron's (advances by samples), torch's (advances by steps), or None.
        train_data_iterator: an iterator, a list with one iterator per chunk, or None on ranks that read no data.
        valid_data_iterator: the same for validation.
        global_state: counters, which are advanced, and settings, which are read; see `LoopState.of`.
        checkpointing_context: mapping that may hold the checkpointer under "checkpointer"; other keys are ignored.
        process_non_loss_data_func: called as (data, step, writer) after each validation, on ranks with a
            `non_loss_writer`; the data come from `non_loss_data_func`, else from the loss functions (`NonLossData`).
        non_loss_data_func: called with the chunks after each validation, on all ranks; returns the data.
        forward_backward_func: Megatron's schedule; None: `forward_backward_no_pipelining` of this package.
        pg_collection: losses are averaged over its `dp_cp` group; required when data_parallel_size > 1.
        p2p_communicator: passed to the schedule together with `pg_collection`.
        callbacks: called in order, a single one or several; a manager keeps its `user_state`. None: there are none.
        checkpointer: writes checkpoints; None: nothing is saved, and `checkpoint.save` must not be set.
        stop_requested: stop request source, called once after each step; must return the same on all ranks. None: with
            `train.exit_signal_handler` the loop handles `train.exit_signal` itself, and stops after the step in which
            any rank receives it. That costs one gloo collective per step and no device synchronisation. If a source is
            passed as well, the loop handles the signal unless the signal already has a handler.
        straggler_stop_requested: stop request source for slow ranks; None: there is none.
        duration_stop_requested: stop request source for `train.exit_duration_in_mins`; None: ranks compare their clocks
            by a collective.
        stop_evaluation: called before each batch of a validation but the first; must return the same on all ranks. True
            abandons the validation, so that a stop request takes effect soon. None: stop when the duration has passed,
            unless there is a `duration_stop_requested`.
        rerun_machine: repeats steps with suspicious results, such as `mb_loop.mcore.MegatronRerunMachine`. None: no
            step is repeated.
        flops: floating-point operations of a step over all ranks; summed in `floating_point_operations_so_far`.
        cuda_graphs: CUDA graphs, captured after their warm-up; None: no graphs.
        attention_logits: reads the largest attention logit after each optimizer step and clips weights (`qk_clip`).
            None: neither.
        non_loss_writer: passed to `process_non_loss_data_func`; None: this rank writes nothing.
        clock: time in seconds; the clock that `global_state.start_time` was read from.

    Returns:
        Reason and step at which training ended, and whether that step is saved.

    Raises:
        TrainSettingsError: train_iters is not set or negative, exit_interval is below 1, there is no validation data,
            non-loss data would be collected without a writer, the exit signal cannot be handled, or
            `checkpointing_context` is unusable, or `checkpoint.save` is set and there is no checkpointer.
        DataIteratorError: the data is not an iterator.
        BatchSizeError: the batch sizes of training or evaluation do not divide.
        ParallelSetupError: a parallel run has no group or no schedule.
        ValidationSetError: the settings require validation sets, but a plain iterator was passed.
        ReplicaMismatchError: replicas hold different weights.
        DataExhaustedError: the data ended before the steps did.
    """
    cfg, state = global_state.cfg, global_state.train_state
    model = [model] if isinstance(model, Module) else model
    train_iters = _last_step(cfg.train)
    require_iterators(train_data_iterator, name="train_data_iterator")
    non_loss = NonLossData(
        collect=non_loss_data_func, process=process_non_loss_data_func, writer=non_loss_writer
    )
    parallel = ParallelSetup(
        forward_backward_func=forward_backward_func,
        pg_collection=pg_collection,
        p2p_communicator=p2p_communicator,
    )
    parallel.check(cfg, model)
    if cfg.validation.skip_train:
        return _skipped_training(state.step)
    build = LoopAssembly(
        state=global_state,
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        parallel=parallel,
        callbacks=normalize_callbacks(callbacks) or CallbackManager(),
        hooks=forward_pre_hooks(cfg, model),
        manual_gc=ManualGC(cfg.train),
        rerun_machine=rerun_machine,
    )
    events, checkpointer = build.events, checkpointer_of(checkpointing_context, checkpointer)
    require_checkpointer(cfg.checkpoint, checkpointer)
    stop = StopRequestSource(cfg.train, stop_requested)
    exits = ExitConditions.of(
        cfg.train,
        clock=clock,
        start_time=clock() if global_state.start_time is None else global_state.start_time,
        max_across_ranks=max_across_ranks,
        stop_requested=stop,
        straggler_stop_requested=straggler_stop_requested,
        duration_stop_requested=duration_stop_requested,
        early_stop_requested=build.callbacks.stop_requested,
    )
    saver = CheckpointSaver(
        checkpointer, settings=cfg.checkpoint, hooks=build.hooks, events=events, start_step=state.step
    )
    graphs = None
    if cuda_graphs is not None:
        graphs = GraphCapture(cuda_graphs, hooks=build.hooks, start_step=state.step)
    replicas = None
    if pg_collection is not None and cfg.train.check_weight_hash_across_dp_replicas_interval:
        replicas = ReplicaCheck(model, groups=pg_collection, hooks=build.hooks, any_rank=any_rank)
    forward_backward = build.forward_backward(forward_step_func, train_data_iterator)
    loop = TrainLoop(
        train_iters=train_iters,
        skip_steps=frozenset(cfg.train.iterations_to_skip),
        state=state,
        plan=batch_plan(cfg),
        step=build.train_step(forward_backward, events, attention_logits=attention_logits),
        discard=build.discard(forward_backward.data_iterator),
        events=events,
        hooks=build.hooks,
        graphs=graphs,
        flops=flops,
        evaluate=build.evaluation(
            forward_backward.with_data(valid_data_iterator),
            stop_evaluation=exits.duration_reached if stop_evaluation is None else stop_evaluation,
            non_loss=non_loss,
            reads_data=train_data_iterator is not None,
        ),
        maintenance=maintenance_tasks(cfg.train, replicas=replicas, manual_gc=build.manual_gc),
        saves=saver,
        exits=exits,
    )
    for chunk in model:
        chunk.train()
    with build.manual_gc.managed(), stop.handling_signal():
        return _run(loop, exits=exits, hooks=build.hooks, saver=saver, replicas=replicas, graphs=graphs)


def _last_step(train: TrainSettings) -> int:
    """Return the number of the last step.

    Raises:
        TrainSettingsError: train_iters is not set or negative, or exit_interval is below 1.
    """
    if train.train_iters is None:
        raise TrainSettingsError("train.train_iters: is not set (None), so there is no last step. Set it.")
    if train.train_iters < 0:
        raise TrainSettingsError(
            f"train.train_iters: is {train.train_iters}, but it is the number of steps of a run. Set it to 0 "
            "or more."
        )
    if train.exit_interval is not None and train.exit_interval < 1:
        raise TrainSettingsError(
            f"train.exit_interval: is {train.exit_interval}, but a run ends at multiples of it. "
            "Set it to 1 or more, or None."
        )
    return train.train_iters


def _skipped_training(step: int) -> TrainOutcome:
    message = f"validation.skip_train: no step was made after step {step}"
    return TrainOutcome(reason="skip_train", message=message, step=step, exit_code=0, saved=False)


def _run(
    loop: TrainLoop,
    *,
    exits: ExitConditions,
    hooks: ForwardPreHooks,
    saver: CheckpointSaver,
    replicas: ReplicaCheck | None,
    graphs: GraphCapture | None,
) -> TrainOutcome:
    """Run the loop, save the last step if configured, and fire `on_train_end` on every exit."""
    outcome = None
    try:
        if replicas is not None:
            replicas(loop.state.step)
        loop.events("on_train_start")
        hooks.begin()
        # a run that is resumed after its early stop is complete
        leave = exits.early_stop(loop.state.step) or run_train_loop(loop)
        hooks.end()
        if graphs is not None:
            graphs.end()
        if leave.reason == "finished":
            saver.finish(loop.state.step)
        saver.poll(blocking=True)  # before the outcome is built: only a completed save makes the step "saved"
        outcome = TrainOutcome(
            reason=leave.reason,
            message=leave.message,
            step=loop.state.step,
            exit_code=leave.exit_code,
            saved=saver.saved(loop.state.step),
        )
    finally:
        loop.events("on_train_end", outcome=outcome)
    return outcome
