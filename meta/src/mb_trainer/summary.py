"""Final summary of a run: steps, throughput, losses, and the location of the files."""

import time
from collections.abc import Callable, Iterator

from mb_loop import Callback, CallbackContext, TrainOutcome
from mb_loop.device import wait_for_device
from mb_trainer.run_folder import RunFolder


class Summary(Callback):
    """Callback that counts steps, tokens and seconds of this process, and keeps the best validation loss.

    Args:
        tokens_per_sample: average, if samples differ in length; None: each step reports its tokens.
        clock: clock in seconds.
        wait_for_device: waits until the device has finished the queued work; called before the final clock read.
    """

    def __init__(
        self,
        *,
        tokens_per_sample: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        wait_for_device: Callable[[], object] = wait_for_device,
    ) -> None:
        self._wait_for_device = wait_for_device
        self._tokens_per_sample = tokens_per_sample
        self._clock = clock
        self._started = clock()
        self._steps = 0
        self._tokens = 0
        self._best: tuple[float, int] | None = None
        self._test: dict[str, float] = {}
        self.validated: int | None = None
        """Last step with a completed validation."""

    def on_train_start(self, context: CallbackContext) -> None:
        """Start the clock."""
        self._started = self._clock()

    def on_train_step_end(self, context: CallbackContext) -> None:
        """Count a step and its tokens."""
        self._steps += 1
        if context.result is None:
            return
        each = self._tokens_per_sample
        self._tokens += (context.result.tokens or 0) if each is None else round(context.result.samples * each)

    def on_eval_end(self, context: CallbackContext) -> None:
        """Keep the lowest language-model loss; an evaluation aborted by the duration limit (None) does not count."""
        if context.total_loss_dict is None:
            return
        self.validated = context.state.train_state.step
        loss = context.total_loss_dict.get("lm loss")
        if loss is not None and (self._best is None or loss < self._best[0]):
            self._best = loss, context.state.train_state.step

    def on_test_end(self, context: CallbackContext) -> None:
        """Keep the losses of the test."""
        self._test = dict(context.total_loss_dict or {})

    def lines(
        self,
        outcome: TrainOutcome,
        *,
        folder: RunFolder,
        checkpoints: str | None,
        resume_command: str | None,
    ) -> Iterator[str]:
        """Yield the lines to print; without checkpoints they contain no resume command."""
        self._wait_for_device()
        seconds = self._clock() - self._started
        rate = self._tokens / seconds if seconds > 0 else 0.0
        yield f"{outcome.message}"
        if outcome.reason == "skip_train":
            return
        done = f"{self._steps} steps, {self._tokens:,} tokens in {seconds:.1f} s ({rate:,.0f} tokens/s)"
        yield f"  trained              {done}"
        if self._best is not None:
            yield f"  best validation loss {self._best[0]:.4f} at step {self._best[1]}"
        for name, loss in self._test.items():
            yield f"  test {name:<16}{loss:.4f}"
        written = [path for path in (folder.metrics, folder.tensorboard) if path.exists()]
        yield f"  metrics              {' and '.join(map(str, written))}"
        yield f"  checkpoints          {checkpoints or 'none (checkpoint.save is null)'}"
        if checkpoints is not None and outcome.reason != "finished" and resume_command is not None:
            yield f"  resume with          {resume_command}"
