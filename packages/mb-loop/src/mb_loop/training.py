"""Put the parts of a run together and run it. Needs torch."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from mb_loop.attention_logits import AttentionLogits
from mb_loop.callbacks import Callback, CallbackManager, Events
from mb_loop.errors import DataExhaustedError, TrainSettingsError
from mb_loop.evaluation import TimeIsUp, run_evaluation
from mb_loop.exits import Exits, ExitWish, no_wish
from mb_loop.garbage import Garbage
from mb_loop.graphs import CudaGraphs, GraphCapture
from mb_loop.hooks import ForwardPreHooks, forward_pre_hooks
from mb_loop.housekeeping import Housekeeping
from mb_loop.injection import ForwardStep, prepare_forward_step_func
from mb_loop.losses import LossGroups
from mb_loop.microbatches import StepBatch
from mb_loop.mxfp8 import parameter_copy
from mb_loop.non_loss import NonLossData
from mb_loop.optimizers import Optimizer, Scheduler
from mb_loop.outcome import TrainOutcome
from mb_loop.passes import Parallel, Passes
from mb_loop.reruns import NoReruns, Reruns
from mb_loop.result import StepResult, no_flops
from mb_loop.saves import Checkpointer, Saver, checkpointer_of
from mb_loop.schedule import ForwardBackward
from mb_loop.settings import GlobalState, TrainSettings, batch_plan, evaluation_batch
from mb_loop.step import TrainStep
from mb_loop.stop_signal import StopRequests
from mb_loop.turns import Loop, StepEnd, run_turns
from mb_loop.validation import evaluation_due, evaluation_possible, require_iterators, validation_sets
from mb_loop.world import longest


def train(  # noqa: PLR0913 (the seed's arguments, and what it found in globals)
    forward_step_func: ForwardStep,
    model: Sequence[Any],
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
    callbacks: Iterable[Callback] | CallbackManager = (),
    checkpointer: Checkpointer | None = None,
    exit_wish: ExitWish | None = None,
    straggler_wish: ExitWish = no_wish,
    time_wish: ExitWish | None = None,
    leave_evaluation: TimeIsUp | None = None,
    reruns: Reruns | None = None,
    flops: Callable[[StepResult], float] = no_flops,
    cuda_graphs: CudaGraphs | None = None,
    attention_logits: AttentionLogits | None = None,
    non_loss_writer: Any = None,
    clock: Callable[[], float] = time.time,
) -> TrainOutcome:
    """Train up to `train.train_iters`, from wherever `global_state.train_state` stands.

    Collective: all ranks of the model call it with the same settings and counters. Adds no host synchronisation to a
    step, and one collective: the all-reduce of the losses on the last pipeline stage. With
    `train.exit_duration_in_mins` and without `time_wish` ranks compare their clocks some dozen times in a run, and
    before each batch of an evaluation; steps that get more than twice as slow then make the end late. `reruns`, and
    models of which some ranks train nothing (`step_agreement`), cost one collective and one synchronisation a step.
    On return the forward pre-hooks are off and the parameters whole. `on_train_end` is fired on every way out.

    Args:
        forward_step_func: `(iterator, model)` or `(state, iterator, model)`; see `forward_backward_plain`.
        model: the chunks of this rank; one without interleaved pipelining.
        optimizer: Megatron's, or torch's.
        scheduler: Megatron's (advances by samples), torch's (by steps), or None.
        train_data_iterator: an iterator, a list with one per chunk, or None on ranks that read no data.
        valid_data_iterator: the same for validation.
        global_state: counters, which are advanced, and settings, which are read; `LoopState.of(...)` makes one.
        checkpointing_context: a mapping may hold the checkpointer, under "checkpointer"; other keys are not read.
        process_non_loss_data_func: called as (data, step, writer) after each validation, on ranks with a
            `non_loss_writer`; the data are what `non_loss_data_func` or else the loss functions give (`NonLossData`).
        non_loss_data_func: called with the chunks after each validation, on all ranks; returns the data.
        forward_backward_func: Megatron's schedule; None: the plain one, without pipelining.
        pg_collection: losses are averaged over its dp_cp; needed when data_parallel_size > 1.
        p2p_communicator: given to the schedule together with `pg_collection`.
        callbacks: called in order; a manager keeps its `user_state`.
        checkpointer: None: nothing is saved. Whether a directory is set is its own business.
        exit_wish: stop request source, called once after each step; must return the same on all ranks. None: with
            `train.exit_signal_handler` the loop handles `train.exit_signal` itself, and stops after the step in which
            any rank receives it. That costs one collective of the hosts per step (gloo, no device synchronisation).
            Given one as well, the loop handles the signal unless the signal has a handler already.
        straggler_wish: the same, for slow ranks.
        time_wish: the same, for `train.exit_duration_in_mins`; None: ranks compare their clocks by a collective.
        leave_evaluation: asked before each batch of a validation but the first; must answer alike on all ranks. True
            gives it up, so that a wish can be heard soon. None: the duration is asked, unless there is a `time_wish`.
        reruns: runs suspicious steps again; `mb_loop.mcore.MegatronReruns`. None: never.
        flops: operations of a step over all ranks; added up in `floating_point_operations_so_far`.
        cuda_graphs: captured after their warm-up; None: no graphs.
        attention_logits: read after each optimizer step, and weights clipped by them (`qk_clip`); None: neither.
        non_loss_writer: given to `process_non_loss_data_func`; None: this rank writes nothing.
        clock: seconds; the one that `global_state.start_time` was read from.

    Returns:
        Why and where training ended, and whether that step is saved.

    Raises:
        TrainSettingsError: train_iters is not set, exit_interval is below 1, there is no validation data, non-loss
            data would be collected for nobody, the exit signal cannot be handled, or `checkpointing_context` is
            unusable.
        DataIteratorError: the data is no iterator.
        BatchSizeError: the batch sizes do not fit, those of the evaluations included.
        ParallelSetupError: a parallel run without its group or schedule.
        ValidationSetError: the settings ask for validation sets, and plain data was given.
        ReplicaMismatchError: replicas hold different weights.
        DataExhaustedError: the data ended before the steps did.
    """
    cfg, state = global_state.cfg, global_state.train_state
    train_iters = _last_step(cfg.train)
    require_iterators(train_data_iterator, name="train_data_iterator")
    non_loss = NonLossData(
        collect=non_loss_data_func, process=process_non_loss_data_func, writer=non_loss_writer
    )
    parallel = Parallel(
        forward_backward_func=forward_backward_func,
        pg_collection=pg_collection,
        p2p_communicator=p2p_communicator,
    )
    parallel.check(cfg, model)
    if cfg.validation.skip_train:
        return _nothing_to_do(state.step)

    manager = callbacks if isinstance(callbacks, CallbackManager) else CallbackManager(callbacks)
    heard_in_evaluations = Events(manager=manager, state=global_state, model=model)
    events = replace(heard_in_evaluations, optimizer=optimizer, scheduler=scheduler)
    hooks = forward_pre_hooks(cfg, model)
    garbage = Garbage(cfg.train)
    checkpointer = checkpointer_of(checkpointing_context, checkpointer)
    saver = Saver(checkpointer, settings=cfg.checkpoint, hooks=hooks, events=events, start_step=state.step)
    graphs = GraphCapture(cuda_graphs, hooks=hooks, start_step=state.step)
    housekeeping = Housekeeping(cfg.train, model, groups=pg_collection, hooks=hooks, garbage=garbage)
    stop = StopRequests(cfg.train, exit_wish)
    exits = Exits.of(
        cfg.train,
        clock=clock,
        start_time=clock() if global_state.start_time is None else global_state.start_time,
        longest=longest,
        wish=stop,
        slow=straggler_wish,
        time=time_wish,
    )
    reruns = NoReruns() if reruns is None else reruns
    passes = Passes(
        prepare_forward_step_func(forward_step_func, global_state),
        data_iterator=reruns.begin(state.step, train_data_iterator),
        model=model,
        seq_length=cfg.model.seq_length,
        parallel=parallel,
    )
    loop = Loop(
        train_iters=train_iters,
        skip_steps=frozenset(cfg.train.iterations_to_skip),
        state=state,
        plan=batch_plan(cfg),
        step=TrainStep(
            passes,
            model=model,
            optimizer=optimizer,
            scheduler=scheduler,
            groups=pg_collection,
            cfg=cfg,
            reruns=reruns,
            after_zeroing=parameter_copy(cfg, optimizer, hooks=hooks),
            before_update=lambda: events("on_before_optimizer_step"),
            attention_logits=attention_logits,
        ),
        discard=_discard(passes.data_iterator, reruns),
        events=events,
        hooks=hooks,
        graphs=graphs,
        flops=flops,
        evaluate=_evaluation(
            passes.reading(valid_data_iterator),
            heard_in_evaluations,
            groups=pg_collection,
            garbage=garbage,
            reruns=reruns,
            time_is_up=exits.time_is_up if leave_evaluation is None else leave_evaluation,
            non_loss=non_loss,
            reads_data=train_data_iterator is not None,
        ),
        housekeeping=housekeeping,
        saves=saver,
        exits=exits,
    )
    for chunk in model:
        chunk.train()
    with garbage.managed(), stop.watching():
        return _run(loop, hooks=hooks, saver=saver, housekeeping=housekeeping, graphs=graphs)


def _last_step(train: TrainSettings) -> int:
    """Return the number of the last step; refuse a run without one, and one that would leave at no multiple."""
    if train.train_iters is None:
        raise TrainSettingsError("train.train_iters: is not set (None), so there is no last step. Set it.")
    if train.exit_interval is not None and train.exit_interval < 1:
        raise TrainSettingsError(
            f"train.exit_interval: is {train.exit_interval}, but a run leaves at multiples of it. "
            "Set it to 1 or more, or None."
        )
    return train.train_iters


def _nothing_to_do(step: int) -> TrainOutcome:
    message = f"validation.skip_train: no step was made after step {step}"
    return TrainOutcome(reason="skip_train", message=message, step=step, exit_code=0, saved=False)


def _run(
    loop: Loop, *, hooks: ForwardPreHooks, saver: Saver, housekeeping: Housekeeping, graphs: GraphCapture
) -> TrainOutcome:
    """Run the turns, save what the end asks for, and fire `on_train_end` whatever happens."""
    outcome = None
    try:
        housekeeping.at_start(loop.state.step)
        loop.events("on_train_start")
        hooks.begin()
        leave = run_turns(loop)
        hooks.end()
        graphs.end()
        if leave.reason == "finished":
            saver.finish(loop.state.step)
        saver.poll(blocking=True)
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


_END = object()


def _discard(data_iterator: Any, reruns: Reruns) -> Callable[[StepBatch], None]:
    """Use up the microbatches of a step: of every chunk's iterator, or of none on a rank that reads no data."""
    iterators = data_iterator if isinstance(data_iterator, list) else [data_iterator]

    def discard(batch: StepBatch) -> None:
        with reruns.discarding(data_iterator):
            for iterator in iterators:
                for _ in range(batch.num_microbatches if iterator is not None else 0):
                    if next(iterator, _END) is _END:
                        raise DataExhaustedError(
                            "data iterator: ended within a step of train.iterations_to_skip. Provide more data."
                        )

    return discard


def _evaluation(
    passes: Passes,
    events: Events,
    *,
    groups: LossGroups | None,
    garbage: Garbage,
    reruns: Reruns,
    time_is_up: TimeIsUp,
    non_loss: NonLossData,
    reads_data: bool,
) -> StepEnd:
    cfg = events.state.cfg
    wanted = evaluation_possible(cfg.validation) and cfg.validation.eval_interval
    if events.state.train_state.do_valid and wanted:
        evaluation_batch(cfg)  # what does not fit is refused now, not at the first evaluation
        validation_sets(passes.data_iterator, cfg.validation)
        if reads_data and passes.data_iterator is None:
            raise TrainSettingsError(
                f"valid_data_iterator: is None on a rank that reads training data, but validation.eval_interval="
                f"{cfg.validation.eval_interval} and eval_iters={cfg.validation.eval_iters} ask for validations. "
                "Pass data, or set eval_iters=0."
            )

    def run(step: int) -> None:
        if evaluation_due(cfg.validation, events.state.train_state):
            with garbage.around_evaluation(), reruns.paused():
                run_evaluation(
                    passes, events, groups=groups, kind="eval", time_is_up=time_is_up, non_loss=non_loss
                )

    return run
