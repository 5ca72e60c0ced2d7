"""Callback that writes events.jsonl: start, resume, saves, evaluations and the stop of a run."""

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from mb_metrics.run.events import EventLog, LastStep
from mb_metrics.run.training_context import MetricsContext


class EventRecorder:
    """Callback that writes the events of a run; register it on the one rank that writes.

    A context manager: the stop is written on exit, so that it follows an evaluation after training.

    Args:
        events: Destination of the events.
        description: Fields of the first event, for every start of the run.
        resume_description: Additional fields of the first event if steps were completed before.
        previous: Last step recorded before this process started, read before the metrics file is opened for writing;
            None: there is none.
        process_start: Start of this process, or of a later run in it, in seconds since the epoch; None: the duration of
            the start is omitted.
        clock: Monotonic clock, in seconds.
        wall_clock: Clock that returns seconds since the epoch.
    """

    def __init__(
        self,
        events: EventLog,
        *,
        description: Mapping[str, object] | None = None,
        resume_description: Mapping[str, object] | None = None,
        previous: LastStep | None = None,
        process_start: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._events = events
        self._description = dict(description or {})
        self._resume_description = dict(resume_description or {})
        self._previous = previous
        self._process_start = process_start
        self._clock, self._wall_clock = clock, wall_clock
        self._evaluation_start: float | None = None
        self._stop: dict[str, Any] | None = None
        self._step: int | None = None

    def __enter__(self) -> "EventRecorder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write how the run ended, if it has started; a propagating exception counts as a failure.

        Without `on_train_end`, as in a loop that leaves early, the stop has no reason.
        """
        stop = self._stop
        if stop is None and self._step is not None:
            stop = {"step": self._step}
        if stop is not None:
            self._events.write("stop", **{**stop, **({} if error is None else {"reason": "failed"})})

    def on_train_start(self, context: MetricsContext) -> None:
        """Write the start or resume event: its duration, and the last step that a previous process recorded."""
        self._step = step = context.state.train_state.step
        fields = dict(self._description)
        if self._process_start is not None:
            fields["seconds"] = self._wall_clock() - self._process_start
        if step and self._previous is not None:
            fields |= {"previous_step": self._previous.step, "previous_time": self._previous.time}
        if step:
            fields |= self._resume_description
        self._events.write("resume" if step else "start", step=step, **fields)

    def on_train_step_end(self, context: MetricsContext) -> None:
        """Store the step, for a stop by an exception."""
        self._step = context.state.train_state.step

    def on_eval_start(self, context: MetricsContext) -> None:
        """Store the start time of the evaluation."""
        self._evaluation_start = self._clock()

    def on_eval_end(self, context: MetricsContext) -> None:
        """Write the losses of an evaluation."""
        start = self._evaluation_start
        seconds = {} if start is None else {"seconds": self._clock() - start}
        self._events.write(
            "evaluation",
            step=context.state.train_state.step,
            losses=dict(context.total_loss_dict or {}),
            **seconds,
        )

    def on_checkpoint_save(self, context: MetricsContext) -> None:
        """Write a complete checkpoint, with the time for which it held training."""
        save = context.save
        if save is not None:
            self._events.write(
                "save",
                step=save.step,
                seconds=save.seconds,
                write_seconds=save.write_seconds,
                bytes=save.total_bytes,
            )

    def on_checkpoint_failed(self, context: MetricsContext) -> None:
        """Write a failed save, with its reason."""
        if context.save is not None:
            self._events.write("save_failed", step=context.save.step, reason=context.save.message)

    def on_train_end(self, context: MetricsContext) -> None:
        """Store the step and the reason of the end of training."""
        reason = context.outcome.reason if context.outcome else "failed"
        self._stop = {"step": context.state.train_state.step, "reason": reason}
