"""Inspection of checkpoints without a model: list, describe, and verify. Single process, without Megatron."""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from mb_checkpoint.errors import (
    CheckpointNotFoundError,
    DamagedCheckpointError,
    IncompleteCheckpointError,
    NoIntactCheckpointError,
)
from mb_checkpoint.formats.layout import (
    LEGACY_FILE,
    MANIFEST,
    NON_PERSISTENT,
    RELEASE,
    RUN_CONFIG,
    TENSOR_INDEX,
    TRAIN_STATE,
    has_checkpoint,
    has_counters_in_arguments,
    is_iteration_directory,
    legacy_ranks,
    staged_step,
    staging_directories,
    step_of,
    steps_in,
)
from mb_checkpoint.formats.manifest import Manifest, find_hash_mismatches, read_manifest
from mb_checkpoint.formats.megatron_lm import ARGUMENTS, stored_counters
from mb_checkpoint.formats.stored_arguments import read_common_state, read_legacy_tensors
from mb_checkpoint.formats.trackers import read_tracker, tracked_steps, trackers_of
from mb_checkpoint.inspect.best import best_checkpoint
from mb_checkpoint.inspect.verified_cache import VerifiedCache
from mb_checkpoint.load.select import (
    DAMAGED,
    SelectedCheckpoint,
    SkippedCheckpoint,
    find_problems,
    read_tensor_index,
    select_checkpoint,
)
from mb_checkpoint.state.train_state import read_train_state

NAME_A_FOLDER = "Name a run's folder, its checkpoint folder or an iter_* folder."
"""Advice for a path without checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCheckpoint:
    """Entry of a listing."""

    path: Path
    step: int | None
    total_bytes: int
    tracked: bool
    """Whether a tracker names it."""
    problems: tuple[str, ...]
    """Reasons why it is incomplete, by the sizes of its files."""
    has_manifest: bool = True
    """Whether its contents can be verified; False if another program wrote it."""
    non_persistent: bool = False
    """Whether it is a non-persistent checkpoint, which the trackers and the pruning of persistent ones ignore."""
    unfinished: bool = False
    """Whether it is the staging folder of a save in progress, or of one whose process died; not a checkpoint."""
    best: str | None = None
    """Metric and value, such as "lm loss 3.21", if it is the best by `checkpoint.best_metric`; otherwise None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Shape and dtype of a tensor in a checkpoint."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDescription:
    """Contents of a checkpoint."""

    path: Path
    step: int | None
    total_bytes: int
    manifest: Manifest | None
    """None for checkpoints of other programs."""
    train_state: Mapping[str, bool | int | float]
    tensors: Mapping[str, StoredTensor]
    objects: int
    """Number of entries that are not tensors."""
    skipped: tuple[SkippedCheckpoint, ...] = ()
    """Newer candidates that were not selected, with reasons."""


def _megatron_counters(directory: Path) -> dict[str, int]:
    """Return the counters of a checkpoint of Megatron-LM; empty if it holds none."""
    common = read_common_state(directory) if has_counters_in_arguments(directory) else {}
    return stored_counters(common) if ARGUMENTS in common else {}


def list_checkpoints(root: Path | str) -> list[ListedCheckpoint]:
    """List persistent and non-persistent checkpoints, newest first, including incomplete and unfinished ones.

    Of the same step the non-persistent one comes first, because a load prefers it.
    """
    persistent = Path(root)
    listed = [
        *_listed(persistent / NON_PERSISTENT, non_persistent=True),
        *_listed(persistent, non_persistent=False),
    ]
    return sorted(listed, key=lambda checkpoint: checkpoint.step or 0, reverse=True)


