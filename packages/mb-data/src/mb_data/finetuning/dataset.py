"""Dataset for fine-tuning: samples of different lengths, shuffled per epoch and collated into padded batches.

Shapes: B sequences of a micro-batch, S tokens of the longest sequence after padding.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from mb_data.finetuning.samples import TokenizedSamples


class EpochOrder:
    """Endless sequence of sample numbers, in which every epoch contains each of `total` samples once.

    Without a seed every epoch has the order of the file. With a seed the order of an epoch is a permutation that
    depends only on the seed and the epoch. The permutations of two epochs are kept in memory, because batches that are
    sorted or prefetched may cross the end of an epoch.
    """

    def __init__(self, total: int, *, seed: int | None) -> None:
        self.total, self._seed = total, seed
        self._permutations: dict[int, NDArray[np.int64]] = {}

    def __getitem__(self, index: int) -> int:
        number, position = divmod(index, self.total)
        if self._seed is None:
            return position
        if number not in self._permutations:
            previous = self._permutations.get(number - 1)
            self._permutations = {} if previous is None else {number - 1: previous}
            self._permutations[number] = np.random.default_rng((self._seed, number)).permutation(self.total)
        return int(self._permutations[number][position])


class EpochsOfSamples:
    """Base of the datasets of samples and of packs, which are read over as many epochs as necessary.

    Args:
        samples: The tokenized samples.
        epoch: Number of samples, or of packs, of an epoch.
        size: Length of the dataset.
        seed: Seed of the order; None: that in which they are stored.
    """

    def __init__(self, samples: TokenizedSamples, *, epoch: int, size: int, seed: int | None) -> None:
        self.samples, self.epoch, self._size = samples, epoch, size
        self._order = EpochOrder(epoch, seed=seed)

    def __len__(self) -> int:
        return self._size

    @property
    def mean_tokens(self) -> float:
        """Mean number of tokens of a sample, or of all samples in a pack, without padding."""
        return float(self.samples.lengths.sum()) / self.epoch

    @property
    def length_counts(self) -> dict[float, float]:
        """Number of samples of each length, averaged over the items of the dataset: samples or packs."""
        lengths, numbers = np.unique(self.samples.lengths, return_counts=True)
        return dict(zip(lengths.tolist(), (numbers / self.epoch).tolist(), strict=True))

    def _number(self, index: int) -> int:
        """Return the number of the sample or pack at an index, whose tokens can be read."""
        if not 0 <= index < self._size:
            raise IndexError(index)
        self.samples.require_complete()
        return self._order[index]

    def _sample(self, number: int) -> dict[str, Tensor]:
        """Return `tokens`, `labels` (int64) and `loss_mask` (float32) of a sample, all of shape [length]."""
        start, end = self.samples.starts[number : number + 2]
        ids = torch.from_numpy(self.samples.tokens[start:end].astype(np.int64))
        loss_mask = torch.from_numpy(self.samples.loss_mask[start + 1 : end].astype(np.float32))
        return {"tokens": ids[:-1], "labels": ids[1:], "loss_mask": loss_mask}


def concatenate(
    samples: Sequence[Mapping[str, Tensor]], *, multiple: int, size: int, padding_token: int
) -> dict[str, Tensor]:
    """Return samples as one row of `size` tokens, with the boundaries of Transformer Engine's packed attention.

    Each sample is padded to a multiple of `multiple` tokens; what remains of the row is a sequence of padding alone.

    Returns:
        Shape [S]: `tokens`, `labels`, `position_ids` (int64), `loss_mask` (float32) and `padding_mask` (bool, True
        where there is no sample). `cu_seqlens` (int32, [sequences + 1]) has the start of each sequence, and S.
        `max_seqlen` (int32, []) is the length of the longest. Position ids restart at 0 in every sequence.
    """
    lengths = [_round_up(len(sample["tokens"]), multiple) for sample in samples]
    padding = size - sum(lengths)
    boundaries = np.cumsum([0, *lengths, *([padding] if padding else [])])
    row = {
        "tokens": torch.full((size,), padding_token),
        "labels": torch.full((size,), padding_token),
        "loss_mask": torch.zeros(size),
        "padding_mask": torch.ones(size, dtype=torch.bool),
    }
    for start, sample in zip(boundaries, samples, strict=False):
        for name, tensor in sample.items():
            row[name][start : start + len(tensor)] = tensor
        row["padding_mask"][start : start + len(sample["tokens"])] = False
    sizes = np.diff(boundaries)
    return {
        **row,
        "position_ids": torch.cat([torch.arange(length) for length in sizes]),
        "cu_seqlens": torch.from_numpy(boundaries.astype(np.int32)),
        "max_seqlen": torch.tensor(int(sizes.max()), dtype=torch.int32),
    }


def _round_up(tokens: int, multiple: int) -> int:
    return -(-tokens // multiple) * multiple


class FinetuningDataset(EpochsOfSamples):
    """Map-style dataset of tokenized samples, without padding.

    A sample is a dictionary of `tokens`, `labels` (int64) and `loss_mask` (float32), all of shape [length].

    Args:
        samples: The tokenized samples.
        size: Length of the dataset, over as many epochs as necessary.
        seed: Seed of the order; None: the order of the file.
        padding_token: Token that pads samples to the length of their batch.
        pad_to: Length in tokens to which every batch is padded; None: the longest sample of the batch.
        multiple: Divisor of the length of every batch, for sequences that are split over ranks.
        pack_multiple: Concatenate the samples of a batch, each padded to a multiple of this number of tokens; None: pad
            them to the same length.
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
        pack_multiple: int | None = None,
    ) -> None:
        super().__init__(samples, epoch=len(samples), size=size, seed=seed)
        self._padding_token, self._pad_to, self._multiple = padding_token, pad_to, multiple
        self._pack_multiple = pack_multiple

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return the sample at an index."""
        return self._sample(self._number(index))

    def length(self, index: int) -> int:
        """Return the number of tokens of the sample at an index, without reading it."""
        number = self._order[index]
        return int(self.samples.starts[number + 1] - self.samples.starts[number] - 1)

    def collate(self, samples: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Return a micro-batch in which all samples have the same length, with `position_ids`: tensors of shape [B, S].

        `padding_mask` (bool) is True behind the end of a sample, so that routers of experts leave padding out.

        With `pack_multiple` the samples are one row of `concatenate`, with a leading dimension of 1 on every tensor.
        """
        if self._pack_multiple is not None:
            total = sum(_round_up(len(sample["tokens"]), self._pack_multiple) for sample in samples)
            row = concatenate(
                samples,
                multiple=self._pack_multiple,
                size=_round_up(total, self._multiple),
                padding_token=self._padding_token,
            )
            return {name: tensor.unsqueeze(0) for name, tensor in row.items()}
        longest = max(len(sample["tokens"]) for sample in samples)
        length = _round_up(max(longest, self._pad_to or 0), self._multiple)
        batch = {"position_ids": torch.arange(length).repeat(len(samples), 1)}
        ends = torch.tensor([len(sample["tokens"]) for sample in samples])
        batch["padding_mask"] = batch["position_ids"] >= ends[:, None]
        for name, value in (
            ("tokens", self._padding_token),
            ("labels", self._padding_token),
            ("loss_mask", 0),
        ):
            rows = pad_sequence([sample[name] for sample in samples], batch_first=True, padding_value=value)
            batch[name] = rows if longest == length else pad(rows, (0, length - longest), value=value)
        return batch
