"""Callback that counts what a process trained, and keeps its losses, for the last lines of a run."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from mb_metrics.run.training_context import MetricsContext, TrainCounters

LANGUAGE_MODEL_LOSS = "lm loss"
"""Megatron's name of the loss of a language model."""


class RunSummary:
    """Callback that counts steps, tokens and seconds of this process, and keeps the best validation loss.

    Args:
        loss: name of the loss of which the lowest validation value is kept; if there is none of this name, the first.
        clock: clock in seconds.
        wait_for_device: waits until the device has finished the queued work; called before the final clock read.
    """

    def __init__(
        self,
        *,
        loss: str = LANGUAGE_MODEL_LOSS,
        clock: Callable[[], float] = time.monotonic,
        wait_for_device: Callable[[], object] = lambda: None,
    ) -> None:
        self._wait_for_device = wait_for_device
        self._loss = loss
        self._clock = clock
        self._started = clock()
        self._steps = 0
        self._tokens = 0
        self._best: tuple[float, int] | None = None
        self._test: dict[str, float] = {}

    def on_train_start(self, context: MetricsContext) -> None:
        """Start the clock."""
        self._started = self._clock()

    def on_train_step_end(self, context: MetricsContext) -> None:
        """Count a step and its tokens."""
        self._steps += 1
        if context.result is not None:
            self._tokens += context.result.tokens or 0

    def on_eval_end(self, context: MetricsContext) -> None:
        """Keep the lowest loss; NaN and an evaluation that was aborted do not count."""
        if context.total_loss_dict is None:
            return
        counters: TrainCounters = context.state.train_state
        first = next(iter(context.total_loss_dict.values()), None)
        loss = context.total_loss_dict.get(self._loss, first)
        if loss is not None and not math.isnan(loss) and (self._best is None or loss < self._best[0]):
            self._best = loss, counters.step

    def on_test_end(self, context: MetricsContext) -> None:
        """Keep the losses of the test."""
        self._test = dict(context.total_loss_dict or {})

    def lines(self) -> Iterator[str]:
        """Yield the lines to print: steps, tokens and throughput, the best validation loss, the losses of the test.

        Waits for the device.
        """
        self._wait_for_device()
        seconds = self._clock() - self._started
        rate = self._tokens / seconds if seconds > 0 else 0.0
        done = f"{self._steps} steps, {self._tokens:,} tokens in {seconds:.1f} s ({rate:,.0f} tokens/s)"
        yield f"  trained              {done}"
        if self._best is not None:
            yield f"  best validation loss {self._best[0]:.4f} at step {self._best[1]}"
        for name, loss in self._test.items():
            yield f"  test {name:<16}{loss:.4f}"


def location_lines(
    metrics: Iterable[Path], *, checkpoints: str | None, resume_command: str | None
) -> Iterator[str]:
    """Yield the lines to print on the files of a run, aligned with those of `RunSummary.lines`.

    Args:
        metrics: Files and folders with metrics; those that do not exist are left out.
        checkpoints: Folder of the checkpoints; None: nothing was saved, and there is no line on how to resume.
        resume_command: Command that resumes the run; None: it is complete.
    """
    yield f"  metrics              {' and '.join(str(path) for path in metrics if path.exists())}"
    yield f"  checkpoints          {checkpoints or 'none (checkpoint.save is null)'}"
    if checkpoints is not None and resume_command is not None:
        yield f"  resume with          {resume_command}"
