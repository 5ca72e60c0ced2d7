"""The configuration sections of fine-tuning data. Standard library only.

Constructing a section reads nothing and refuses nothing; `finalize()` raises where the values contradict each other.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from mb_data.aliases import accept_sequence_length
from mb_data.config import DataloaderConfig
from mb_data.finetuning_options import FinetuningOptions, read_options
from mb_data.rules import check_section
from mb_data.strict_fields import StrictFields


@dataclass(kw_only=True)
class PackedSequenceSpecs(StrictFields):
    """Several samples in one sequence: how many tokens it has, and what each of them takes."""

    packed_sequence_size: int = -1
    """Tokens of a pack: the `seq_length` of dataset and model."""

    max_single_sequence_length: int | None = None
    """Longest sample (tokens), to which longer ones are cut; None: a whole pack."""

    tokenizer_model_name: str | None = None
    """Part of the names of cached packs elsewhere. Here they are named by content: refused."""

    num_tokenizer_workers: int = -1
    """Processes that tokenize; -1: as many as `dataset.memmap_workers`."""

    packed_train_data_path: str | None = None
    """Packs for training that are there already, in another trainer's format. Not read here: refused."""

    packed_val_data_path: str | None = None
    """The same for validation."""

    packed_metadata_path: str | None = None
    """Statistics of such packs. Not read here: refused."""

    pad_cu_seqlens: bool = False
    """Make the list of where samples begin equally long in all packs, by repeating its last entry."""

    pad_seq_to_mult: int | None = 1
    """Let each sample in a pack take a multiple of so many tokens."""


@accept_sequence_length
@dataclass(kw_only=True)
class FinetuningDatasetConfig(DataloaderConfig):
    """Prompts with answers, and conversations, from JSON lines: `training.jsonl`, `validation.jsonl`, `test.jsonl`.

    A line is a JSON object: with `messages`, a list of objects with `role` and `content`, it is a conversation, of
    which the assistant's part is learned; any other is put into the template, and its answer is learned.
    """

    dataloader_type: Literal["single", "cyclic", "batch", "external"] | None = "batch"
    """As for every dataset; `batch` draws whole global batches and puts samples of like lengths beside each other."""

    dataset_root: str | None = None
    """Folder with the files."""

    seq_length: int = field(kw_only=False)
    """Tokens of the longest sample, to which longer ones are cut, and of a pack. May be given as first argument, or as
    `sequence_length`."""

    seed: int = 1234
    """Seed of the order of training samples, which is another in every pass over them."""

    memmap_workers: int = 1
    """Processes that tokenize."""

    max_train_samples: int | None = None
    """Read only so many training samples, the first ones; None: all."""

    packed_sequence_specs: PackedSequenceSpecs | None = None
    """Several samples in one sequence, between which no attention passes; None: each by itself, padded."""

    dataset_kwargs: dict[str, Any] | None = None
    """Options by name, those of `FinetuningOptions`."""

    do_validation: bool = True
    """Read `validation.jsonl`."""

    do_test: bool = True
    """Read `test.jsonl`."""

    cache_dir: str | None = None
    """Folder under which tokenized samples are kept; None: `$MB_CACHE_DIR`, or else `~/.cache/mb-trainer`."""

    made_up: bool = field(default=False, init=False)
    """Whether samples are made up where no folder is named."""

    @property
    def sequence_length(self) -> int:
        """Megatron Core's name of `seq_length`."""
        return self.seq_length

    @property
    def options(self) -> FinetuningOptions:
        """How a line becomes a sample."""
        return read_options(self.dataset_kwargs)

    @property
    def longest_sample(self) -> int:
        """Tokens that a sample is cut to."""
        specs = self.packed_sequence_specs
        return self.seq_length if specs is None else specs.max_single_sequence_length or self.seq_length

    @property
    def tokenizer_workers(self) -> int:
        """Processes that tokenize."""
        specs = self.packed_sequence_specs
        return (
            self.memmap_workers
            if specs is None or specs.num_tokenizer_workers < 1
            else specs.num_tokenizer_workers
        )

    def finalize(self) -> None:
        """Refuse contradictions.

        Raises:
            ConfigError: Rules of the section are broken; the message has all of them.
        """
        check_section(self, section="dataset")
        super().finalize()


@accept_sequence_length
@dataclass(kw_only=True)
class SumsFinetuningConfig(FinetuningDatasetConfig):
    """Questions after sums of two numbers, with answers, made up: for trying out fine-tuning without data."""

    made_up: bool = field(default=True, init=False)
    """Always true."""

    largest: int = 19
    """Largest of the numbers that are added up, which begin with 0."""
