"""Tokenizer of a run, and the text corpus that is tokenized with it. Requires torch."""

from pathlib import Path
from typing import Any

from mb_data.collectives import is_rank_zero, rank_zero_first
from mb_data.config import TextCorpusConfig
from mb_data.progress import Progress
from mb_data.text.corpus import prepare_corpus, tokenize_corpus
from mb_data.tokenizers.base import Tokenizer, unwrap_tokenizer
from mb_data.tokenizers.config import TokenizerConfig
from mb_data.tokenizers.loading import load_saved_tokenizer


def prepare_tokenizer(
    section: Any,
    tokenizer: TokenizerConfig,
    *,
    saved_in: Path | None = None,
    progress: Progress | None = None,
) -> Tokenizer:
    """Load the tokenizer of a run, and tokenize its text corpus. A corpus without a tokenizer trains one.

    Collective over the default process group, if it is initialized: rank 0 prepares the corpus, then the other ranks
    load it from the cache.

    Args:
        section: The dataset section. Only a text corpus is prepared.
        tokenizer: The tokenizer section; without a `tokenizer_type`, a text corpus trains a tokenizer.
        saved_in: Folder in which `save_tokenizer` wrote the tokenizer, instead of the configured files.
        progress: Called on rank 0 with the stage, the finished amount and the total.

    Returns:
        The tokenizer, with the added tokens of its section.

    Raises:
        CorpusError, DataPathError, TokenizerError: See `prepare_corpus`, `tokenize_corpus` and `load_tokenizer`.
    """
    corpus = section if isinstance(section, TextCorpusConfig) else None
    shown = progress if is_rank_zero() else None

    def prepare() -> Tokenizer:
        if corpus is not None and tokenizer.tokenizer_type is None:
            trained = prepare_corpus(corpus, progress=shown).tokenizer
            return load_saved_tokenizer(trained.parent, tokenizer)
        loaded = load_saved_tokenizer(saved_in, tokenizer)
        if corpus is not None:
            tokenize_corpus(corpus, unwrap_tokenizer(loaded), progress=shown)
        return loaded

    return rank_zero_first(prepare)
