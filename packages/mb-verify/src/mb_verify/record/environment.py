"""Recording that environment variables request, so that any trainer can be recorded without an option. No torch.

| variable | meaning |
|---|---|
| `MB_VERIFY_RECORD` | folder that receives the record; without it nothing is recorded |
| `MB_VERIFY_START` | number of the start: 0, one more for each resume; default: the next one in the folder |
| `MB_VERIFY_KILL_AFTER` | the last rank kills itself once the checkpoint of this step is complete |
| `MB_VERIFY_VALUES` | `results`: only losses, gradient norm and learning rate of each step; default: all |
| `MB_VERIFY_FAULT` | a fault to inject, as JSON: see `mb_verify.drill.fault_callback` |
| `MB_VERIFY_TRACKER` | file that holds the step of the newest complete checkpoint; a kill waits for it |
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mb_verify.drill.fault_callback import FaultRequest, InjectedFault
from mb_verify.errors import RecordingRequestError
from mb_verify.record.recorder import Recorder, StateReader, StepResultReader
from mb_verify.record.run_record import RecordFile
from mb_verify.resume.kill import KillAfterCheckpoint

PREFIX = "MB_VERIFY_"
RECORD, START = f"{PREFIX}RECORD", f"{PREFIX}START"
KILL_AFTER, TRACKER = f"{PREFIX}KILL_AFTER", f"{PREFIX}TRACKER"
VALUES, RESULTS = f"{PREFIX}VALUES", "results"

KILLED = "killed"
"""File of a record that exists once a rank has killed itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingRequest:
    """Request to record one start of a run, as it is passed to the process that makes the start."""

    folder: Path
    """Receives the record."""
    start: int | None = None
    """Number of the start; None: the next one in the folder."""
    kill_after: int | None = None
    """The last rank kills itself once the checkpoint of this step is complete; None: no kill."""
    tracker: Path | None = None
    """File that holds the step of the newest complete checkpoint."""
    values: Literal["all", "results"] = "all"
    """`results`: only losses, gradient norm and learning rate of each step, at a negligible cost."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "RecordingRequest | None":
        """Return the request of an environment; None if nothing is to be recorded.

        Raises:
            RecordingRequestError: a number is malformed, or a kill has no file to wait for.
        """
        folder, tracker = environment.get(RECORD), environment.get(TRACKER)
        if not folder:
            return None
        kill_after = number_of(KILL_AFTER, environment)
        if kill_after is not None and not tracker:
            raise RecordingRequestError(
                f"{TRACKER}: is not set, and {KILL_AFTER}={kill_after} needs the file with the step of the newest "
                f"checkpoint. Set {TRACKER}, or unset {KILL_AFTER}."
            )
        if environment.get(VALUES, RESULTS) != RESULTS:
            raise RecordingRequestError(
                f"{VALUES}: {environment[VALUES]!r} is unknown. Set it to {RESULTS!r}, or unset it."
            )
        return cls(
            values="results" if VALUES in environment else "all",
            folder=Path(folder),
            start=number_of(START, environment),
            kill_after=kill_after,
            tracker=Path(tracker) if tracker else None,
        )

    def variables(self) -> dict[str, str]:
        """Return the environment variables that pass this request to a process."""
        values = {
            RECORD: self.folder,
            START: self.start,
            KILL_AFTER: self.kill_after,
            TRACKER: self.tracker,
            VALUES: RESULTS if self.values == "results" else None,
        }
        return {name: str(value) for name, value in values.items() if value is not None}


def callbacks_from_environment(
    environment: Mapping[str, str],
    *,
    rank: int = 0,
    world_size: int = 1,
    reader: Callable[[Any], StateReader] | None = None,
    conditions: Callable[[], Mapping[str, str]] | None = None,
) -> list[object]:
    """Return the callbacks that record this process, and make it fail; none unless they are requested.

    Args:
        environment: variables of the process, such as `os.environ`.
        rank: rank of this process.
        world_size: number of processes; the last rank is the one that kills itself.
        reader: see `Recorder`.
        conditions: see `Recorder`.

    Raises:
        RecordingRequestError: a number or a fault is malformed, or a kill has no file to wait for.
    """
    request = RecordingRequest.from_environment(environment)
    fault = FaultRequest.from_environment(environment)
    faults = [] if fault is None else [InjectedFault(fault, rank=rank)]
    if request is None:
        return [*faults]
    if request.values == "results":
        reader = StepResultReader
    recorder = Recorder(request.folder, rank=rank, start=request.start, reader=reader, conditions=conditions)
    if request.kill_after is None or request.tracker is None:
        return [recorder, *faults]
    kill = KillAfterCheckpoint(
        request.kill_after,
        tracker=request.tracker,
        kill=rank == world_size - 1,
        mark=request.folder / KILLED,
    )
    return [recorder, kill, *faults]


def record_file_from_environment(environment: Mapping[str, str], *, rank: int = 0) -> RecordFile | None:
    """Return the record of this process for a loop without callbacks; None unless it is requested.

    Raises:
        RecordingRequestError: a number is malformed, or a kill has no file to wait for.
    """
    request = RecordingRequest.from_environment(environment)
    return None if request is None else RecordFile(request.folder, rank=rank, start=request.start)


def number_of(name: str, environment: Mapping[str, str]) -> int | None:
    """Return the number that a variable holds; None if it is not set or empty.

    Raises:
        RecordingRequestError: the text is not a number.
    """
    text = environment.get(name)
    if not text:
        return None
    if not text.isdecimal():
        raise RecordingRequestError(
            f"{name}: {text!r} is not a number. Set it to a whole number, or unset it."
        )
    return int(text)
