"""Straggler detectors of a run, built from the sections `straggler` and `nvrx_straggler`. Imports torch."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch

from mb_resilience.config import NVRxStragglerDetectionConfig, StragglerDetectionConfig
from mb_resilience.errors import SwitchPortError
from mb_resilience.process_group import RankInfo
from mb_resilience.stragglers.detection import StragglerTimer, discard
from mb_resilience.stragglers.nvrx_straggler import NVRxStragglerMonitor, nvrx_detector
from mb_resilience.stragglers.speed_reporter import SpeedReporter
from mb_resilience.stragglers.switch import StragglerSwitch
from mb_resilience.stragglers.torch_timing import (
    all_gather_row,
    broadcast_from_rank_0,
    gather_locations,
    gpu_telemetry,
    make_stopwatch,
)

Given = ParamSpec("Given")
Returned = TypeVar("Returned")


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerDetectors:
    """Straggler detectors of this rank; each is None if it is disabled."""

    speeds: SpeedReporter | None = None
    gpus: NVRxStragglerMonitor | None = None

    @property
    def callbacks(self) -> list[object]:
        """Callbacks of the detectors. Register them before the callback that records `metrics`."""
        return [each for each in (self.speeds, self.gpus) if each is not None]

    @property
    def step_values(self) -> list[Callable[[], dict[str, float]]]:
        """Functions that return the metrics of the step that ended last; none if every detector is disabled."""
        return [self.metrics] if self.callbacks else []

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the step that ended last; empty without a report."""
        return {
            name: value for each in (self.speeds, self.gpus) if each for name, value in each.metrics.items()
        }

    def wrap_forward_step(self, forward_step: Callable[Given, Returned]) -> Callable[Given, Returned]:
        """Return the forward step, timed if the timer is enabled."""
        return self.speeds.wrap_forward_step(forward_step) if self.speeds else forward_step

    def wrap_data(self, data: Any) -> Any:
        """Return the data (an iterator, a list with one per chunk, or None), timed if the timer is enabled."""
        return self.speeds.wrap_data(data) if self.speeds else data

    @property
    def stop_requested(self) -> Callable[[int], str | None] | None:
        """Function that returns why all ranks should stop after a step, slow GPUs, or None; None: no detector stops.

        The result is identical on all ranks.
        """
        return None if self.gpus is None else self.gpus.stop_requested


@contextmanager
def build_straggler_detectors(
    *,
    world: RankInfo,
    straggler: StragglerDetectionConfig | None = None,
    nvrx_straggler: NVRxStragglerDetectionConfig | None = None,
    device: torch.device | str = "cpu",
    log_interval: int = 1,
    token_file: Path | None = None,
    log: Callable[[str], object] = print,
) -> Iterator[StragglerDetectors]:
    """Detect stragglers while the block runs, as configured. Collective over the default process group.

    Args:
        world: rank of this process.
        straggler: section of the timer.
        nvrx_straggler: section of NVRx's detector.
        device: device of the model.
        log_interval: steps between two reports of the timer.
        token_file: file for the token of the timer's switch, on rank 0; None: the token is logged.
        log: receives reports and warnings, on the logging rank only.

    Raises:
        NVRxDetectorError: NVRx's detector cannot run here.
    """
    device = torch.device(device)
    log = log if world.is_logging_rank else discard
    with ExitStack() as stack:
        speeds = gpus = None
        if straggler is not None and straggler.log_straggler:
            on = straggler.enable_straggler_on_startup and not straggler.disable_straggler_on_startup
            switch = None
            if straggler.straggler_ctrlr:
                switch = open_switch(stack, straggler, on=on, rank=world.rank, token_file=token_file, log=log)
            timer = straggler_timer(straggler, on=on, rank=world.rank, device=device, switch=switch, log=log)
            speeds = SpeedReporter(timer, log_interval=log_interval)
        if nvrx_straggler is not None and nvrx_straggler.enabled:
            gpus = stack.enter_context(gpu_monitor(nvrx_straggler, rank=world.rank, device=device, log=log))
        yield StragglerDetectors(speeds=speeds, gpus=gpus)


def straggler_timer(
    section: StragglerDetectionConfig,
    *,
    on: bool,
    rank: int,
    device: torch.device,
    switch: StragglerSwitch | None,
    log: Callable[[str], object],
) -> StragglerTimer:
    """Return the timer of this rank, whose reports are collective over the default process group. Collective."""
    return StragglerTimer(
        rank=rank,
        enabled=on,
        minmax_count=section.straggler_minmax_count,
        all_gather=partial(all_gather_row, device=device),
        stopwatch=make_stopwatch(device),
        backward=make_stopwatch(device),
        locations=gather_locations(device),
        device=gpu_telemetry,
        switch=switch,
        write=log,
    )


def gpu_monitor(
    section: NVRxStragglerDetectionConfig,
    *,
    rank: int,
    device: torch.device,
    log: Callable[[str], object],
) -> NVRxStragglerMonitor:
    """Return NVRx's detector for this rank, not started yet."""
    return NVRxStragglerMonitor(
        section,
        nvrx_detector(),
        rank=rank,
        broadcast=broadcast_from_rank_0,
        profile_cuda=device.type == "cuda",
        log=log,
    )


def open_switch(
    stack: ExitStack,
    section: StragglerDetectionConfig,
    *,
    on: bool,
    rank: int,
    token_file: Path | None,
    log: Callable[[str], object],
) -> StragglerSwitch | None:
    """Open the switch on rank 0 until the stack is closed, and log its usage, or why it cannot be opened. Collective.

    Returns:
        The switch on rank 0; None on other ranks, and if the port cannot be opened.
    """
    switch, line = None, ""
    if rank == 0:
        host, port = section.straggler_ctrlr_host, section.straggler_ctrlr_port
        try:
            switch = stack.enter_context(StragglerSwitch(port=port, on=on, host=host, token_file=token_file))
            key = switch.token if token_file is None else f"$(cat {shlex.quote(str(token_file))})"
            line = (
                f'straggler timer: switch with curl -H "Authorization: Bearer {key}" '
                f"{host or 'RANK0'}:{switch.port}"
            )
        except SwitchPortError as error:
            line = f"warning: straggler.straggler_ctrlr_port: {error}"
    log(broadcast_from_rank_0(line))
    return switch
