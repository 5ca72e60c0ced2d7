"""Paths of fine-tuning data. Standard library only."""

from pathlib import Path

from mb_data.errors import DataPathError
from mb_data.finetuning_config import FinetuningDatasetConfig


def sample_file(config: FinetuningDatasetConfig, split: str) -> Path:
    """Return the path of the file of a split: training, validation or test.

    Raises:
        DataPathError: The file does not exist.
    """
    file = Path(config.dataset_root or "") / f"{split}.jsonl"
    if not file.is_file():
        instead = {"validation": "set dataset.do_validation=false", "test": "set dataset.do_test=false"}
        raise DataPathError(
            f"dataset.dataset_root: {file} does not exist; the {split} samples are read from it. Correct the path"
            + (f", or {instead[split]}." if split in instead else ".")
        )
    return file
