"""The section of a model that sees: a language model with an encoder of pictures before it. No torch."""

from dataclasses import dataclass, fields

from mb_models.config import GPTModelConfig, KernelFields, PrecisionFields, TransformerFields

SHARED = (
    *(item.name for item in fields(PrecisionFields)),
    *(item.name for item in fields(KernelFields)),
    "tensor_model_parallel_size",
    "hidden_dropout",
    "attention_dropout",
    "layernorm_epsilon",
    "init_method_std",
    "perform_initialization",
    "use_cpu_initialization",
)
"""Fields that encoder and projection take from the language model; all others are their own or at their defaults."""


@dataclass(kw_only=True)
class MimoModelConfig(GPTModelConfig):
    """A GPT that reads pictures and text, on Megatron Core's MIMO model.

    The fields of a GPT are those of the language model. A picture is cut into patches; the encoder, a vision
    transformer of pre-norm layers (LayerNorm, biases, GELU) with learned positions and a final norm, sees all of
    them at once, and an MLP projects each into a place of the text. Precision, kernels, dropout and tensor
    parallelism are the language model's for all three.
    """

    vision_num_layers: int = 12
    """Layers of the encoder."""
    vision_hidden_size: int = 768
    """Width of the encoder."""
    vision_num_attention_heads: int = 12
    """Heads of a layer of the encoder."""
    vision_ffn_hidden_size: int | None = None
    """Inner width of the encoder's MLPs; None: four times vision_hidden_size."""
    projector_hidden_size: int | None = None
    """Inner width of the projection; None: hidden_size."""
    image_size: int = 224
    """Height and width of a picture in pixels; it has three colours."""
    patch_size: int = 14
    """Height and width of a patch in pixels."""
    image_token_id: int = -200
    """Stands in the text where a patch belongs. A negative number takes no row of the embedding."""

    @property
    def image_tokens(self) -> int:
        """Places that a picture takes in the text."""
        return (self.image_size // self.patch_size) ** 2


def encoder_section(config: MimoModelConfig) -> TransformerFields:
    """Return the layers of the encoder as a section of their own."""
    return TransformerFields(
        num_layers=config.vision_num_layers,
        hidden_size=config.vision_hidden_size,
        num_attention_heads=config.vision_num_attention_heads,
        ffn_hidden_size=config.vision_ffn_hidden_size,
        **{name: getattr(config, name) for name in SHARED},
    )


def projection_section(config: MimoModelConfig) -> TransformerFields:
    """Return the MLP of the projection as a section of one layer. Nobody builds its attention, of one head a rank."""
    return TransformerFields(
        num_layers=1,
        hidden_size=config.hidden_size,
        num_attention_heads=config.tensor_model_parallel_size,
        kv_channels=1,
        ffn_hidden_size=config.projector_hidden_size or config.hidden_size,
        **{name: getattr(config, name) for name in SHARED},
    )
