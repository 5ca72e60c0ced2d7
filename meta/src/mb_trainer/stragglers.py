"""Which ranks are slow: the timer of the section `straggler` in a run. Imports torch."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from mb_loop import Callback, CallbackContext, StepResult
from mb_resilience import StragglerDetectionConfig, StragglerSwitch, StragglerTimer, SwitchPortError
from mb_resilience.straggler import unheard
from mb_resilience.straggler_torch import RowExchange, gpu_says, stopwatch_for
from mb_trainer.console import Voice

Trained = tuple[Any, list[Any], Any, Any]
"""Forward step, model, optimizer and scheduler, as the loop takes them."""


class SpeedReports(Callback):
    """Times forward passes and reading in training steps, and compares the ranks at the log interval.

    Its reports are collective over the world.

    Args:
        timer: of this rank.
        log_interval: steps from report to report.
        operations: floating-point operations of a step over all ranks; 0: not known.
    """

    def __init__(
        self, timer: StragglerTimer, *, log_interval: int, operations: Callable[[StepResult], float]
    ) -> None:
        self._timer, self._log_interval, self._operations = timer, log_interval, operations
        self._steps, self._done = 0, 0.0
        self.values: Mapping[str, float] = {}
        """Metrics of the step that has just ended."""
        timer.pause()

    def timed(self, trained: Trained) -> Trained:
        """Return what the loop trains with, its forward step timed."""
        return self._timer.timed(trained[0]), *trained[1:]

    def reading(self, data: Any) -> Any:
        """Return the same data, timed: an iterator, one per chunk, or None."""
        if isinstance(data, list):
            return [self.reading(each) for each in data]
        return None if data is None else self._timer.reading(data)

    def on_train_step_start(self, context: CallbackContext) -> None:
        """Begin to time: evaluations come between steps."""
        self._timer.resume()

    def on_train_step_end(self, context: CallbackContext) -> None:
        """Report if it is time."""
        self._timer.pause()
        self.values = {}
        result = context.result
        if result is None:
            return
        self._steps += 1
        self._done += self._operations(result)
        if result.step % self._log_interval == 0:
            found = self._timer.report(self._done, self._steps)
            self._steps, self._done = 0, 0.0
            self.values = {} if found is None else found.metrics()


@contextmanager
def speed_reports(
    section: StragglerDetectionConfig | None,
    *,
    device: torch.device,
    voice: Voice,
    log_interval: int,
    operations: Callable[[StepResult], float],
) -> Iterator[SpeedReports | None]:
    """Measure the speed of ranks in this block, if the section asks for it, and listen on rank 0. Collective."""
    if section is None or not section.log_straggler:
        yield None
        return
    on = section.enable_straggler_on_startup and not section.disable_straggler_on_startup
    with ExitStack() as stack:
        timer = StragglerTimer(
            rank=torch.distributed.get_rank(),
            enabled=on,
            named=section.straggler_minmax_count,
            exchange=RowExchange(device=device),
            stopwatch=stopwatch_for(device),
            device=gpu_says,
            switch=switch_of_rank_0(stack, port=section.straggler_ctrlr_port, on=on, voice=voice),
            write=voice.say if voice.speaks else unheard,
        )
        yield SpeedReports(timer, log_interval=log_interval, operations=operations)


def switch_of_rank_0(stack: ExitStack, *, port: int, on: bool, voice: Voice) -> StragglerSwitch | None:
    """Listen on rank 0; where the port cannot be had, say so and go on without a switch. Collective."""
    switch, said = None, [""]
    if torch.distributed.get_rank() == 0:
        try:
            switch = stack.enter_context(StragglerSwitch(port=port, on=on))
        except SwitchPortError as error:
            said = [f"warning: straggler.straggler_ctrlr_port: {error}"]
    torch.distributed.broadcast_object_list(said, src=0)
    if said[0]:
        voice.say(said[0])
    return switch
