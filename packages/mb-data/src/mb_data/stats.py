"""How long documents are, and how often a run reads each part of a blend."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mb_data.blend import Blend
from mb_data.errors import NotEnoughSamplesError
from mb_data.reader import IndexedReader


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixStats:
    """What the documents of one pair are like, and its part in a blend."""

    prefix: str
    documents: int
    tokens: int
    dtype: str
    shortest: int
    """Tokens of the shortest document; 0 where there is none, as for the following."""
    median: float
    mean: float
    longest: int
    histogram: tuple[tuple[int, int], ...]
    """Powers of two, and how many documents are shorter, but not than half of it; where there is any."""
    share: float
    """Part of the samples of a run that is drawn from here, from 0 to 1."""
    epochs: float | None
    """How often a run reads each token on the average; None without a number of tokens that it reads."""


def blend_stats(blend: Blend, *, read_tokens: int | None = None) -> list[PrefixStats]:
    """Measure each pair of a blend, from the indices alone.

    Args:
        blend: Prefixes and their weights; weights None: in proportion to their tokens.
        read_tokens: Tokens that a run reads of the whole blend.

    Raises:
        DataPathError, IndexedFormatError: As for an `IndexedReader`.
        NotEnoughSamplesError: A run reads tokens, but a part of the blend has none.
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
            f"{reader.prefix}: has no tokens, of which a run would read {share:.1%}. Take it out of the blend."
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
    """Count lengths by the power of two that they are below."""
    powers, counts = np.unique(np.frexp(lengths.astype(np.float64))[1], return_counts=True)
    return [(1 << int(power), int(count)) for power, count in zip(powers, counts, strict=True)]
