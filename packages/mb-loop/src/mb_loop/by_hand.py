"""Pieces of a turn for loops of one's own, under the names that people know. `train` does the same. Needs torch."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from mb_loop.callbacks import CallbackManager, Events
from mb_loop.device import wait_for_device
from mb_loop.exits import Exits, ExitWish, no_wish
from mb_loop.garbage import Garbage
from mb_loop.hooks import ForwardPreHooks, forward_pre_hooks
from mb_loop.losses import LossGroups
from mb_loop.replicas import ReplicaCheck
from mb_loop.saves import Checkpointer, Saver
from mb_loop.settings import GlobalState, TrainSettings
from mb_loop.world import any_rank, longest


class StragglerReport(Protocol):
    """Megatron's StragglerDetector."""

    def report(self, total_flops: float, log_interval: int) -> object:
        """Report on the steps since the last time."""


class Profiler(Protocol):
    """torch.profiler.profile."""

    def stop(self) -> None:
        """End the profile."""


class NvtxContext(Protocol):
    """torch.autograd.profiler.emit_nvtx, entered."""

    def __exit__(self, kind: None, error: None, trace: None, /) -> object: ...


class LoggerSection(Protocol):
    """The field of the section `logger` that is read."""

    @property
    def log_interval(self) -> int:
        """Steps between reports."""


class StragglerSection(Protocol):
    """The field of the section `straggler` that is read."""

    @property
    def log_straggler(self) -> bool:
        """Report the speed of ranks."""


class ProfilingSection(Protocol):
    """The field of the section `profiling` that is read."""

    @property
    def profile_step_end(self) -> int:
        """The step after which profiling ends."""


class StepEndSettings(Protocol):
    """A configuration, as far as the end of a step reads it."""

    @property
    def train(self) -> TrainSettings:
        """Intervals."""

    @property
    def logger(self) -> LoggerSection:
        """When to report."""

    @property
    def straggler(self) -> StragglerSection | None:
        """Whether to report the speed of ranks."""

    @property
    def profiling(self) -> ProfilingSection | None:
        """When profiling ends."""


def post_training_step_callbacks(  # noqa: PLR0913 (the seed's arguments)
    model: Sequence[Any],
    num_floating_point_operations_since_last_log_event: float,
    straggler_timer: StragglerReport | None,
    iteration: int,
    prof: Profiler | None,
    config: StepEndSettings,
    should_toggle_forward_pre_hook: bool,
    nsys_nvtx_context: NvtxContext | None = None,
    *,
    pg_collection: LossGroups | None = None,
    synchronize: Callable[[], object] = wait_for_device,
) -> float:
    """Do what is due after a step: wait for the device, report, compare replicas, end profiles, collect garbage.

    Collective over the world at the steps where replicas are compared.

    Args:
        model: the chunks.
        num_floating_point_operations_since_last_log_event: operations since the last report on slow ranks.
        straggler_timer: reports; None: nothing is reported.
        iteration: finished steps.
        prof: stopped at `profiling.profile_step_end`.
        config: intervals.
        should_toggle_forward_pre_hook: what `should_disable_forward_pre_hook` says.
        nsys_nvtx_context: left at `profiling.profile_step_end`, together with the CUDA profiler.
        pg_collection: replicas are compared over its dp_cp; None: they are not.
        synchronize: waits for the device, where there is one.

    Returns:
        The operations since the last report: 0.0 after one, else as they were.

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
    ReplicaCheck(
        model,
        interval=train.check_weight_hash_across_dp_replicas_interval,
        groups=pg_collection,
        hooks=ForwardPreHooks(model, used=should_toggle_forward_pre_hook),
        any_rank=any_rank,
    )(iteration)
    if config.profiling is not None and iteration == config.profiling.profile_step_end:
        _end_profiles(prof, nsys_nvtx_context)
    Garbage(train).after_step(iteration)
    return operations


def save_checkpoint_and_time(  # noqa: PLR0913 (the seed's arguments)
    state: GlobalState,
    model: Sequence[Any],
    optimizer: Any,
    opt_param_scheduler: Any,
    num_floating_point_operations_so_far: float,
    checkpointing_context: object = None,
    non_persistent_ckpt: bool = False,
    train_data_iterator: Any = None,
    *,
    checkpointer: Checkpointer,
    callbacks: CallbackManager | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Write a checkpoint of the step that the state counts, with whole parameters.

    `on_checkpoint_save` is fired if it is whole on return; a background writer's end is seen by who polls the
    checkpointer. Collective over all ranks.

    Args:
        state: counters and settings.
        model: the chunks.
        optimizer: for the callbacks.
        opt_param_scheduler: for the callbacks.
        num_floating_point_operations_so_far: put into the counters, which are saved.
        checkpointing_context: not used; `checkpointer` holds what it needs.
        non_persistent_ckpt: a temporary checkpoint.
        train_data_iterator: not used; the checkpointer knows the data.
        checkpointer: writes.
        callbacks: hear of it.
        clock: seconds.

    Returns:
        The seconds that training stood still.
    """
    state.train_state.floating_point_operations_so_far = int(num_floating_point_operations_so_far)
    saver = _saver(
        state, model, optimizer, opt_param_scheduler, checkpointer=checkpointer, callbacks=callbacks
    )
    begin = clock()
    saver.save_now(state.train_state.step, temporary=non_persistent_ckpt)
    return clock() - begin


