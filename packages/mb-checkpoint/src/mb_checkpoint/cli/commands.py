"""Commands of the program: each prints its result and returns the exit code. Errors are left to the caller."""

from pathlib import Path

from mb_checkpoint.cli.text import (
    byte_progress,
    format_bytes,
    layout_lines,
    listed_line,
    named_values,
    print_result,
    skipped_lines,
)
from mb_checkpoint.errors import CheckpointNotFoundError
from mb_checkpoint.formats.foreign import recognize_foreign
from mb_checkpoint.formats.layout import checkpoints_in, has_checkpoint, is_iteration_directory
from mb_checkpoint.inspect.difference import CheckpointDifference, diff_checkpoints
from mb_checkpoint.inspect.inspection import (
    NAME_A_FOLDER,
    CheckpointDescription,
    check_trackers,
    describe_checkpoint,
    list_checkpoints,
    verify_checkpoint,
)
from mb_checkpoint.save.retention import TRACKED
from mb_checkpoint.save.retention import prune as prune_checkpoints
from mb_checkpoint.storage.checkpoints import best_of, list_stored, upload_checkpoint
from mb_checkpoint.storage.fetch import fetch_checkpoint
from mb_checkpoint.storage.storage import open_storage

MAX_TENSORS = 20
"""Maximum number of tensors that `show` lists."""


def ls(folder: Path, *, as_json: bool) -> int:
    """Print one line per checkpoint, and one per tracker with a note. Return 1 if any is damaged, otherwise 0.

    Raises:
        CheckpointNotFoundError: the folder does not exist, is one checkpoint, or has none.
    """
    root = _root_of(folder)
    checkpoints, notes = list_checkpoints(root), check_trackers(root)
    lines = [*map(listed_line, checkpoints), *(f"{note.path.name} {note.text}" for note in notes)]
    print_result(checkpoints, lines, as_json=as_json)
    damaged = [
        *(item.problems for item in checkpoints if not item.unfinished),
        *(item.damaged for item in notes),
    ]
    return 1 if any(damaged) else 0


def show(folder: Path, *, step: int | None, as_json: bool) -> int:
    """Print the contents of a checkpoint; raises as `describe_checkpoint`."""
    description = describe_checkpoint(_checkpoints_of(folder), step=step)
    print_result(description, _description_lines(description), as_json=as_json)
    return 0


def verify(folder: Path, *, as_json: bool) -> int:
    """Read every file of every checkpoint. Return 0 if all are intact, otherwise 1; raises as `verify_checkpoint`."""
    root = _checkpoints_of(folder)
    total = sum(checkpoint.total_bytes for checkpoint in list_checkpoints(root) if not checkpoint.unfinished)
    with byte_progress(total or 1) as progress:
        problems_by_path = verify_checkpoint(root, progress=progress)
    lines = [f"{path}: {'; '.join(problems) or 'intact'}" for path, problems in problems_by_path.items()]
    lines += [f"{note.path}: {note.text}" for note in check_trackers(root) if not note.damaged]
    print_result(problems_by_path, lines, as_json=as_json)
    return 1 if any(problems_by_path.values()) else 0


def diff(old: Path, new: Path, *, values: bool, as_json: bool) -> int:
    """Print the differences of two checkpoints. Return 0 if there are none, otherwise 1.

    Raises:
        CheckpointNotFoundError, IncompleteCheckpointError: see `diff_checkpoints`.
    """
    difference = diff_checkpoints(_checkpoints_of(old), _checkpoints_of(new), values=values)
    lines = skipped_lines(difference.skipped)
    lines += [f"{name}: {path}" for name, path in zip(("old", "new"), difference.paths, strict=True)]
    lines += _difference_lines(difference) or [
        "no difference" if values else "no difference; values were not compared"
    ]
    print_result(difference, lines, as_json=as_json)
    return 1 if difference else 0


def prune(folder: Path, *, keep: int, retain_interval: int | None, dry_run: bool, as_json: bool) -> int:
    """Delete old checkpoints and the remains of killed saves. Return 1 if any could not be deleted, otherwise 0.

    Raises:
        CheckpointNotFoundError: the folder does not exist, is one checkpoint, or has no intact one.
    """
    pruned = prune_checkpoints(
        _root_of(folder), keep=keep, retain_interval=retain_interval, dry_run=dry_run, unfinished=True
    )
    verb = "would delete" if dry_run else "deleted"
    lines = [f"{verb} {path}" for path in pruned.removed]
    lines += [f"kept {path}: {reason}" for path, reason in pruned.not_removed]
    if pruned.kept_best is not None:
        lines.append(f"kept {pruned.kept_best}: the best by checkpoint.best_metric")
    lines += [f"not counted {path}: {reason}" for path, reason in pruned.damaged]
    print_result(pruned, lines or ["nothing to delete"], as_json=as_json)
    return 1 if any(reason != TRACKED for _, reason in pruned.not_removed) else 0


