"""Functions that run on ranks of `test_datasets.py`."""

import itertools
import tempfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
from megatron.training.datasets.data_samplers import MegatronPretrainingRandomSampler

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


def cyclic_batches(
    fault: str | None, samples: int, micro_batch_size: int, ranks: int, steps: int, consumed: int
) -> list[list[int]]:
    """Return the samples of each global batch, rank after rank, of a run that has consumed some samples."""

    def batches(rank: int) -> list[list[int]]:
        sampler = MegatronPretrainingRandomSampler(
            None, samples, consumed, micro_batch_size, rank, ranks, data_sharding=False
        )
        endless = itertools.chain.from_iterable(iter(sampler) for _ in itertools.count())
        return list(itertools.islice(endless, steps))

    with mb_guard.without(fault) if fault else nullcontext():
        parts = [batches(rank) for rank in range(ranks)]
    return [list(itertools.chain.from_iterable(each)) for each in zip(*parts, strict=True)]
