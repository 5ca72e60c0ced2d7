"""Blend of Megatron Core's datasets that opens each of them when its first sample is read.

Megatron's builder opens every file of every dataset at the start. With a record of an earlier build, the start reads
the indices of the blend only.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import megatron.core
import numpy as np
from megatron.core.datasets.blended_dataset import BlendedDataset
from megatron.core.datasets.utils import Split

from mb_data.collectives import Gather, gather_from_all_ranks, is_rank_zero
from mb_data.errors import IndexedFormatError
from mb_data.megatron.cached_indices import require_numeric_array
from mb_data.megatron.conversion import blends_of
from mb_data.megatron.fingerprint import PairState, pair_state
from mb_data.megatron.gpt_dataset import GPTDataset
from mb_data.megatron.index_record import IndexRecord, PartRecord, SplitRecord, read_record, write_record

logger = logging.getLogger(__name__)

_NOT_PART_OF_KEY = {"path_to_cache", "num_dataset_builder_threads"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOpener:
    """Opens the datasets of a split with Megatron's class, after a check that their files are the recorded ones."""

    config: Any
    """Megatron's configuration."""
    split: Split
    files: Mapping[str, tuple[int, int]]
    """Sizes and modification times of the index files, by name."""
    pairs: Mapping[str, PairState]
    """State of each pair at the start."""
    quiet: Callable[[], AbstractContextManager[None]]
    """Context in which messages of Megatron that are expected are suppressed."""

    def __call__(self, part: PartRecord) -> Any:
        """Open a dataset.

        Raises:
            IndexedFormatError: The pair or an index was replaced, or an index is not an array of numbers.
        """
        self._require_unchanged(part)
        bounds = (0.0, 1.0) if self.config.blend is None else self.config.split_matrix[self.split.value]
        with self.quiet():
            low = GPTDataset.build_low_level_dataset(part.prefix, self.config)
            begin, end = (round(edge * float(GPTDataset.numel_low_level_dataset(low))) for edge in bounds)
            indices = np.arange(begin, end, dtype=np.int32)
            return GPTDataset(low, part.prefix, indices, part.num_samples, self.split, self.config)

    def _require_unchanged(self, part: PartRecord) -> None:
        for name in part.files:
            path = Path(self.config.path_to_cache, name)
            if _size(path) != self.files[name][0]:
                raise IndexedFormatError(
                    f"{path}: was removed or replaced since the start, and this rank had not read it yet. Start again; "
                    "the index is then built again."
                )
            if name.endswith(".npy"):
                require_numeric_array(path)
        at_start, now = self.pairs[part.prefix], pair_state(part.prefix)
        if now.sizes != at_start.sizes:
            raise IndexedFormatError(
                f"{part.prefix}: the files had {at_start.sizes} bytes (.bin, .idx) at the start and have {now.sizes} "
                "now; the sample indices no longer belong to them. Restore them, or start again."
            )
        if now != at_start:
            logger.warning(
                "%s: modified since the start, at the same sizes. Samples are read from it as it is.",
                part.prefix,
            )


class OnDemandDatasets(Sequence[Any]):
    """Datasets of a blend, each opened at its first use and kept open. Copies to other processes are not open."""

    def __init__(self, parts: Sequence[PartRecord], opener: PartOpener) -> None:
        self._parts, self._opener = parts, opener
        self._opened: list[Any] = [None] * len(parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        if self._opened[index] is None:
            self._opened[index] = self._opener(self._parts[index])
        return self._opened[index]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._parts, self._opener)


class RecordedBlend(BlendedDataset):  # type: ignore[misc] # Megatron Core has no types
    """Megatron's blend from a record, with the same samples.

    The constructor of the base class needs every dataset, to name the cached indices; here their names are known.
    """

    def __init__(self, record: SplitRecord, datasets: OnDemandDatasets, *, config: Any, split: Split) -> None:
        self.datasets, self.split, self.config = datasets, split, config
        self.weights, self.size = list(record.weights), record.size
        self.unique_description_hash = str(record.name).partition("-")[0]
        base = Path(config.path_to_cache, str(record.name))
        self._description = Path(f"{base}-description.txt")
        self.dataset_index = np.load(f"{base}-dataset_index.npy", mmap_mode="r")
        self.dataset_sample_index = np.load(f"{base}-dataset_sample_index.npy", mmap_mode="r")

    @property
    def unique_description(self) -> str:
        """Settings and datasets of the blend, as JSON."""
        return self._description.read_text(encoding="utf-8")


