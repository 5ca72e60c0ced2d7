"""Statistics of document lengths, and of the epochs of each part of a blend."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mb_data.errors import NotEnoughSamplesError
from mb_data.megatron.blend import Blend
from mb_data.text.reader import IndexedReader


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixStats:
    """Statistics of the documents of one pair, and its share of a blend."""

    prefix: str
    documents: int
    tokens: int
    dtype: str
    shortest: int
    """Tokens of the shortest document. This and the following three numbers are 0 if there are no documents."""
    median: float
    mean: float
    longest: int
    histogram: tuple[tuple[int, int], ...]
    """Pairs (power of two, number of documents that are shorter, but at least half as long); empty bins are omitted."""
    share: float
    """Fraction of the samples of a run that is drawn from this pair."""
    epochs: float | None
    """Mean number of times that a run reads each token; None if the number of tokens of the run is not known."""


def blend_stats(blend: Blend, *, read_tokens: int | None = None) -> list[PrefixStats]:
    """Return statistics of each pair of a blend, computed from the indices only.

    Args:
        blend: Prefixes and their weights; weights None: in proportion to the numbers of tokens.
        read_tokens: Number of tokens that a run reads from the blend.

    Raises:
        DataPathError, IndexedFormatError: See `IndexedReader`.
        NotEnoughSamplesError: A run would read tokens from a pair that has none.
    """
    prefixes, weights = blend
    readers = [IndexedReader(prefix) for prefix in prefixes]
    parts = weights or [float(reader.summary.tokens) for reader in readers]
    total = sum(parts) or 1.0
    return [
        _stats(reader, share=part / total, read_tokens=read_tokens)
        for reader, part in zip(readers, parts, strict=True)
    ]


def _stats(reader: IndexedReader, *, share: float, read_tokens: int | None) -> PrefixStats:
    lengths, tokens = reader.document_lengths(), reader.summary.tokens
    if read_tokens and share and not tokens:
        raise NotEnoughSamplesError(
            f"{reader.prefix}: has no tokens, but its share of the run is {share:.1%}. Remove it from the blend."
        )
    filled = lengths if lengths.size else np.zeros(1, np.int64)
    return PrefixStats(
        prefix=reader.prefix,
        documents=len(reader),
        tokens=tokens,
        dtype=reader.summary.dtype,
        shortest=int(filled.min()),
        median=float(np.median(filled)),
        mean=float(filled.mean()),
        longest=int(filled.max()),
        histogram=tuple(_histogram(lengths)),
        share=share,
        epochs=None if read_tokens is None else share * read_tokens / max(tokens, 1),
    )


def _histogram(lengths: NDArray[np.int64]) -> Sequence[tuple[int, int]]:
    """Return a histogram of lengths, by the smallest power of two that is larger."""
    powers, counts = np.unique(np.frexp(lengths.astype(np.float64))[1], return_counts=True)
    return [(1 << int(power), int(count)) for power, count in zip(powers, counts, strict=True)]
