"""Statistics of document lengths, and of the epochs of each part of a blend."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mb_data.errors import NotEnoughSamplesError
from mb_data.megatron.blend import Blend
from mb_data.text.build import InputCounts
from mb_data.text.reader import IndexedReader
from mb_data.text.shards.manifest import is_sharded, read_manifest
from mb_data.text.shards.shard import read_record, sum_records


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
    bytes_per_token: float | None
    """Mean size of the text of a token, in UTF-8; None for a pair, whose build records no texts."""
    sources: dict[str, float]
    """Share of each input file in the tokens, the largest first; empty for a pair."""
    epochs: float | None
    """Mean number of times that a run reads each token, if it trains on all documents (`dataset.split`); None if the
    number of tokens of the run is not known."""


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
    by_input = _inputs(reader.prefix)
    from_text = sum(counts.tokens for counts in by_input.values())
    largest_first = sorted(by_input.items(), key=lambda item: -item[1].tokens)
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
        bytes_per_token=sum(counts.text_bytes for counts in by_input.values()) / from_text
        if from_text
        else None,
        sources={path: counts.tokens / from_text for path, counts in largest_first if from_text},
        epochs=None if read_tokens is None else share * read_tokens / max(tokens, 1),
    )


def _inputs(prefix: str) -> dict[str, InputCounts]:
    if not is_sharded(prefix):
        return {}
    folder = Path(f"{prefix}.shards")
    return sum_records(read_record(folder, shard) for shard in range(len(read_manifest(prefix))))[1]


def _histogram(lengths: NDArray[np.int64]) -> Sequence[tuple[int, int]]:
    """Return a histogram of lengths, by the smallest power of two that is larger."""
    powers, counts = np.unique(np.frexp(lengths.astype(np.float64))[1], return_counts=True)
    return [(1 << int(power), int(count)) for power, count in zip(powers, counts, strict=True)]
