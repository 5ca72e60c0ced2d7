"""The configuration sections of fill-in-the-middle data. Standard library only.

The text is read as for a GPT: from `.bin`/`.idx` pairs and blends of them, from plain text files, or made up.
"""

from dataclasses import dataclass, field

from mb_data.aliases import accept_sequence_length
from mb_data.config import GPTDatasetConfig, TextCorpusConfig


@dataclass(kw_only=True)
class FillInTheMiddleOptions:
    """How documents are rewritten so that a model learns to write what stands between two texts.

    `random_seed` chooses which are and where they are cut, too.
    """

    fim_data: bool = field(default=True, init=False)
    """Always true: marks the dataset as fill-in-the-middle."""

    fim_rate: float | None = None
    """Part of the documents that are rewritten, from 0 to 1. Must be chosen."""

    fim_spm_rate: float | None = None
    """Part of the rewritten ones in the order suffix, prefix, middle, from 0 to 1; the others are in the order prefix,
    suffix, middle. Must be chosen."""

    fim_extra_tokens: dict[str, str] | None = None
    """Names of the special tokens: `prefix`, `middle` and `suffix`; also `eod`, the token that ends a document, and
    `pad`, where these are not the end of a document that the tokenizer knows. Must be chosen."""

    fim_split_sample: str | None = None
    """Token that divides a document into fragments, each of which is cut by itself, such as the files of a
    repository; None: documents are not divided."""

    fim_fragment_rate: float | None = None
    """Part of the fragments that are rewritten, in documents that are (`fim_rate`). Needs `fim_split_sample`."""

    fim_no_prefix: str | None = None
    """Leave alone documents or fragments that start with this text."""


@accept_sequence_length
@dataclass(kw_only=True)
class GPTFIMDatasetConfig(FillInTheMiddleOptions, GPTDatasetConfig):
    """Fill-in-the-middle data from `.bin`/`.idx` pairs; without any data path from generated tokens."""


@accept_sequence_length
@dataclass(kw_only=True)
class FIMTextCorpusConfig(FillInTheMiddleOptions, TextCorpusConfig):
    """Fill-in-the-middle data from plain text files."""
