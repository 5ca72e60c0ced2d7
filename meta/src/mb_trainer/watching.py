"""Monitoring of a run from outside its steps: launcher monitors, and threads that report hangs. Imports torch."""

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _get_default_store

from mb_checkpoint import CheckpointManager, DefaultCheckpointManager
from mb_loop import Callback, CallbackContext, Checkpointer, SaveResult
from mb_resilience import FaultToleranceConfig, HangReporter, SectionReporter, SimulatedFault, agree_on_fault
from mb_resilience.section_reporter import STATE_FILE
from mb_trainer.console import Voice
from mb_trainer.job import Job
from mb_trainer.state import GlobalState

SHARE = 0.5
"""Fraction of the timeout of collectives after which a hang is reported, so that the report precedes the abort."""
ANSWER_SECONDS = 10.0
"""Timeout of the hang-reporting thread for store operations: the process that serves the store may hang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Receivers of this rank's progress: section reporter and hang reporter."""

    sections: SectionReporter | None = None
    hangs: HangReporter | None = None
    asynchronous_saves: bool = False
    later_seconds: float | None = None
    """Time before a hang report after the first step; None: unchanged."""

    def loaded(self, manager: CheckpointManager, state: GlobalState) -> None:
        """Report the loaded checkpoint, except one on the disk of this node: its load time is not representative."""
        if self.sections is None:
            return
        if isinstance(manager, DefaultCheckpointManager):
            loaded, here = manager.loaded, state.cfg.checkpoint.non_persistent_local_ckpt_dir
            lasting = loaded is not None and loaded.path is not None and str(loaded.path) != str(here)
        else:
            lasting = state.train_state.step > 0
        if lasting:
            self.sections.checkpoint_loaded()

    def callbacks(self) -> list[Callback]:
        """Return the step callbacks of the monitors."""
        heard: list[Callback] = []
        if self.hangs is not None:
            heard.append(HangEvents(self.hangs, later_seconds=self.later_seconds))
        if self.sections is not None:
            heard.append(SectionEvents(self.sections))
        return heard

    def saves(self, checkpointer: Checkpointer) -> Checkpointer:
        """Return the checkpointer, wrapped so that its work is reported."""
        if self.hangs is not None:
            checkpointer = NotedSaves(checkpointer, hangs=self.hangs)
        if self.sections is None:
            return checkpointer
        return SectionedSaves(checkpointer, sections=self.sections, asynchronous=self.asynchronous_saves)


class SectionEvents(Callback):
    """Callback that reports each step, and each batch of an evaluation, to the sections."""

    def __init__(self, sections: SectionReporter) -> None:
        self._sections = sections

    def on_train_step_start(self, context: CallbackContext) -> None:
        """Begin a step."""
        self._sections.begin_step()

    def on_train_step_end(self, context: CallbackContext) -> None:
        """End the step."""
        self._sections.end_step()

    def on_eval_start(self, context: CallbackContext) -> None:
        """Begin a validation."""
        self._sections.begin_evaluation()

    def on_eval_step_start(self, context: CallbackContext) -> None:
        """Begin a batch of a validation."""
        self._sections.begin_evaluation_step()

    def on_eval_step_end(self, context: CallbackContext) -> None:
        """End the batch."""
        self._sections.end_evaluation_step()

    def on_test_start(self, context: CallbackContext) -> None:
        """Begin a test."""
        self._sections.begin_evaluation()

    def on_test_step_start(self, context: CallbackContext) -> None:
        """Begin a batch of a test."""
        self._sections.begin_evaluation_step()

    def on_test_step_end(self, context: CallbackContext) -> None:
        """End the batch."""
        self._sections.end_evaluation_step()


class HangEvents(Callback):
    """Callback that records the position of this rank at each step and each batch of an evaluation.

    Args:
        hangs: receives the position.
        later_seconds: time before a hang report after the first step; None: unchanged.
    """

    def __init__(self, hangs: HangReporter, *, later_seconds: float | None) -> None:
        self._hangs = hangs
        self._later_seconds = later_seconds

    def on_train_step_start(self, context: CallbackContext) -> None:
        """Record the start of a step."""
        self._hangs.note("step", context.state.train_state.step + 1)

    def on_train_step_end(self, context: CallbackContext) -> None:
        """Record the end of the step."""
        self._hangs.note("after step", context.state.train_state.step)
        if self._later_seconds is not None:
            self._hangs.seconds = self._later_seconds

    def on_eval_step_start(self, context: CallbackContext) -> None:
        """Record a batch of a validation."""
        self._hangs.note("validation after step", context.state.train_state.step)

    def on_eval_end(self, context: CallbackContext) -> None:
        """Record the end of the validation."""
        self._hangs.note("after step", context.state.train_state.step)

    def on_test_step_start(self, context: CallbackContext) -> None:
        """Record a batch of a test."""
        self._hangs.note("test after step", context.state.train_state.step)


