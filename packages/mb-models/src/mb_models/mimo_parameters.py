"""How many parameters a model that sees has, by closed formula: no torch, no model built."""

from mb_models.mimo_config import MimoModelConfig
from mb_models.parameters import parameter_count

IMAGE_CHANNELS = 3


def mimo_parameter_count(config: MimoModelConfig, *, vocab_size: int | None = None) -> int:
    """Count the weights of language model, encoder and projection, over all ranks, each shared weight once.

    With h the encoder's width, f that of its MLPs, p pixels of a patch's side and n patches of a picture, the encoder
    has 3 p p h + h weights that make patches into vectors, n h of positions, 4 h (h + 1) + f (2 h + 1) + h in a
    layer, 2 h for each of its two norms, and a final norm. The projection goes from h over its inner width to the
    language model's. That is counted as `parameter_count` does.

    Raises:
        ValueError: as `parameter_count`.
    """
    width, patch = config.vision_hidden_size, config.patch_size
    inner = config.vision_ffn_hidden_size or 4 * width
    norm = 2 * width
    layer = 4 * width * (width + 1) + inner * (2 * width + 1) + width + 2 * norm
    return (
        parameter_count(config, vocab_size=vocab_size)
        + IMAGE_CHANNELS * patch * patch * width
        + width
        + config.image_tokens * width
        + config.vision_num_layers * layer
        + norm
        + _projection(config)
    )


def _projection(config: MimoModelConfig) -> int:
    inner = config.projector_hidden_size or config.hidden_size
    return inner * (config.vision_hidden_size + 1) + config.hidden_size * (inner + 1)
