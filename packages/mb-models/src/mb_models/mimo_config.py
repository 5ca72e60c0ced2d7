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
    language_rank_offset: int = 0
    """First rank of the language model. Encoder and projection are on the ranks before it; 0: both are on all ranks."""
    vision_tensor_model_parallel_size: int | None = None
    """Ranks that share each layer of encoder and projection; None: as many as of the language model."""

    @property
    def image_tokens(self) -> int:
        """Places that a picture takes in the text."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def has_module_layouts(self) -> bool:
        """Whether encoder and language model have layouts of their own, or ranks of their own."""
        vision = self.vision_tensor_model_parallel_size
        return self.language_rank_offset != 0 or vision not in (None, self.tensor_model_parallel_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRanks:
    """The ranks of a module: so many in a row, and how they share it."""

    first: int = 0
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1

    @property
    def ranks(self) -> range:
        """All of them."""
        return range(self.first, self.first + self.tensor_parallel_size * self.data_parallel_size)


def module_ranks(config: MimoModelConfig, *, world_size: int) -> tuple[ModuleRanks, ModuleRanks]:
    """Return the ranks of encoder (with projection) and language model, among so many processes.

    Each module has as many replicas as its ranks hold; `mb_models.mimo_layout_rules.module_layout_error` says what
    does not fit.
    """
    first, tp = config.language_rank_offset, config.tensor_model_parallel_size
    vision_tp = config.vision_tensor_model_parallel_size or tp
    return (
        ModuleRanks(tensor_parallel_size=vision_tp, data_parallel_size=(first or world_size) // vision_tp),
        ModuleRanks(first=first, tensor_parallel_size=tp, data_parallel_size=(world_size - first) // tp),
    )


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
