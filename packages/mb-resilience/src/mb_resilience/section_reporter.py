"""Reporting of run sections to a fault-tolerance monitor that kills ranks which exceed a time-out. No torch, no NVRx.

A fault-tolerance launcher starts a monitor process for each rank. The rank reports the start and end of each section:
`setup` until the first step, `step` around each step, `checkpointing` around each save. The monitor has one time-out
per section and one for the time outside of sections. It kills a rank that exceeds a time-out, and the launcher restarts
all ranks. The first step, and the first batch of each evaluation, are in no section: they compile and allocate memory,
and the time-out of a step should be short.

Time-outs can be calculated from the durations observed on all ranks, and are then kept for later starts.
"""

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

SETUP, STEP, CHECKPOINTING = "setup", "step", "checkpointing"
"""Names of the sections, as in the options of the launcher."""
WARM_UP_STEPS = 1
"""Number of steps of a process, and of batches of an evaluation, that are in no section."""
MIN_STEPS = 16
"""Number of steps before the time-out of a step is calculated."""
STATE_FILE = "ft_state.json"
"""Name of the file for calculated time-outs, next to the checkpoints."""
MIN_TIMEOUT_SECONDS = 30.0
"""Minimum of calculated time-outs. NVRx takes five times the longest duration, and a healthy run with steps of tenths
of a second would be killed at the first short interruption of its machine."""
MONITOR_SOCKET = "FT_RANK_MONITOR_IPC_SOCKET"
"""Environment variable in which NVRx's launcher passes the socket of its monitor to each rank."""


SECTION_OPTION = "--ft-param-rank_section_timeouts=setup:600,step:180,checkpointing:420"
"""Option of NVRx's launcher that configures all sections, with initial time-outs in seconds."""


class NoMonitorError(RuntimeError):
    """Fault tolerance is enabled, but no monitor is running."""


class MonitorClient(Protocol):
    """Connection of this rank to its monitor, such as NVRx's RankMonitorClient."""

    def init_workload_monitoring(self) -> None:
        """Connect to the monitor."""

    def shutdown_workload_monitoring(self) -> None:
        """Disconnect; the rank is no longer monitored."""

    def start_section(self, section: str) -> None:
        """Start a section; sections may overlap."""

    def end_section(self, section: str) -> None:
        """End a section."""

    def calculate_and_set_section_timeouts(
        self, selected_sections: Collection[str] | None = None, calc_out_of_section: bool = True
    ) -> bool:
        """Calculate time-outs from the longest durations over all ranks, and apply them. Collective over the world."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the calculated time-outs as JSON values."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Apply previously calculated time-outs.

        Raises:
            AttributeError, KeyError, TypeError, ValueError: the state has another format, such as that of another
            version.
        """


