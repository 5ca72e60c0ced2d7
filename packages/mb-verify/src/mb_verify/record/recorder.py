"""Callback that records a run. Imports torch only when training starts."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from mb_verify.record.run_record import RecordFile, Values


class StateReader(Protocol):
    """Reads the values of one rank; `mb_verify.mcore.MegatronReader` is one."""

    @property
    def reads_data(self) -> bool:
        """Whether this rank is the first of those that read the same sequences."""

    def state(self, context: Any, *, complete: bool = False) -> Values:
        """Return the values held between two steps; `complete`: at the end of a run, where all parameters are there."""

    def microbatch(self, context: Any) -> None:
        """Note a microbatch that the data iterator returned, for `step`."""

    def step(self, context: Any) -> Values:
        """Return the values that a step read and computed."""


class Recorder:
    """Callback that records the state between steps, and the values of each step. Changes no numbers.

    State: counters, random streams, optimizer state, parameters. Step: hashes of the sequences that were read,
    losses, gradient norm, learning rate. Copies every tensor to the host at every step.

    It implements the events `on_train_start`, `on_train_step_start`, `on_train_microbatch`, `on_train_step_end` and
    `on_train_end`. Of their argument it reads `state.train_state.step` and, at the end, `outcome` (None after a
    failure); the reader reads the rest.

    Args:
        folder: receives `rank-<rank>.<start>.jsonl`.
        rank: rank of this process.
        start: number of the start of the run; a resumed run has the next one, so that files are never mixed. None: see
            `RecordFile`.
        reader: makes the reader when training starts; None: `mb_verify.mcore.MegatronReader`.
        conditions: returns threads, processor and versions; None: `mb_verify.record.torch_state.conditions`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rank: int,
        start: int | None,
        reader: Callable[[Any], StateReader] | None = None,
        conditions: Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        self._file = RecordFile(folder, rank=rank, start=start)
        self._make_reader = reader
        self._conditions = conditions
        self._reader: StateReader | None = None

    def on_train_start(self, context: Any) -> None:
        """Begin the file."""
        make_reader = self._make_reader or import_module("mb_verify.mcore").MegatronReader
        conditions = self._conditions or import_module("mb_verify.record.torch_state").conditions
        self._reader = make_reader(context)
        step = context.state.train_state.step
        self._file.start(step, reads_data=self._reader.reads_data, conditions=conditions())

    def on_train_step_start(self, context: Any) -> None:
        """Record the state after the previous step."""
        values = self._started().state(context)
        if values:
            self._file.state(context.state.train_state.step, values)

    def on_train_microbatch(self, context: Any) -> None:
        """Note a microbatch of the step."""
        self._started().microbatch(context)

    def on_train_step_end(self, context: Any) -> None:
        """Record what the step read and computed."""
        self._file.step(context.state.train_state.step, self._started().step(context))

    def on_train_end(self, context: Any) -> None:
        """Record the final state, unless the run has failed."""
        if context.outcome is not None:
            # at an interruption only the interrupted run comes here: the uninterrupted run trains on without this event
            complete = context.outcome.reason in ("finished", "early_stop")
            state = self._started().state(context, complete=complete)
            self._file.state(context.state.train_state.step, state)

    def _started(self) -> StateReader:
        if self._reader is None:
            raise RuntimeError(
                "Recorder: a step event came before on_train_start. Fire on_train_start first."
            )
        return self._reader


class StepResultReader:
    """`StateReader` of losses, gradient norm and learning rate of each step, for runs whose state is too large to hash.

    Of the events' argument it reads `result` (losses, grad_norm, learning_rate, skipped).

    Args:
        context: argument of `on_train_start`.
    """

    reads_data = True

    def __init__(self, context: Any) -> None:
        self._read = import_module("mb_verify.record.torch_state").read_torch_step

    def microbatch(self, context: Any) -> None:
        """Do nothing: sequences are no results."""

    def state(self, context: Any, *, complete: bool = False) -> dict[str, str]:
        """Return no values: the state is not recorded."""
        return {}

    def step(self, context: Any) -> dict[str, str]:
        """Return what a step computed. Synchronises with the device."""
        result = context.result
        if result is None:
            return {}
        values: dict[str, str] = self._read(
            losses=result.losses, grad_norm=result.grad_norm, learning_rate=result.learning_rate
        )
        return values | {"counters: update skipped": str(bool(result.skipped))}
