"""Megatron Core's GPT datasets as the texts of other datasets."""

from dataclasses import fields, replace
from typing import Any

from mb_data.config import DatasetBuildContext, GPTDatasetConfig, TextCorpusConfig
from mb_data.dataset_provider import DatasetSplits
from mb_data.mcore import build_gpt_datasets, corpus_blends
from mb_data.tokenizers.base import Tokenizer


def build_texts(
    config: GPTDatasetConfig, context: DatasetBuildContext, *, tokenizer: Tokenizer, **changes: Any
) -> DatasetSplits:
    """Build the GPT datasets with the fields of a section that extends the GPT section. Collective.

    A text corpus is tokenized first.

    Args:
        config: The section; not modified.
        context: Sample counts of the splits.
        tokenizer: Tokenizer of the texts, instead of the one in the context.
        changes: Fields of the GPT section that differ from those of `config`.

    Raises:
        The exceptions of `build_gpt_datasets` and `tokenize_corpus`.
    """
    values = {field.name: getattr(config, field.name) for field in fields(GPTDatasetConfig) if field.init}
    values |= {"tokenizer": None, **changes}
    if isinstance(config, TextCorpusConfig):
        values["blend_per_split"] = corpus_blends(config, tokenizer)
    return build_gpt_datasets(GPTDatasetConfig(**values), replace(context, tokenizer=tokenizer))
