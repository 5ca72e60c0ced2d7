"""Run folder: its files, and whether the run in it is fresh, to be resumed, complete, or another run."""

import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

import mb_checkpoint.rules
import mb_config.rules.local_paths
import mb_data.rules
import mb_metrics.rules
import mb_resilience.rules
from mb_checkpoint.foreign_formats import is_same_folder
from mb_checkpoint.layout import steps_in, why_not_a_checkpoint
from mb_checkpoint.locks import LOCK_TIMEOUT_SECONDS, acquire_lock
from mb_checkpoint.paths import is_url
from mb_config import Provenance
from mb_config.home_directory import expand_home_in
from mb_config.paths import expand_home
from mb_trainer.config import ConfigContainer
from mb_trainer.weights import take_tokenizer

NOT_SETTINGS = frozenset(
    {
        "checkpoint.save",
        "checkpoint.load",
        "checkpoint.ckpt_step",
        "logger.tensorboard_dir",
        "comm_overlap.data_parallel_size",
        "model.transformer_impl",
        "scheduler.override_opt_param_scheduler",
        "train.exit_interval",
        "validation.skip_train",
    }
)
"""Fields derived from the folder, the machine or a resume, the start and the end of a run, and evaluation-only mode;
they do not make two runs different.
"""

PATH_FIELDS: tuple[str, ...] = (
    *mb_config.rules.local_paths.PATH_FIELDS,
    *mb_data.rules.PATH_FIELDS,
    *mb_checkpoint.rules.PATH_FIELDS,
    *mb_metrics.rules.PATH_FIELDS,
    *mb_resilience.rules.PATH_FIELDS,
)
"""Fields that hold a path to files or folders, of every section."""

Standing = Literal["fresh", "resumable", "complete"]


class RunFolderError(ValueError):
    """Error for a run folder of a run with other settings, or with unreadable settings."""


class NoCheckpointError(FileNotFoundError):
    """Error for a run without a checkpoint to read."""


class UnwritableFolderError(OSError):
    """Error for a run folder that cannot be written."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of one run, all below `path`."""

    path: Path

    @property
    def run_config(self) -> Path:
        """Resolved configuration."""
        return self.path / "run_config.yaml"

    @property
    def metrics(self) -> Path:
        """Metrics, one JSON object per step."""
        return self.path / "metrics.jsonl"

    @property
    def events(self) -> Path:
        """Start, resume, save, evaluation and stop events, with their times."""
        return self.path / "events.jsonl"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard event files."""
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints and their trackers."""
        return self.path / "checkpoints"

    @property
    def log(self) -> Path:
        """Console output."""
        return self.path / "log.txt"


def folder_of(out: Path | str | None, *, name: str) -> RunFolder:
    """Return the run folder given by `--out`, or `runs/<name>`; a leading `~` is the home directory.

    Raises:
        RunFolderError: a URL is given.
    """
    if out is None:
        return RunFolder(Path("runs") / name)
    text = str(out)
    if is_url(text) or re.match(r"[A-Za-z][\w+.-]+:/", text):  # a Path collapses the double slash
        raise RunFolderError(
            f"--out: {text} is a URL. Runs are written through the local file system only. Name a local folder, or "
            "one into which the storage is mounted on every node."
        )
    return RunFolder(Path(expand_home(text)))


def checkpoints_in(folder: Path) -> Path:
    """Return the folder of checkpoints: a subfolder of a run folder, else the folder itself.

    A run folder is identified by its `checkpoints`, or by its events file if it has no step folders itself.
    """
    run = RunFolder(folder)
    try:
        inside = run.checkpoints.is_dir() or (run.events.is_file() and not steps_in(folder))
    except OSError:
        return folder  # reading it reports the reason
    return run.checkpoints if inside else folder


def differences(
    saved: Mapping[str, Any], wanted: Mapping[str, Any], *, chosen: Mapping[str, Any] | None = None
) -> dict[str, tuple[Any, Any]]:
    """Return dotted path -> (saved, wanted) for every leaf in which two configurations differ.

    Args:
        saved: The one that was written first.
        wanted: The other one.
        chosen: The non-default part of `wanted`. A field that `saved` lacks, because an earlier version wrote it, is no
            difference if it has its default; None counts every such field.
    """
    old, new = flatten(saved), flatten(wanted)
    paths = [path for path in (*old, *(path for path in new if path not in old)) if path not in NOT_SETTINGS]
    if chosen is not None:
        known = flatten(chosen)
        later = {path for path in new if path not in old and path not in known}
        paths = [path for path in paths if path not in later or _is_chosen(path, saved=saved, chosen=chosen)]
    return {path: (old.get(path), new.get(path)) for path in paths if old.get(path) != new.get(path)}


