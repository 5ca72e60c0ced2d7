"""Samples and packs of a split of fine-tuning data, computed once and read from the cache after that. No torch.

None of these functions is collective. `mb_data.finetuning.build` calls them on rank 0 first.
"""

import json
from math import lcm
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from mb_data.build_cache import load_or_build, resolve_cache_dir
from mb_data.finetuning.bridge_packs import load_packs
from mb_data.finetuning.config import FinetuningDatasetConfig, PackedSequenceSpecs, SumsFinetuningConfig
from mb_data.finetuning.files import pack_files, sample_files
from mb_data.finetuning.first_fit import PackIndex, pack_lengths
from mb_data.finetuning.hub import with_files
from mb_data.finetuning.samples import TokenizedSamples, tokenize_samples
from mb_data.loading.batch_padding import NO_PADDING, BatchPadding
from mb_data.tokenizers.base import Tokenizer
from mb_schema.files import replaced

PACKS_FORMAT = 1
"""Version of the files of packs. Part of their names, so that a change of the format creates new files."""


def training_epoch_size(
    config: FinetuningDatasetConfig, tokenizer: Tokenizer, *, padding: BatchPadding = NO_PADDING
) -> int:
    """Return the number of training sequences of one epoch: samples, or packs if samples are packed.

    Tokenizes and packs the samples if they are not in the cache. An epoch of a blend has as many sequences as all its
    datasets together, whatever their weights.

    Args:
        config: The section; not modified.
        tokenizer: Converts text to ids.
        padding: Padding that the model requires, which changes the number of packs.

    Raises:
        DataPathError: A file does not exist.
        BadDocumentError: A line is not a sample, or a file is not one of packs. The message names file and line.
        NotEnoughSamplesError: A file has no samples.
        TokenizerError: The tokenizer lacks a chat template or a token that the options require.
    """
    config = with_files(config)
    existing = pack_files(config, "training")
    if existing:
        return len(read_packs(existing, config, tokenizer, padding=padding)[1])
    size = 0
    for file in split_files(config, "training"):
        samples = tokenize_samples(file, config=config, tokenizer=tokenizer).first(config.max_train_samples)
        specs = config.packed_sequence_specs
        size += len(samples if specs is None else make_packs(samples, specs, padding=padding))
    return size


def split_files(config: FinetuningDatasetConfig, split: str) -> list[Path]:
    """Return the files of a split, one for each root; generated problems are written first.

    Raises:
        DataPathError: In a root, no file exists, or there are several.
    """
    if isinstance(config, SumsFinetuningConfig) and not config.dataset_root:
        return [write_addition_samples(config) / f"{split}.jsonl"]
    return sample_files(config, split)


def sequence_multiple(specs: PackedSequenceSpecs, padding: BatchPadding) -> int:
    """Return the number of tokens to a multiple of which each sample in a pack is padded."""
    return lcm(specs.pad_seq_to_mult or 1, padding.sequence_multiple)


def make_packs(samples: TokenizedSamples, specs: PackedSequenceSpecs, *, padding: BatchPadding) -> PackIndex:
    """Pack samples as the specs request."""
    return pack_samples(samples, size=specs.packed_sequence_size, multiple=sequence_multiple(specs, padding))


def pack_samples(samples: TokenizedSamples, *, size: int, multiple: int) -> PackIndex:
    """Pack samples with `pack_lengths`, or load the packs from a file in the folder of the samples.

    Args:
        samples: The samples to pack.
        size: Length of a pack in tokens.
        multiple: The length of each sample is rounded up to a multiple of this number of tokens.
    """
    file = samples.folder / f"packs-{PACKS_FORMAT}-{len(samples)}-{size}-{multiple}.npz"
    try:
        with np.load(file) as arrays:
            return PackIndex(members=arrays["members"], starts=arrays["starts"])
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        pass  # missing or damaged: pack again
    padded_lengths = -(-samples.lengths // multiple) * multiple
    packs = pack_lengths(padded_lengths, size=size)
    with replaced(file) as part, part.open("wb") as stream:
        np.savez(stream, members=packs.members, starts=packs.starts)
    return packs


def read_packs(
    files: list[Path], config: FinetuningDatasetConfig, tokenizer: Tokenizer, *, padding: BatchPadding
) -> tuple[TokenizedSamples, PackIndex]:
    """Return the samples of existing packs, and the packs. Raises as `load_packs`."""
    specs = config.packed_sequence_specs or PackedSequenceSpecs()
    return load_packs(
        files,
        cache_dir=resolve_cache_dir(config.cache_dir),
        pack_size=specs.packed_sequence_size,
        multiple=sequence_multiple(specs, padding),
        vocab_size=tokenizer.vocab_size,
    )


_HELD_OUT = {"validation": 0.1, "test": 0.1}


def write_addition_samples(config: SumsFinetuningConfig) -> Path:
    """Write the samples, unless they are in the cache, and return their folder.

    A tenth of the pairs is held out for validation and a tenth for the test split, identical for every seed. Concurrent
    calls from several processes are safe. Not collective.
    """
    folder = resolve_cache_dir(config.cache_dir) / "finetuning" / f"sums-{config.largest}"

    def build(building: Path) -> None:
        size = config.largest + 1
        pairs = np.random.default_rng(size).permutation(size * size)
        begin = 0
        for split, part in {**_HELD_OUT, "training": 1.0}.items():
            end = len(pairs) if part == 1.0 else begin + max(1, round(part * len(pairs)))
            lines = [_format_line(*divmod(int(pair), size)) for pair in pairs[begin:end]]
            (building / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
            begin = end

    return load_or_build(folder, load=_load, build=build)


def _format_line(first: int, second: int) -> str:
    return json.dumps({"input": f"How much is {first} + {second}?", "output": str(first + second)}) + "\n"


def _load(folder: Path, *, reused: bool) -> Path | None:
    return folder if (folder / "training.jsonl").is_file() else None