class NotedSaves:
    """Checkpointer that records the work of another one for hang reports."""

    def __init__(self, checkpointer: Checkpointer, *, hangs: HangReporter) -> None:
        self._checkpointer = checkpointer
        self._hangs = hangs

    def save(self, step: int, *, non_persistent: bool) -> Sequence[SaveResult]:
        """Save a checkpoint."""
        with self._hangs.section("checkpoint after step", step):
            return self._checkpointer.save(step, non_persistent=non_persistent)

    def poll(self, *, blocking: bool) -> Sequence[SaveResult]:
        """Poll background saves."""
        with self._hangs.section("looking after saves"):
            return self._checkpointer.poll(blocking=blocking)


class SectionedSaves:
    """Checkpointer that runs another one within the section `checkpointing`.

    A poll is in that section if it may block: with a background writer, at the end of the run, or for a retry of a
    failed save.
    """

    def __init__(self, checkpointer: Checkpointer, *, sections: SectionReporter, asynchronous: bool) -> None:
        self._checkpointer = checkpointer
        self._sections = sections
        self._asynchronous = asynchronous
        self._failed = False

    def save(self, step: int, *, non_persistent: bool) -> Sequence[SaveResult]:
        """Save a checkpoint."""
        with self._sections.checkpointing():
            ended = self._checkpointer.save(step, non_persistent=non_persistent)
        return self._heard(ended)

    def poll(self, *, blocking: bool) -> Sequence[SaveResult]:
        """Poll background saves."""
        if not (self._asynchronous or blocking or self._failed):
            return self._checkpointer.poll(blocking=blocking)
        with self._sections.checkpointing():
            ended = self._checkpointer.poll(blocking=blocking)
        return self._heard(ended)

    def _heard(self, ended: Sequence[SaveResult]) -> Sequence[SaveResult]:
        for save in ended:
            self._failed = not save.written
            if save.written:
                self._sections.checkpoint_saved()
        return ended


@contextmanager
def watched(job: Job, voice: Voice) -> Iterator[Watch]:
    """Monitor a run while the block runs, and inject the configured fault, if any. Collective over the world.

    Raises:
        NoMonitorError: there is no monitor, and one is required.
    """
    after = job.config.dist.distributed_timeout_seconds_after_init
    with ExitStack() as stack:
        sections = stack.enter_context(monitored(job, voice)) if monitors(job) else None
        if job.config.ft is not None and job.config.ft.simulate_fault:
            stack.enter_context(simulated_fault(job, job.config.ft, voice))
        yield Watch(
            sections=sections,
            hangs=stack.enter_context(hang_reporter(job, voice)) if job.world.world_size > 1 else None,
            asynchronous_saves=job.config.checkpoint.async_save,
            later_seconds=None if after is None else SHARE * after,
        )


def hang_reporter(job: Job, voice: Voice) -> HangReporter:
    """Return the reporter of ranks that wait for long, which reports before their collectives time out."""
    world = job.world
    return HangReporter(
        seconds=SHARE * 60 * job.config.dist.distributed_timeout_minutes,
        store=own_connection(_get_default_store()),
        rank=world.rank,
        world_size=world.world_size,
        attempt=world.attempt,
        folder=None if job.unwritable else job.folder.path,
        reporting_rank=world.world_size - 1,  # the rank whose stderr launchers show
        log=aloud(voice),
    )


def aloud(voice: Voice) -> Callable[[str], None]:
    """Return a function that logs a text of this rank, whichever rank logs for all: on stderr and in the log."""

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)
        voice.log(text)

    return say


def own_connection(store: Store) -> Store:
    """Return a new connection to the same store server, for use by one thread; other kinds of stores unchanged."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if not isinstance(store, TCPStore):
        return store
    return TCPStore(store.host, store.port, None, False, timedelta(seconds=ANSWER_SECONDS))


def monitors(job: Job) -> bool:
    """Return whether sections are reported to a monitor."""
    return job.config.ft is not None and job.config.ft.enable_ft_package


def monitored(job: Job, voice: Voice) -> SectionReporter:
    """Return the sections of this rank, which connect to NVRx's monitor when they are entered."""
    door: Any = import_module("mb_resilience.nvrx_monitor")  # imports NVRx, only if it is enabled
    ft, checkpoint = job.config.ft, job.config.checkpoint
    return SectionReporter(
        door.monitor_client(),
        state_path=Path(checkpoint.save or job.folder.path) / STATE_FILE,
        calculate_timeouts=ft is not None and ft.calc_ft_timeouts,
        asynchronous_saves=checkpoint.async_save,
        rank=job.world.rank,
        log=voice.say,
    )


def simulated_fault(job: Job, settings: FaultToleranceConfig, voice: Voice) -> SimulatedFault:
    """Return the fault that all ranks agree on, drawn from the run's seed and the restart count."""
    world = job.world
    fault = agree_on_fault(
        settings,
        rng=random.Random(f"{job.config.rng.seed} {world.attempt}"),
        store=_get_default_store() if world.world_size > 1 else None,
        rank=world.rank,
        world_size=world.world_size,
        attempt=world.attempt,
    )
    return SimulatedFault(fault, rank=world.rank, log=aloud(voice))