def is_recordable(config: Any) -> bool:
    """Return whether datasets of Megatron's configuration can be recorded: a blend of files on a file system."""
    blends = [prefixes for prefixes, _ in blends_of(config)]
    return (
        max(map(len, blends), default=0) > 1
        and not (config.fast_cache_load or config.defer_npy_index_mmap)
        and not any("://" in prefix for prefixes in blends for prefix in prefixes)
    )


def find_record(
    config: Any,
    sizes: Sequence[int | None],
    *,
    reads_data: bool,
    gather: Gather = gather_from_all_ranks,
) -> IndexRecord | None:
    """Return the record of an earlier build of the same datasets, if all ranks that read data have it. Collective.

    Rank 0 compares the index files with the record; the other ranks compare theirs when they open them.

    Args:
        config: Megatron's configuration.
        sizes: Samples of each split.
        reads_data: Whether this rank reads data. A rank that reads none gets a record without datasets.
        gather: All-gather of Python objects over the ranks of the run.
    """
    local_record = None
    if reads_data:
        local_record = read_record(_record_path(config, sizes), compare=is_rank_zero())
    by_rank = gather((reads_data, None if local_record is None else local_record.digest))
    first = by_rank[0][1]
    if first is None or any(digest != first for reads, digest in by_rank if reads):
        return None
    return local_record or IndexRecord(splits=(None,) * len(sizes), files={})


def open_record(
    record: IndexRecord,
    config: Any,
    *,
    pairs: Mapping[str, PairState],
    quiet: Callable[[], AbstractContextManager[None]],
) -> list[Any]:
    """Return the datasets of each split: a blend opens its datasets on demand, other splits are opened here."""
    datasets_by_split: list[Any] = []
    for split, recorded in zip(Split, record.splits, strict=True):
        opener = PartOpener(config=config, split=split, files=record.files, pairs=pairs, quiet=quiet)
        if recorded is None:
            datasets_by_split.append(None)
        elif recorded.name is not None:
            datasets = OnDemandDatasets(recorded.parts, opener)
            datasets_by_split.append(RecordedBlend(recorded, datasets, config=config, split=split))
        else:
            datasets_by_split.append(opener(recorded.parts[0]))
    return datasets_by_split


def record_datasets(config: Any, sizes: Sequence[int | None], built: Sequence[Any]) -> None:
    """Write the record of datasets that Megatron's builder returned. A later start finds it with `find_record`."""
    write_record(_record_path(config, sizes), tuple(_split_record(dataset) for dataset in built))


def _split_record(dataset: Any) -> SplitRecord | None:
    if dataset is None:
        return None
    if isinstance(dataset, BlendedDataset):
        return SplitRecord(
            parts=tuple(map(_part_record, dataset.datasets)),
            name=f"{dataset.unique_description_hash}-BlendedDataset-{dataset.split.name}",
            weights=tuple(dataset.weights),
            size=dataset.size,
        )
    return SplitRecord(parts=(_part_record(dataset),))


def _part_record(dataset: Any) -> PartRecord:
    return PartRecord(
        prefix=dataset.dataset_path,
        num_samples=dataset.num_samples,
        name=f"{dataset.unique_description_hash}-{type(dataset).__name__}-{dataset.index_split.name}",
    )


def _record_path(config: Any, sizes: Sequence[int | None]) -> Path:
    """Return the file of the record, named by everything that the datasets depend on."""
    values = {
        field.name: getattr(config, field.name)
        for field in fields(config)
        if field.name not in _NOT_PART_OF_KEY
    }
    described = json.dumps(
        [megatron.core.__version__, list(sizes), values],
        default=lambda value: getattr(value, "unique_identifiers", None) or repr(value),
    )
    return Path(config.path_to_cache) / f"datasets-{hashlib.sha256(described.encode()).hexdigest()[:24]}.json"


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
