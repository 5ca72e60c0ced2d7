"""Dataset of generated images of coloured shapes, with captions.

Shapes: H height and width of an image in pixels, S tokens of a sample.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray

from mb_data.dataset_provider import DatasetBuildContext
from mb_data.errors import DatasetError
from mb_data.mimo.config import DrawnShapesConfig
from mb_data.rules import check_section
from mb_data.tokenizers.base import Tokenizer

Grid = NDArray[np.float64]

COLOURS = MappingProxyType(
    {
        "red": (220, 40, 40),
        "green": (40, 170, 60),
        "blue": (40, 80, 220),
        "yellow": (240, 210, 50),
        "black": (20, 20, 20),
    }
)
"""Name -> red, green, blue, 0 to 255."""

SIZES = MappingProxyType({"small": (0.09, 0.12), "large": (0.18, 0.21)})
"""Name -> smallest and largest radius, as fractions of the image size."""

KINDS: MappingProxyType[str, Callable[[Grid, Grid], NDArray[np.bool_]]] = MappingProxyType(
    {
        "circle": lambda right, down: right**2 + down**2 <= 1,
        "square": lambda right, down: np.maximum(abs(right), abs(down)) <= 0.9,
        "triangle": lambda right, down: (down <= 0.8) & (2 * abs(right) <= down + 1.2),
    }
)
"""Name -> function that returns the mask of a shape from offsets to its centre, in radii."""

POSITIONS = MappingProxyType(
    {
        "upper left": (0.28, 0.28),
        "upper right": (0.72, 0.28),
        "lower left": (0.28, 0.72),
        "lower right": (0.72, 0.72),
    }
)
"""Name -> mean centre of a single shape, as fractions of the image size from the left and from the top."""

RELATIONS = MappingProxyType(
    {
        "above": ((0.5, 0.26), (0.5, 0.74)),
        "below": ((0.5, 0.74), (0.5, 0.26)),
        "left of": ((0.26, 0.5), (0.74, 0.5)),
        "right of": ((0.74, 0.5), (0.26, 0.5)),
    }
)
"""Name -> mean centres of two shapes, as fractions of the image size."""

POSITION_JITTER = 0.03
"""Maximum offset of a centre from its mean in each direction, as a fraction of the image size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageShape:
    """Shape in an image. Lengths are fractions of the image size."""

    size: str
    colour: str
    kind: str
    radius: float
    right: float
    """Distance of the centre from the left edge."""
    down: float
    """Distance of the centre from the upper edge."""

    @property
    def description(self) -> str:
        """Description, such as "a small red circle"."""
        return f"a {self.size} {self.colour} {self.kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Content of an image, with its caption."""

    caption: str
    shapes: tuple[ImageShape, ...]
    background: int
    """Grey level of the background, 0 to 255."""


def sample_scene(generator: np.random.Generator) -> Scene:
    """Sample one shape and its position, or two shapes and their relation."""
    single = bool(generator.integers(2))
    names = list(POSITIONS if single else RELATIONS)
    name = names[generator.integers(len(names))]
    centres = [POSITIONS[name]] if single else RELATIONS[name]
    shapes = tuple(_sample_shape(generator, centre) for centre in centres)
    first, last = shapes[0].description, shapes[-1].description
    caption = f"{first} in the {name}" if single else f"{first} {name} {last}"
    return Scene(caption=caption, shapes=shapes, background=int(generator.integers(200, 256)))


def render_scene(scene: Scene, *, side: int) -> NDArray[np.uint8]:
    """Render a scene as [H, H, 3], with red, green and blue from 0 to 255. Later shapes cover earlier ones."""
    image_HH3 = np.full((side, side, 3), scene.background, np.uint8)
    middles = (np.arange(side) + 0.5) / side
    for shape in scene.shapes:
        right_1H, down_H1 = middles[None] - shape.right, middles[:, None] - shape.down
        covered_HH = KINDS[shape.kind](*np.broadcast_arrays(right_1H / shape.radius, down_H1 / shape.radius))
        image_HH3[covered_HH] = COLOURS[shape.colour]
    return image_HH3


