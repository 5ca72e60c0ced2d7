"""Builder of fill-in-the-middle datasets from Megatron Core's GPT datasets."""

import copy
from typing import Any

from mb_data.config import DatasetBuildContext
from mb_data.dataset_provider import DatasetSplits
from mb_data.errors import TokenizerError
from mb_data.fim.config import FIMTextCorpusConfig, GPTFIMDatasetConfig
from mb_data.fim.dataset import FIMDataset, FIMTransform, find_fim_tokens
from mb_data.mcore import build_texts
from mb_data.tokenizers.base import Tokenizer


def build_fim_datasets(
    config: GPTFIMDatasetConfig | FIMTextCorpusConfig,
    context: DatasetBuildContext,
) -> DatasetSplits:
    """Build fill-in-the-middle datasets for training, validation and test.

    Collective like `build_gpt_datasets`, which builds the underlying texts. See `FIMDataset` for the samples.

    Args:
        config: The dataset section; not modified.
        context: Sample counts of the splits, and the tokenizer that produced the tokens unless the section has one. A
            text corpus is tokenized with it; to use the corpus's own tokenizer, wrap it in `ExtendedTokenizer`.

    Returns:
        Train, validation and test; None in the same cases as `build_gpt_datasets`.

    Raises:
        TokenizerError: There is no tokenizer, or it lacks special tokens.
        CorpusError, DataPathError: See `tokenize_corpus`.
        ConfigError, NotEnoughSamplesError, PermissionError: See `build_gpt_datasets`.
    """
    config = copy.copy(config)
    config.finalize()
    tokenizer = _require_tokenizer(config.tokenizer or context.tokenizer)
    transform = FIMTransform(tokenizer, config, find_fim_tokens(tokenizer, config))
    train, valid, test = (
        None
        if texts is None
        else FIMDataset(
            texts,
            transform=transform,
            seed=config.random_seed,
            reset_position_ids=bool(config.reset_position_ids),
            reset_attention_mask=bool(config.reset_attention_mask),
            eod_mask_loss=bool(config.eod_mask_loss),
        )
        for texts in build_texts(config, context, tokenizer=tokenizer)
    )
    return train, valid, test


def _require_tokenizer(tokenizer: Any) -> Tokenizer:
    if tokenizer is None or not hasattr(tokenizer, "encode"):
        raise TokenizerError(
            f"dataset: the tokenizer is {type(tokenizer).__name__}, but documents are decoded and encoded "
            "again, with special tokens between their parts. Pass a tokenizer of load_tokenizer in the build context; "
            "for a text corpus, an ExtendedTokenizer around the corpus's own tokenizer."
        )
    return tokenizer  # type: ignore[no-any-return]  # a custom tokenizer; missing methods fail at the first text
