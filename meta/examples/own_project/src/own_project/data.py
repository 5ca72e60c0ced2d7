"""Dataset section: digits in random order, then the same digits sorted. Imports torch only when it is built."""

from dataclasses import dataclass
from typing import Any

from mb_data import DatasetBuildContext, DatasetProvider


@dataclass(kw_only=True)
class SortingDatasetConfig(DatasetProvider):
    """Endless sequences of digits and their sorted copies; a sample is determined by its number."""

    seq_length: int
    """Tokens of a sample: half of them to sort, half of them sorted."""
    digits: int = 10
    """Number of different tokens."""

    def build_datasets(self, context: DatasetBuildContext) -> tuple[Any, Any, Any]:
        """Return the training, validation and test datasets, with disjoint samples."""
        from own_project.sorting import SortedDigits

        splits = (context.train_samples, context.valid_samples, context.test_samples)
        return tuple(
            SortedDigits(self.seq_length, self.digits, samples=samples, split=number) if samples else None
            for number, samples in enumerate(splits)
        )
