"""Reporting of run sections to a fault-tolerance monitor that kills ranks which exceed a timeout. No torch, no NVRx.

A fault-tolerance launcher starts a monitor process for each rank. The rank reports the start and end of each section:
`setup` until the first step, `step` around each step, `checkpointing` around checkpoint work that holds the loop. The
monitor has one timeout per section and one for the time outside of sections. It kills a rank that exceeds a timeout,
and the launcher restarts all ranks. The first step, and the first batch of each evaluation, are in no section: they
compile and allocate memory, and the timeout of a step should be short.

Timeouts can be calculated from the durations observed on all ranks, and are then kept for later starts.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from mb_resilience.fault_tolerance.monitor_client import CHECKPOINTING, SETUP, STEP, MonitorClient
from mb_resilience.fault_tolerance.section_timeouts import TimeoutFile

WARM_UP_STEPS = 1
"""Number of steps of a process, and of batches of an evaluation, that are in no section."""
MIN_STEPS = 16
"""Number of steps before the timeout of a step is calculated."""


class SectionReporter:
    """Callback that reports the sections of a run to a monitor; a context manager that starts in the section `setup`.

    Every rank has one and receives the same events in the same order. Each section costs two messages to a process of
    the same machine. If the block ends without an exception, timeouts are calculated a last time. After an exception
    they are not, because the calculation is collective and the other ranks may not reach it.

    A loop without events calls the context managers `step` and `checkpointing`, and `checkpoint_saved`.

    Args:
        client: connection of this rank to its monitor; not connected yet.
        state_path: file for calculated timeouts, read at the next start.
        calculate_timeouts: whether to calculate timeouts, after each save and at the end. Collective over the world.
        asynchronous_saves: whether checkpoints are written in the background. The duration of a save is then not
            representative, and the timeout of `checkpointing` is kept.
        rank: rank of this process; rank 0 writes the file.
        log: receives a warning if the file cannot be read or written, which does not end the run.
    """

    def __init__(
        self,
        client: MonitorClient,
        *,
        state_path: Path | str,
        calculate_timeouts: bool = False,
        asynchronous_saves: bool = False,
        rank: int = 0,
        log: Callable[[str], object] = print,
    ) -> None:
        self._client = client
        self._file = TimeoutFile(state_path, log=log)
        self._calculates = calculate_timeouts
        self._asynchronous = asynchronous_saves
        self._rank = rank
        self._in_setup = False
        self._in_step = False
        self._loaded = False
        self._steps = 0
        self._batches = 0
        self._saves = 0

    def __enter__(self) -> "SectionReporter":
        self._client.init_workload_monitoring()
        state = self._file.read()
        if state is not None:
            try:
                self._client.load_state_dict(state)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                self._file.warn_unusable(error)
        self._client.start_section(SETUP)
        self._in_setup = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._leave()
                self._calculate(closing=True)
        finally:
            self._client.shutdown_workload_monitoring()

    def checkpoint_loaded(self) -> None:
        """Record that setup loaded a checkpoint from persistent storage. Only then is its duration representative."""
        self._loaded = True

    def checkpoint_saved(self) -> None:
        """Record a complete checkpoint, and calculate timeouts.

        Collective over the world with `calculate_timeouts`.
        """
        self._saves += 1
        self._calculate(closing=False)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Return a context manager around a training step."""
        self.on_train_step_start(None)
        try:
            yield
        finally:
            self.on_train_step_end(None)

    @contextmanager
    def checkpointing(self) -> Iterator[None]:
        """Return a context manager around a save, or around polling a background save. Ends a current step."""
        self.on_checkpoint_start(None)
        try:
            yield
        finally:
            self.on_checkpoint_end(None)

    def on_train_step_start(self, context: object) -> None:
        """Start a training step, and end setup."""
        self._enter_step(self._steps)

    def on_train_step_end(self, context: object) -> None:
        """End the training step."""
        self._leave()
        self._steps += 1

    def on_eval_start(self, context: object) -> None:
        """Start a validation or a test, whose first batch is in no section."""
        self._batches = 0

    def on_eval_step_start(self, context: object) -> None:
        """Start a batch of an evaluation, which counts as a step, and end setup."""
        self._enter_step(self._batches)

    def on_eval_step_end(self, context: object) -> None:
        """End the batch of an evaluation."""
        self._leave()
        self._batches += 1

    on_test_start = on_eval_start
    on_test_step_start = on_eval_step_start
    on_test_step_end = on_eval_step_end

    def on_checkpoint_start(self, context: object) -> None:
        """Start checkpoint work that holds the loop. Ends a current step."""
        self._leave_step()
        self._client.start_section(CHECKPOINTING)

    def on_checkpoint_end(self, context: object) -> None:
        """End the checkpoint work."""
        self._client.end_section(CHECKPOINTING)

    def on_checkpoint_save(self, context: object) -> None:
        """Record a complete checkpoint; see `checkpoint_saved`."""
        self.checkpoint_saved()

    def _enter_step(self, finished: int) -> None:
        self._leave()
        if finished >= WARM_UP_STEPS:
            self._client.start_section(STEP)
            self._in_step = True

    def _leave_step(self) -> None:
        if self._in_step:
            self._in_step = False
            self._client.end_section(STEP)

    def _leave(self) -> None:
        self._leave_step()
        if self._in_setup:
            self._in_setup = False
            self._client.end_section(SETUP)

    def _calculate(self, *, closing: bool) -> None:
        """Calculate the timeouts of sections with enough observations.

        The timeout outside of sections needs a complete run.
        """
        if not self._calculates:
            return
        seen = {
            SETUP: self._loaded,
            STEP: self._steps >= MIN_STEPS,
            CHECKPOINTING: self._saves > 0 and not self._asynchronous,
        }
        chosen = [section for section, enough in seen.items() if enough]
        complete = closing and seen[SETUP] and seen[STEP] and self._saves > 0
        if chosen:
            self._client.calculate_and_set_section_timeouts(
                selected_sections=chosen, calc_out_of_section=complete
            )
            if self._rank == 0:
                self._file.write(self._client.state_dict())
