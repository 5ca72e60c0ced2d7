"""Straggler detection in a run: the sections `straggler` and `nvrx_straggler`. Imports torch."""

import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from mb_loop import Callback, CallbackContext, StepResult
from mb_resilience import (
    NVRxStragglerDetectionConfig,
    NVRxStragglerMonitor,
    StragglerDetectionConfig,
    StragglerSwitch,
    StragglerTimer,
    SwitchPortError,
)
from mb_resilience.straggler import discard
from mb_resilience.straggler_torch import BroadcastFromRank0, RowAllGather, gpu_telemetry, make_stopwatch
from mb_trainer.config import ConfigContainer
from mb_trainer.console import Voice

Trained = tuple[Any, list[Any], Any, Any]
"""Forward step, model, optimizer and scheduler, as the training loop takes them."""


def nobody_is_slow(step: int) -> str | None:
    """Return None: never request a stop."""
    return None


class SpeedReports(Callback):
    """Callback that times forward passes and data loading, and compares the ranks at each log interval.

    Its reports are collective over the world.

    Args:
        timer: timer of this rank.
        log_interval: steps between two reports.
        operations: floating-point operations of a step over all ranks; 0: not known.
    """

    def __init__(
        self, timer: StragglerTimer, *, log_interval: int, operations: Callable[[StepResult], float]
    ) -> None:
        self._timer, self._log_interval, self._operations = timer, log_interval, operations
        self._steps, self._done = 0, 0.0
        self.values: Mapping[str, float] = {}
        """Metrics of the previous step."""
        timer.pause()

    def timed(self, trained: Trained) -> Trained:
        """Return the arguments of the training loop with a timed forward step."""
        return self._timer.wrap_function(trained[0]), *trained[1:]

    def reading(self, data: Any) -> Any:
        """Return the data with timed reads: an iterator, one per chunk, or None."""
        if isinstance(data, list):
            return [self.reading(each) for each in data]
        return None if data is None else self._timer.wrap_iterator(data)

    def on_train_step_start(self, context: CallbackContext) -> None:
        """Start the timer at the step, which excludes evaluations between steps."""
        self._timer.resume()

    def on_train_step_end(self, context: CallbackContext) -> None:
        """Report if a report is due."""
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


