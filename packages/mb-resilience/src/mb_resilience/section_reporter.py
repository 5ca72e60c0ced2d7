"""The sections of a run, told to a monitor that ends ranks which stay in one for too long. No torch, no NVRx.

A fault-tolerance launcher starts a monitor beside each rank. The rank tells it when a section begins and ends: `setup`
from the start to the first step, `step` around each step, `checkpointing` around each save. The monitor has a time-out
for each section and one for the time outside of all; a rank that exceeds one is killed, and the launcher starts all
ranks again. The first step, and the first batch of each evaluation, belong to no section: they compile and allocate,
and the time-out of a step should be a short one.

The time-outs can be calculated from the times seen, over all ranks, and then hold for the next starts, too.
"""

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

SETUP, STEP, CHECKPOINTING = "setup", "step", "checkpointing"
"""Names of the sections, as the launcher's options have them."""
WARM_UP_STEPS = 1
"""Steps of a process, and batches of an evaluation, that are in no section."""
MIN_STEPS = 16
"""Steps to be seen before the time-out of a step is calculated."""
STATE_FILE = "ft_state.json"
"""Name of the file that keeps calculated time-outs, beside the checkpoints."""
MIN_TIMEOUT_SECONDS = 30.0
"""Calculated time-outs are not shorter: NVRx takes five times the longest time seen, and a healthy run whose steps last
tenths of a second would be killed at the first hiccup of its machine."""
MONITOR_SOCKET = "FT_RANK_MONITOR_IPC_SOCKET"
"""The variable by which NVRx's launcher tells each rank where its monitor listens."""


SECTION_OPTION = "--ft-param-rank_section_timeouts=setup:600,step:180,checkpointing:420"
"""Option of NVRx's launcher that configures all sections, with seconds to start from."""


class NoMonitorError(RuntimeError):
    """Fault tolerance was asked for where nothing monitors the ranks."""


class MonitorClient(Protocol):
    """This rank's line to its monitor; NVRx's RankMonitorClient fits."""

    def init_workload_monitoring(self) -> None:
        """Connect."""

    def shutdown_workload_monitoring(self) -> None:
        """Disconnect: from here on nobody watches."""

    def start_section(self, section: str) -> None:
        """Begin a section; sections may overlap."""

    def end_section(self, section: str) -> None:
        """End it."""

    def calculate_and_set_section_timeouts(
        self, selected_sections: Collection[str] | None = None, calc_out_of_section: bool = True
    ) -> bool:
        """Calculate time-outs from the longest times over all ranks, and use them. Collective over the world."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the calculated time-outs, as JSON can hold them."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Use time-outs that were calculated before.

        Raises:
            AttributeError, KeyError, TypeError, ValueError: the state is of another shape, such as another version's.
        """


class SectionReporter:
    """Tells a monitor where this rank is, as long as the block runs; the block begins in `setup`.

    Every rank has one, and calls the same methods in the same order. Two messages to a process of the same machine for
    each section. When the block is left without an exception, time-outs are calculated for the last time; an exception
    leaves that out, because the other ranks may not come.

    Args:
        client: this rank's line to its monitor; not connected yet.
        state_path: where calculated time-outs are kept from one start to the next.
        calculate_timeouts: whether to calculate at all, after each save and at the end. Collective over the world.
        asynchronous_saves: whether checkpoints are written in the background: the time that a save holds a rank up
            then says little, and `checkpointing` keeps its time-out.
        rank: of this process; rank 0 writes the file.
        say: told what cannot be read or written, which ends nothing.
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
        """Take note that setup read a checkpoint from storage that lasts: only then its time says something."""
        self._loaded = True

    @contextmanager
    def step(self) -> Iterator[None]:
        """Make a training step in the block."""
        self.begin_step()
        try:
            yield
        finally:
            self.end_step()

    def begin_step(self) -> None:
        """A training step begins: setup is over."""
        self._leave()
        if self._steps >= WARM_UP_STEPS:
            self._enter_step()

    def end_step(self) -> None:
        """It is done."""
        self._leave()
        self._steps += 1

    def begin_evaluation(self) -> None:
        """A validation or a test begins: its first batch is in no section."""
        self._batches = 0

    def begin_evaluation_step(self) -> None:
        """A batch of an evaluation begins, which counts as a step; setup is over."""
        self._leave()
        if self._batches >= WARM_UP_STEPS:
            self._enter_step()

    def end_evaluation_step(self) -> None:
        """It is done."""
        self._leave()
        self._batches += 1

    @contextmanager
    def checkpointing(self) -> Iterator[None]:
        """Save in the block, or look after a save in the background. A step that is under way ends first."""
        self._leave_step()
        self._client.start_section(CHECKPOINTING)
        try:
            yield
        finally:
            self._client.end_section(CHECKPOINTING)

    def checkpoint_saved(self) -> None:
        """Take note of a checkpoint that is whole, and calculate time-outs. Collective over the world if they are."""
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
        """Calculate the time-outs of which enough was seen; the one outside of sections needs a complete run."""
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
        """Return the time-outs of an earlier start; None where there are none, or none that can be read."""
        try:
            state = json.loads(self._state_path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._log_text(f"warning: {self._state_path}: {error}; the launcher's time-outs hold")
            return None
        if not isinstance(state, dict):
            self._log_text(f"warning: {self._state_path}: holds no time-outs; the launcher's hold")
            return None
        return state

    def _load(self, state: Mapping[str, Any]) -> None:
        """Use time-outs that were kept, if the client can: another version's must not keep a run from starting."""
        try:
            self._client.load_state_dict(state)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self._log_text(
                f"warning: {self._state_path}: holds no time-outs that can be used ({type(error).__name__}: {error}); "
                "the launcher's hold"
            )

    def _write(self, state: Mapping[str, Any]) -> None:
        """Replace the file as a whole: whoever reads it finds the old time-outs or the new ones."""
        part = self._state_path.with_name(f"{self._state_path.name}.part")
        try:
            self._state_path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("w") as file:
                json.dump(state, file)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._state_path)
        except OSError as error:  # such as a full disk: other ranks must not wait for this one
            self._log_text(f"warning: {self._state_path}: calculated time-outs are not kept: {error}")


def apply_minimum_timeouts(
    state: Mapping[str, Any], *, min_seconds: float = MIN_TIMEOUT_SECONDS
) -> dict[str, Any]:
    """Return the state of NVRx's client with calculated time-outs of sections raised to a least value, in seconds.

    Time-outs of the launcher's options stay as they are.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: the state is of another shape.
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
    """Refuse a monitor that was started without a time-out for each section, since it rejects unknown sections.

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
            f"configured: {known}). It rejects a section that its launcher does not know. Start ft_launcher with "
            f"{SECTION_OPTION}, or set ft.enable_ft_package=false."
        )


def require_monitor(environment: Mapping[str, str] | None = None) -> None:
    """Refuse to run without protection where it was asked for.

    Args:
        environment: variables of the process; None: `os.environ`.

    Raises:
        NoMonitorError: no launcher has told this process where its monitor is.
    """
    environment = os.environ if environment is None else environment
    if not environment.get(MONITOR_SOCKET):
        raise NoMonitorError(
            f"ft.enable_ft_package: {MONITOR_SOCKET} is not set, so nothing monitors this process, and a rank that "
            "hangs would stay. Start the job with NVRx's ft_launcher, which takes torchrun's options, or set "
            "ft.enable_ft_package=false."
        )
