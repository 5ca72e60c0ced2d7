"""Datasets for a T5, from Megatron Core's datasets of texts."""

import copy
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from mb_data.config import DatasetBuildContext, GPTDatasetConfig
from mb_data.errors import TokenizerError
from mb_data.mcore import DatasetSplits, build_gpt_datasets, corpus_blends
from mb_data.t5 import T5Dataset
from mb_data.t5_config import T5DatasetConfig, T5TextCorpusConfig
from mb_data.tokenizers import SentinelTokenizer, Tokenizer


def build_t5_datasets(
    config: T5DatasetConfig | T5TextCorpusConfig,
    context: DatasetBuildContext,
    *,
    is_built_on_rank: Callable[[], bool] = lambda: True,
) -> DatasetSplits:
    """Build datasets of pairs for training, validation and test.

    Collective as `build_gpt_datasets`, which builds the texts: consecutive pieces of `config.sizes.tokens` tokens,
    across the ends of documents, in the order that `random_seed` shuffles them to. Samples are those of `T5Dataset`.

    The tokenizer must be the one that made the tokens, with sentinels. A text corpus is tokenized by it; its own is
    `load_tokenizer(prepare_corpus(config).tokenizer)`.

    Args:
        config: The dataset section; not changed.
        context: Samples for each split, and a tokenizer with sentinels unless the section has one.
        is_built_on_rank: Whether this rank reads data.

    Returns:
        Train, validation and test; None as for texts.

    Raises:
        TokenizerError: There is no tokenizer, or it has no sentinels. A sample raises it, too, where a token of a
            `.bin` is no smaller than a sentinel.
        CorpusError, DataPathError: As for `tokenize_corpus`.
        ConfigError, NotEnoughSamplesError, PermissionError: As for texts.
    """
    config = copy.copy(config)
    config.finalize()
    tokenizer, sizes = _require_sentinels(config.tokenizer or context.tokenizer), config.sizes
    texts = build_gpt_datasets(
        _text_section(config, tokenizer.base),
        replace(context, tokenizer=tokenizer.base),
        is_built_on_rank=is_built_on_rank,
    )

    def pairs(split: Any) -> T5Dataset | None:
        if split is None:
            return None
        return T5Dataset(
            split,
            sizes=sizes,
            seq_length=config.seq_length,
            decoder_seq_length=config.decoder_seq_length,
            sentinels=tokenizer.sentinels,
            end=tokenizer.eod,
            seed=config.random_seed,
        )

    return pairs(texts[0]), pairs(texts[1]), pairs(texts[2])


def _text_section(config: T5DatasetConfig | T5TextCorpusConfig, tokenizer: Tokenizer) -> GPTDatasetConfig:
    """Return the section of the texts that pairs are made of; a text corpus is tokenized, which is collective."""
    values = {field.name: getattr(config, field.name) for field in fields(GPTDatasetConfig) if field.init}
    values |= {"seq_length": config.sizes.tokens, "tokenizer": None}
    if isinstance(config, T5TextCorpusConfig):
        values["blend_per_split"] = corpus_blends(config, tokenizer)
    return GPTDatasetConfig(**values)


def _require_sentinels(tokenizer: object) -> SentinelTokenizer:
    if tokenizer is None:
        raise TokenizerError(
            "dataset: no tokenizer; sentinels stand in the place of spans, and come behind its entries. Put a "
            "SentinelTokenizer into the build context; for a text corpus, one around the corpus's own tokenizer."
        )
    if not isinstance(tokenizer, SentinelTokenizer):
        raise TokenizerError(
            f"dataset: a {type(tokenizer).__name__} has no sentinels, which stand in the place of spans. Set "
            "tokenizer.vocab_extra_ids=100, or wrap the tokenizer in a SentinelTokenizer."
        )
    return tokenizer