class GpuScores(Callback):
    """Callback that monitors each step with NVRx's detector. Its reports are collective over the world.

    Args:
        watched: monitor of this rank.
        recorded: whether the scores are metrics.
        say: logs a line.
    """

    def __init__(
        self, watched: NVRxStragglerMonitor, *, recorded: bool, say: Callable[[str], object]
    ) -> None:
        self._watched, self._recorded, self._say = watched, recorded, say
        self.values: Mapping[str, float] = {}
        """Metrics of the previous step."""

    def on_train_step_start(self, context: CallbackContext) -> None:
        """Start the measurement."""
        self._watched.begin_step()

    def on_train_step_end(self, context: CallbackContext) -> None:
        """Check the scores if a report is due."""
        scores = self._watched.end_step()
        self.values = scores.metrics() if scores and self._recorded else {}
        why = scores.slow_gpu_summary() if scores else None
        if why is not None:
            self._say(f"warning: {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stragglers:
    """Straggler detectors of a run: none, one or both."""

    speeds: SpeedReports | None = None
    scores: GpuScores | None = None
    wish: Callable[[int], str | None] = nobody_is_slow
    """Stop request: the reason for which all ranks leave after a step, or None."""

    def callbacks(self) -> list[Callback]:
        """Return the step callbacks of the detectors."""
        return [each for each in (self.speeds, self.scores) if each is not None]

    def timed(self, trained: Trained) -> Trained:
        """Return the arguments of the training loop, timed if the timer is enabled."""
        return self.speeds.timed(trained) if self.speeds else trained

    def reading(self, data: Any) -> Any:
        """Return the data, timed if the timer is enabled."""
        return self.speeds.reading(data) if self.speeds else data

    def values(self) -> dict[str, float]:
        """Return the metrics of the previous step."""
        return {
            name: value for each in (self.speeds, self.scores) if each for name, value in each.values.items()
        }


@contextmanager
def look_for_stragglers(
    config: ConfigContainer,
    *,
    device: torch.device,
    voice: Voice,
    operations: Callable[[StepResult], float],
    token_file: Path | None = None,
) -> Iterator[Stragglers]:
    """Detect stragglers while the block runs, as configured. Collective over the world.

    The token of the timer's switch is written to `token_file`, or logged if that is None.

    Raises:
        NVRxDetectorError: NVRx's detector cannot run here.
    """
    timed, watched = config.straggler, config.nvrx_straggler
    with ExitStack() as stack:
        speeds = scores = None
        wish = nobody_is_slow
        if timed is not None and timed.log_straggler:
            timer = straggler_timer(stack, timed, device=device, voice=voice, token_file=token_file)
            interval = config.logger.log_interval
            speeds = SpeedReports(timer, log_interval=interval, operations=operations)
        if watched is not None and watched.enabled:
            stragglers = stack.enter_context(gpu_watch(watched, device=device))
            scores = GpuScores(stragglers, recorded=watched.enable_logging, say=heard(voice))
            wish = stragglers.stop_requested
        yield Stragglers(speeds=speeds, scores=scores, wish=wish)


def heard(voice: Voice) -> Callable[[str], object]:
    """Return a function that logs a line once, although all ranks call it."""
    return voice.say if voice.speaks else discard


def straggler_timer(
    stack: ExitStack,
    section: StragglerDetectionConfig,
    *,
    device: torch.device,
    voice: Voice,
    token_file: Path | None = None,
) -> StragglerTimer:
    """Return the timer of this rank, with its switch on rank 0 until the stack is closed. Collective."""
    on = section.enable_straggler_on_startup and not section.disable_straggler_on_startup
    return StragglerTimer(
        rank=torch.distributed.get_rank(),
        enabled=on,
        minmax_count=section.straggler_minmax_count,
        all_gather=RowAllGather(device=device),
        stopwatch=make_stopwatch(device),
        device=gpu_telemetry,
        switch=switch_of_rank_0(stack, section, on=on, token_file=token_file, voice=voice)
        if section.straggler_ctrlr
        else None,
        write=heard(voice),
    )


def gpu_watch(section: NVRxStragglerDetectionConfig, *, device: torch.device) -> NVRxStragglerMonitor:
    """Return NVRx's detector for this rank, not started yet."""
    door = import_module(
        "mb_resilience.nvrx_detector"
    )  # imports nvidia-resiliency-ext, an optional dependency
    return NVRxStragglerMonitor(
        section,
        door.nvrx_detector(),
        rank=torch.distributed.get_rank(),
        broadcast=BroadcastFromRank0(),
        profile_cuda=device.type == "cuda",
    )


def switch_of_rank_0(
    stack: ExitStack, section: StragglerDetectionConfig, *, on: bool, token_file: Path | None, voice: Voice
) -> StragglerSwitch | None:
    """Open the port on rank 0 and log its usage, or a warning if it cannot be opened. Collective."""
    switch, said = None, [""]
    if torch.distributed.get_rank() == 0:
        host, port = section.straggler_ctrlr_host, section.straggler_ctrlr_port
        try:
            switch = stack.enter_context(StragglerSwitch(port=port, on=on, host=host, token_file=token_file))
            key = switch.token if token_file is None else f"$(cat {shlex.quote(str(token_file))})"
            said = [
                f'straggler timer: switch with curl -H "Authorization: Bearer {key}" {host or "RANK0"}:{port}'
            ]
        except SwitchPortError as error:
            said = [f"warning: straggler.straggler_ctrlr_port: {error}"]
    torch.distributed.broadcast_object_list(said, src=0)
    if said[0]:
        voice.say(said[0])
    return switch
