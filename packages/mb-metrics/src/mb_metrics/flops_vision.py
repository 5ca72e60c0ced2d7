"""FLOPs of what a picture costs before the language model reads it: patches, encoder, projection."""

from mb_metrics.flops import FlopsPerToken
from mb_metrics.flops_model_shape import FlopsModelShape

COLOURS = 3


def vision_encoder(shape: FlopsModelShape) -> FlopsPerToken:
    """Count one picture, forward and backward: 6 for each weight and patch, 12 for each channel of a pair of patches.

    The weights that make patches into vectors count 4, because the picture itself gets no gradient. Every patch
    attends to every other. The projection is two matrices.

    Raises:
        UnknownFlopsError: a size is missing, or a patch is larger than the picture.
    """
    hidden, patch = shape.size("vision_hidden_size"), shape.size("patch_size")
    inner = shape.size("vision_ffn_hidden_size", 4 * hidden)
    patches = (shape.size("image_size") // patch) ** 2
    layer = 6 * (4 * hidden * hidden + 2 * hidden * inner) + 12 * hidden * patches
    projection = 6 * shape.size("projector_hidden_size", shape.hidden) * (hidden + shape.hidden)
    each = 4 * COLOURS * patch * patch * hidden + shape.size("vision_num_layers") * layer + projection
    return FlopsPerToken(encoder=patches * each)
