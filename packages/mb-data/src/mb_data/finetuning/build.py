"""Builder of fine-tuning datasets from their configuration section."""

from functools import partial
from math import lcm
from pathlib import Path

from mb_data.collectives import is_rank_zero, rank_zero_first
from mb_data.config import DatasetBuildContext
from mb_data.errors import TokenizerError
from mb_data.finetuning.blend import BlendedFinetuningDataset
from mb_data.finetuning.bridge_packs import read_max_samples
from mb_data.finetuning.config import FinetuningDatasetConfig, PackedSequenceSpecs
from mb_data.finetuning.dataset import FinetuningDataset
from mb_data.finetuning.files import pack_files
from mb_data.finetuning.first_fit import PackIndex
from mb_data.finetuning.hub import with_files
from mb_data.finetuning.packing import PackedDataset
from mb_data.finetuning.samples import TokenizedSamples, tokenize_samples
from mb_data.finetuning.split_samples import make_packs, read_packs, sequence_multiple, split_files

FinetuningSplit = FinetuningDataset | PackedDataset | BlendedFinetuningDataset | None
FinetuningSplits = tuple[FinetuningSplit, FinetuningSplit, FinetuningSplit]


def build_finetuning_datasets(
    config: FinetuningDatasetConfig,
    context: DatasetBuildContext,
) -> FinetuningSplits:
    """Build the datasets for training, validation and test.

    Collective over the default process group, if it is initialized: rank 0 tokenizes and packs, the other ranks load
    the result from the cache. Training samples (or packs) are reshuffled in every epoch. Validation and test samples
    are repeated in the order of the file.

    Args:
        config: The dataset section; not modified.
        context: Sample counts of the splits, the tokenizer, the padding in addition to that of the section, and the
            function that receives a line of text about the samples of each file.

    Returns:
        Train, validation and test; None if no samples are requested, or if the section disables the split.

    Raises:
        ConfigError: The section contradicts itself.
        DataPathError: A file does not exist.
        BadDocumentError: A line is not a sample. The message names file and line.
        NotEnoughSamplesError: A file has no samples.
        TokenizerError: There is no tokenizer.
    """
    config.finalize()
    named = config
    config = rank_zero_first(lambda: with_files(named, rewrite=named.hf_rewrite and is_rank_zero()))
    if context.tokenizer is None:
        raise TokenizerError(
            "dataset: no tokenizer; it is required to tokenize the samples. Set the tokenizer of the build context."
        )
    sizes = {
        "training": context.train_samples,
        "validation": context.valid_samples if config.do_validation else 0,
        "test": context.test_samples if config.do_test else 0,
    }
    train, valid, test = (
        _build_split(split, size, config=config, context=context) if size else None
        for split, size in sizes.items()
    )
    return train, valid, test


def _build_split(
    split: str, size: int, *, config: FinetuningDatasetConfig, context: DatasetBuildContext
) -> FinetuningDataset | PackedDataset | BlendedFinetuningDataset:
    """Return the dataset of a split: packs that exist, one root, or a blend of several. Collective."""
    specs, existing = config.packed_sequence_specs, pack_files(config, split)
    if specs is not None and existing:
        read = partial(read_packs, existing, config, context.tokenizer, padding=context.padding)
        samples, packs = rank_zero_first(read)
        if context.log is not None:
            context.log(f"{split}: {len(packs)} packs of {samples.count.samples} samples")
        metadata, limit = specs.packed_metadata_path, None
        if metadata is not None:
            limit = read_max_samples(Path(metadata), pack_size=specs.packed_sequence_size)
        return _packed(
            samples, packs, split, size, config=config, specs=specs, context=context, max_samples=limit
        )
    files = rank_zero_first(lambda: split_files(config, split))
    parts = [_build_part(split, file, size, config=config, context=context) for file in files]
    weights = config.roots[1]
    if len(parts) == 1:
        return parts[0]
    if split == "validation" and context.complete_validation:
        weights, size = None, sum(map(len, parts))
    return BlendedFinetuningDataset(parts, weights=weights or [part.epoch for part in parts], size=size)


def _build_part(
    split: str, file: Path, size: int, *, config: FinetuningDatasetConfig, context: DatasetBuildContext
) -> FinetuningDataset | PackedDataset:
    """Tokenize the samples of one file, pack them if configured, and return their dataset. Collective."""
    tokenizer, is_training = context.tokenizer, split == "training"
    samples = rank_zero_first(lambda: tokenize_samples(file, config=config, tokenizer=tokenizer))
    if context.log is not None:
        name = f"{split} ({file})" if len(config.roots[0]) > 1 else split
        context.log(_describe_split(name, samples, longest=config.longest_sample))
    samples = samples.first(config.max_train_samples) if is_training else samples
    specs = config.packed_sequence_specs
    if specs is not None:
        packs = rank_zero_first(lambda: make_packs(samples, specs, padding=context.padding))
        dataset = _packed(samples, packs, split, size, config=config, specs=specs, context=context)
        if context.log is not None:
            pack_size = specs.packed_sequence_size
            filled = f"{dataset.mean_tokens / pack_size:.1%} filled with samples"
            context.log(f"  {len(packs)} packs of {pack_size} tokens, {filled}")
        return dataset
    is_complete = split == "validation" and context.complete_validation
    is_packed = config.pack_sequences_in_batch
    is_padded = not is_packed and (context.padding.to_max_length or config.options.pad_to_max_length)
    return FinetuningDataset(
        samples,
        size=len(samples) if is_complete else size,
        seed=config.seed if is_training else None,
        padding_token=tokenizer.eod,
        pad_to=config.seq_length if is_padded else None,
        multiple=lcm(context.padding.multiple, config.options.pad_seq_length_to_mult),
        pack_multiple=context.padding.sequence_multiple if is_packed else None,
    )


def _packed(
    samples: TokenizedSamples,
    packs: PackIndex,
    split: str,
    size: int,
    *,
    config: FinetuningDatasetConfig,
    specs: PackedSequenceSpecs,
    context: DatasetBuildContext,
    max_samples: int | None = None,
) -> PackedDataset:
    """Return the dataset of packs; only training is shuffled, and a complete validation reads each pack once."""
    is_complete = split == "validation" and context.complete_validation
    return PackedDataset(
        samples,
        packs,
        size=len(packs) if is_complete else size,
        seed=config.seed if split == "training" else None,
        padding_token=context.tokenizer.eod,
        pack_size=specs.packed_sequence_size,
        multiple=sequence_multiple(specs, context.padding),
        pad_cu_seqlens=specs.pad_cu_seqlens,
        max_samples=max_samples,
    )


def _describe_split(split: str, samples: TokenizedSamples, *, longest: int) -> str:
    count = samples.count
    cut = f", {count.cut} of them truncated to {longest} tokens" if count.cut else ""
    left_out = f", {count.left_out} skipped (no token of the answer remained)" if count.left_out else ""
    return f"{split}: {count.samples} samples{cut}{left_out}"
