"""Index of the tensors of a checkpoint, which rank 0 reads for all ranks."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from mb_checkpoint.collectives import read_for_all_ranks, read_on_all_ranks
from mb_checkpoint.formats.layout import TENSOR_INDEX
from mb_checkpoint.formats.unpickling import shared_index


@contextmanager
def index_of_all_ranks(path: Path) -> Iterator[None]:
    """Let rank 0 read the index of a checkpoint; within the block, all ranks use that in place of the file.

    Collective. Does nothing for a layout without an index.

    Raises:
        CheckpointReadError: It could not be read, or is damaged.
    """
    file = path / TENSOR_INDEX
    content = read_for_all_ranks(path, lambda: file.read_bytes() if file.is_file() else None)
    with ExitStack() as stack:
        if content is not None:
            read_on_all_ranks(path, lambda: stack.enter_context(shared_index(path, content)))
        yield
