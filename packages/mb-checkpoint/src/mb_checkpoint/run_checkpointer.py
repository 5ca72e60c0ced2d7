"""Checkpoints of a training loop: a manager, bound to the parts of one run."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from mb_checkpoint.context import (
    CheckpointLoadContext,
    CheckpointManager,
    CheckpointSaveContext,
    ConfigLike,
    FailedSave,
    LoadedCheckpoint,
    RerunStateMachineLike,
    RunCountersLike,
    SavedCheckpoint,
    ScheduledSave,
    SchedulerLike,
    StatefulLike,
)
from mb_checkpoint.errors import CheckpointConfigError
from mb_checkpoint.load.run_load import load_run
from mb_checkpoint.save.retry import SaveRetry
from mb_checkpoint.state.adapters import KeyFilter
from mb_checkpoint.state.callback_states import callback_states
from mb_checkpoint.state.evaluated_metric import EvaluatedMetric, EvaluationContext
from mb_schema.save_result import SaveResult


class RunStateLike(Protocol):
    """State of the run outside model and optimizer; `mb_loop.LoopState` matches."""

    @property
    def train_state(self) -> RunCountersLike:
        """The counters."""
        ...

    @property
    def cfg(self) -> ConfigLike:
        """The configuration, which is stored with each checkpoint."""
        ...


@runtime_checkable
class _HasMessage(Protocol):
    """Outcome with a log line; the record of a custom manager may lack it."""

    @property
    def message(self) -> str: ...


@runtime_checkable
class _ReservesMemory(Protocol):
    """Manager that can allocate the memory of background saves ahead of the first one."""

    def reserve_memory(
        self, model: Sequence[Any], optimizer: Any | None, groups: Any | None = None
    ) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _StartedSave:
    step: int
    non_persistent: bool
    seconds: float
    """Time for which the call blocked the training loop."""


class RunCheckpointer:
    """Checkpointer of one run. All methods are collective over the world.

    Saves and loads the parts that are bound at construction, through any checkpoint manager. A save that fails, also in
    the background, is retried before the next step, then after 2, 4, ... (at most 64) steps; training continues
    meanwhile. At the end of the run it is retried once, and a failure is then an error. With
    `checkpoint.on_save_error=raise` the default manager raises by itself, which ends the run at once.

    In a loop, after each step, on all ranks (`mb_loop.train` does this)::

        outcomes = checkpointer.poll(blocking=False)
        if checkpointer.retry_due(blocking=False) or step % save_interval == 0:
            outcomes += checkpointer.save(step, non_persistent=False)

    and at the end the same with `blocking=True`, followed by one more blocking poll, which raises if the retry failed.

    Args:
        manager: writes and reads the checkpoints. Create it with `log_outcomes=False`, as outcomes are logged here.
        state: counters and configuration.
        model: model chunks of this rank.
        optimizer: Megatron optimizer; None: only weights.
        scheduler: learning-rate scheduler.
        groups: process groups, as `CheckpointSaveContext.pg_collection`.
        train_data_iterator: its position is stored and restored if it is stateful (see `dataloader.positioned`).
        rerun_state_machine: its state is stored and restored; None: there is none.
        adapter_key_filter: accepts the parameters that a checkpoint holds; None: all of them.
        callbacks: callbacks by name whose state is stored and restored; see `stateful_callbacks`.
        best_metric: `checkpoint.best_metric`. Register the checkpointer as a callback of the loop as well, so that it
            receives the metric of each evaluation. None: there is none.
        megatron_arguments: the run as arguments of Megatron-LM, as `CheckpointSaveContext.megatron_arguments`. Those of
            a resumed checkpoint that are not among them are stored again.
        log: receives one line per load, save and skipped checkpoint, on every rank.
        clock: monotonic clock in seconds.

    Raises:
        CheckpointLayoutError: the state of a callback cannot be stored.
    """

    def __init__(  # noqa: PLR0913 - parts, each by name
        self,
        manager: CheckpointManager,
        *,
        state: RunStateLike,
        model: Sequence[Any],
        optimizer: Any | None,
        scheduler: SchedulerLike | None,
        groups: Any | None = None,
        train_data_iterator: Any | None = None,
        rerun_state_machine: RerunStateMachineLike | None = None,
        adapter_key_filter: KeyFilter | None = None,
        callbacks: Mapping[str, StatefulLike] | None = None,
        best_metric: str | None = None,
        megatron_arguments: Mapping[str, Any] | None = None,
        log: Callable[[str], object] = lambda _line: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._manager = manager
        self._state = state
        self._bound: dict[str, Any] = {
            "state": state,
            "model": model,
            "optimizer": optimizer,
            "opt_param_scheduler": scheduler,
            "pg_collection": groups,
            "train_data_iterator": train_data_iterator,
            "rerun_state_machine": rerun_state_machine,
            "adapter_key_filter": adapter_key_filter,
            "callbacks": dict(callbacks or {}),
        }
        callback_states(self._bound["callbacks"])  # raises now rather than at the first save
        self._metric = None if best_metric is None else EvaluatedMetric(best_metric)
        self._megatron_arguments = megatron_arguments
        self._log = log
        self._clock = clock
        self._retry = SaveRetry()
        # loops poll before or after a step: at the second poll the optimizer has its state in both
        self._polls_until_reserved = 2
        self._last = _StartedSave(step=0, non_persistent=False, seconds=0.0)
        self.may_wait = False
        """Whether the next poll may block, because a background save is in flight."""

    def load(self, *, dataloader_load: Path | str | None = None) -> LoadedCheckpoint:
        """Resume from the newest intact checkpoint, or load weights, as the manager is configured; log the result.

        A custom manager is treated as `run_load.load_run` describes.

        Args:
            dataloader_load: folder with the positions of data loaders, if they are not in the checkpoint.

        Raises:
            ManagerStateError: a custom manager returned a step and left the counters unchanged.
        """
        context = CheckpointLoadContext(
            **self._bound, dataloader_load=None if dataloader_load is None else Path(dataloader_load)
        )
        loaded = load_run(self._manager, context, counters=self._state.train_state, log=self._log)
        if self._megatron_arguments is not None:
            self._megatron_arguments = {**loaded.megatron_arguments, **self._megatron_arguments}
        return loaded

    def on_train_start(self, context: Any) -> None:
        """Reject a run without validation data whose checkpoints are to be compared by a metric of evaluations.

        Raises:
            CheckpointConfigError: `best_metric` is set, and the run has no validation data.
        """
        if self._metric is not None and not context.state.train_state.do_valid:
            raise CheckpointConfigError(
                "checkpoint.best_metric: the run has no validation data, so that no checkpoint would be the best. Pass "
                "validation data, or set checkpoint.best_metric=null."
            )

    def on_eval_end(self, context: EvaluationContext) -> None:
        """Record the metric `best_metric` of an evaluation, for a save of the same step. Collective over the world.

        Raises:
            CheckpointConfigError: on all ranks: the evaluation has no such metric.
        """
        if self._metric is not None and context.total_loss_dict is not None:
            self._metric.record(self._state.train_state.step, context.total_loss_dict)

    def save(self, step: int, *, non_persistent: bool) -> list[SaveResult]:
        """Write a checkpoint, or start a background save; return the saves that have ended, oldest first.

        Waits for a previous save that is still in flight, which is then the first of the result. The retry at the end
        of the run waits for its own write as well.
        """
        ended = self._finalize(blocking=True)
        context = CheckpointSaveContext(
            **self._bound,
            num_floating_point_operations_so_far=self._state.train_state.floating_point_operations_so_far,
            non_persistent_ckpt=non_persistent,
            megatron_arguments=self._megatron_arguments,
            best_metric=None if self._metric is None or non_persistent else self._metric.at(step),
        )
        start = self._clock()
        outcome = self._manager.save(context, None)
        self._last = _StartedSave(step=step, non_persistent=non_persistent, seconds=self._clock() - start)
        self.may_wait = not isinstance(outcome, SavedCheckpoint | FailedSave)
        if not isinstance(outcome, ScheduledSave):
            return [*ended, self._on_ended(outcome)]
        self._log(f"  {outcome.message}")
        if self._retry.is_last_attempt:
            ended += self._finalize(blocking=True)
        return ended

    def wait(self) -> list[SaveResult]:
        """Wait for the background save in flight, and return it. The background process continues. Collective."""
        return self._finalize(blocking=True)

    def poll(self, *, blocking: bool) -> list[SaveResult]:
        """Return the background saves that have ended (`blocking`: wait for them, and end the background process).

        The second poll, when the optimizer has its state, lets the manager allocate the memory of background saves.

        Raises:
            CheckpointSaveError: blocking, and the last save and its retry at the end of the run failed.
        """
        if self._polls_until_reserved:
            self._polls_until_reserved -= 1
            if not self._polls_until_reserved and isinstance(self._manager, _ReservesMemory):
                bound = self._bound
                self._manager.reserve_memory(bound["model"], bound["optimizer"], bound["pg_collection"])
        if not blocking and not self.may_wait:
            return []
        ended = self._finalize(blocking=blocking, terminate=blocking)
        if blocking:
            self._retry.raise_if_exhausted(self._state.train_state.step)
        return ended

    def retry_due(self, *, blocking: bool) -> bool:
        """Return whether a failed save is to be repeated now. Call it once after each poll, with its `blocking`."""
        return self._retry.steps_left is not None and self._retry.is_due(at_end=blocking)

    def _finalize(self, *, blocking: bool, terminate: bool = False) -> list[SaveResult]:
        """Poll the background save in flight, which is the one started last."""
        outcome = self._manager.finalize_async_saves(self._state, blocking=blocking, terminate=terminate)
        if outcome is None:
            return []
        self.may_wait = False
        return [self._on_ended(outcome)]

    def _on_ended(self, outcome: object) -> SaveResult:
        """Log an outcome of the manager, and return its record. Any but a `FailedSave` counts as a complete save.

        A custom manager may return records of other classes, or None.
        """
        last = self._last
        message = outcome.message if isinstance(outcome, _HasMessage) else None
        if isinstance(outcome, FailedSave):
            self._retry.on_failed(outcome.message)
            if not self._retry.is_last_attempt:  # else the error of the run has the message
                self._log(f"error: {message}")
        else:
            self._retry.on_saved()
            if message is not None:
                self._log(f"  {message}")
        saved = outcome if isinstance(outcome, SavedCheckpoint) else None
        return SaveResult(
            step=last.step,
            non_persistent=last.non_persistent,
            written=not isinstance(outcome, FailedSave),
            path=None if saved is None else saved.path,
            seconds=last.seconds,
            write_seconds=None if saved is None else saved.seconds,
            total_bytes=None if saved is None else saved.total_bytes,
            message=message,
        )
