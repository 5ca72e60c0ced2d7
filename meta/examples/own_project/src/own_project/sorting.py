"""Samples of sorted digits."""

import torch
from torch.utils.data import Dataset


class SortedDigits(Dataset[dict[str, torch.Tensor]]):
    """Map-style dataset of `samples` sequences.

    Args:
        seq_length: Tokens of a sample.
        digits: Number of different tokens.
        samples: Length of the dataset.
        split: 0, 1 or 2: different samples for training, validation and test.
    """

    def __init__(self, seq_length: int, digits: int, *, samples: int, split: int) -> None:
        self._seq_length, self._digits = seq_length, digits
        self._samples, self._split = samples, split

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """Return tokens, labels, loss mask and positions of sample `index`, each of shape [seq_length]."""
        length, half = self._seq_length, (self._seq_length + 1) // 2
        random = torch.Generator().manual_seed(3 * int(index) + self._split)
        digits = torch.randint(self._digits, (half,), generator=random)
        text = torch.cat([digits, digits.sort().values])[: length + 1]
        return {
            "tokens": text[:length],
            "labels": torch.nn.functional.pad(text[1:], (0, length + 1 - len(text))),
            "loss_mask": torch.ones(length),
            "position_ids": torch.arange(length),
        }
