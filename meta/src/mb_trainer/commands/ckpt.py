"""Implementation of `mb ckpt ls|show|verify|diff|prune`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from mb_checkpoint import (
    CheckpointNotFoundError,
    CheckpointReadError,
    IncompleteCheckpointError,
    ListedCheckpoint,
    ManifestError,
    SkippedCheckpoint,
    TrainStateError,
    describe_checkpoint,
    diff_checkpoints,
    list_checkpoints,
    verify_checkpoint,
)
from mb_checkpoint import prune as prune_checkpoints
from mb_checkpoint.layout import is_iteration_directory
from mb_checkpoint.trackers import check_trackers
from mb_trainer.commands.answers import answer
from mb_trainer.commands.errors import reported
from mb_trainer.console import Voice
from mb_trainer.run_folder import NoCheckpointError, checkpoints_in

SHOWN = 20
"""Maximum number of tensors that `show` lists."""

UNREAD = (
    CheckpointNotFoundError,
    CheckpointReadError,
    IncompleteCheckpointError,
    ManifestError,
    TrainStateError,
)
"""Errors that mean unreadable input in these commands. Elsewhere they mean that a run cannot resume."""


def reading(work: Callable[[], int]) -> Callable[[], int]:
    """Wrap `work` so that all errors of unreadable input become one error, with one exit code."""

    def read() -> int:
        try:
            return work()
        except UNREAD as error:
            raise NoCheckpointError(str(error)) from error

    return read


def checkpoints_of(folder: Path) -> Path:
    """Return the folder with the checkpoints: the given one, or the one inside a run folder.

    Raises:
        NoCheckpointError: The folder does not exist.
    """
    if not folder.is_dir():
        raise NoCheckpointError(f"{folder}: no such folder. Name a run's folder, such as runs/gpt_tiny.")
    return checkpoints_in(folder)


def holder_of(folder: Path) -> Path:
    """Return the folder with the checkpoints, as `checkpoints_of` does, and reject a single checkpoint.

    Raises:
        NoCheckpointError: The folder does not exist, or it is one checkpoint.
    """
    holder = checkpoints_of(folder)
    if is_iteration_directory(holder):
        raise NoCheckpointError(
            f"{folder}: is one checkpoint, and this command is about all that lie beside it. Name {folder.parent}."
        )
    return holder


def ls(folder: Path, *, as_json: bool) -> int:
    """Print one line per checkpoint. Return the exit code."""

    def work() -> int:
        found = list_checkpoints(holder_of(folder))
        if not found:
            raise NoCheckpointError(f"{folder}: has no checkpoint.")
        lines = [line_of(each) for each in found] + tracker_lines(holder_of(folder))
        answer([plain(each) for each in found], as_json, lines)
        return 0

    return reported(reading(work))


def line_of(each: ListedCheckpoint) -> str:
    """Return the line of one checkpoint in the listing."""
    state = "; ".join(each.problems) or ("newest by the tracker" if each.tracked else "whole")
    if not each.has_manifest and not each.unfinished:
        state = f"{state}, no manifest: nothing tells whether its files are as they were"
    if each.non_persistent:
        state = f"temporary, {state}"
    return f"{each.step:>9}  {size(each.total_bytes):>9}  {each.path.name}  {state}"


def tracker_lines(root: Path) -> list[str]:
    """Return one line for each tracker that has a remark."""
    return [f"{each.path.name} {each.text}" for each in check_trackers(root)]


def passed_lines(passed: Sequence[SkippedCheckpoint]) -> list[str]:
    """Return one line for each checkpoint that was skipped."""
    return [f"passed over {each.path}: {each.reason}" for each in passed]


def show(folder: Path, *, step: int | None, as_json: bool) -> int:
    """Print the contents of a checkpoint. Return the exit code."""

    def work() -> int:
        found = describe_checkpoint(checkpoints_of(folder), step=step)
        lines = passed_lines(found.skipped)
        lines.append(f"{found.path}: step {found.step}, {size(found.total_bytes)}")
        lines += [f"  {name}: {value}" for name, value in found.train_state.items()]
        if found.manifest is None:
            lines.append("  no manifest.json: made by another program")
        else:
            lines += layout_lines(found.manifest.layout)
            for title in ("content", "versions"):
                lines.append(f"  {title}: {listed(getattr(found.manifest, title))}")
        lines.append(f"  {len(found.tensors)} tensors and {found.objects} other entries")
        for name, tensor in list(found.tensors.items())[:SHOWN]:
            lines.append(f"    {name}: {tensor.dtype} {list(tensor.shape)}")
        if len(found.tensors) > SHOWN:
            lines.append(f"    ... {len(found.tensors) - SHOWN} more; --json names all")
        answer(plain(found), as_json, lines)
        return 0

    return reported(reading(work))


def layout_lines(layout: Mapping[str, int]) -> list[str]:
    """Return the lines of the parallel sizes: one per module with its own parallelism, then one for all other sizes."""
    modules: dict[str, dict[str, int]] = {}
    rest = {}
    for name, size in layout.items():
        module, dot, own = name.rpartition(".")
        if dot:
            modules.setdefault(module, {})[own] = size
        else:
            rest[name] = size
    return [
        *(f"  layout of {each}: {listed(own)}" for each, own in modules.items()),
        f"  layout: {listed(rest)}",
    ]


def listed(entries: Mapping[str, object]) -> str:
    """Return names and values as one line."""
    return ", ".join(f"{name}={value}" for name, value in entries.items())


def verify(folder: Path, *, as_json: bool) -> int:
    """Read every file of every checkpoint. Return 0 if all are intact, otherwise 1."""

    def work() -> int:
        where = checkpoints_of(folder)
        total = sum(each.total_bytes for each in list_checkpoints(where) if not each.unfinished) or 1
        read = 0
        with Voice().progress("verifying", total) as bar:

            def note(count: int) -> None:
                nonlocal read
                read += count
                bar.update(read)

            found = verify_checkpoint(where, progress=note)
        lines = [f"{path}: {'; '.join(problems) or 'sound'}" for path, problems in found.items()]
        lines += [f"{each.path}: {each.text}" for each in check_trackers(where) if not each.damaged]
        answer({str(path): problems for path, problems in found.items()}, as_json, lines)
        return 1 if any(found.values()) else 0

    return reported(reading(work))


def diff(old: Path, new: Path, *, values: bool, as_json: bool) -> int:
    """Print the differences of two checkpoints. Return 0 if there are none, otherwise 1."""

    def work() -> int:
        found = diff_checkpoints(checkpoints_of(old), checkpoints_of(new), values=values)
        changes = [
            f"{title}.{name}: {one} there, {other} here"
            for title, entries in (
                ("train_state", found.train_state),
                ("layout", found.layout),
                ("tensor", found.tensors),
            )
            for name, (one, other) in entries.items()
        ]
        changes += [f"run_config.yaml {line}" for line in found.config]
        changes += [f"value.{name}: differs by {most:g} at the most" for name, most in found.values.items()]
        changes += [f"object.{name}: {how}" for name, how in found.objects.items()]
        lines = passed_lines(found.skipped)
        lines += [f"{where}: {path}" for where, path in zip(("there", "here"), found.paths, strict=True)]
        lines += changes or ["no difference" if values else "no difference but for values"]
        answer(plain(found), as_json, lines)
        return 1 if found else 0

    return reported(reading(work))


def prune(folder: Path, *, keep: int, retain_interval: int | None, dry_run: bool, as_json: bool) -> int:
    """Delete old checkpoints and the remains of killed saves. Return 1 if any could not be removed, otherwise 0."""

    def work() -> int:
        where = holder_of(folder)
        done = prune_checkpoints(
            where, keep=keep, retain_interval=retain_interval, dry_run=dry_run, unfinished=True
        )
        verb = "would delete" if dry_run else "deleted"
        lines = [f"{verb} {path}" for path in done.removed]
        lines += [f"kept {path}: {reason}" for path, reason in done.not_removed]
        lines += [f"not counted {path}: {reason}" for path, reason in done.damaged]
        answer(plain(done), as_json, lines or ["nothing to delete"])
        return 1 if any(reason != "a tracker names it" for _, reason in done.not_removed) else 0

    return reported(reading(work))


def plain(record: object) -> Any:
    """Convert a record to types that JSON supports."""
    return _simple(asdict(record) if is_dataclass(record) and not isinstance(record, type) else record)


def _simple(value: object) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _simple(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_simple(entry) for entry in value]
    return str(value) if isinstance(value, Path) else value


UNITS: tuple[tuple[float, str], ...] = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def size(count: int) -> str:
    """Format a number of bytes with its unit."""
    for unit, name in UNITS:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"
