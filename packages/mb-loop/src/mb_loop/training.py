"""Training of a run: its parts are connected, then the loop runs. Imports torch."""

from dataclasses import replace

from mb_loop.collectives import max_across_ranks
from mb_loop.data_iterator import discard_step, observed, require_iterators
from mb_loop.errors import TrainSettingsError
from mb_loop.evaluation.evaluate import ScheduledEvaluation
from mb_loop.exits.exit_conditions import ExitConditions
from mb_loop.exits.outcome import TrainOutcome
from mb_loop.exits.stop_signal import StopRequestSource
from mb_loop.graphs.capture import GraphCapture
from mb_loop.maintenance.checkpoint_saver import CheckpointSaver, require_checkpointer
from mb_loop.maintenance.manual_gc import ManualGC
from mb_loop.maintenance.periodic import maintenance_tasks
from mb_loop.maintenance.replicas import ReplicaCheck
from mb_loop.parts import TrainParts
from mb_loop.settings import GlobalState, TrainSettings, batch_plan
from mb_loop.step.hooks import forward_pre_hooks
from mb_loop.step.step import TrainStep
from mb_loop.train_loop import TrainLoop, run_train_loop


def train(parts: TrainParts, state: GlobalState) -> TrainOutcome:
    """Train from the step in `state.train_state` up to `train.train_iters`.

    Collective: all ranks of the model call it with the same settings and counters. Adds no host synchronisation to a
    step, and one collective: the all-reduce of the losses on the last pipeline stage. With
    `train.exit_duration_in_mins` and without `duration_stop_requested`, ranks compare their clocks a few dozen times
    per run, and before each batch of an evaluation; if steps become more than twice as slow, the run ends late.
    A `rerun_machine`, and models of which some ranks train nothing (`update_sync`), cost one additional collective and
    synchronisation per step. On return the forward pre-hooks are disabled and all parameters are gathered.
    `on_train_end` is fired on every exit, including exceptions.

    Args:
        parts: model, optimizer, data, callbacks and the other parts of the run.
        state: counters, which are advanced, and settings, which are read; see `LoopState.of`.

    Returns:
        Reason and step at which training ended, and whether that step is saved and validated.

    Raises:
        TrainSettingsError: train_iters is not set or negative, exit_interval is below 1, there is no validation data or
            no optimizer, the exit signal cannot be handled, or `checkpoint.save` is set and there is no checkpointer.
        DataIteratorError: the data is not an iterator.
        BatchSizeError: the batch sizes of training or evaluation do not divide.
        ParallelSetupError: a parallel run has no group or no schedule.
        ValidationSetError: the settings require validation sets, but a plain iterator was passed.
        ReplicaMismatchError: replicas hold different weights.
        DataExhaustedError: the data ended before the steps did.
    """
    cfg, counters = state.cfg, state.train_state
    train_iters = _last_step(cfg.train)
    require_iterators(parts.train_data_iterator, name="train_data_iterator")
    parts.forward_backward(state, None)  # rejects a wrong schedule before anything else happens
    if cfg.validation.skip_train:
        message = f"validation.skip_train: no step was made after step {counters.step}"
        return TrainOutcome(
            reason="skip_train", message=message, step=counters.step, exit_code=0, saved=False
        )
    require_checkpointer(cfg.checkpoint, parts.checkpointer)
    if parts.optimizer is None:
        raise TrainSettingsError(
            "optimizer: is None, so no step could change the model. Pass one, or set validation.skip_train=true to "
            "evaluate only."
        )

    events, manual_gc = parts.events(state), ManualGC(cfg.train)
    hooks = forward_pre_hooks(cfg, parts.model, parts.optimizer)
    data = observed(parts.train_data_iterator, events)
    if parts.rerun_machine is not None:
        # Outermost: a repeated step reads the microbatches that the machine kept, which are no events any more.
        data = parts.rerun_machine.begin(counters.step, data, parts.model)
    stop = StopRequestSource(cfg.train, parts.stop_requested)
    exits = ExitConditions.of(
        cfg.train,
        clock=parts.clock,
        start_time=parts.clock() if state.start_time is None else state.start_time,
        max_across_ranks=max_across_ranks,
        stop_requested=stop,
        straggler_stop_requested=parts.straggler_stop_requested,
        duration_stop_requested=parts.duration_stop_requested,
        early_stop_requested=parts.callbacks.stop_requested,
    )
    saver = CheckpointSaver(
        parts.checkpointer,
        settings=cfg.checkpoint,
        hooks=hooks,
        events=events,
        start_step=None if parts.from_non_persistent else counters.step,
    )
    evaluation = ScheduledEvaluation(
        parts,
        state,
        hooks=hooks,
        stop_evaluation=exits.duration_reached if parts.stop_evaluation is None else parts.stop_evaluation,
        around=manual_gc.around_evaluation,
    )
    graphs = None
    if parts.cuda_graphs is not None:
        graphs = GraphCapture(parts.cuda_graphs, hooks=hooks)
    replicas = None
    if parts.pg_collection is not None and cfg.train.check_weight_hash_across_dp_replicas_interval:
        replicas = ReplicaCheck(parts.model, groups=parts.pg_collection, hooks=hooks)
    loop = TrainLoop(
        train_iters=train_iters,
        skip_steps=frozenset(cfg.train.iterations_to_skip),
        state=counters,
        plan=batch_plan(cfg),
        step=TrainStep(replace(parts, train_data_iterator=data), state, events=events, hooks=hooks),
        discard=discard_step(data, parts.rerun_machine),
        events=events,
        hooks=hooks,
        graphs=graphs,
        flops=parts.flops,
        evaluate=evaluation,
        maintenance=maintenance_tasks(cfg.train, replicas=replicas, manual_gc=manual_gc),
        saves=saver,
        exits=exits,
    )

    for chunk in parts.model:
        chunk.train()
    outcome = None
    with manual_gc.managed(), stop.handling_signal():
        try:
            # Replicas that a load has left different would otherwise train apart until the first interval.
            if replicas is not None:
                replicas(counters.step)
            events("on_train_start")
            hooks.begin()
            # A run that is resumed after its early stop is complete.
            leave = exits.early_stop(counters.step) or run_train_loop(loop)
            hooks.end()
            if graphs is not None:
                graphs.end()
            if leave.reason in ("finished", "early_stop"):
                saver.finish(counters.step)
            # Before the outcome is built: only a completed save makes the step "saved".
            saver.poll(blocking=True)
            outcome = TrainOutcome(
                reason=leave.reason,
                message=leave.message,
                step=counters.step,
                exit_code=leave.exit_code,
                saved=saver.saved(counters.step),
                validated=evaluation.validated(counters.step),
            )
        finally:
            hooks.restore_param_sync()
            events("on_train_end", outcome=outcome)
    return outcome


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
