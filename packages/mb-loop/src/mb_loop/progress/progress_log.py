"""Progress log: the file progress.txt in the checkpoint directory. Does not import torch.

The file accumulates over restarts. A line consists of time, job, number of ranks and a text, separated by tabs. The
format is Megatron's and is read by other tools, so the wording is fixed.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from os import SEEK_END
from pathlib import Path
from typing import Any, Protocol

from mb_loop.errors import LoopError, ParallelSetupError
from mb_loop.settings import ModelSettings
from mb_loop.state import TrainState

FILE_NAME = "progress.txt"
STARTED = "Starting job"
SAVED = "Saved checkpoint"
SAVING = "Saving async checkpoint"
SAVED_LATER = "Saved async checkpoint"
_TIME = "%Y-%m-%d %H:%M:%S"
_UNIT = "MODEL_TFLOP/s/GPU"


class ProgressLogError(LoopError, ValueError):
    """The progress log lacks a required line, or there is no directory for it."""


class SaveDirectory(Protocol):
    """Fields that are read from section `checkpoint`."""

    @property
    def save(self) -> str | None:
        """Directory of the checkpoints."""

    @property
    def async_save(self) -> bool:
        """Whether checkpoints are written in the background; read if the caller does not pass `asynchronous`."""


class ProgressSwitch(Protocol):
    """Field that is read from section `logger`."""

    @property
    def log_progress(self) -> bool:
        """Write progress.txt."""


class ProgressSettings(Protocol):
    """Configuration sections that the progress log reads."""

    @property
    def checkpoint(self) -> SaveDirectory:
        """Directory of the file."""

    @property
    def model(self) -> ModelSettings:
        """Sequence length."""

    @property
    def logger(self) -> ProgressSwitch | None:
        """Whether the file is written; None: it is not. Read by `progress_recorders` and by saves of a custom loop."""


class ProgressState(Protocol):
    """Fields of a global state that the progress log reads."""

    @property
    def train_state(self) -> TrainState:
        """Counters."""

    @property
    def cfg(self) -> ProgressSettings:
        """Configuration."""

    @property
    def start_time(self) -> float | None:
        """Start of this job, in seconds since the epoch."""


def append_to_progress_log(
    cfg: ProgressSettings,
    text: str,
    *,
    world_size: int | None = None,
    job_id: str | None = None,
    now: Callable[[], datetime] = datetime.now,
) -> None:
    """Append a line. Readers understand the texts `STARTED`, and `SAVED_LATER` with a tab and "Iteration: N".

    A truncated last line, as after a full disk, is terminated first, so that lines do not merge.

    Args:
        cfg: directory of the file.
        text: text of the line.
        world_size: number of ranks of this job; only the rank that writes may call. None: the size of the process
            group, else WORLD_SIZE, else 1; any rank may call, and rank 0 writes.
        job_id: job ID of the scheduler; None: SLURM_JOB_ID, or empty outside of Slurm.
        now: returns the current time.

    Raises:
        ProgressLogError: no checkpoint directory is set.
        OSError: the file cannot be written.
    """
    if world_size is None:
        if _rank() != 0:
            return
        world_size = _world_size()
    job_id = os.environ.get("SLURM_JOB_ID", "") if job_id is None else job_id
    file = _file(cfg)
    file.parent.mkdir(parents=True, exist_ok=True)
    line = f"{now().strftime(_TIME)}\tJob ID: {job_id}\t# GPUs: {world_size}\t{text}\n"
    with file.open("ab+") as stream:
        end = stream.seek(0, SEEK_END)
        stream.seek(max(end - 1, 0))
        terminated = stream.read(1) in (b"", b"\n")
        stream.write((line if terminated else f"\n{line}").encode())


def get_start_time_from_progress_log(
    cfg: ProgressSettings, *, world_size: int | None = None
) -> tuple[datetime, float]:
    """Return the start of the first of the latest consecutive jobs with this number of ranks, and its operations.

    Only jobs after the last job with another number of ranks count. Operations are those of the newest checkpoint that
    was completed before that start. Truncated and malformed lines are ignored.

    Args:
        cfg: directory of the file.
        world_size: number of ranks; None: the size of the process group, else WORLD_SIZE, else 1.

    Raises:
        ProgressLogError: the file has no start of a job with this number of ranks.
        OSError: the file cannot be read.
    """
    world_size = _world_size() if world_size is None else world_size
    starts = _read_starts(_file(cfg), world_size=world_size)
    return starts.first, starts.operations_at_first


def _read_starts(file: Path, *, world_size: int) -> "_JobStarts":
    """Return when the first job with this number of ranks began, and the operations before it and before the last job.

    A job with another number of ranks begins a new count. Operations count once a save that has them is complete: a
    job that fails before repeats them.

    Raises:
        ProgressLogError: No job with this number of ranks is in the file.
    """
    start: tuple[datetime, float] | None = None
    operations, pending, operations_at_last = 0.0, 0.0, 0.0
    for line in file.read_text(errors="replace", encoding="utf-8").splitlines() if file.exists() else ():
        entry = _entry(line)
        if entry is None:
            continue
        if entry.ranks != world_size:
            start = None
        if entry.text in (SAVED, SAVING):
            pending = entry.operations
        if entry.text in (SAVED, SAVED_LATER):
            operations = pending
        if entry.text == STARTED:
            operations_at_last = operations
        if entry.text == STARTED and start is None and entry.ranks == world_size:
            start = entry.moment, operations
    if start is None:
        raise ProgressLogError(
            f"{file}: has no line {STARTED!r} of a job with {world_size} ranks, so throughput has no start time. "
            f"Call append_to_progress_log(cfg, {STARTED!r}, world_size={world_size}) at the start of a job."
        )
    return _JobStarts(first=start[0], operations_at_first=start[1], operations_at_last=operations_at_last)


def compute_throughputs_and_append_to_progress_log(
    state: ProgressState,
    num_floating_point_operations_so_far: float,
    *,
    world_size: int | None = None,
    operations_at_start: float | None = None,
    asynchronous: bool | None = None,
    job_id: str | None = None,
    now: Callable[[], datetime] = datetime.now,
) -> None:
    """Append the line of a checkpoint: step, throughput of this job and of all jobs of its size, operations, tokens.

    Throughputs are in 10^12 operations per second and rank, including interruptions.

    Args:
        state: counters, directory, sequence length and the start of this job.
        num_floating_point_operations_so_far: operations since the first step of training.
        world_size: ranks of this job; the caller is the one rank that writes. None: the size of the process group,
            else WORLD_SIZE, else 1; any rank may call, and rank 0 writes.
        operations_at_start: number of operations at the start of this job, as loaded. None: that of the newest
            checkpoint that was completed before the newest line `STARTED`.
        asynchronous: the save is in flight; append `SAVED_LATER` once it is complete. None: `checkpoint.async_save`.
        job_id: of the scheduler; None: SLURM_JOB_ID, empty outside of Slurm.
        now: the time.

    Raises:
        ProgressLogError: the file has no start of a job with this number of ranks, or the start time or the sequence
            length is not set.
    """
    if world_size is None:
        if _rank() != 0:
            return
        world_size = _world_size()
    seq_length, moment = state.cfg.model.seq_length, now()
    if state.start_time is None or seq_length is None:
        raise ProgressLogError(
            f"progress log: start_time={state.start_time}, model.seq_length={seq_length}; throughput and "
            "tokens cannot be computed without them. Set both."
        )
    starts = _read_starts(_file(state.cfg), world_size=world_size)
    if operations_at_start is None:
        operations_at_start = starts.operations_at_last
    if asynchronous is None:
        asynchronous = state.cfg.checkpoint.async_save

    def throughput(operations: float, seconds: float) -> str:
        return f"{operations / (max(seconds, 1e-9) * 1e12 * world_size):.1f} {_UNIT}"

    so_far, counters = num_floating_point_operations_so_far, state.train_state
    job = throughput(so_far - operations_at_start, moment.timestamp() - state.start_time)
    cumulative = throughput(
        so_far - starts.operations_at_first, moment.timestamp() - starts.first.timestamp()
    )
    fields = (
        SAVING if asynchronous else SAVED,
        f"Iteration: {counters.step}",
        f"Job throughput: {job}",
        f"Cumulative throughput: {cumulative}",
        f"Floating-point operations: {so_far:.2e}",
        f"Tokens (in billions): {counters.consumed_train_samples * seq_length / 1e9:.2f}",
    )
    append_to_progress_log(
        state.cfg, "\t".join(fields), world_size=world_size, job_id=job_id, now=lambda: moment
    )


def _file(cfg: ProgressSettings) -> Path:
    folder = cfg.checkpoint.save
    if folder is None:
        raise ProgressLogError(
            f"checkpoint.save: is not set (None), but {FILE_NAME} is stored in this directory. Set it, or "
            "logger.log_progress=false."
        )
    return Path(folder) / FILE_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class _JobStarts:
    """Job starts that throughputs are computed from."""

    first: datetime
    """Start of the first of the latest consecutive jobs with the same number of ranks."""
    operations_at_first: float
    operations_at_last: float
    """Operations at the start of the latest job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogEntry:
    """Parsed line of the file."""

    moment: datetime
    ranks: float
    text: str
    operations: float
    """Operations in the line of a checkpoint; 0.0 in other lines."""


