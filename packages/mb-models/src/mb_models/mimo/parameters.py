"""Parameter count of a vision-language model by closed formula, without torch and without building the model."""

from mb_models.gpt.parameters import parameter_count
from mb_models.mimo.config import MimoModelConfig

IMAGE_CHANNELS = 3


def mimo_parameter_count(config: MimoModelConfig, *, vocab_size: int | None = None) -> int:
    """Return the number of weights of all modules, over all ranks; a shared weight counts once.

    With h the encoder's width, f that of its MLPs, p pixels of a patch's side and n patches of an image, the encoder
    has 3 p p h + h weights in the patch embedding, n h of positions, 4 h (h + 1) + f (2 h + 1) + h in a
    layer, 2 h for each of its two norms, and a final norm. The projection leads from h over its inner width to the
    language model's hidden size. The language model is counted as by `parameter_count`.

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
