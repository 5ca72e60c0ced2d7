"""Builder of T5 datasets from Megatron Core's GPT datasets."""

import copy

from mb_data.config import DatasetBuildContext
from mb_data.dataset_provider import DatasetSplits
from mb_data.errors import TokenizerError
from mb_data.mcore import build_texts
from mb_data.t5.config import T5DatasetConfig, T5TextCorpusConfig
from mb_data.t5.dataset import T5Dataset
from mb_data.tokenizers.base import SentinelTokenizer


def build_t5_datasets(
    config: T5DatasetConfig | T5TextCorpusConfig,
    context: DatasetBuildContext,
) -> DatasetSplits:
    """Build T5 datasets for training, validation and test.

    Collective like `build_gpt_datasets`, which builds the underlying texts: consecutive segments of
    `config.sizes.tokens` tokens, across document boundaries, shuffled with `random_seed`. See `T5Dataset` for the
    samples.

    The tokenizer must be the one that produced the tokens, with sentinels. A text corpus is tokenized with it; the
    corpus's own tokenizer is `load_tokenizer(prepare_corpus(config).tokenizer)`.

    Args:
        config: The dataset section; not modified.
        context: Sample counts of the splits, and a tokenizer with sentinels unless the section has one.

    Returns:
        Train, validation and test; None in the same cases as `build_gpt_datasets`.

    Raises:
        TokenizerError: There is no tokenizer, or it has no sentinels. Access to a sample raises it too, if a token of
            the `.bin` file is not smaller than all sentinels.
        CorpusError, DataPathError: See `tokenize_corpus`.
        ConfigError, NotEnoughSamplesError, PermissionError: See `build_gpt_datasets`.
    """
    config = copy.copy(config)
    config.finalize()
    tokenizer, sizes = _require_sentinels(config.tokenizer or context.tokenizer), config.sizes
    train, valid, test = (
        None
        if texts is None
        else T5Dataset(
            texts,
            sizes=sizes,
            seq_length=config.seq_length,
            decoder_seq_length=config.decoder_seq_length,
            sentinels=tokenizer.sentinels,
            end=tokenizer.eod,
            seed=config.random_seed,
        )
        for texts in build_texts(config, context, tokenizer=tokenizer.base, seq_length=sizes.tokens)
    )
    return train, valid, test


def _require_sentinels(tokenizer: object) -> SentinelTokenizer:
    if tokenizer is None:
        raise TokenizerError(
            "dataset: no tokenizer; sentinels replace spans, and their ids follow its entries. Set a SentinelTokenizer "
            "in the build context; for a text corpus, one around the corpus's own tokenizer."
        )
    if not isinstance(tokenizer, SentinelTokenizer):
        raise TokenizerError(
            f"dataset: a {type(tokenizer).__name__} has no sentinels, which replace spans. Set "
            "tokenizer.vocab_extra_ids=100, or wrap the tokenizer in a SentinelTokenizer."
        )
    return tokenizer