def _is_chosen(path: str, *, saved: Mapping[str, Any], chosen: Mapping[str, Any]) -> bool:
    """Return whether the section of a field was added by the user."""
    section = path.partition(".")[0]
    return section in chosen and not isinstance(saved.get(section), Mapping)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return dotted path -> leaf; lists and empty mappings are leaves."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        leaves.update(flatten(value, f"{path}.") if isinstance(value, Mapping) and value else {path: value})
    return leaves


def changes_since(
    folder: RunFolder, wanted: Mapping[str, Any], *, chosen: Mapping[str, Any] | None = None
) -> dict[str, tuple[Any, Any]]:
    """Return dotted path -> (saved, wanted) for each setting that differs from the run in the folder; none if fresh.

    `chosen` is as in `differences`.

    Raises:
        RunFolderError: the saved settings cannot be read.
    """
    saved = saved_settings(folder)
    return {} if saved is None else differences(saved, wanted, chosen=chosen)


def schedule_is_overridden(folder: RunFolder) -> bool:
    """Return whether the run in a folder was resumed with changes: its newest checkpoint may hold the old schedule.

    Raises:
        RunFolderError: the saved settings cannot be read.
    """
    scheduler = (saved_settings(folder) or {}).get("scheduler")
    return isinstance(scheduler, Mapping) and bool(scheduler.get("override_opt_param_scheduler"))


def saved_settings(folder: RunFolder) -> Mapping[str, Any] | None:
    """Return the settings of the run in a folder; None if it is fresh.

    Raises:
        RunFolderError: they cannot be read.
    """
    if not folder.run_config.exists():
        return None
    try:
        saved = yaml.safe_load(folder.run_config.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RunFolderError(unreadable(folder, str(error))) from error
    if not isinstance(saved, Mapping):
        raise RunFolderError(unreadable(folder, f"it holds {saved!r}, not keys and values"))
    return saved


def unreadable(folder: RunFolder, reason: str) -> str:
    """Return the error message for a run with damaged settings."""
    return (
        f"{folder.run_config}: cannot be read ({' '.join(reason.split())}), and whether the run there is the one that "
        "is asked for stands in it. Put it back, or remove it to go on with the settings of this command; the "
        "checkpoints are not touched. Or give another folder with --out."
    )


def standing(*, last_step: int | None, train_iters: int, more: bool = False) -> Standing:
    """Return whether a run is fresh, to be resumed, or complete.

    Args:
        last_step: step of the newest persistent checkpoint; None: there is none.
        train_iters: steps of the complete run.
        more: whether there are other checkpoints to resume from.
    """
    if last_step is not None and last_step >= train_iters:
        return "complete"
    return "fresh" if last_step is None and not more else "resumable"


def describe(folder: RunFolder, changed: Mapping[str, tuple[Any, Any]], *, fixed: Sequence[str] = ()) -> str:
    """Return the error message for a run with other settings.

    Args:
        folder: The run folder.
        changed: Dotted path -> (saved, wanted).
        fixed: Paths among them that cannot change, because they determine the shape of a checkpoint's weights.
    """
    lines = "\n".join(f"  {path}: {old!r} there, {new!r} now" for path, (old, new) in changed.items())
    fix = "Choose another folder with --out, or resume with the new settings with --resume-with-changes."
    if fixed:
        fix = (
            f"{', '.join(fixed)} cannot be changed here: the shapes of the weights in {folder.checkpoints} follow from "
            "them. Restore the old values, or choose another folder with --out."
        )
    return f"{folder.path}: holds a run with other settings, and resuming would mix the two.\n{lines}\n{fix}"


class EventLog:
    """Event log that appends one JSON object per event to events.jsonl; each line is flushed at once."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock

    def write(self, event: str, **fields: object) -> None:
        """Append one event with the time in seconds since the epoch."""
        with self._path.open("a") as file:
            file.write(json.dumps({"event": event, "time": self._clock(), **fields}) + "\n")


def write_missing_stop(folder: RunFolder, *, message: str, clock: Callable[[], float] = time.time) -> None:
    """Append the stop event of a run whose processes died before they could write it; do nothing if it exists.

    Args:
        folder: run folder; may be missing.
        message: reason of the end.
        clock: seconds since the epoch.
    """
    marks = [row for row in rows(folder.events) if row.get("event") in (*BEGINNINGS, "stop")]
    if not marks or marks[-1]["event"] == "stop":
        return
    last = last_row(folder.metrics)
    step = marks[-1].get("step") if last is None else last.step
    EventLog(folder.events, clock=clock).write("stop", step=step, reason="failed", message=message)


BEGINNINGS = ("start", "resume")
"""Events with which a process starts to train."""


def rows(events: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of an events file; lines truncated by a kill are skipped."""
    if not events.is_file():
        return
    with events.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            with suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, Mapping):
                    yield row


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRow:
    """Last step recorded in metrics.jsonl."""

    step: int
    time: float


