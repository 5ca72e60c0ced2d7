"""Configuration section for generated images with captions. Standard library only."""

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
    """Section for images of one or two coloured shapes, with captions.

    A caption reads, for example, "a small red circle above a large blue square". Images are rendered on access, without
    files or downloads, for any number of samples. Sample `i` of a split depends only on the settings and `i`.
    """

    seq_length: int
    """Tokens in one sample: image placeholders, caption, end-of-document token and padding."""

    image_size: int = 32
    """Height and width of an image in pixels."""

    image_tokens: int = 16
    """Number of placeholder tokens of an image. Equals the number of patches that the model cuts from it."""

    image_token_id: int = -200
    """Id of the placeholder tokens. A negative number uses no entry of the vocabulary."""

    random_seed: int = 1234
    """Seed of the images. Train, validation and test have different images."""

    def finalize(self) -> None:
        """Compute the derived fields of the loader, and reject contradictions.

        Raises:
            ConfigError: The section violates rules; the message lists all of them.
        """
        check_section(self, section="dataset")
        super().finalize()

    def build_datasets(self, context: DatasetBuildContext) -> Splits:
        """Return the three datasets with the requested numbers of samples; None for a number of 0.

        Raises:
            ConfigError: The section violates rules.
            ValueError: There is no tokenizer, or `seq_length` is too small for the longest caption.
        """
        check_section(self, section="dataset")
        images = import_module("mb_data.synthetic_images")  # sections load without NumPy and torch
        counts = (context.train_samples, context.valid_samples, context.test_samples)
        train, valid, test = (
            images.SyntheticImageDataset(self, samples=count, split=split, tokenizer=context.tokenizer)
            if count
            else None
            for split, count in enumerate(counts)
        )
        return train, valid, test
