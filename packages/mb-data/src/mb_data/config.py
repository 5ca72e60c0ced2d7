"""Configuration sections for GPT datasets. Standard library only.

The constructor of a section reads no files and performs no checks. `finalize()` computes derived fields, may be called
repeatedly, and raises if values contradict each other.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from mb_data.dataset_provider import BuiltInDatasetConfig, accept_sequence_length
from mb_data.dataset_provider import DatasetBuildContext as DatasetBuildContext
from mb_data.dataset_provider import DatasetProvider as DatasetProvider
from mb_data.loading.config import DataloaderConfig as DataloaderConfig
from mb_data.megatron.blend import Blend, blend_from_path, split_matrix
from mb_data.rules import check_section
from mb_data.tokenizers.config import TokenizerConfig as TokenizerConfig
from mb_schema.value_types import reject_wrong_types


@accept_sequence_length
@dataclass(kw_only=True)
class GPTDatasetConfig(BuiltInDatasetConfig):
    """Section for tokens from `.bin`/`.idx` pairs, cut into sequences by Megatron Core.

    Without any data path, tokens are generated.
    """

    builder: ClassVar[str] = "mb_data.mcore:build_gpt_datasets"

    seq_length: int = field(kw_only=False)
    """Tokens in one sample. May be passed as first positional argument, or as `sequence_length`."""

    random_seed: int = 1234
    """Seed of the order of documents and samples."""

    data_path: str | list[str] | None = None
    """One prefix, several prefixes separated by spaces, or a list, optionally interleaved with weights. finalize()
    stores it in `blend`. Ignored if `blend` is set."""

    blend: Blend | None = None
    """Prefixes and their weights. Weights None: one epoch over all prefixes, in proportion to their sizes. Requires
    `split`."""

    blend_per_split: list[Blend | None] | None = None
    """Separate blends for train, validation and test, instead of `blend` and `split`."""

    split: str | None = None
    """Ratios in which the documents of `blend` are divided into train, validation and test, such as "99,1,0"."""

    split_matrix: list[tuple[float, float] | None] | None = field(default=None, init=False)
    """Computed by finalize() from `split`: the interval of documents that each split takes."""

    multiple_validation_sets: bool | None = None
    """Megatron's field for separate validation on each prefix. Not implemented; any value is rejected."""

    full_validation: bool | None = None
    """Make the validation dataset one epoch over its complete split, instead of a number of samples."""

    num_dataset_builder_threads: int = 1
    """Threads that build the indices of the datasets of a blend, at least 1."""

    path_to_cache: str | None = None
    """Folder for Megatron's sample indices, readable by every rank. None: a folder next to the first dataset."""

    mmap_bin_files: bool = True
    """Map the token files into memory instead of reading them."""

    mock: bool = field(default=False, init=False)
    """Computed by finalize(): no data is specified, so tokens are generated."""

    tokenizer: Any = None
    """Set during the setup of the run. Takes precedence over the tokenizer of the build context."""

    mid_level_dataset_surplus: float = 0.005
    """Fraction of additional samples with which each dataset of a weighted blend is built."""

    allow_ambiguous_pad_tokens: bool | None = False
    """Mask the id of the padding token in the loss even if another special token has the same id."""

    fast_cache_load: bool = False
    """Assume that every index is in the cache and start faster. Requires `path_to_cache` and `blend_per_split`."""

    defer_npy_index_mmap: bool = False
    """Map the cached indices when they are first read. Requires `path_to_cache`."""

    reset_position_ids: bool | None = None
    """Restart position ids after each end-of-document token. Required."""

    reset_attention_mask: bool | None = None
    """Prevent attention across end-of-document tokens. Required."""

    eod_mask_loss: bool | None = None
    """Exclude the end-of-document token from the loss. Required."""

    create_attention_mask: bool = True
    """Create attention masks in the dataset (seq_length squared each). Takes effect only if
    `skip_getting_attention_mask_from_dataset` is False."""

    drop_last_partial_validation_sequence: bool = True
    """Drop the last validation sample if it is shorter than `seq_length`."""

    skip_getting_attention_mask_from_dataset: bool = True
    """Pass no mask to the model; the attention kernel applies the causal mask."""

    add_extra_token_to_sequence: bool = True
    """Read one additional token, so that inputs and labels both have `seq_length` tokens."""

    object_storage_cache_path: str | None = None
    """Folder for `.idx` files that are copied from object storage."""

    data_parallel_size: int = 1
    """Data-parallel size, for padding with hybrid context parallelism."""

    sequence_parallel_size: int = 0
    """Tensor-parallel size if sequence parallelism is on, for padding; 0 otherwise."""

    hybrid_context_parallel: bool = False
    """Context parallelism whose size differs between samples."""

    sequences_per_dataset: dict[str, Any] | None = None
    """Numbers of sequences and document boundaries of each prefix, which must be those of the `.idx` headers."""

    per_dataset_sequences_path: str | None = None
    """JSON file that finalize() reads into `sequences_per_dataset`."""

    token_dtype_code: int | None = field(default=None, init=False)
    """Computed when the dataset is built: 4 for int32 tokens, 8 for uint16."""

    context_parallel_size: int | None = None
    """Context-parallel size, for padding of packed sequences."""

    inter_document_masking: bool = False
    """Return the document boundaries of each sample, so that attention is restricted to documents."""

    @property
    def sequence_length(self) -> int:
        """Alias of `seq_length`, under Megatron Core's name."""
        return self.seq_length

    def finalize(self) -> None:
        """Compute `blend`, `mock`, `split_matrix` and `sequences_per_dataset`, and reject contradictions.

        Raises:
            ConfigError: The section violates rules; the message lists all of them.
            ValueError: `data_path` cannot be parsed as a blend.
        """
        reject_wrong_types(self, path="dataset")
        if self.blend is None and self.data_path is not None:
            self.blend = blend_from_path(self.data_path)
        self.mock = self._is_mock()
        check_section(self, section="dataset")
        super().finalize()
        self.split_matrix = None if self.split is None else split_matrix(self.split)
        if self.per_dataset_sequences_path is not None and self.sequences_per_dataset is None:
            self.sequences_per_dataset = json.loads(Path(self.per_dataset_sequences_path).read_text("utf-8"))

    def _is_mock(self) -> bool:
        return self.blend is None and self.blend_per_split is None