def checkpoint_and_decide_exit(  # noqa: PLR0913 (the seed's arguments)
    state: GlobalState,
    model: Sequence[Any],
    optimizer: Any,
    opt_param_scheduler: Any,
    num_floating_point_operations_so_far: float,
    checkpointing_context: object = None,
    train_data_iterator: Any = None,
    *,
    checkpointer: Checkpointer | None,
    callbacks: CallbackManager | None = None,
    exit_wish: ExitWish = no_wish,
    straggler_wish: ExitWish = no_wish,
    clock: Callable[[], float] = time.time,
    write: Callable[[str], object] = print,
) -> bool:
    """Save what is due after the step that the state counts, and say whether to leave; leaving always saves, once.

    Collective over all ranks; with `train.exit_duration_in_mins` one more collective, at each call.

    Args:
        state: counters and settings; without `start_time` the duration counts for nothing.
        model: the chunks.
        optimizer: for the callbacks.
        opt_param_scheduler: for the callbacks.
        num_floating_point_operations_so_far: put into the counters, which are saved.
        checkpointing_context: not used; `checkpointer` holds what it needs.
        train_data_iterator: not used; the checkpointer knows the data.
        checkpointer: writes; None: nothing is saved.
        callbacks: hear of saves.
        exit_wish: asked once; must answer alike on all ranks.
        straggler_wish: the same, for slow ranks.
        clock: seconds; the one that `state.start_time` was read from.
        write: takes the line that says why to leave.
    """
    state.train_state.floating_point_operations_so_far = int(num_floating_point_operations_so_far)
    train, step = state.cfg.train, state.train_state.step
    exits = Exits.of(
        train,
        clock=clock,
        start_time=state.start_time,
        longest=longest,
        wish=exit_wish,
        slow=straggler_wish,
    )
    leave = exits.decide(step)
    saver = _saver(
        state, model, optimizer, opt_param_scheduler, checkpointer=checkpointer, callbacks=callbacks
    )
    saver.after_step(step, leaving=leave is not None)
    if leave is not None:
        write(leave.message)
    return leave is not None


def _saver(
    state: GlobalState,
    model: Sequence[Any],
    optimizer: Any,
    scheduler: Any,
    *,
    checkpointer: Checkpointer | None,
    callbacks: CallbackManager | None,
) -> Saver:
    manager = CallbackManager() if callbacks is None else callbacks
    return Saver(
        checkpointer,
        settings=state.cfg.checkpoint,
        hooks=forward_pre_hooks(state.cfg, model),
        events=Events(manager=manager, state=state, model=model, optimizer=optimizer, scheduler=scheduler),
        start_step=state.train_state.step,
    )


def _end_profiles(prof: Profiler | None, nsys_nvtx_context: NvtxContext | None) -> None:
    if prof is not None:
        prof.stop()
    if nsys_nvtx_context is not None:
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
        nsys_nvtx_context.__exit__(None, None, None)
