"""Configuration sections for fine-tuning data. Standard library only.

The constructor of a section reads no files and performs no checks. `finalize()` raises if values contradict each other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from mb_data.dataset_provider import BuiltInDatasetConfig, accept_sequence_length
from mb_data.finetuning.hub_config import (
    ChatSFTPreprocessingConfig,
    HFDatasetSourceConfig,
    PromptCompletionSFTPreprocessingConfig,
)
from mb_data.finetuning.options import FinetuningOptions, read_options
from mb_data.megatron.blend import Blend, blend_from_path
from mb_data.rules import check_section
from mb_schema.sections import StrictFields


@dataclass(kw_only=True)
class PackedSequenceSpecs(StrictFields):
    """Settings for packing several samples into one sequence."""

    packed_sequence_size: int = -1
    """Tokens of a pack. Equals the `seq_length` of dataset and model."""

    max_single_sequence_length: int | None = None
    """Maximum length of a sample in tokens; longer samples are truncated. None: the length of a pack."""

    tokenizer_model_name: str | None = None
    """Part of the names of cached packs in other trainers. Rejected, because packs are named by their content."""

    num_tokenizer_workers: int = -1
    """Number of processes that tokenize; -1: `dataset.memmap_workers`."""

    packed_train_data_path: str | None = None
    """Existing packs for training in Megatron-Bridge's format: a .npy or Parquet file, a folder, or a pattern."""

    packed_val_data_path: str | None = None
    """Existing packs for validation, as for training."""

    packed_metadata_path: str | None = None
    """Statistics of existing packs in Megatron-Bridge's format, a JSON list. With `pad_cu_seqlens`, its maximum number
    of samples in a pack, over all files that it describes, determines the length of `cu_seqlens`."""

    pad_cu_seqlens: bool = False
    """Pad `cu_seqlens` to the same length in all packs, by repeating its last entry."""

    pad_seq_to_mult: int | None = 1
    """Round the length of each sample in a pack up to a multiple of this number of tokens."""


