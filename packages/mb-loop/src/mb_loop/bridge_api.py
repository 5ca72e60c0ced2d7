"""Megatron-Bridge's functions, with its names and arguments: the loop, a step, an evaluation. Imports torch.

`train`, `train_step`, `evaluate` and `evaluate_and_print_results` put their arguments into a `TrainParts`. The others
are building blocks for custom loops, and do what `mb_loop.train` does.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import Module

from mb_loop import training
from mb_loop.callbacks import EVENTS, CallbackManager, EventDispatcher, EventName
from mb_loop.collectives import max_across_ranks
from mb_loop.errors import TrainSettingsError
from mb_loop.evaluation import evaluate as evaluation
from mb_loop.evaluation.evaluate import EvaluationKind
from mb_loop.evaluation.non_loss import NonLossData
from mb_loop.exits.exit_conditions import ExitConditions, StopRequested
from mb_loop.exits.outcome import TrainOutcome
from mb_loop.exits.stop_signal import stop_message
from mb_loop.maintenance.checkpoint_saver import (
    Checkpointer,
    CheckpointSaver,
    checkpointer_of,
    no_checkpointer,
    require_checkpointer,
)
from mb_loop.maintenance.manual_gc import ManualGC
from mb_loop.maintenance.periodic import wait_for_device
from mb_loop.maintenance.replicas import ReplicaCheck
from mb_loop.parts import TrainParts
from mb_loop.progress.progress_log import (
    ProgressSettings,
    SaveDirectory,
    compute_throughputs_and_append_to_progress_log,
)
from mb_loop.settings import CheckpointSettings, GlobalState, LoopSettings, TrainSettings, batch_plan
from mb_loop.step.forward_step import ForwardStep
from mb_loop.step.hooks import ForwardPreHooks, forward_pre_hooks
from mb_loop.step.losses import LossGroups
from mb_loop.step.optimizers import Optimizer, Scheduler
from mb_loop.step.schedule import ForwardBackward
from mb_loop.step.step import TrainStep
from mb_schema.save_result import SaveResult

VALID_EVENTS = frozenset(EVENTS)
"""Names of all events."""


def should_fire(callback_manager: CallbackManager | None, event_name: EventName) -> bool:
    """Return whether there is a manager, and it has a listener for an event; an unknown event is an error."""
    return callback_manager is not None and callback_manager.has_callbacks(event_name)


def train(  # noqa: PLR0913 (Megatron-Bridge's arguments)
    forward_step_func: ForwardStep,
    model: Sequence[Any] | Module,
    optimizer: Optimizer | None,
    scheduler: Scheduler | None,
    train_data_iterator: Any,
    valid_data_iterator: Any,
    global_state: GlobalState,
    checkpointing_context: object = None,
    process_non_loss_data_func: Callable[..., Any] | None = None,
    non_loss_data_func: Callable[..., Any] | None = None,
    *,
    checkpointer: Checkpointer | None = None,
    non_loss_writer: Any = None,
    **parts: Any,
) -> TrainOutcome:
    """Call `mb_loop.train`, which documents the result and the errors.

    Args:
        forward_step_func: see `TrainParts`, like the arguments that are not described here.
        model: see `TrainParts`.
        optimizer: see `TrainParts`.
        scheduler: see `TrainParts`.
        train_data_iterator: see `TrainParts`.
        valid_data_iterator: see `TrainParts`.
        global_state: counters, which are advanced, and settings, which are read.
        checkpointing_context: mapping that may hold the checkpointer under "checkpointer"; other keys are ignored.
        process_non_loss_data_func: called as (data, step, writer) after each validation, on ranks with a
            `non_loss_writer`; the data come from `non_loss_data_func`, else from the loss functions (`NonLossData`).
        non_loss_data_func: called with the chunks after each validation, on all ranks; returns the data.
        checkpointer: an alternative to `checkpointing_context`.
        non_loss_writer: passed to `process_non_loss_data_func`; None: this rank writes nothing.
        **parts: further fields of `TrainParts`: the schedule and its groups, callbacks, stop request sources.

    Raises:
        TrainSettingsError: `checkpointing_context` is unusable, or non-loss data would be collected without a writer.
    """
    non_loss = NonLossData(
        collect=non_loss_data_func, process=process_non_loss_data_func, writer=non_loss_writer
    )
    return training.train(
        TrainParts(
            forward_step_func=forward_step_func,
            model=model,
            optimizer=optimizer,
            scheduler=scheduler,
            train_data_iterator=train_data_iterator,
            valid_data_iterator=valid_data_iterator,
            non_loss=non_loss,
            checkpointer=checkpointer_of(checkpointing_context, checkpointer),
            **parts,
        ),
        global_state,
    )


def train_step(  # noqa: PLR0913 (Megatron-Bridge's arguments)
    forward_step_func: ForwardStep,
    data_iterator: Any,
    model: Sequence[Any],
    optimizer: Optimizer,
    scheduler: Scheduler | None,
    global_state: GlobalState,
    pg_collection: LossGroups | None = None,
    forward_backward_func: ForwardBackward | None = None,
    p2p_communicator: Any = None,
    **parts: Any,
) -> tuple[dict[str, Tensor], int, bool, bool, int, Any, Any]:
    """Train one step outside of `train`. The counters of the state do not change.

    Collective over all ranks of the model. For many steps use `TrainStep`, which returns a `StepResult`. With a rerun
    machine, pass the iterator that its `begin` returned as `data_iterator`. `pg_collection`, `forward_backward_func`,
    `p2p_communicator` and `parts` are fields of `TrainParts`.

    Returns:
        losses, skipped (0 or 1), should_checkpoint, should_exit, exit_code, grad_norm, num_zeros_in_grad.
    """
    step = TrainStep(
        TrainParts(
            forward_step_func=forward_step_func,
            model=model,
            optimizer=optimizer,
            scheduler=scheduler,
            train_data_iterator=data_iterator,
            pg_collection=pg_collection,
            forward_backward_func=forward_backward_func,
            p2p_communicator=p2p_communicator,
            **parts,
        ),
        global_state,
    )
    counters = global_state.train_state
    result = step(counters.step + 1, batch_plan(global_state.cfg).at(counters.consumed_train_samples))
    return (
        dict(result.losses),
        int(result.skipped),
        result.should_checkpoint,
        result.exit_code is not None,
        result.exit_code or 0,
        result.grad_norm,
        result.num_zeros_in_grad,
    )


def evaluate(
    forward_step_func: ForwardStep,
    data_iterator: Any,
    model: Sequence[Any],
    global_state: GlobalState,
    *,
    kind: EvaluationKind = "eval",
    **parts: Any,
) -> dict[str, float]:
    """Call `mb_loop.evaluate` on data. It documents the result and the errors; `parts` are fields of `TrainParts`."""
    return evaluation.evaluate(
        TrainParts(
            forward_step_func=forward_step_func,
            model=model,
            valid_data_iterator=data_iterator,
            test_data_iterator=data_iterator,
            **parts,
        ),
        global_state,
        kind=kind,
    )


def evaluate_and_print_results(
    prefix: str,
    forward_step_func: ForwardStep,
    data_iterator: Any,
    model: Sequence[Any],
    global_state: GlobalState,
    *,
    write: Callable[[str], None] | None = print,
    **parts: Any,
) -> str:
    """Evaluate and write the result as one line between dashes.

    Collective, like `evaluate`, whose arguments `parts` are. Pass `write=None` on all ranks except one rank of the last
    pipeline stage.

    Returns:
        The line; empty if this rank has no losses.
    """
    losses = evaluate(forward_step_func, data_iterator, model, global_state, **parts)
    return evaluation.evaluation_line(prefix, losses, write=write)


class StragglerReporter(Protocol):
    """Reporter of slow ranks, such as Megatron's StragglerDetector."""

    def report(self, total_flops: float, log_interval: int) -> object:
        """Report on the steps since the previous report."""


