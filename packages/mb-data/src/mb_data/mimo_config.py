"""The section of drawn pictures with captions. Standard library only."""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from mb_data.config import DatasetBuildContext, DatasetProvider
from mb_data.rules import check_section

if TYPE_CHECKING:
    from mb_data.synthetic_images import SyntheticImageDataset

Splits = tuple["SyntheticImageDataset | None", "SyntheticImageDataset | None", "SyntheticImageDataset | None"]


@dataclass(kw_only=True)
class DrawnShapesConfig(DatasetProvider):
    """Pictures of one or two coloured shapes, with captions such as "a small red circle above a large blue square".

    Pictures are drawn when they are read: there is no file, no download, and no end of them. Sample `i` of a split is
    the same for the same settings, whatever was read before.
    """

    seq_length: int
    """Tokens in one sample: the picture's places, the caption, its end, and padding."""

    image_size: int = 32
    """Height and width of a picture in pixels."""

    image_tokens: int = 16
    """Places in the sequence that a picture takes: as many as the model cuts patches from it."""

    image_token_id: int = -200
    """Stands at those places. A negative number takes no entry of the vocabulary."""

    random_seed: int = 1234
    """Chooses the pictures; train, validation and test have different ones."""

    def finalize(self) -> None:
        """Settle the loader's fields, and refuse contradictions.

        Raises:
            ConfigError: Rules of the section are broken; the message has all of them.
        """
        check_section(self, section="dataset")
        super().finalize()

    def build_datasets(self, context: DatasetBuildContext) -> Splits:
        """Return the three datasets with as many samples as are asked for, None where none are.

        Raises:
            ConfigError: Rules of the section are broken.
            ValueError: There is no tokenizer, or `seq_length` is too short for the longest caption in its tokens.
        """
        check_section(self, section="dataset")
        drawing = import_module("mb_data.synthetic_images")  # a section loads without NumPy and torch
        counts = (context.train_samples, context.valid_samples, context.test_samples)
        train, valid, test = (
            drawing.SyntheticImageDataset(self, samples=count, split=split, tokenizer=context.tokenizer)
            if count
            else None
            for split, count in enumerate(counts)
        )
        return train, valid, test