@accept_sequence_length
@dataclass(kw_only=True)
class FinetuningDatasetConfig(BuiltInDatasetConfig):
    """Section for prompts with answers, and conversations, from JSON lines or tables.

    The files are `training.jsonl`, `validation.jsonl` and `test.jsonl`, or `.csv`, `.parquet` and `.arrow` files,
    possibly compressed, or folders of such files. Each line is a JSON object, as is each row of a table. An object
    with `messages`, a list of objects with `role` and `content`, is a conversation; the loss covers the messages of
    the assistant. Any other object is inserted into the template; the loss covers its answer.
    """

    builder: ClassVar[str] = "mb_data.finetuning.build:build_finetuning_datasets"
    field_aliases: ClassVar[Mapping[str, str]] = {
        "sequence_length": "seq_length",
        "offline_packing_specs": "packed_sequence_specs",
        "enable_in_batch_packing": "pack_sequences_in_batch",
    }

    dataloader_type: Literal["single", "cyclic", "batch", "external"] | None = "batch"
    """As for every dataset. `batch` draws complete global batches and sorts each by sample length."""

    dataset_root: str | list[str] | None = None
    """Folder that contains the files; or a list of folders, with weights (`["0.7", "a", "0.3", "b"]`) or without, for a
    blend in proportion to their numbers of samples."""

    seq_length: int = field(kw_only=False)
    """Maximum length of a sample in tokens, to which longer samples are truncated, and length of a pack. May be passed
    as first positional argument, or as `sequence_length`."""

    seed: int = 1234
    """Seed of the order of training samples, which differs between epochs."""

    memmap_workers: int = 1
    """Number of processes that tokenize."""

    max_train_samples: int | None = None
    """Use only the first training samples, up to this number; None: all."""

    hf_dataset: HFDatasetSourceConfig | None = None
    """Rows of the Hugging Face hub, instead of `dataset_root`; they are written to a folder once."""

    hf_validation_dataset: HFDatasetSourceConfig | None = None
    """Rows for validation; None: the split `validation` of `hf_dataset`."""

    hf_test_dataset: HFDatasetSourceConfig | None = None
    """Rows for the test; None: the split `test` of `hf_dataset`."""

    hf_validation_proportion: float | None = None
    """Use this part of the rows, the first ones, for validation, and the others for training."""

    hf_output_root: str | None = None
    """Parent folder of the files with the rows; None: that of the cache."""

    hf_rewrite: bool = False
    """Write the rows again although their files exist. Rank 0 does so when the datasets are built."""

    preprocessing: ChatSFTPreprocessingConfig | PromptCompletionSFTPreprocessingConfig | None = None
    """Rows as conversations, or as prompts with answers, in place of the fields of `dataset_kwargs` that it sets; None:
    only `dataset_kwargs` are used."""

    enable_offline_packing: bool | None = None
    """Megatron-Bridge's switch of `packed_sequence_specs`: true requires them, false excludes them; None: either."""

    packed_sequence_specs: PackedSequenceSpecs | None = None
    """Pack several samples into one sequence, without attention between them. None: one padded sample per sequence."""

    pack_sequences_in_batch: bool = False
    """Concatenate the samples of a micro-batch into one sequence, without attention between them, instead of padding
    each to the longest. Alternative to `packed_sequence_specs` that changes neither the samples of a step nor its loss.
    """

    dataset_kwargs: dict[str, Any] | None = None
    """Fields of `FinetuningOptions` by name."""

    do_validation: bool = True
    """Read `validation.jsonl`."""

    do_test: bool = True
    """Read `test.jsonl`."""

    cache_dir: str | None = None
    """Parent folder of cached tokenized samples. None: `$MB_CACHE_DIR`, or else `~/.cache/mb-trainer`."""

    made_up: bool = field(default=False, init=False)
    """True if samples are generated when `dataset_root` is not set."""

    @property
    def sequence_length(self) -> int:
        """Alias of `seq_length`, under Megatron Core's name."""
        return self.seq_length

    @property
    def roots(self) -> Blend:
        """Folders that contain the files, and their weights.

        Raises:
            BlendError: Only some folders have a weight, a weight is not positive, or the list is empty.
        """
        if isinstance(self.dataset_root, list):
            return blend_from_path(self.dataset_root, field="dataset.dataset_root")
        return [self.dataset_root or ""], None

    @property
    def is_packed(self) -> bool:
        """True if `packed_sequence_specs` or `pack_sequences_in_batch` is set."""
        return self.packed_sequence_specs is not None or self.pack_sequences_in_batch

    @property
    def is_padded(self) -> bool:
        """True: samples have different lengths."""
        return True

    @property
    def options(self) -> FinetuningOptions:
        """Options of the conversion from lines to samples."""
        chosen = {} if self.preprocessing is None else self.preprocessing.options()
        return read_options({**chosen, **(self.dataset_kwargs or {})})

    @property
    def offline_packing_specs(self) -> PackedSequenceSpecs | None:
        """Alias of `packed_sequence_specs`, under Megatron-Bridge's name."""
        return self.packed_sequence_specs

    @offline_packing_specs.setter
    def offline_packing_specs(self, specs: PackedSequenceSpecs | None) -> None:
        self.packed_sequence_specs = specs

    @property
    def enable_in_batch_packing(self) -> bool:
        """Alias of `pack_sequences_in_batch`, under Megatron-Bridge's name."""
        return self.pack_sequences_in_batch

    @enable_in_batch_packing.setter
    def enable_in_batch_packing(self, enabled: bool) -> None:
        self.pack_sequences_in_batch = enabled

    @property
    def longest_sample(self) -> int:
        """Maximum length of a sample in tokens."""
        specs = self.packed_sequence_specs
        return self.seq_length if specs is None else specs.max_single_sequence_length or self.seq_length

    @property
    def tokenizer_workers(self) -> int:
        """Number of processes that tokenize."""
        specs = self.packed_sequence_specs
        return (
            self.memmap_workers
            if specs is None or specs.num_tokenizer_workers < 1
            else specs.num_tokenizer_workers
        )

    def finalize(self) -> None:
        """Reject contradictions.

        Raises:
            ConfigError: The section violates rules; the message lists all of them.
        """
        check_section(self, section="dataset")
        super().finalize()


@accept_sequence_length
@dataclass(kw_only=True)
class SumsFinetuningConfig(FinetuningDatasetConfig):
    """Section for generated addition problems with answers, for fine-tuning without data."""

    made_up: bool = field(default=True, init=False)
    """Always true."""

    largest: int = 19
    """Largest addend; the smallest is 0."""

    @property
    def options(self) -> FinetuningOptions:
        """Options of the conversion from lines to samples; without `chat`, a template of questions is the default."""
        options = dict(self.dataset_kwargs or {})
        if not options.get("chat"):
            options.setdefault("prompt_template", "Q: {input}\nA: {output}")
        return read_options(options)