def _listed(root: Path, *, non_persistent: bool) -> list[ListedCheckpoint]:
    tracked = tracked_steps(root)
    best = None if non_persistent else best_checkpoint(root)
    return [
        ListedCheckpoint(
            path=path,
            step=step,
            total_bytes=_size(path),
            tracked=step in tracked and not non_persistent,
            problems=tuple(find_problems(path)),
            has_manifest=_exists(path / MANIFEST),
            non_persistent=non_persistent,
            best=f"{best.metric} {best.value:.6g}" if best is not None and best.path == path else None,
        )
        for step, path in steps_in(root).items()
    ] + [
        ListedCheckpoint(
            path=path,
            step=staged_step(path),
            total_bytes=_size(path),
            tracked=False,
            problems=("unfinished save: in progress, or its process died",),
            has_manifest=False,
            non_persistent=non_persistent,
            unfinished=True,
        )
        for path in staging_directories(root)
    ]


def _exists(file: Path) -> bool:
    """Return whether a file exists; True if that cannot be determined."""
    try:
        return file.is_file()
    except OSError:
        return True


def describe_checkpoint(path: Path | str, *, step: int | None = None) -> CheckpointDescription:
    """Describe the checkpoint that `select_checkpoint` selects for a path.

    A non-persistent checkpoint is selected only if no persistent one matches.

    Raises:
        CheckpointNotFoundError: There is none, none is complete (NoIntactCheckpointError), or the path names a
            checkpoint of another step.
        IncompleteCheckpointError: The path or the step names one checkpoint, and it is incomplete.
    """
    named = Path(path)
    if step is not None and is_iteration_directory(named) and step_of(named) != step:
        raise CheckpointNotFoundError(
            f"{path}: is the checkpoint of step {step_of(named)}, not {step}. Leave the step out, or name "
            f"{named.parent}."
        )
    root = _root_of(named, step=step)
    if step is not None and not is_iteration_directory(named) and step not in steps_in(root):
        steps = sorted({*steps_in(named), *steps_in(named / NON_PERSISTENT)}, reverse=True)
        raise CheckpointNotFoundError(
            f"{path}: no checkpoint of step {step}; steps: {', '.join(map(str, steps)) or 'none'}. Name one of them."
        )
    try:
        chosen = _readable(root, step=step)
    except NoIntactCheckpointError as error:
        raise NoIntactCheckpointError(
            f"{root}: {error.problem}. Restore their files from a copy, or name another folder.",
            problem=error.problem,
        ) from error
    if chosen is None:
        raise CheckpointNotFoundError(f"{path}: no checkpoint. {NAME_A_FOLDER}")
    tensors, objects = _entries(chosen.path)
    state = chosen.path / TRAIN_STATE
    return CheckpointDescription(
        path=chosen.path,
        step=chosen.step,
        total_bytes=_size(chosen.path),
        manifest=read_manifest(chosen.path),
        train_state=read_train_state(state) if state.is_file() else _megatron_counters(chosen.path),
        tensors=tensors,
        objects=objects,
        skipped=chosen.skipped,
    )


def _readable(root: Path, *, step: int | None) -> SelectedCheckpoint | None:
    """Select a checkpoint whose index, counters and configuration match the manifest."""
    rejected: dict[Path, str] = {}
    while True:
        chosen = select_checkpoint(root, step=step, rejected=rejected)
        manifest = None if chosen is None else read_manifest(chosen.path)
        if chosen is None or manifest is None:
            return chosen
        small = [entry for entry in manifest.files if entry.name in (TENSOR_INDEX, TRAIN_STATE, RUN_CONFIG)]
        problems = find_hash_mismatches(chosen.path, small)
        if not problems:
            return chosen
        rejected[chosen.path] = "; ".join(problems)


def _entries(folder: Path) -> tuple[dict[str, StoredTensor], int]:
    """Return the tensors of a checkpoint, and the number of other entries."""
    if ranks := legacy_ranks(folder):
        weights = _legacy_weights(folder)
        return {
            name: StoredTensor(shape=shape, dtype=dtype) for name, (shape, dtype) in weights.items()
        }, len(ranks)
    entries = read_tensor_index(folder).state_dict_metadata
    try:
        tensors = {
            name: StoredTensor(
                shape=tuple(entry.size), dtype=str(entry.properties.dtype).removeprefix("torch.")
            )
            for name, entry in entries.items()
            if isinstance(entry, TensorStorageMetadata)
        }
    except DAMAGED as error:
        raise IncompleteCheckpointError(
            f"{folder}: {TENSOR_INDEX} is damaged ({type(error).__name__}: {error}). Name another checkpoint."
        ) from error
    return tensors, len(entries) - len(tensors)