def _entry(line: str) -> _LogEntry | None:
    """Parse a line; return None if it is truncated or malformed."""
    try:
        moment, _, ranks, text, *fields = line.split("\t")
        return _LogEntry(
            moment=datetime.strptime(moment, _TIME),
            ranks=_number(ranks),
            text=text,
            operations=_number(fields[3]) if text in (SAVED, SAVING) else 0.0,
        )
    except (ValueError, IndexError):
        return None


def _number(field: str) -> float:
    return float(field.rpartition(": ")[2])


def _world_size() -> int:
    """Return the number of ranks: of the initialised process group, else WORLD_SIZE, else 1."""
    distributed = _initialised()
    return distributed.get_world_size() if distributed else _read("WORLD_SIZE", unset=1, least=1)


def _rank() -> int:
    """Return the rank of this process: in the initialised process group, else RANK, else 0."""
    distributed = _initialised()
    return distributed.get_rank() if distributed else _read("RANK", unset=0, least=0)


def _initialised() -> Any:
    """Return torch.distributed where it has a process group, else None."""
    distributed = sys.modules.get("torch.distributed")
    ready = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if ready else None


def _read(name: str, *, unset: int, least: int) -> int:
    text = os.environ.get(name, str(unset))
    if not text.isdecimal() or int(text) < least:
        raise ParallelSetupError(
            f"{name}: {text!r} is not an integer of at least {least}. Launchers such as torchrun set it for each "
            "process. Correct or unset the variable."
        )
    return int(text)
