"""Selection of the checkpoint to read, with the candidates that were skipped and the reasons."""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch.distributed.checkpoint.metadata import Metadata

from mb_checkpoint.errors import (
    CheckpointNotFoundError,
    DamagedCheckpointError,
    IncompleteCheckpointError,
    ManifestError,
    NoIntactCheckpointError,
    UnsafeCheckpointError,
    file_problem,
)
from mb_checkpoint.formats.foreign import recognize_foreign
from mb_checkpoint.formats.layout import (
    MANIFEST,
    RELEASE,
    RESUMABLE,
    STATE_TRACKER,
    TENSOR_INDEX,
    TRAIN_STATE,
    WEIGHTS,
    has_checkpoint,
    is_iteration_directory,
    is_staging_directory,
    iteration_directory,
    legacy_ranks,
    missing_files,
    resolved_best,
    step_of,
    steps_in,
)
from mb_checkpoint.formats.manifest import find_size_mismatches, read_manifest
from mb_checkpoint.formats.trackers import read_tracker, trackers_of
from mb_checkpoint.formats.unpickling import read_metadata

DAMAGED = (
    pickle.UnpicklingError,
    EOFError,
    AttributeError,
    ImportError,
    LookupError,
    ValueError,
    TypeError,
    OverflowError,
    MemoryError,
    RecursionError,
)
"""Exceptions that unpickling a damaged pickle, or using the result, can raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedCheckpoint:
    """Tracker or checkpoint folder that was not selected, with the reason."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedCheckpoint:
    """Checkpoint to read."""

    path: Path
    """Folder with the files of the checkpoint."""
    step: int | None
    """Step in the name of the folder; None for another name, such as `release`."""
    found_by: Literal["path", "ckpt_step", "tracker", "newest complete"]
    """Origin of the selection."""
    skipped: tuple[SkippedCheckpoint, ...] = ()
    """Candidates that were examined before, in that order."""


def select_checkpoint(
    path: Path | str,
    *,
    step: int | None = None,
    wanted: tuple[str, ...] = RESUMABLE,
    rejected: Mapping[Path, str] | None = None,
) -> SelectedCheckpoint | None:
    """Return the checkpoint that a path refers to; None if there is nothing at all.

    A folder that is itself a checkpoint is selected. Otherwise `step` selects one, else the trackers do. If a tracker
    names a folder that is missing or incomplete, the newest complete checkpoint is selected.

    Args:
        path: A root with trackers and `iter_*` folders, or one checkpoint folder.
        step: Select this step and no other.
        wanted: Files that a complete checkpoint must hold, in addition to its data files.
        rejected: Folders that the caller has found damaged, with the reason; they are treated as incomplete.

    Raises:
        CheckpointNotFoundError: `step` has no folder, or a tracker exists but no complete checkpoint
            (NoIntactCheckpointError).
        IncompleteCheckpointError: The path or `step` names one checkpoint, and it is incomplete.
    """
    root, rejected = resolved_best(Path(path)), rejected or {}
    if is_iteration_directory(root):
        return _exactly(root, found_by="path", wanted=wanted, rejected=rejected)
    if step is not None:
        return _exactly(_folder_of(root, step), found_by="ckpt_step", wanted=wanted, rejected=rejected)
    passed: list[SkippedCheckpoint] = []
    target = _tracker_target(root, passed)
    if target is not None:
        problems = _problems(target, wanted=wanted, rejected=rejected)
        if not problems:
            passed += _newer_than(root, step_of(target))
            return SelectedCheckpoint(
                path=target, step=step_of(target), found_by="tracker", skipped=tuple(passed)
            )
        passed.append(SkippedCheckpoint(path=target, reason="; ".join(problems)))
    return _newest_complete(root, passed, wanted=wanted, rejected=rejected)


def find_problems(directory: Path, *, wanted: tuple[str, ...] = RESUMABLE) -> list[str]:
    """Return why a checkpoint folder is incomplete: missing files, and files of the wrong size.

    Reads the manifest, or in checkpoints without one the index of the tensors; never the tensors.
    """
    if not directory.is_dir():
        return ["no such folder"]
    problems = missing_files(directory, wanted)
    if problems or legacy_ranks(directory):
        return problems
    try:
        manifest = read_manifest(directory)
        return (
            _compared_with_index(directory) if manifest is None else find_size_mismatches(directory, manifest)
        )
    except (ManifestError, OSError) as error:
        return [file_problem(error, MANIFEST)]


def _problems(directory: Path, *, wanted: tuple[str, ...], rejected: Mapping[Path, str]) -> list[str]:
    if directory in rejected:
        return [rejected[directory]]
    return find_problems(directory, wanted=WEIGHTS if directory.name == RELEASE else wanted)


def _compared_with_index(directory: Path) -> list[str]:
    """Check a checkpoint without manifest against its index: it had a manifest, or files are too short."""
    try:
        index = read_metadata(directory)
        needed = _needed_bytes(index)
        ours = _was_committed(index)
    except UnsafeCheckpointError as error:
        return [str(error)]
    except (*DAMAGED, OSError) as error:
        return [f"{TENSOR_INDEX} cannot be read ({type(error).__name__})"]
    if ours:
        return [
            f"lacks {MANIFEST}, with which it was committed: the integrity of its files cannot be verified"
        ]
    problems = []
    for name, size in sorted(needed.items()):
        file = directory / name
        if not file.is_file():
            problems.append(f"lacks {name}")
        elif file.stat().st_size < size:
            problems.append(f"{name} has {file.stat().st_size} of {size} bytes")
    return problems


