"""Fill-in-the-middle datasets, from Megatron Core's datasets of texts."""

import copy
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from mb_data.config import DatasetBuildContext, GPTDatasetConfig
from mb_data.errors import TokenizerError
from mb_data.fim import FIMDataset, FIMTransform, find_fim_tokens
from mb_data.fim_config import FIMTextCorpusConfig, GPTFIMDatasetConfig
from mb_data.mcore import DatasetSplits, build_gpt_datasets, corpus_blends
from mb_data.tokenizers import Tokenizer


def build_fim_datasets(
    config: GPTFIMDatasetConfig | FIMTextCorpusConfig,
    context: DatasetBuildContext,
    *,
    is_built_on_rank: Callable[[], bool] = lambda: True,
) -> DatasetSplits:
    """Build datasets of rewritten samples for training, validation and test.

    Collective as `build_gpt_datasets`, which builds the texts. Samples are those of `FIMDataset`.

    Args:
        config: The dataset section; not changed.
        context: Samples for each split, and the tokenizer that made the tokens unless the section has one. A text
            corpus is tokenized by it; around the corpus's own, put `ExtendedTokenizer`.
        is_built_on_rank: Whether this rank reads data.

    Returns:
        Train, validation and test; None as for texts.

    Raises:
        TokenizerError: There is no tokenizer, or it lacks special tokens.
        CorpusError, DataPathError: As for `tokenize_corpus`.
        ConfigError, NotEnoughSamplesError, PermissionError: As for texts.
    """
    config = copy.copy(config)
    config.finalize()
    tokenizer = _require_tokenizer(config.tokenizer or context.tokenizer)
    transform = FIMTransform(tokenizer, config, find_fim_tokens(tokenizer, config))
    texts = build_gpt_datasets(
        _text_section(config, tokenizer),
        replace(context, tokenizer=tokenizer),
        is_built_on_rank=is_built_on_rank,
    )

    def rewrite(split: Any) -> FIMDataset | None:
        if split is None:
            return None
        return FIMDataset(
            split,
            transform=transform,
            seed=config.random_seed,
            reset_position_ids=bool(config.reset_position_ids),
            reset_attention_mask=bool(config.reset_attention_mask),
            eod_mask_loss=bool(config.eod_mask_loss),
        )

    return rewrite(texts[0]), rewrite(texts[1]), rewrite(texts[2])


def _text_section(
    config: GPTFIMDatasetConfig | FIMTextCorpusConfig, tokenizer: Tokenizer
) -> GPTDatasetConfig:
    """Return the section of the texts that are rewritten; a text corpus is tokenized, which is collective."""
    values = {field.name: getattr(config, field.name) for field in fields(GPTDatasetConfig) if field.init}
    values |= {"tokenizer": None}
    if isinstance(config, FIMTextCorpusConfig):
        values["blend_per_split"] = corpus_blends(config, tokenizer)
    return GPTDatasetConfig(**values)


def _require_tokenizer(tokenizer: Any) -> Tokenizer:
    if tokenizer is None or not hasattr(tokenizer, "encode"):
        raise TokenizerError(
            f"dataset: the tokenizer is {type(tokenizer).__name__}, but texts are read and written again, with special "
            "tokens between their parts. Put one of load_tokenizer into the build context; for a text corpus, "
            "ExtendedTokenizer around the corpus's own."
        )
    return tokenizer  # type: ignore[no-any-return]  # a user's own; what it lacks shows at the first text