class Profiler(Protocol):
    """Profiler, such as torch.profiler.profile."""

    def stop(self) -> None:
        """Stop profiling."""


class NvtxContext(Protocol):
    """Entered context, such as torch.autograd.profiler.emit_nvtx."""

    def __exit__(self, kind: None, error: None, trace: None, /) -> object: ...


class LoggerSection(Protocol):
    """Field that is read from section `logger`."""

    @property
    def log_interval(self) -> int:
        """Steps between reports."""


class StragglerSection(Protocol):
    """Field that is read from section `straggler`."""

    @property
    def log_straggler(self) -> bool:
        """Enable reports of slow ranks."""


class ProfilingSection(Protocol):
    """Field that is read from section `profiling`."""

    @property
    def profile_step_end(self) -> int:
        """Step after which profiling ends."""


class StepEndSettings(Protocol):
    """Configuration sections that `post_training_step_callbacks` reads."""

    @property
    def train(self) -> TrainSettings:
        """Intervals."""

    @property
    def logger(self) -> LoggerSection:
        """Report interval."""

    @property
    def straggler(self) -> StragglerSection | None:
        """Reports of slow ranks."""

    @property
    def profiling(self) -> ProfilingSection | None:
        """End of profiling."""


def post_training_step_callbacks(  # noqa: PLR0913 (Megatron-Bridge's arguments)
    model: Sequence[Any],
    num_floating_point_operations_since_last_log_event: float,
    straggler_timer: StragglerReporter | None,
    iteration: int,
    prof: Profiler | None,
    config: StepEndSettings,
    should_toggle_forward_pre_hook: bool,
    nsys_nvtx_context: NvtxContext | None = None,
    *,
    pg_collection: LossGroups | None = None,
    optimizer: object = None,
    synchronize: Callable[[], object] = wait_for_device,
) -> float:
    """Run periodic work after a step: synchronise, report, compare replicas, stop profilers, collect garbage.

    Collective over the world at steps at which replicas are compared.

    Args:
        model: model chunks of this rank.
        num_floating_point_operations_since_last_log_event: operations since the last report on slow ranks.
        straggler_timer: reporter of slow ranks; None: nothing is reported.
        iteration: number of finished steps.
        prof: stopped at `profiling.profile_step_end`.
        config: intervals.
        should_toggle_forward_pre_hook: return value of `should_disable_forward_pre_hook`.
        nsys_nvtx_context: exited at `profiling.profile_step_end`, together with the CUDA profiler.
        pg_collection: replicas are compared over its `dp_cp` group; None: they are not compared.
        optimizer: see `disable_forward_pre_hook`.
        synchronize: waits for the device, if there is one.

    Returns:
        Operations since the last report: 0.0 if this call reported, otherwise the argument.

    Raises:
        ReplicaMismatchError: replicas hold different weights.
    """
    operations = num_floating_point_operations_since_last_log_event
    train = config.train
    if train.train_sync_interval and iteration % train.train_sync_interval == 0:
        synchronize()
    reporting = config.straggler is not None and config.straggler.log_straggler
    if reporting and straggler_timer is not None and iteration % config.logger.log_interval == 0:
        straggler_timer.report(operations, config.logger.log_interval)
        operations = 0.0
    interval = train.check_weight_hash_across_dp_replicas_interval
    if interval and pg_collection is not None and iteration % interval == 0:
        hooks = ForwardPreHooks(model, used=should_toggle_forward_pre_hook, optimizer=optimizer)
        ReplicaCheck(model, groups=pg_collection, hooks=hooks)(iteration)
    if config.profiling is not None and iteration == config.profiling.profile_step_end:
        _end_profiles(prof, nsys_nvtx_context)
    manual_gc = ManualGC(train)
    if manual_gc.interval and iteration % manual_gc.interval == 0:
        manual_gc.collect(iteration)
    return operations


