"""Configuration section for generated images with captions. Standard library only."""

from dataclasses import dataclass
from typing import ClassVar

from mb_data.dataset_provider import BuiltInDatasetConfig
from mb_data.rules import check_section


@dataclass(kw_only=True)
class DrawnShapesConfig(BuiltInDatasetConfig):
    """Section for images of one or two coloured shapes, with captions.

    A caption reads, for example, "a small red circle above a large blue square". Images are rendered on access, without
    files or downloads, for any number of samples. Sample `i` of a split depends only on the settings and `i`.
    """

    builder: ClassVar[str] = "mb_data.mimo.synthetic_images:build_image_datasets"

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
