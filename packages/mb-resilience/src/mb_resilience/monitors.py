"""Monitors of a run, built from its configuration sections: launcher sections, hang reports, faults. Imports torch.

A run enters `build_monitors` before it builds its model, so that a hang during setup is reported, too.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch.distributed import Store  # type: ignore[attr-defined]

from mb_resilience.config import FaultToleranceConfig
from mb_resilience.fault_tolerance.section_reporter import SectionReporter
from mb_resilience.fault_tolerance.section_timeouts import STATE_FILE
from mb_resilience.faults import SimulatedFault, agree_on_fault
from mb_resilience.hangs.collective_timeout import TimeoutAfterFirstStep
from mb_resilience.hangs.flight_record_reader import read_collectives
from mb_resilience.hangs.reporter import HangReporter, print_to_stderr
from mb_resilience.process_group import RankInfo, new_connection
from mb_resilience.stops.decision_exchange import KeyValueStore

HANG_REPORT_FRACTION = 0.5
"""Fraction of the timeout of collectives after which a hang is reported, so that the report precedes the abort."""


class TimeoutSettings(Protocol):
    """Timeouts of collectives, such as Megatron's DistributedInitConfig."""

    @property
    def distributed_timeout_minutes(self) -> int:
        """Timeout until the end of the first step."""

    @property
    def distributed_timeout_seconds_after_init(self) -> int | None:
        """Timeout after the first step; None: unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMonitors:
    """Monitors of this rank; each is None if it is not configured."""

    sections: SectionReporter | None = None
    hangs: HangReporter | None = None
    first_step: TimeoutAfterFirstStep | None = None

    @property
    def callbacks(self) -> list[object]:
        """Callbacks of the monitors. Register them last: the work of other callbacks belongs to the step around it."""
        return [each for each in (self.first_step, self.hangs, self.sections) if each is not None]

    def checkpoint_loaded(self) -> None:
        """Record that setup loaded a checkpoint from persistent storage, whose load time is representative."""
        if self.sections is not None:
            self.sections.checkpoint_loaded()


@contextmanager
def build_monitors(  # noqa: PLR0913 (sections, and what the run knows; each has a default)
    *,
    world: RankInfo,
    ft: FaultToleranceConfig | None = None,
    dist: TimeoutSettings | None = None,
    store: Store | None = None,
    folder: Path | None = None,
    state_folder: Path | str = ".",
    asynchronous_saves: bool = False,
    seed: int = 0,
    log: Callable[[str], object] = print,
    alert: Callable[[str], object] = print_to_stderr,
) -> Iterator[RunMonitors]:
    """Monitor a run while the block runs, and inject the configured fault, if any. Collective over the world.

    Args:
        world: rank of this process.
        ft: section of the launcher's monitor and of simulated faults; None: neither.
        dist: timeouts of collectives; None: no hang reports, and the timeout remains after the first step.
        store: store of the process group; None for a single rank, which has no hang reports either.
        folder: folder of hang reports, used once it exists; None: hang reports go to `alert` only.
        state_folder: folder of the calculated timeouts of sections.
        asynchronous_saves: whether checkpoints are written in the background.
        seed: seed of the run, from which a simulated fault is sampled.
        log: receives warnings about the file of calculated timeouts.
        alert: receives hang reports and the simulated fault, on the rank concerned.

    Raises:
        NoMonitorError: there is no monitor, and one is required.
        FaultError: the settings of the simulated fault are invalid.
        ValueError: a timeout of `dist` is not positive.
    """
    with ExitStack() as stack:
        sections = hangs = first_step = None
        if ft is not None and ft.enable_ft_package:
            sections = stack.enter_context(
                monitored_sections(
                    ft,
                    rank=world.rank,
                    state_folder=state_folder,
                    asynchronous_saves=asynchronous_saves,
                    log=log,
                )
            )
        if ft is not None and ft.simulate_fault:
            stack.enter_context(simulated_fault(ft, world=world, store=store, seed=seed, alert=alert))
        if dist is not None and dist.distributed_timeout_seconds_after_init is not None:
            first_step = TimeoutAfterFirstStep(dist.distributed_timeout_seconds_after_init)
        if dist is not None and store is not None:
            hangs = stack.enter_context(
                hang_reporter(dist, world=world, store=store, folder=folder, alert=alert)
            )
        yield RunMonitors(sections=sections, hangs=hangs, first_step=first_step)


def monitored_sections(
    ft: FaultToleranceConfig,
    *,
    rank: int,
    state_folder: Path | str,
    asynchronous_saves: bool,
    log: Callable[[str], object],
) -> SectionReporter:
    """Return the sections of this rank, which connect to NVRx's monitor when they are entered.

    Raises:
        NoMonitorError: the process was not started by NVRx's launcher.
    """
    from mb_resilience.fault_tolerance.nvrx_monitor import monitor_client  # noqa: PLC0415 (imports NVRx, only if it is enabled)

    return SectionReporter(
        monitor_client(),
        state_path=Path(state_folder) / STATE_FILE,
        calculate_timeouts=ft.calc_ft_timeouts,
        asynchronous_saves=asynchronous_saves,
        rank=rank,
        log=log,
    )


def simulated_fault(
    ft: FaultToleranceConfig,
    *,
    world: RankInfo,
    store: KeyValueStore | None,
    seed: int,
    alert: Callable[[str], object],
) -> SimulatedFault:
    """Return the fault that all ranks agree on, sampled from the seed and the number of the start. Collective."""
    fault = agree_on_fault(
        ft,
        rng=random.Random(f"{seed} {world.attempt}"),
        store=store,
        rank=world.rank,
        world_size=world.world_size,
        attempt=world.attempt,
    )
    return SimulatedFault(fault, rank=world.rank, log=alert)


def hang_reporter(
    dist: TimeoutSettings,
    *,
    world: RankInfo,
    store: Store,
    folder: Path | None,
    alert: Callable[[str], object],
) -> HangReporter:
    """Return the reporter of hanging ranks, which reports before their collectives time out."""
    later = dist.distributed_timeout_seconds_after_init
    return HangReporter(
        seconds=HANG_REPORT_FRACTION * 60 * dist.distributed_timeout_minutes,
        seconds_after_first_step=None if later is None else HANG_REPORT_FRACTION * later,
        store=new_connection(store),
        rank=world.rank,
        world_size=world.world_size,
        attempt=world.attempt,
        folder=folder,
        reporting_rank=world.world_size - 1,  # the rank whose stderr launchers show
        read_collectives=read_collectives,
        log=alert,
    )
