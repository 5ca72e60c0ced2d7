"""Functions that run on ranks of `test_datasets.py`."""

import tempfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

import mb_guard


def tokens_in_the_loss(fault: str | None, lengths: list[int], seq_length: int) -> list[list[int]]:
    """Read all validation sequences once for each that may be the first; return how many tokens each has in the loss.

    The first list has each sequence read from a dataset of its own.
    """
    with tempfile.TemporaryDirectory() as folder, mb_guard.without(fault) if fault else nullcontext():
        first = _build(Path(folder), lengths, seq_length)
        size = len(first)
        found = [[_count(_build(Path(folder), lengths, seq_length), index) for index in range(size)]]
        for start in range(size):
            dataset = _build(Path(folder), lengths, seq_length)
            counts = {index % size: _count(dataset, index % size) for index in range(start, start + size)}
            found.append([counts[index] for index in range(size)])
        return found


def _count(dataset: GPTDataset, index: int) -> int:
    return int(dataset[index]["loss_mask"].sum())


def _build(folder: Path, lengths: list[int], seq_length: int) -> GPTDataset:
    prefix = folder / "data"
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    for length in lengths:
        builder.add_document(torch.arange(length) % 90, [length])
    builder.finalize(f"{prefix}.idx")
    tokenizer = SimpleNamespace(vocab_size=100, eod=99, pad=-1, unique_identifiers={"class": "numbers"})
    config = GPTDatasetConfig(
        random_seed=1234,
        sequence_length=seq_length,
        blend_per_split=[None, ([str(prefix)], None), None],
        path_to_cache=str(folder),
        tokenizer=tokenizer,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        drop_last_partial_validation_sequence=False,
    )
    built = BlendedMegatronDatasetBuilder(GPTDataset, [0, None, 0], lambda: True, config).build()
    return built[1]