@accept_sequence_length
@dataclass(kw_only=True)
class MockGPTDatasetConfig(GPTDatasetConfig):
    """Section for generated tokens in the shape of real data, for tests of models and measurements of speed."""

    mock: bool = field(default=True, init=False)
    """Always true."""

    def finalize(self) -> None:
        """Check the section.

        Raises:
            TypeError: Data paths are set.
        """
        reject_wrong_types(self, path="dataset")
        if self.blend or self.blend_per_split or self.data_path:
            raise TypeError(
                f"dataset: generated data takes no data path (blend={self.blend}, "
                f"blend_per_split={self.blend_per_split}, data_path={self.data_path!r}); the tokens are generated, and "
                "no file is read. Remove the paths, or use GPTDatasetConfig."
            )
        super().finalize()


@accept_sequence_length
@dataclass(kw_only=True)
class TextCorpusConfig(GPTDatasetConfig):
    """Section for text, split by document.

    The documents are tokenized once, by the tokenizer of the run or by one trained on them, and cached.
    """

    sources: list[str] | None = None
    """Files and folders. A document is a file of UTF-8 text, a line of a `.jsonl` file, or a row of a `.csv`, `.tsv`,
    `.parquet` or `.arrow` file. In a folder, a file of JSON, `.csv` or `.tsv` is text unless its first line has
    `json_key`; a `.json` file that is named is text unless its first line is an object. Files may be compressed, and
    suffixes have any case. None: the Python files of the interpreter's standard library."""

    json_key: str = "text"
    """Key of the text in the lines of JSON files, and its column in tables."""

    vocab_size: int = 4096
    """Exact number of entries of the byte-level BPE tokenizer that is trained: 256 bytes, the end-of-document token,
    and merges. Ignored if the run has a tokenizer."""

    cache_dir: str | None = None
    """Parent folder of prepared corpora. None: `$MB_CACHE_DIR`, or else `~/.cache/mb-trainer`."""

    validation_fraction: float = 0.05
    """Fraction of the documents that is held out for validation; 0: none."""

    test_fraction: float = 0.05
    """Fraction of the documents that is held out for the test split; 0: none."""

    split_seed: int = 1234
    """Seed of the split. The split of a document depends only on the relative path of its file, the number of its line
    or row, and this seed."""

    reset_position_ids: bool | None = False
    """Restart position ids after each end-of-document token."""

    reset_attention_mask: bool | None = False
    """Prevent attention across end-of-document tokens."""

    eod_mask_loss: bool | None = False
    """Exclude the end-of-document token from the loss."""

    def _is_mock(self) -> bool:
        return False