class SectionReporter:
    """Context manager that reports the sections of a run to a monitor. It starts in the section `setup`.

    Every rank has one and calls the same methods in the same order. Each section costs two messages to a process of the
    same machine. If the block ends without an exception, time-outs are calculated a last time. After an exception they
    are not, because the calculation is collective and the other ranks may not reach it.

    Args:
        client: connection of this rank to its monitor; not connected yet.
        state_path: file for calculated time-outs, read at the next start.
        calculate_timeouts: whether to calculate time-outs, after each save and at the end. Collective over the world.
        asynchronous_saves: whether checkpoints are written in the background. The duration of a save is then not
            representative, and the time-out of `checkpointing` is kept.
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
        self._state_path = Path(state_path)
        self._calculates = calculate_timeouts
        self._asynchronous = asynchronous_saves
        self._rank = rank
        self._log_text = log
        self._in_setup = False
        self._in_step = False
        self._loaded = False
        self._steps = 0
        self._batches = 0
        self._saves = 0

    def __enter__(self) -> "SectionReporter":
        self._client.init_workload_monitoring()
        state = self._decode_decision()
        if state is not None:
            self._load(state)
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

    @contextmanager
    def step(self) -> Iterator[None]:
        """Return a context manager around a training step."""
        self.begin_step()
        try:
            yield
        finally:
            self.end_step()

    def begin_step(self) -> None:
        """Start a training step, and end setup."""
        self._leave()
        if self._steps >= WARM_UP_STEPS:
            self._enter_step()

    def end_step(self) -> None:
        """End the training step."""
        self._leave()
        self._steps += 1

    def begin_evaluation(self) -> None:
        """Start a validation or a test, whose first batch is in no section."""
        self._batches = 0

    def begin_evaluation_step(self) -> None:
        """Start a batch of an evaluation, which counts as a step, and end setup."""
        self._leave()
        if self._batches >= WARM_UP_STEPS:
            self._enter_step()

    def end_evaluation_step(self) -> None:
        """End the batch of an evaluation."""
        self._leave()
        self._batches += 1

    @contextmanager
    def checkpointing(self) -> Iterator[None]:
        """Return a context manager around a save, or around polling a background save. Ends a current step."""
        self._leave_step()
        self._client.start_section(CHECKPOINTING)
        try:
            yield
        finally:
            self._client.end_section(CHECKPOINTING)

    def checkpoint_saved(self) -> None:
        """Record a complete checkpoint, and calculate time-outs.

        Collective over the world with `calculate_timeouts`.
        """
        self._saves += 1
        self._calculate(closing=False)

    def _enter_step(self) -> None:
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
        """Calculate the time-outs of sections with enough observations.

        The time-out outside of sections needs a complete run.
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
                self._write(self._client.state_dict())

    def _decode_decision(self) -> Mapping[str, Any] | None:
        """Return the time-outs of a previous start; None if there are none, or if they cannot be read."""
        try:
            state = json.loads(self._state_path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._log_text(f"warning: {self._state_path}: {error}. The launcher's time-outs apply.")
            return None
        if not isinstance(state, dict):
            self._log_text(
                f"warning: {self._state_path}: contains no time-outs. The launcher's time-outs apply."
            )
            return None
        return state

    def _load(self, state: Mapping[str, Any]) -> None:
        """Apply stored time-outs if the client accepts them: those of another version must not prevent a start."""
        try:
            self._client.load_state_dict(state)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self._log_text(
                f"warning: {self._state_path}: contains no usable time-outs ({type(error).__name__}: {error}). "
                "The launcher's time-outs apply."
            )

    def _write(self, state: Mapping[str, Any]) -> None:
        """Replace the file atomically, so that a reader finds either the old or the new time-outs."""
        part = self._state_path.with_name(f"{self._state_path.name}.part")
        try:
            self._state_path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("w") as file:
                json.dump(state, file)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._state_path)
        except OSError as error:  # such as a full disk: other ranks must not block on this one
            self._log_text(f"warning: {self._state_path}: calculated time-outs are not stored: {error}")


def apply_minimum_timeouts(
    state: Mapping[str, Any], *, min_seconds: float = MIN_TIMEOUT_SECONDS
) -> dict[str, Any]:
    """Return the state of NVRx's client with calculated time-outs raised to a minimum, in seconds.

    Time-outs from the launcher's options are unchanged.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: the state has another format.
    """
    current = dict(state.get("current_timeouts") or {})
    kept = dict(current.get("section") or {})
    if not kept:
        return dict(state)
    calculated = kept.get("calculated_sections") or ()
    kept["section"] = {
        name: max(seconds, min_seconds) if name in calculated else seconds
        for name, seconds in kept["section"].items()
    }
    if kept.get("is_out_of_section_calculated"):
        kept["out_of_section"] = max(kept["out_of_section"], min_seconds)
    return {**state, "current_timeouts": {**current, "section": kept}}


def require_sections(monitored: Collection[str]) -> None:
    """Reject a monitor without a time-out for each section, because the monitor rejects unknown sections.

    Args:
        monitored: names of the sections that the launcher configured.

    Raises:
        NoMonitorError: a section is missing.
    """
    missing = [name for name in (SETUP, STEP, CHECKPOINTING) if name not in monitored]
    if missing:
        known = ", ".join(sorted(monitored)) or "none"
        raise NoMonitorError(
            f"ft.enable_ft_package: the monitor of this process has no time-out for {', '.join(missing)} (sections "
            f"configured: {known}). The monitor rejects sections that are not configured. Start ft_launcher with "
            f"{SECTION_OPTION}, or set ft.enable_ft_package=false."
        )


def require_monitor(environment: Mapping[str, str] | None = None) -> None:
    """Reject a process without a monitor.

    Args:
        environment: environment variables of the process; None for `os.environ`.

    Raises:
        NoMonitorError: no launcher has passed the socket of a monitor to this process.
    """
    environment = os.environ if environment is None else environment
    if not environment.get(MONITOR_SOCKET):
        raise NoMonitorError(
            f"ft.enable_ft_package: {MONITOR_SOCKET} is not set, so no monitor is running, and a rank that "
            "hangs would not be killed. Start the job with NVRx's ft_launcher, which takes torchrun's options, or set "
            "ft.enable_ft_package=false."
        )