def read_tensor_index(directory: Path) -> Metadata:
    """Return the index of a checkpoint's tensors.

    Raises:
        IncompleteCheckpointError: It is damaged.
        UnsafeCheckpointError: It names code that reading it would execute.
        OSError: It cannot be read.
    """
    try:
        return read_metadata(directory)
    except UnsafeCheckpointError:
        raise
    except DAMAGED as error:
        raise IncompleteCheckpointError(
            f"{directory}: {TENSOR_INDEX} cannot be read ({type(error).__name__}: {error}). Name another checkpoint."
        ) from error


def _was_committed(index: Metadata) -> bool:
    """Return whether this package wrote a checkpoint: torch records the folder it writes to, here a staging folder."""
    written_to = index.storage_meta.checkpoint_id if index.storage_meta is not None else None
    return written_to is not None and is_staging_directory(Path(written_to))


def _needed_bytes(index: Metadata) -> dict[str, int]:
    """Return the end of the last piece of each data file, by the index."""
    needed: dict[str, int] = {}
    for piece in (index.storage_data or {}).values():
        end = piece.offset + piece.length
        needed[piece.relative_path] = max(needed.get(piece.relative_path, 0), end)
    return needed


def _exactly(
    directory: Path,
    *,
    found_by: Literal["path", "ckpt_step"],
    wanted: tuple[str, ...],
    rejected: Mapping[Path, str],
) -> SelectedCheckpoint:
    if not directory.is_dir():
        available_steps = ", ".join(str(step) for step in steps_in(directory.parent)) or "none"
        raise CheckpointNotFoundError(
            f"checkpoint.ckpt_step: {directory} does not exist; steps there: {available_steps}. Name one of them."
        )
    problems = _problems(directory, wanted=wanted, rejected=rejected)
    if problems:
        raise IncompleteCheckpointError(
            f"{directory}: incomplete checkpoint: {'; '.join(problems)}. Name another one, or the folder above "
            "to get the newest complete one."
        )
    return SelectedCheckpoint(path=directory, step=step_of(directory), found_by=found_by)


def _tracker_target(root: Path, passed: list[SkippedCheckpoint]) -> Path | None:
    """Return the folder that the first usable tracker names; the others are added to `passed`."""
    for tracker in trackers_of(root):
        try:
            if not tracker.is_file():
                continue
            step = read_tracker(tracker)
            target = root / RELEASE if step is None else _folder_of(root, step)
            if tracker.name != STATE_TRACKER or _may_be_copy(tracker, target / TRAIN_STATE):
                return target
            reason = f"is not a copy of the {TRAIN_STATE} of {target.name}, which it names"
        except DamagedCheckpointError as error:
            reason = error.problem
        except OSError as error:
            reason = f"cannot be read ({error.strerror})"
        passed.append(SkippedCheckpoint(path=tracker, reason=reason))
    return None


def _may_be_copy(state: Path, original: Path) -> bool:
    """Return whether a tracker equals the file it was copied from; True if that file cannot be read."""
    content = state.read_bytes()
    try:
        return not original.is_file() or original.read_bytes() == content
    except OSError:
        return True


def _folder_of(root: Path, step: int) -> Path:
    return steps_in(root).get(step, iteration_directory(root, step))


def _newer_than(root: Path, step: int | None) -> list[SkippedCheckpoint]:
    reason = "newer than the tracker: its save was never committed"
    return [
        SkippedCheckpoint(path=path, reason=reason)
        for other_step, path in steps_in(root).items()
        if step is not None and other_step > step
    ]


def _newest_complete(
    root: Path, passed: list[SkippedCheckpoint], *, wanted: tuple[str, ...], rejected: Mapping[Path, str]
) -> SelectedCheckpoint | None:
    passed_paths = {entry.path for entry in passed}
    for step, directory in steps_in(root).items():
        if directory in passed_paths:
            continue
        problems = _problems(directory, wanted=wanted, rejected=rejected)
        if not problems:
            return SelectedCheckpoint(
                path=directory, step=step, found_by="newest complete", skipped=tuple(passed)
            )
        passed.append(SkippedCheckpoint(path=directory, reason="; ".join(problems)))
    if not has_checkpoint(root) and not passed:
        return None
    listing = "; ".join(f"{entry.path.name}: {entry.reason}" for entry in passed)
    foreign = recognize_foreign(root)
    if foreign is not None:
        advice = foreign.advice(resume=TRAIN_STATE in wanted)
        raise CheckpointNotFoundError(f"{root}: holds {foreign.kind} ({listing}). {advice}.")
    raise NoIntactCheckpointError(
        f"{root}: no complete checkpoint ({listing}). Restore one of them, or start in another folder, which "
        "leaves these unchanged.",
        problem=f"no complete checkpoint ({listing})",
    )