def stored(url: str, *, as_json: bool) -> int:
    """Print one line per complete checkpoint in a storage. Return 0.

    Raises:
        StorageError: the storage cannot be read.
    """
    checkpoints = list_stored(open_storage(url))
    best = best_of({each.folder: each.manifest for each in checkpoints})
    marks = {} if best is None else {str(best.path): f"{best.metric} {best.value:.6g}"}
    lines = [
        f"step {each.step}: {each.folder}, {format_bytes(each.manifest.total_bytes)}"
        + (f", best: {marks[each.folder]}" if each.folder in marks else "")
        for each in checkpoints
    ]
    summary = [
        {
            "step": each.step,
            "folder": each.folder,
            "total_bytes": each.manifest.total_bytes,
            "best": marks.get(each.folder),
        }
        for each in checkpoints
    ]
    print_result(summary, lines or [f"{url}: no checkpoint"], as_json=as_json)
    return 0


def upload(folder: Path, url: str, *, step: int | None, as_json: bool) -> int:
    """Copy an intact checkpoint to a storage. Return 0; raises as `describe_checkpoint` and `upload_checkpoint`."""
    description = describe_checkpoint(_checkpoints_of(folder), step=step)
    uploaded = upload_checkpoint(description.path, open_storage(url))
    size = f"{format_bytes(uploaded.copied_bytes)} of {format_bytes(uploaded.total_bytes)}"
    print_result(
        uploaded,
        [*skipped_lines(description.skipped), f"{url}/{uploaded.folder}: copied {size}"],
        as_json=as_json,
    )
    return 0


def fetch(url: str, folder: Path, *, step: int | None, as_json: bool) -> int:
    """Copy a checkpoint of a storage into a folder of checkpoints. Return 0; raises as `fetch_checkpoint`."""
    path = fetch_checkpoint(open_storage(url), checkpoints_in(folder), step=step)
    print_result({"path": str(path)}, [f"fetched {path}"], as_json=as_json)
    return 0


def _checkpoints_of(folder: Path) -> Path:
    """Return the folder with the checkpoints: the given one, or the one inside a run folder.

    Raises:
        CheckpointNotFoundError: the folder does not exist, or nothing in it is a checkpoint or the remains of one.
    """
    if not folder.is_dir():
        problem = "is a file" if folder.exists() else "no such folder"
        raise CheckpointNotFoundError(f"{folder}: {problem}. Name a run's folder, such as runs/gpt_tiny.")
    root = checkpoints_in(folder)
    if not (has_checkpoint(root) or list_checkpoints(root)):
        foreign = recognize_foreign(root)
        if foreign is not None:
            raise CheckpointNotFoundError(f"{folder}: holds {foreign.kind}. {foreign.to_start}.")
        raise CheckpointNotFoundError(f"{folder}: no checkpoint. {NAME_A_FOLDER}")
    return root


def _root_of(folder: Path) -> Path:
    """Return the folder with the checkpoints, as `_checkpoints_of` does, and reject a single checkpoint.

    Raises:
        CheckpointNotFoundError: the folder does not exist, or it is one checkpoint.
    """
    root = _checkpoints_of(folder)
    if is_iteration_directory(root):
        raise CheckpointNotFoundError(
            f"{folder}: is one checkpoint, and this command reads all checkpoints of a folder. Name {folder.parent}."
        )
    return root


def _description_lines(description: CheckpointDescription) -> list[str]:
    lines = skipped_lines(description.skipped)
    lines.append(f"{description.path}: step {description.step}, {format_bytes(description.total_bytes)}")
    lines += [f"  {name}: {value}" for name, value in description.train_state.items()]
    if description.manifest is None:
        lines.append("  no manifest.json: made by another program")
    else:
        lines += layout_lines(description.manifest.layout)
        lines.append(f"  content: {named_values(description.manifest.content)}")
        lines.append(f"  versions: {named_values(description.manifest.versions)}")
    lines.append(f"  {len(description.tensors)} tensors and {description.objects} other entries")
    for name, tensor in list(description.tensors.items())[:MAX_TENSORS]:
        lines.append(f"    {name}: {tensor.dtype} {list(tensor.shape)}")
    if len(description.tensors) > MAX_TENSORS:
        lines.append(f"    ... {len(description.tensors) - MAX_TENSORS} more; --json names all")
    return lines


def _difference_lines(difference: CheckpointDifference) -> list[str]:
    compared = (
        ("train_state", difference.train_state),
        ("layout", difference.layout),
        ("tensor", difference.tensors),
    )
    return [
        *(
            f"{title}.{name}: {old} -> {new}"
            for title, entries in compared
            for name, (old, new) in entries.items()
        ),
        *(f"run_config.yaml {line}" for line in difference.config),
        *(f"value.{name}: differs by at most {largest:g}" for name, largest in difference.values.items()),
        *(f"object.{name}: {text}" for name, text in difference.objects.items()),
    ]
