"""FLOPs of the vision encoder for one image: patch embedding, encoder layers and projection."""

from mb_metrics.flops.model_shape import FlopsModelShape
from mb_metrics.flops.per_token import FlopsPerToken

COLOURS = 3


def vision_encoder(shape: FlopsModelShape) -> FlopsPerToken:
    """Count one image, forward and backward: 6 per weight and patch, 12 per channel and pair of patches.

    The weights of the patch embedding count 4, because the image itself receives no gradient. Every patch attends to
    every other patch. The projection consists of two matrices.

    Raises:
        UnknownFlopsError: a size is missing, or a patch is larger than the image.
    """
    hidden, patch = shape.size("vision_hidden_size"), shape.size("patch_size")
    inner = shape.size("vision_ffn_hidden_size", 4 * hidden)
    patches = (shape.size("image_size") // patch) ** 2
    layer = 6 * (4 * hidden * hidden + 2 * hidden * inner) + 12 * hidden * patches
    projection = 6 * shape.size("projector_hidden_size", shape.hidden) * (hidden + shape.hidden)
    per_patch = 4 * COLOURS * patch * patch * hidden + shape.size("vision_num_layers") * layer + projection
    return FlopsPerToken(encoder=patches * per_patch)