class SaveSection(CheckpointSettings, SaveDirectory, Protocol):
    """Section `checkpoint`: save intervals and directory."""


class SaveSettings(LoopSettings, ProgressSettings, Protocol):
    """Configuration sections that saving reads."""

    @property
    def checkpoint(self) -> SaveSection:
        """Save intervals and directory."""


class SignalHandler(Protocol):
    """Entered signal handler, such as `mb_loop.DistributedSignalHandler` or Megatron's class of this name."""

    def signals_received(self) -> Sequence[bool]:
        """Return for each rank whether it has received the signal. Collective."""


class SaveState(GlobalState, Protocol):
    """Fields of a global state that saving and exit decisions read. `start_time` is in seconds since the epoch.

    With `train.exit_signal_handler` and without `stop_requested`, `checkpoint_and_decide_exit` also reads
    `signal_handler`, a `SignalHandler`.
    """

    @property
    def cfg(self) -> SaveSettings:
        """The configuration."""


def save_checkpoint_and_time(  # noqa: PLR0913 (Megatron-Bridge's arguments)
    state: SaveState,
    model: Sequence[Any],
    optimizer: Any,
    opt_param_scheduler: Any,
    num_floating_point_operations_so_far: float,
    checkpointing_context: Mapping[str, Any] | None = None,
    non_persistent_ckpt: bool = False,
    train_data_iterator: Any = None,
    *,
    checkpointer: Checkpointer | None = None,
    callbacks: CallbackManager | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Write a checkpoint of the step that the state counts, with complete parameters.

    `on_checkpoint_save` is fired if the checkpoint is complete on return; the checkpointer's `poll` returns the result
    of a background save. With `logger.log_progress` a persistent checkpoint adds a line to progress.txt, on rank
    0. Collective over all ranks.

    Args:
        state: counters and settings; see `SaveState`.
        model: model chunks of this rank.
        optimizer: for the callbacks.
        opt_param_scheduler: for the callbacks.
        num_floating_point_operations_so_far: put into the counters, which are saved.
        checkpointing_context: holds the checkpointer, under "checkpointer"; other keys are not read.
        non_persistent_ckpt: write a non-persistent checkpoint.
        train_data_iterator: not read; the checkpointer knows the position of the data.
        checkpointer: writes the checkpoint; an alternative to `checkpointing_context`.
        callbacks: notified of the checkpoint.
        clock: time in seconds.

    Returns:
        The seconds for which training was suspended.

    Raises:
        TrainSettingsError: there is no checkpointer.
        ProgressLogError: progress.txt has no line of the job's start.
    """
    writer = checkpointer_of(checkpointing_context, checkpointer)
    if writer is None:
        raise no_checkpointer("this function writes one")
    state.train_state.floating_point_operations_so_far = int(num_floating_point_operations_so_far)
    saver = _saver(state, model, optimizer, opt_param_scheduler, checkpointer=writer, callbacks=callbacks)
    begin = clock()
    saver.save_now(state.train_state.step, non_persistent=non_persistent_ckpt)
    return clock() - begin


def checkpoint_and_decide_exit(  # noqa: PLR0913 (Megatron-Bridge's arguments)
    state: SaveState,
    model: Sequence[Any],
    optimizer: Any,
    opt_param_scheduler: Any,
    num_floating_point_operations_so_far: float,
    checkpointing_context: Mapping[str, Any] | None = None,
    train_data_iterator: Any = None,
    *,
    checkpointer: Checkpointer | None = None,
    callbacks: CallbackManager | None = None,
    stop_requested: StopRequested | None = None,
    straggler_stop_requested: StopRequested | None = None,
    clock: Callable[[], float] = time.time,
    write: Callable[[str], object] = print,
) -> bool:
    """Save what is due after the step that the state counts, and return whether to leave; leaving saves, once.

    Collective over all ranks; with `train.exit_duration_in_mins` one more collective at each call, and with
    `train.exit_signal_handler` that of the signal handler.

    Args:
        state: counters and settings; see `SaveState`. Without `start_time` the duration does not count.
        model: model chunks of this rank.
        optimizer: for the callbacks.
        opt_param_scheduler: for the callbacks.
        num_floating_point_operations_so_far: put into the counters, which are saved.
        checkpointing_context: holds the checkpointer, under "checkpointer"; other keys are not read.
        train_data_iterator: not read; the checkpointer knows the position of the data.
        checkpointer: writes the checkpoint; an alternative to `checkpointing_context`. Without either, and without
            `checkpoint.save`, nothing is saved.
        callbacks: notified of saves.
        stop_requested: stop request source, called once; must return the same on all ranks. None: with
            `train.exit_signal_handler`, `state.signal_handler`.
        straggler_stop_requested: the same, for slow ranks.
        clock: seconds; the one that `state.start_time` was read from.
        write: takes the line that states the reason to leave.

    Raises:
        TrainSettingsError: `checkpoint.save` is set and there is no checkpointer, or `train.exit_signal_handler` is
            set and there is no signal handler.
        ProgressLogError: progress.txt has no line of the job's start.
    """
    writer = checkpointer_of(checkpointing_context, checkpointer)
    require_checkpointer(state.cfg.checkpoint, writer)
    state.train_state.floating_point_operations_so_far = int(num_floating_point_operations_so_far)
    train, step = state.cfg.train, state.train_state.step
    exits = ExitConditions.of(
        train,
        clock=clock,
        start_time=state.start_time,
        max_across_ranks=max_across_ranks,
        stop_requested=_stop_request_source(state) if stop_requested is None else stop_requested,
        straggler_stop_requested=straggler_stop_requested,
    )
    leave = exits.decide(step)
    saver = _saver(state, model, optimizer, opt_param_scheduler, checkpointer=writer, callbacks=callbacks)
    saver.after_step(step, leaving=leave is not None)
    if leave is not None:
        write(leave.message)
    return leave is not None


def _stop_request_source(state: SaveState) -> StopRequested | None:
    if not state.cfg.train.exit_signal_handler:
        return None
    handler: SignalHandler | None = getattr(state, "signal_handler", None)
    if handler is None:
        raise TrainSettingsError(
            "train.exit_signal_handler: is set, but the state has no signal_handler, so no signal would stop the run. "
            "Set state.signal_handler to mb_loop.DistributedSignalHandler(train.exit_signal), entered before the "
            "first step, or pass stop_requested."
        )
    return lambda _step: stop_message(state.cfg.train.exit_signal, handler.signals_received())


class _ProgressLogging:
    """Checkpointer that adds a line to progress.txt for each persistent checkpoint."""

    def __init__(self, checkpointer: Checkpointer, state: SaveState) -> None:
        self._checkpointer = checkpointer
        self._state = state

    def save(self, step: int, *, non_persistent: bool) -> Sequence[SaveResult]:
        """Write a checkpoint, then the line."""
        results = self._checkpointer.save(step, non_persistent=non_persistent)
        # a save that continues in the background has no result yet; those of earlier saves may be among the results
        of_this_step = [result for result in results if result.step == step]
        if not non_persistent and all(result.written for result in of_this_step):
            compute_throughputs_and_append_to_progress_log(
                self._state,
                self._state.train_state.floating_point_operations_so_far,
                asynchronous=not of_this_step,
            )
        return results

    @property
    def may_wait(self) -> bool:
        """Whether the next poll may hold the loop."""
        return self._checkpointer.may_wait

    def wait(self) -> Sequence[SaveResult]:
        """Wait for the background save in flight."""
        return self._checkpointer.wait()

    def poll(self, *, blocking: bool) -> Sequence[SaveResult]:
        """Finish background writes."""
        return self._checkpointer.poll(blocking=blocking)

    def retry_due(self, *, blocking: bool) -> bool:
        """Return whether a failed save is to be repeated."""
        return self._checkpointer.retry_due(blocking=blocking)


def _saver(
    state: SaveState,
    model: Sequence[Any],
    optimizer: Any,
    scheduler: Any,
    *,
    checkpointer: Checkpointer | None,
    callbacks: CallbackManager | None,
) -> CheckpointSaver:
    """Return the saver for the saves of a custom loop; it also writes the progress log if that is enabled."""
    logger = state.cfg.logger
    if checkpointer is not None and logger is not None and logger.log_progress:
        checkpointer = _ProgressLogging(checkpointer, state)
    manager = CallbackManager() if callbacks is None else callbacks
    return CheckpointSaver(
        checkpointer,
        settings=state.cfg.checkpoint,
        hooks=forward_pre_hooks(state.cfg, model, optimizer),
        events=EventDispatcher(
            manager=manager, state=state, model=model, optimizer=optimizer, scheduler=scheduler
        ),
        start_step=state.train_state.step,
    )


def _end_profiles(prof: Profiler | None, nsys_nvtx_context: NvtxContext | None) -> None:
    if prof is not None:
        prof.stop()
    if nsys_nvtx_context is not None:
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
        nsys_nvtx_context.__exit__(None, None, None)
