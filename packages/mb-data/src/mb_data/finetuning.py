"""Datasets for fine-tuning: samples of different lengths in an order of their own, put together in padded batches.

Shapes: B sequences of a micro-batch, S tokens of the longest, after padding.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mb_data.finetuning_samples import TokenizedSamples


class EpochOrder:
    """Which of `total` samples stands at each of endless places.

    Every pass has all samples once: in their own order, or with a seed in one drawn from the seed and the number of the
    pass alone.
    """

    def __init__(self, total: int, *, seed: int | None) -> None:
        self.total, self._seed = total, seed
        self._passes: dict[int, NDArray[np.int64]] = {}

    def __getitem__(self, index: int) -> int:
        number, rest = divmod(index, self.total)
        if self._seed is None:
            return rest
        if number not in self._passes:
            kept = self._passes.get(number - 1)
            self._passes = {} if kept is None else {number - 1: kept}
            self._passes[number] = np.random.default_rng((self._seed, number)).permutation(self.total)
        return int(self._passes[number][rest])


class FinetuningDataset:
    """Samples by place, each as long as it is.

    A sample is a dictionary of `tokens`, `labels` (int64) and `loss_mask` (float32), all [length].

    Args:
        samples: What was tokenized.
        size: How many samples it has, in as many passes as that takes.
        seed: Of their order; None: the file's.
        padding_token: Stands where a sample is shorter than its batch.
        pad_to: Tokens to which every batch is padded; None: its longest sample.
        multiple: Number of tokens that divides the length of a batch, for what is cut over ranks.
    """

    def __init__(
        self,
        samples: TokenizedSamples,
        *,
        size: int,
        seed: int | None,
        padding_token: int,
        pad_to: int | None = None,
        multiple: int = 1,
    ) -> None:
        self.samples, self._size = samples, size
        self._order = EpochOrder(len(samples), seed=seed)
        self._padding_token, self._pad_to, self._multiple = padding_token, pad_to, multiple

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return a sample."""
        if not 0 <= index < self._size:
            raise IndexError(index)
        start, end = self.samples.starts[(number := self._order[index]) : number + 2]
        ids = torch.from_numpy(self.samples.tokens[start:end].astype(np.int64))
        loss_mask = torch.from_numpy(self.samples.loss_mask[start + 1 : end].astype(np.float32))
        return {"tokens": ids[:-1], "labels": ids[1:], "loss_mask": loss_mask}

    @property
    def mean_tokens(self) -> float:
        """Tokens of a sample on the average, without padding."""
        return float(self.samples.lengths.mean())

    @property
    def attention_length(self) -> float:
        """Length of a sequence that has the attention of these per token: their squares' sum over their sum."""
        return self.samples.attention_length

    def length(self, index: int) -> int:
        """Return the tokens of the sample at a place, without reading it."""
        number = self._order[index]
        return int(self.samples.starts[number + 1] - self.samples.starts[number] - 1)

    def collate(self, samples: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Pad samples to the same length, behind their ends, and add `position_ids`: tensors of [B, S]."""
        longest = max(len(sample["tokens"]) for sample in samples)
        length = -(-max(longest, self._pad_to or 0) // self._multiple) * self._multiple
        padding = {"tokens": self._padding_token, "labels": self._padding_token, "loss_mask": 0}
        batch = {
            name: torch.stack(
                [
                    torch.nn.functional.pad(each[name], (0, length - len(each[name])), value=value)
                    for each in samples
                ]
            )
            for name, value in padding.items()
        }
        return {**batch, "position_ids": torch.arange(length).expand(len(samples), length).contiguous()}
