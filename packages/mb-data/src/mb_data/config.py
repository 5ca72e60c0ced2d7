"""The configuration sections of this package, for data. Standard library only.

Constructing a section reads nothing and refuses nothing. `finalize()` derives what follows from other fields,
can be called again, and raises where the values contradict each other.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mb_data.aliases import accept_sequence_length
from mb_data.blend import Blend, blend_from_path, split_matrix
from mb_data.rules import check_section
from mb_data.strict_fields import StrictFields
from mb_data.tokenizer_config import TokenizerConfig as TokenizerConfig
from mb_data.value_types import reject_wrong_types


@dataclass(kw_only=True)
class DataloaderConfig(StrictFields):
    """How samples become batches. Every dataset section has these fields too."""

    dataloader_type: Literal["single", "cyclic", "batch", "external"] | None = None
    """`single`: one pass in the dataset's order; `cyclic`: endless passes, each shuffled; `batch`: as `single`, but
    whole global batches, in which samples of like lengths stand together; `external`: the dataset is an iterable of
    finished batches, whose iterator keeps its own position if its `iterable` has `save_state()` and
    `restore_state(state)`. None means `single`."""

    num_workers: int = 2
    """Worker processes of each loader; 0 loads in the training process."""

    data_sharding: bool = True
    """Kept for compatibility: false is what always happens. The cyclic order is one over all ranks, the same for every
    data-parallel size, and is never cut into one range for each rank, as true would in Megatron's loader."""

    pin_memory: bool = True
    """Copy batches to page-locked memory; has no effect without a GPU."""

    drop_last: bool = True
    """Leave out the samples at the end of a single pass that do not fill a micro-batch on every rank."""

    persistent_workers: bool = True
    """Keep worker processes between passes; finalize() turns it off when `num_workers` is 0."""

    trust_remote_code: bool | None = None
    """Allow a dataset from the Hugging Face Hub to run its own code."""

    dataloader_save: str | None = None
    """Folder in which the position of an external loader is put, besides the checkpoint, in `iter_*` folders; None:
    in the checkpoint only."""

    dataloader_load: str | None = None
    """Folder from which the position of an external loader is taken, in `iter_*` folders; None: from the checkpoint."""

    def finalize(self) -> None:
        """Turn `persistent_workers` off where there are no workers.

        Raises:
            FieldTypeError: Values have a wrong type.
        """
        reject_wrong_types(self, path="dataset")
        if self.num_workers == 0:
            self.persistent_workers = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetBuildContext:
    """What a dataset provider is told about the run. A count of 0 asks for no such split."""

    train_samples: int
    """Training samples (sequences)."""

    valid_samples: int
    """Validation samples (sequences)."""

    test_samples: int
    """Test samples (sequences)."""

    tokenizer: Any = None
    """The tokenizer: one of this package's or one of Megatron's. None: the provider needs none or has its own."""

    pg_collection: Any = None
    """Megatron's ProcessGroupCollection, for providers that read differently on different ranks."""

    progress: Callable[[str, int, int], None] | None = None
    """Called with the stage, sample indices that are built or found, and their number."""


@dataclass(kw_only=True)
class DatasetProvider(DataloaderConfig, ABC):
    """Base of a user's own dataset section: the loader's fields and one method to implement."""

    @abstractmethod
    def build_datasets(self, context: DatasetBuildContext) -> tuple[Any | None, Any | None, Any | None]:
        """Return the training, validation and test datasets, None for a split that is not there.

        Called on every rank that reads data. A dataset has a length and gives samples by index, each a dictionary of
        tensors.
        """


