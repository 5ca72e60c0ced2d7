"""Blend of fine-tuning datasets by weights."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mb_data.finetuning.dataset import FinetuningDataset
from mb_data.finetuning.packing import PackedDataset


class BlendedFinetuningDataset:
    """Map-style dataset that interleaves fine-tuning datasets, so that every stretch of it has about their weights.

    Sample k of a dataset with weight w is placed at (k + 0.5) / w, and the order is that of these numbers. The first
    samples therefore do not depend on the size, and with the lengths of the datasets as weights every epoch contains
    each of their samples once.

    Args:
        datasets: Datasets of samples, or of packs, each of at least `size` samples over as many epochs as necessary.
        weights: Positive weights of the datasets, which need not sum to 1.
        size: Length of the dataset.
    """

    def __init__(
        self, datasets: Sequence[FinetuningDataset | PackedDataset], *, weights: Sequence[float], size: int
    ) -> None:
        self.datasets, self._size = datasets, size
        self._shares = np.array(weights, np.float64) / sum(weights)
        self._numbers, self._positions = interleave(self._shares, size=size)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return the sample at an index."""
        if not 0 <= index < self._size:
            raise IndexError(index)
        dataset, position = self._locate(index)
        return dataset[position]

    @property
    def mean_tokens(self) -> float:
        """Mean number of tokens of a sample, without padding."""
        return float(np.dot(self._shares, [part.mean_tokens for part in self.datasets]))

    @property
    def length_counts(self) -> dict[float, float]:
        """Number of samples of each length, averaged over the items of the blend: samples or packs."""
        counts: dict[float, float] = {}
        for share, part in zip(self._shares.tolist(), self.datasets, strict=True):
            for length, number in part.length_counts.items():
                counts[length] = counts.get(length, 0.0) + share * number
        return counts

    def length(self, index: int) -> int:
        """Return the number of tokens of the sample at an index, without reading it; 0 for packs, which are equal."""
        dataset, position = self._locate(index)
        return dataset.length(position) if isinstance(dataset, FinetuningDataset) else 0

    def collate(self, samples: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Collate samples as the datasets do."""
        return self.datasets[0].collate(samples)

    def _locate(self, index: int) -> tuple[FinetuningDataset | PackedDataset, int]:
        return self.datasets[int(self._numbers[index])], int(self._positions[index])


def interleave(shares: NDArray[np.float64], *, size: int) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Return the dataset of each sample of a blend, and the position of the sample in it.

    Args:
        shares: Weights of the datasets, with a sum of 1.
        size: Number of samples.
    """
    # The first `size` samples are placed before `size` plus half the number of datasets, where each dataset has
    # at least its share less a half.
    counts = np.ceil(shares * (size + len(shares) / 2)).astype(np.int64) + 1
    numbers = np.repeat(np.arange(len(shares), dtype=np.int16), counts)
    positions = np.concatenate([np.arange(count) for count in counts])
    order = np.argsort((positions + 0.5) / shares[numbers], kind="stable")[:size]
    return numbers[order], positions[order]
