"""Comparison of two checkpoints without a model. Single process, without Megatron."""

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from mb_checkpoint.errors import DamagedCheckpointError
from mb_checkpoint.formats.layout import RUN_CONFIG
from mb_checkpoint.formats.unpickling import SafeFileSystemReader, read_piece
from mb_checkpoint.inspect.inspection import CheckpointDescription, StoredTensor, describe_checkpoint
from mb_checkpoint.load.select import DAMAGED, SkippedCheckpoint, read_tensor_index


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDifference:
    """Differences between two checkpoints; false if there are none."""

    train_state: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Name of a counter -> its old and its new value."""
    layout: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Name of a parallel size -> the old and the new parallel layout; None if a manifest does not contain it."""
    config: tuple[str, ...] = ()
    """Lines that only one of the two run_config.yaml files has: "- " before a line of the old one, "+ " of the new."""
    tensors: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Name -> shape and dtype in the old and in the new checkpoint; "absent" if one lacks the tensor."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Name -> largest absolute difference of two elements, if values were compared; NaN if only one of two is NaN."""
    objects: Mapping[str, str] = field(default_factory=dict)
    """Name of an entry that is not a tensor, such as random states -> kind of difference, if values were compared."""
    paths: tuple[Path, ...] = ()
    """Folders of the old and of the new checkpoint."""
    skipped: tuple[SkippedCheckpoint, ...] = ()
    """Damaged or incomplete checkpoints that were passed over to find these two, with reasons."""

    def __bool__(self) -> bool:
        return any((self.train_state, self.layout, self.config, self.tensors, self.values, self.objects))


def diff_checkpoints(old: Path | str, new: Path | str, *, values: bool = False) -> CheckpointDifference:
    """Return the differences between two checkpoints.

    Args:
        old: A checkpoint, as for `describe_checkpoint`.
        new: Another one.
        values: If True, also compare the values of the tensors that both contain with the same shape and dtype, and the
            bytes of all other entries. One tensor of each is in memory at a time.

    Raises:
        CheckpointNotFoundError, IncompleteCheckpointError: See `describe_checkpoint`.
        DamagedCheckpointError: A value cannot be read.
    """
    first, second = describe_checkpoint(old), describe_checkpoint(new)
    layouts = [
        dict(description.manifest.layout) if description.manifest is not None else {}
        for description in (first, second)
    ]
    same = [name for name, tensor in first.tensors.items() if second.tensors.get(name) == tensor]
    return CheckpointDifference(
        train_state=_differing(first.train_state, second.train_state),
        layout=_differing(*layouts),
        config=_changed_lines(first.path / RUN_CONFIG, second.path / RUN_CONFIG),
        tensors={
            name: (_shown(old_entry), _shown(new_entry))
            for name, (old_entry, new_entry) in _differing(first.tensors, second.tensors).items()
        },
        values=_changed_values(first, second, same) if values else {},
        objects=_changed_objects(first.path, second.path) if values else {},
        paths=(first.path, second.path),
        skipped=(*first.skipped, *second.skipped),
    )


def _differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {
        name: (old.get(name), new.get(name))
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    }


def _changed_lines(old: Path, new: Path) -> tuple[str, ...]:
    lines = [
        path.read_text(errors="replace", encoding="utf-8").splitlines() if path.is_file() else []
        for path in (old, new)
    ]
    gone = [f"- {line}" for line in lines[0] if line not in lines[1]]
    return (*gone, *(f"+ {line}" for line in lines[1] if line not in lines[0]))


def _shown(tensor: StoredTensor | None) -> str:
    return "absent" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"


def _changed_values(
    old: CheckpointDescription, new: CheckpointDescription, names: list[str]
) -> dict[str, float]:
    changed = {}
    lengths = [_stored_lengths(description.path) for description in (old, new)]
    for name in names:
        for description, stored in zip((old, new), lengths, strict=True):
            _require_stored(description, name, stored[name])
        difference = _largest_difference(*(_tensor(description, name) for description in (old, new)))
        if difference is not None:
            changed[name] = difference
    return changed


def _largest_difference(old_tensor: torch.Tensor, new_tensor: torch.Tensor) -> float | None:
    """Return the largest absolute difference of two elements; None if all are equal. NaN equals NaN."""
    if torch.equal(old_tensor, new_tensor):
        return None
    first, second = old_tensor.double(), new_tensor.double()
    equal = (first == second) | (first.isnan() & second.isnan())
    if old_tensor.is_floating_point() and bool(equal.all()):
        return None
    return float((first - second).abs().masked_fill(equal, 0.0).max())


def _stored_lengths(folder: Path) -> Counter[str]:
    """Return the bytes of all pieces of each entry."""
    lengths: Counter[str] = Counter()
    for entry, position in (read_tensor_index(folder).storage_data or {}).items():
        lengths[entry.fqn] += position.length
    return lengths


def _require_stored(checkpoint: CheckpointDescription, name: str, length: int) -> None:
    """Compare the size of a tensor in the index with its pieces, before it is allocated.

    Raises:
        DamagedCheckpointError: The pieces are shorter.
    """
    stored = checkpoint.tensors[name]
    with _errors_with_name(checkpoint.path, name):
        needed = prod(stored.shape) * getattr(torch, stored.dtype).itemsize
    if needed > length:
        raise DamagedCheckpointError(
            f"{checkpoint.path}: {name} has {list(stored.shape)} of {stored.dtype} in the index, and {length} bytes "
            "are stored. Find the damaged files with verify_checkpoint."
        )


def _tensor(checkpoint: CheckpointDescription, name: str) -> torch.Tensor:
    stored = checkpoint.tensors[name]
    into = {name: torch.empty(stored.shape, dtype=getattr(torch, stored.dtype))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that it runs in one process
        with _errors_with_name(checkpoint.path, name):
            load(into, storage_reader=SafeFileSystemReader(checkpoint.path), no_dist=True)
    return into[name]


@contextmanager
def _errors_with_name(folder: Path, name: str) -> Iterator[None]:
    """Replace errors of reading by one that names entry and checkpoint.

    `CheckpointException` is listed since it does not derive from `Exception`.
    """
    try:
        yield
    except (CheckpointException, RuntimeError, OSError, *DAMAGED) as error:
        causes = error.failures.values() if isinstance(error, CheckpointException) else ()
        reason = next((str(cause[0]) for cause in causes), str(error))
        raise DamagedCheckpointError(
            f"{folder}: {name} cannot be read ({reason:.200}). Find the damaged files with verify_checkpoint."
        ) from error


def _changed_objects(old: Path, new: Path) -> dict[str, str]:
    """Compare the stored bytes of entries that are not tensors; nothing is unpickled."""
    first, second = (_objects(folder) for folder in (old, new))
    changed = {}
    for name in sorted(first.keys() | second.keys()):
        if name not in first or name not in second:
            changed[name] = "absent in new" if name in first else "absent in old"
        elif _stored_bytes(old, name, first[name]) != _stored_bytes(new, name, second[name]):
            changed[name] = "stored bytes differ"
    return changed


def _objects(folder: Path) -> dict[str, Any]:
    index = read_tensor_index(folder)
    return {
        item_index.fqn: position
        for item_index, position in (index.storage_data or {}).items()
        if not isinstance(index.state_dict_metadata.get(item_index.fqn), TensorStorageMetadata)
    }


def _stored_bytes(folder: Path, name: str, position: Any) -> bytes:
    with _errors_with_name(folder, name):
        return read_piece(folder, position)
