"""Position of a stateful data loader: one file for each data-parallel rank."""

import io
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from mb_checkpoint.errors import DataloaderStateError
from mb_checkpoint.formats.layout import DATALOADER, iteration_directory, step_of
from mb_checkpoint.formats.unpickling import load_object, unsafe_names

POSITION_FILES = "train_dataloader_dprank*.pt"
"""Pattern of the files with positions, in the folder of a checkpoint."""
_FILE = re.compile(r"train_dataloader_dprank(\d+)\.pt")


@runtime_checkable
class PositionedIterable(Protocol):
    """Interface that the `iterable` of an iterator must have for its position to be stored."""

    def save_state(self) -> Any:
        """Return the current position."""
        ...

    def restore_state(self, state: Any, /) -> None:
        """Continue from a position."""
        ...


@runtime_checkable
class _HasIterable(Protocol):
    @property
    def iterable(self) -> object: ...


def positioned(iterator: Any | None) -> PositionedIterable | None:
    """Return the stateful iterable of a data iterator, or of the first of several; None if there is none."""
    first = iterator[0] if isinstance(iterator, (list, tuple)) and iterator else iterator
    iterable = first.iterable if isinstance(first, _HasIterable) else None
    return iterable if isinstance(iterable, PositionedIterable) else None


def align_chunk_positions(iterator: Any | None) -> None:
    """Set the iterators of further model chunks to the restored position of the first one."""
    first = positioned(iterator)
    if first is None or not isinstance(iterator, Sequence):
        return
    for chunk_iterator in iterator[1:]:
        iterable = positioned(chunk_iterator)
        if iterable is not None and iterable is not first:
            iterable.restore_state(first.save_state())


def warn_without_position(
    iterator: Any | None,
    *,
    dataset: str,
    folders: Mapping[str, str | None],
    saves: bool,
    log: Callable[[str], object],
) -> None:
    """Log that a data loader without a position restarts in each job, or reject it if its position is configured.

    Args:
        iterator: iterator of an external data loader; None: there is none, and nothing is checked.
        dataset: name of the dataset section's class.
        folders: dotted path of each field that names a folder for positions -> its value.
        saves: whether the run saves checkpoints.
        log: receives the warning.

    Raises:
        DataloaderStateError: a folder for positions is configured, and the data loader has none.
    """
    if iterator is None or positioned(iterator) is not None:
        return
    problem = (
        f"dataset.dataloader_type=external: the iterator of {dataset} has no `iterable` with save_state and "
        "restore_state"
    )
    for path, folder in folders.items():
        if folder is not None:
            raise DataloaderStateError(
                f"{path}={folder}: {problem}, so there is no position. Add these methods, or leave {path} unset."
            )
    if saves:
        log(
            f"warning: {problem}, so checkpoints hold no position of the data, and a resumed run reads it from the "
            "beginning"
        )


def position_file_name(dp_rank: int) -> str:
    """Return the name of the file of a data-parallel rank."""
    return f"train_dataloader_dprank{dp_rank:03d}.pt"


def encode_position(iterable: PositionedIterable, *, trust: bool = False) -> bytes:
    """Return the content of the file.

    Args:
        iterable: Data loader with a position.
        trust: A resume unpickles the position without restrictions, so that it may hold objects of any class.

    Raises:
        DataloaderStateError: The state cannot be read back without executing code.
    """
    buffer = io.BytesIO()
    torch.save({"dataloader_state_dict": iterable.save_state()}, buffer)
    names = [] if trust else unsafe_names(io.BytesIO(buffer.getvalue()))
    if names:
        raise DataloaderStateError(
            f"data loader: save_state of {type(iterable).__name__} returns objects of {', '.join(names)}, which a "
            "resume does not unpickle. Return tensors, numbers, text, lists and dicts, or set checkpoint.trust=true to "
            "unpickle whatever the checkpoints of this run hold."
        )
    return buffer.getvalue()


def read_dataloader_state(
    checkpoint: Path, *, dp_rank: int, dp_size: int | None = None, folder: Path | None = None
) -> Any | None:
    """Return the position that a data-parallel rank stored with a checkpoint; None if none was stored.

    The file may hold tensors and builtins; other objects are read only within a `trusted` block.

    Args:
        checkpoint: Folder of the checkpoint.
        dp_rank: Data-parallel rank of this process.
        dp_size: Number of data-parallel ranks of this run; None skips the comparison with the number of stored
            positions.
        folder: Folder with positions in `iter_*` folders, separate from the checkpoint; None reads from the checkpoint,
            or from `energon/` next to it, where other trainers store positions.

    Raises:
        DataloaderStateError: The data-parallel size has changed: this rank has no stored position while others have, or
            positions are stored for ranks that this run does not have.
        UnsafeCheckpointError: The file names code that reading it would execute.
    """
    step = step_of(checkpoint)
    folders = [checkpoint]
    if step is not None:
        folders.append(iteration_directory(checkpoint.parent / DATALOADER, step))
    if folder is not None:
        folders = [folder if step is None else iteration_directory(folder, step)]
    for folder in folders:
        stored = _ranks_in(folder)
        if not stored:
            continue
        _reject_other_dp_size(folder, stored, dp_rank=dp_rank, dp_size=dp_size)
        content = stored[dp_rank].read_bytes()
        return load_object(io.BytesIO(content), path=stored[dp_rank])["dataloader_state_dict"]
    return None


def _ranks_in(folder: Path) -> dict[int, Path]:
    matches = ((_FILE.fullmatch(path.name), path) for path in folder.glob(POSITION_FILES))
    return {int(match[1]): path for match, path in matches if match is not None}


def _reject_other_dp_size(
    folder: Path, stored: Collection[int], *, dp_rank: int, dp_size: int | None
) -> None:
    lost = [rank for rank in stored if dp_size is not None and rank >= dp_size]
    if dp_rank not in stored:
        reason = f"none of rank {dp_rank}"
    elif lost:
        reason = f"this run has {dp_size}: the position of rank {max(lost)} would be lost"
    else:
        return
    raise DataloaderStateError(
        f"{folder}: positions of {len(stored)} data-parallel ranks, and {reason}. Use the data-parallel size "
        "of the run that saved it."
    )
