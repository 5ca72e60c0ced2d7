"""The position of a data loader that keeps its own: one file for each data-parallel rank."""

import io
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from mb_checkpoint.errors import DataloaderStateError
from mb_checkpoint.layout import DATALOADER, iteration_directory, step_of
from mb_checkpoint.unpickling import load_object, unsafe_names

_FILE = re.compile(r"train_dataloader_dprank(\d+)\.pt")


@runtime_checkable
class PositionedIterable(Protocol):
    """What an iterator's `iterable` must have for its position to be stored."""

    def save_state(self) -> Any:
        """Return where it stands."""
        ...

    def restore_state(self, state: Any, /) -> None:
        """Go on from there."""
        ...


def positioned(iterator: Any | None) -> PositionedIterable | None:
    """Return what keeps the position of a data iterator (or of the first of several); None where nothing does."""
    first = iterator[0] if isinstance(iterator, (list, tuple)) and iterator else iterator
    iterable = getattr(first, "iterable", None)
    return iterable if isinstance(iterable, PositionedIterable) else None


def position_file_name(dp_rank: int) -> str:
    """Return the name of the file of a data-parallel rank."""
    return f"train_dataloader_dprank{dp_rank:03d}.pt"


def encode_position(iterable: PositionedIterable, *, trust: bool = False) -> bytes:
    """Return the content of the file.

    Args:
        iterable: Has the position.
        trust: A resume will unpickle it without restrictions, so that it may hold objects of any class.

    Raises:
        DataloaderStateError: The state could not be read back without executing code.
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
    """Return the position that a data-parallel rank stored with a checkpoint; None where none was stored.

    The file may hold tensors and builtins; other objects only in a block of `trusted`.

    Args:
        checkpoint: The folder of the checkpoint.
        dp_rank: Data-parallel rank of this process.
        dp_size: Data-parallel ranks of this run; None: not compared with those that stored theirs.
        folder: Where positions were stored apart from the checkpoint, in `iter_*` folders; None: in the checkpoint, or
            where other trainers put them, in `energon/` beside it.

    Raises:
        DataloaderStateError: Other ranks stored theirs and this one did not, or ranks that this run has not stored
            theirs: the data-parallel size has changed.
        UnsafeCheckpointError: The file names code that reading it would execute.
    """
    step = step_of(checkpoint)
    places = [checkpoint]
    if step is not None:
        places.append(iteration_directory(checkpoint.parent / DATALOADER, step))
    if folder is not None:
        places = [folder if step is None else iteration_directory(folder, step)]
    for place in places:
        stored = _ranks_in(place)
        if not stored:
            continue
        _reject_other_dp_size(place, stored, dp_rank=dp_rank, dp_size=dp_size)
        content = stored[dp_rank].read_bytes()
        return load_object(io.BytesIO(content), path=stored[dp_rank])["dataloader_state_dict"]
    return None


def _ranks_in(place: Path) -> dict[int, Path]:
    found = ((_FILE.fullmatch(path.name), path) for path in place.glob("train_dataloader_dprank*.pt"))
    return {int(match[1]): path for match, path in found if match is not None}


def _reject_other_dp_size(place: Path, stored: Collection[int], *, dp_rank: int, dp_size: int | None) -> None:
    lost = [rank for rank in stored if dp_size is not None and rank >= dp_size]
    if dp_rank not in stored:
        reason = f"none of rank {dp_rank}"
    elif lost:
        reason = f"this run has {dp_size}: where rank {max(lost)} stood in the data would be lost"
    else:
        return
    raise DataloaderStateError(
        f"{place}: positions of {len(stored)} data-parallel ranks, and {reason}. Use the data-parallel size of the run "
        "that saved it."
    )
