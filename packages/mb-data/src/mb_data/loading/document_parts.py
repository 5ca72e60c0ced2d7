"""Documents that the samples of a dataset come from. Imports neither torch nor Megatron."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentPart:
    """Part of a sequence that comes from one document."""

    source: str
    """Path of the .bin and .idx files, without suffix."""
    document: int
    offset: int
    """First token in the document."""
    tokens: int


def document_lengths(dataset: Any, index: int) -> list[int] | None:
    """Return the length in tokens of the document of each label of a sample; None for data without documents.

    The labels are the tokens of the sample from the second one on.
    """
    _open_indices(dataset, index)
    if hasattr(dataset, "dataset_sample_index"):  # a blend
        part = int(dataset.dataset_index[index])
        return document_lengths(dataset.datasets[part], int(dataset.dataset_sample_index[index]))
    lengths: list[int] = []
    for document_part in document_parts(dataset, index):
        lengths += [int(dataset.dataset.sequence_lengths[document_part.document])] * document_part.tokens
    return lengths[1:] or None


def document_parts(dataset: Any, index: int) -> Iterator[DocumentPart]:
    """Yield the documents of a sample of Megatron's GPT dataset, or of a blend of several; nothing for other data."""
    _open_indices(dataset, index)
    if hasattr(dataset, "dataset_sample_index"):
        part = int(dataset.dataset_index[index])
        yield from document_parts(dataset.datasets[part], int(dataset.dataset_sample_index[index]))
        return
    if not hasattr(dataset, "sample_index"):
        return
    sample = int(dataset.shuffle_index[index])
    (first, offset), (last, end) = dataset.sample_index[sample], dataset.sample_index[sample + 1]
    extra = int(dataset.config.add_extra_token_to_sequence)
    for number in range(int(first), int(last) + 1):
        document = int(dataset.document_index[number])
        begin = int(offset) if number == first else 0
        length = int(dataset.dataset.sequence_lengths[document])
        stop = int(end) + extra if number == last else length
        yield DocumentPart(
            source=str(dataset.dataset_path),
            document=document,
            offset=begin,
            tokens=min(stop, length) - begin,
        )


def _open_indices(dataset: Any, index: int) -> None:
    """Read a sample if that opens the indices, as with `defer_npy_index_mmap`; workers open those of their copies."""
    if any(getattr(dataset, name, index) is None for name in ("dataset_index", "shuffle_index")):
        dataset[index]