def _legacy_weights(folder: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    try:
        return read_legacy_tensors(folder)
    except (*DAMAGED, OSError, BadZipFile) as error:
        raise IncompleteCheckpointError(
            f"{folder}: {LEGACY_FILE} is damaged ({type(error).__name__}: {error}). Name another checkpoint."
        ) from error


def _root_of(root: Path, *, step: int | None) -> Path:
    """Return the folder to search: that of the non-persistent checkpoints if no persistent one matches."""
    persistent = step in steps_in(root) if step is not None else has_checkpoint(root) or steps_in(root)
    non_persistent = steps_in(root / NON_PERSISTENT)
    return (
        root / NON_PERSISTENT
        if not persistent and (step in non_persistent if step is not None else non_persistent)
        else root
    )


def verify_checkpoint(
    path: Path | str, *, progress: Callable[[int], object] = lambda _bytes: None
) -> dict[Path, list[str]]:
    """Read every file of every checkpoint below a path; return the problems of each, an empty list if it is intact.

    Trackers are included if they are damaged or name a missing checkpoint. Non-persistent checkpoints are read as well.
    A checkpoint without a manifest is compared only with its index, which is reported as a problem.

    Args:
        path: A folder with `iter_*` folders, or one of these.
        progress: Called with the number of bytes of each chunk that is read.

    Raises:
        CheckpointNotFoundError: There is no checkpoint.
    """
    root = Path(path)
    roots = (root, root / NON_PERSISTENT)
    folders = (
        [root]
        if is_iteration_directory(root)
        else [path for folder in roots for path in steps_in(folder).values()]
    )
    if not folders:
        reason = "its trackers name one that does not exist" if has_checkpoint(root) else "no checkpoint"
        raise CheckpointNotFoundError(f"{root}: {reason}. {NAME_A_FOLDER}")
    damaged = [note for folder in roots for note in check_trackers(folder) if note.damaged]
    return {
        **{folder: _verified(folder, progress) for folder in folders},
        **{note.path: [note.text] for note in damaged},
    }


def _verified(folder: Path, progress: Callable[[int], object]) -> list[str]:
    problems = VerifiedCache(progress=progress).problems(folder)
    unverifiable = not problems and not (folder / MANIFEST).is_file()
    return ["has no manifest.json: contents cannot be verified"] if unverifiable else problems


def _size(folder: Path) -> int:
    """Return the bytes below a folder, excluding unreadable files."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += Path(parent, name).stat().st_size
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerNote:
    """Note on a tracker for the user."""

    path: Path
    """The tracker."""
    text: str
    damaged: bool
    """Whether the tracker is unusable; otherwise it names an older checkpoint than the newest, as after a deliberate
    rollback."""


def check_trackers(root: Path) -> list[TrackerNote]:
    """Check the trackers of a folder with `iter_*` folders and return notes. Changes nothing."""
    notes = []
    for path in trackers_of(root):
        try:
            step = read_tracker(path)
        except FileNotFoundError:
            continue
        except DamagedCheckpointError as error:
            notes.append(TrackerNote(path=path, text=f"is damaged: {error.problem}", damaged=True))
            continue
        except OSError as error:
            text = f"is damaged: cannot be read ({error.strerror})"
            notes.append(TrackerNote(path=path, text=text, damaged=True))
            continue
        steps = list(steps_in(root))
        if not (root / RELEASE).is_dir() if step is None else step not in steps:
            named = RELEASE if step is None else f"step {step}"
            notes.append(
                TrackerNote(path=path, text=f"names {named}, whose folder is not there", damaged=True)
            )
        elif step is not None and step < steps[0]:
            text = f"names step {step}, and {steps[0]} is there too"
            notes.append(TrackerNote(path=path, text=text, damaged=False))
    return notes