def last_row(metrics: Path, *, tail: int = 1 << 16) -> LastRow | None:
    """Return the last complete row of a metrics file, None if there is none; reads `tail` bytes from the end."""
    if not metrics.is_file():
        return None
    with metrics.open("rb") as file:
        file.seek(max(0, metrics.stat().st_size - tail))
        lines = file.read().splitlines()
    for line in reversed(lines):
        try:
            row = json.loads(line)
            return LastRow(step=row["step"], time=row["time"])
        except (ValueError, KeyError, TypeError):
            continue  # truncated by a kill
    return None


def why_unwritable(folder: RunFolder) -> str | None:
    """Return why files cannot be written into a run folder, which may not exist yet; None if they can.

    The check leaves no file in the folder.
    """
    wanted = folder.path.absolute()
    try:
        existing = next(path for path in (wanted, *wanted.parents) if path.exists())
        with tempfile.TemporaryFile(dir=existing):
            return None
    except OSError as error:
        return f"the run folder cannot be written ({error.strerror})"


@contextmanager
def own(folder: RunFolder, *, patience: float = LOCK_TIMEOUT_SECONDS) -> Iterator[None]:
    """Lock a run folder against other trainers while the block runs; the lock ends with the process.

    Child processes of a killed run hold the lock some seconds longer, so the caller waits up to `patience` seconds.
    File systems without locks on folders provide no exclusion.

    Raises:
        RunFolderError: another process uses the folder.
    """
    descriptor = os.open(folder.path, os.O_RDONLY)
    try:
        if not acquire_lock(descriptor, timeout_seconds=patience):
            raise RunFolderError(
                f"{folder.path}: another trainer is at work in this run folder; two would overwrite each other's "
                "checkpoints and mix their metrics. Wait until it has ended, or choose another folder with --out."
            )
        yield
    finally:
        os.close(descriptor)


def place(config: ConfigContainer, folder: RunFolder, provenance: Provenance) -> None:
    """Set the unset paths to the run folder, and resolve named run folders to the checkpoints in them.

    The tokenizer of configured weights is taken with them. A path that the user set to null stays null.
    """
    expand_home_in(config, PATH_FIELDS)
    checkpoint, logger = config.checkpoint, config.logger
    if is_same_folder(checkpoint.load, str(folder.path)):
        checkpoint.load = checkpoint.save or str(folder.checkpoints)
    places: list[tuple[str, Any, str]] = [
        ("checkpoint.save", checkpoint, str(folder.checkpoints)),
        ("checkpoint.load", checkpoint, checkpoint.save or str(folder.checkpoints)),
        ("logger.tensorboard_dir", logger, str(folder.tensorboard)),
    ]
    for path, section, where in places:
        name = path.partition(".")[2]
        given = getattr(section, name)
        if path == "checkpoint.load" and checkpoint.save is None and why_not_a_checkpoint(Path(where)):
            continue  # a run without saves, in a folder without checkpoints: there is nothing to resume
        if not given and not (given is None and provenance.by_user(path)):
            setattr(section, name, where)
            provenance.note(path, "resolve: run folder")
    for name in ("load", "pretrained_checkpoint"):
        named = getattr(checkpoint, name)
        if named and not is_url(named) and str(checkpoints_in(Path(named))) != str(Path(named)):
            setattr(
                checkpoint, name, str(checkpoints_in(Path(named)))
            )  # a run folder in the configuration means its checkpoints
    take_tokenizer(config, run_config=folder.run_config, provenance=provenance)