def all_captions() -> list[str]:
    """Return all possible captions in a fixed order."""
    shapes = [f"a {size} {colour} {kind}" for size, colour, kind in product(SIZES, COLOURS, KINDS)]
    single = [f"{shape} in the {position}" for shape in shapes for position in POSITIONS]
    return [
        *single,
        *(f"{first} {relation} {second}" for first in shapes for relation in RELATIONS for second in shapes),
    ]


class SyntheticImageDataset(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Map-style dataset of generated images with captions.

    A sample contains `images` (float32, [3, H, H], from -1 to 1), and `tokens`, `labels`, `position_ids` (int64, [S])
    and `loss_mask` (float32, [S]). The tokens are the image placeholders, the caption and padding. The mask is 1 where
    the label is a token of the caption or its end-of-document token.

    Sample i of a split depends only on the settings, the split and i.

    Args:
        config: The dataset section.
        samples: Length of the dataset. Does not affect the samples.
        split: 0 for training, 1 for validation, 2 for test.
        tokenizer: Converts captions to tokens. Its end-of-document token ends and pads them.

    Raises:
        ConfigError: The section violates rules.
        DatasetError: There is no tokenizer, or the longest caption does not fit.
    """

    def __init__(
        self, config: DrawnShapesConfig, *, samples: int, split: int, tokenizer: Tokenizer | None
    ) -> None:
        check_section(config, section="dataset")
        if tokenizer is None:
            raise DatasetError(
                "dataset: no tokenizer; it is required to tokenize the captions. Set the tokenizer of the build "
                "context."
            )
        longest = max(len(tokenizer.encode(text)) for text in all_captions())
        if config.image_tokens + longest > config.seq_length:
            raise DatasetError(
                f"dataset.seq_length: {config.seq_length} tokens are too few for {config.image_tokens} image "
                f"tokens and a caption of up to {longest} tokens; captions are not truncated. Set at least "
                f"{config.image_tokens + longest}."
            )
        self.config, self._samples, self._split, self._tokenizer = config, samples, split, tokenizer

    def __len__(self) -> int:
        return self._samples

    def scene(self, index: int) -> Scene:
        """Return the scene of sample `index`."""
        return sample_scene(np.random.default_rng((self.config.random_seed, self._split, index)))

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        scene = self.scene(index)
        image_HH3 = torch.from_numpy(render_scene(scene, side=self.config.image_size))
        return {
            "images": image_HH3.permute(2, 0, 1).float() / 127.5 - 1,
            **self._text(self._tokenizer.encode(scene.caption)),
        }

    def _text(self, caption: Sequence[int]) -> dict[str, torch.Tensor]:
        length, before, end = self.config.seq_length, self.config.image_tokens, self._tokenizer.eod
        text_S1 = torch.full((length + 1,), end)
        text_S1[before : before + len(caption)] = torch.tensor(caption)
        tokens_S, labels_S = text_S1[:-1].clone(), text_S1[1:]
        tokens_S[:before] = self.config.image_token_id
        loss_mask_S = torch.zeros(length)
        loss_mask_S[before - 1 : before + len(caption)] = 1
        return {
            "tokens": tokens_S,
            "labels": labels_S,
            "loss_mask": loss_mask_S,
            "position_ids": torch.arange(length),
        }


def _sample_shape(generator: np.random.Generator, centre: tuple[float, float]) -> ImageShape:
    size, colour, kind = (list(table)[generator.integers(len(table))] for table in (SIZES, COLOURS, KINDS))
    right, down = np.asarray(centre) + generator.uniform(-POSITION_JITTER, POSITION_JITTER, 2)
    return ImageShape(
        size=size,
        colour=colour,
        kind=kind,
        radius=float(generator.uniform(*SIZES[size])),
        right=float(right),
        down=float(down),
    )


def build_image_datasets(
    config: DrawnShapesConfig, context: DatasetBuildContext
) -> tuple[SyntheticImageDataset | None, SyntheticImageDataset | None, SyntheticImageDataset | None]:
    """Return the training, validation and test datasets of generated images; None where no samples are requested.

    Not collective.

    Raises:
        ConfigError: The section violates rules.
        DatasetError: There is no tokenizer, or `seq_length` is too small for the longest caption.
    """
    counts = (context.train_samples, context.valid_samples, context.test_samples)
    train, valid, test = (
        SyntheticImageDataset(config, samples=count, split=split, tokenizer=context.tokenizer)
        if count
        else None
        for split, count in enumerate(counts)
    )
    return train, valid, test
