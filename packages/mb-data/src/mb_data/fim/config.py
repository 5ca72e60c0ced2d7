"""Configuration sections for fill-in-the-middle data. Standard library only.

Texts are read as for a GPT: from `.bin`/`.idx` pairs and blends of them, from plain text files, or generated.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from mb_data.config import GPTDatasetConfig, TextCorpusConfig
from mb_data.dataset_provider import accept_sequence_length


@dataclass(kw_only=True)
class FillInTheMiddleOptions:
    """Fields that control how documents are rewritten for fill-in-the-middle training.

    `random_seed` also determines which documents are rewritten and where they are split.
    """

    builder: ClassVar[str] = "mb_data.fim.build:build_fim_datasets"

    fim_data: bool = field(default=True, init=False)
    """Always true: marks the dataset as fill-in-the-middle."""

    fim_rate: float | None = None
    """Fraction of documents that are rewritten, from 0 to 1. Required."""

    fim_spm_rate: float | None = None
    """Fraction of the rewritten documents in the order suffix, prefix, middle, from 0 to 1; the others have the order
    prefix, suffix, middle. Required."""

    fim_extra_tokens: dict[str, str] | None = None
    """Names of the special tokens: `prefix`, `middle` and `suffix`. Optional: `eod`, the end-of-document token, and
    `pad`; both default to the tokenizer's end-of-document token. Required."""

    fim_split_sample: str | None = None
    """Token that divides a document into fragments, such as the files of a repository, which are split separately.
    None: documents are not divided."""

    fim_fragment_rate: float | None = None
    """Fraction of fragments that are rewritten, within documents selected by `fim_rate`. Requires
    `fim_split_sample`."""

    fim_no_prefix: str | None = None
    """Do not rewrite documents or fragments that start with this text."""


@accept_sequence_length
@dataclass(kw_only=True)
class GPTFIMDatasetConfig(FillInTheMiddleOptions, GPTDatasetConfig):
    """Section for fill-in-the-middle data from `.bin`/`.idx` pairs; without any data path, from generated tokens."""


@accept_sequence_length
@dataclass(kw_only=True)
class FIMTextCorpusConfig(FillInTheMiddleOptions, TextCorpusConfig):
    """Section for fill-in-the-middle data from plain text files."""