@accept_sequence_length
@dataclass(kw_only=True)
class GPTDatasetConfig(DataloaderConfig):
    """Tokens from `.bin`/`.idx` pairs, cut into sequences by Megatron Core. Without any data path: generated tokens."""

    seq_length: int = field(kw_only=False)
    """Tokens in one sample. May be given as first argument, or as `sequence_length`."""

    random_seed: int = 1234
    """Seed of the order of documents and samples."""

    data_path: str | list[str] | None = None
    """One prefix, several separated by blanks, or a list, with weights between them if wanted; finalize() writes it to
    `blend`. Not read when `blend` is set."""

    blend: Blend | None = None
    """Prefixes and their weights; weights None: one pass over all, in proportion to their sizes. Needs `split`."""

    blend_per_split: list[Blend | None] | None = None
    """A blend of its own for train, validation and test, instead of `blend` and `split`."""

    split: str | None = None
    """Ratios by which the documents of `blend` are given to train, validation and test, such as "99,1,0"."""

    split_matrix: list[tuple[float, float] | None] | None = field(default=None, init=False)
    """Computed by finalize() from `split`: the part of the documents that each split takes."""

    multiple_validation_sets: bool | None = None
    """Megatron's field for validation on each prefix by itself. Nothing reads it: refused."""

    full_validation: bool | None = None
    """Make the validation dataset one pass over the whole of its split, instead of a number of samples."""

    num_dataset_builder_threads: int = 1
    """Threads that build the indices of a blend's datasets, at least 1."""

    path_to_cache: str | None = None
    """Folder for Megatron's sample indices, which every rank must be able to read; None: beside the first dataset."""

    mmap_bin_files: bool = True
    """Map the token files into memory instead of reading them."""

    mock: bool = field(default=False, init=False)
    """Computed by finalize(): no data is given, so tokens are generated."""

    tokenizer: Any = None
    """Set while the run is set up; a tokenizer given here wins over the build context's."""

    mid_level_dataset_surplus: float = 0.005
    """Extra part of samples that each dataset of a weighted blend is built with."""

    allow_ambiguous_pad_tokens: bool | None = False
    """Mask the padding token's id in the loss even where another special token has the same id."""

    fast_cache_load: bool = False
    """Trust that every index is in the cache and start faster. Needs `path_to_cache` and `blend_per_split`."""

    defer_npy_index_mmap: bool = False
    """Map the cached indices when first read. Needs `path_to_cache`."""

    reset_position_ids: bool | None = None
    """Start positions again after each end of document. Must be chosen."""

    reset_attention_mask: bool | None = None
    """Do not attend across an end of document. Must be chosen."""

    eod_mask_loss: bool | None = None
    """Leave the end-of-document token out of the loss. Must be chosen."""

    create_attention_mask: bool = True
    """Let the dataset make attention masks (seq_length squared each); only when the next but one field is False."""

    drop_last_partial_validation_sequence: bool = True
    """Leave out the last validation sample where it is shorter than `seq_length`."""

    skip_getting_attention_mask_from_dataset: bool = True
    """Give the model no mask: the attention kernel makes the causal one."""

    add_extra_token_to_sequence: bool = True
    """Read one token more, so that inputs and labels both have `seq_length` tokens."""

    object_storage_cache_path: str | None = None
    """Folder for `.idx` files that are copied from object storage."""

    data_parallel_size: int = 1
    """Data-parallel ranks, for padding with hybrid context parallelism."""

    sequence_parallel_size: int = 0
    """Tensor-parallel ranks when sequence parallelism is on, for padding; 0: off."""

    hybrid_context_parallel: bool = False
    """Context parallelism that differs from sample to sample."""

    sequences_per_dataset: dict[str, Any] | None = None
    """Sequences and documents of each prefix, where they are known, so that no `.idx` header is read."""

    per_dataset_sequences_path: str | None = None
    """JSON file that finalize() reads into `sequences_per_dataset`."""

    token_dtype_code: int | None = field(default=None, init=False)
    """Computed when the dataset is built: 4 for int32 tokens, 8 for uint16."""

    context_parallel_size: int | None = None
    """Context-parallel ranks, for padding of packed sequences."""

    inter_document_masking: bool = False
    """Return the document boundaries of each sample, so that attention stays inside documents."""

    @property
    def sequence_length(self) -> int:
        """Megatron Core's name of `seq_length`."""
        return self.seq_length

    def finalize(self) -> None:
        """Derive `blend`, `mock`, `split_matrix` and `sequences_per_dataset`, and refuse contradictions.

        Raises:
            ConfigError: Rules of the section are broken; the message has all of them.
            ValueError: `data_path` cannot be read as a blend.
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
    """Generated tokens in the shape of real data: for trying out models and measuring speed."""

    mock: bool = field(default=True, init=False)
    """Always true."""

    def finalize(self) -> None:
        """Check the section.

        Raises:
            TypeError: Data paths are given, which generated data has none of.
        """
        reject_wrong_types(self, path="dataset")
        if self.blend or self.blend_per_split or self.data_path:
            raise TypeError(
                f"dataset: generated data takes no data path (blend={self.blend}, "
                f"blend_per_split={self.blend_per_split}, data_path={self.data_path!r}); the tokens are made up. "
                "Remove them, or use GPTDatasetConfig to read them."
            )
        super().finalize()


@accept_sequence_length
@dataclass(kw_only=True)
class TextCorpusConfig(GPTDatasetConfig):
    """Plain text files, split by file, tokenized once by the run's tokenizer or one trained on them, and cached."""

    sources: list[str] | None = None
    """Files and folders of UTF-8 text, a document a file; None: the Python files of the running interpreter's standard
    library."""

    vocab_size: int = 4096
    """Entries of the byte-level BPE tokenizer that is trained, exactly: 256 bytes, the end of a document, and merges.
    Not read where the run has a tokenizer."""

    cache_dir: str | None = None
    """Folder under which prepared corpora are kept; None: `$MB_CACHE_DIR`, or else `~/.cache/mb-trainer`."""

    validation_fraction: float = 0.05
    """Part of the files that is kept for validation; 0: none."""

    test_fraction: float = 0.05
    """Part of the files that is kept for the test; 0: none."""

    split_seed: int = 1234
    """Chooses which files are kept; a file's split depends on its relative path and this number alone."""

    reset_position_ids: bool | None = False
    """Start positions again after each end of document."""

    reset_attention_mask: bool | None = False
    """Do not attend across an end of document."""

    eod_mask_loss: bool | None = False
    """Leave the end-of-document token out of the loss."""

    def _is_mock(self) -> bool:
        return False
