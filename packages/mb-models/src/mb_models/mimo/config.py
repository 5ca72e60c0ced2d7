"""Section of a vision-language model: a language model with an image encoder. No torch."""

from dataclasses import dataclass, fields
from typing import TypeGuard

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
"""Fields that encoder and projection take from the language model; other fields are separate or defaults."""


@dataclass(kw_only=True)
class MimoModelConfig(GPTModelConfig):
    """A GPT that reads images and text, on Megatron Core's MIMO model.

    The fields of a GPT are those of the language model. An image is divided into patches; the encoder, a vision
    transformer of pre-norm layers (LayerNorm, biases, GELU) with learned positions and a final norm, attends to all of
    them, and an MLP projects each into an embedding at its position in the text. Precision, kernels, dropout and tensor
    parallelism are the language model's for all three.
    """

    vision_num_layers: int = 12
    """Layers of the encoder."""
    vision_hidden_size: int = 768
    """Width of the encoder."""
    vision_num_attention_heads: int = 12
    """Attention heads of an encoder layer."""
    vision_ffn_hidden_size: int | None = None
    """Inner width of the encoder's MLPs; None: four times vision_hidden_size."""
    projector_hidden_size: int | None = None
    """Inner width of the projection; None: hidden_size."""
    image_size: int = 224
    """Height and width of an image in pixels; it has three channels."""
    patch_size: int = 14
    """Height and width of a patch in pixels."""
    image_token_id: int = -200
    """Placeholder token of a patch in the text. A negative number needs no row of the embedding."""
    language_rank_offset: int = 0
    """First rank of the language model. Encoder and projection are on the ranks before it; 0: both are on all ranks."""
    vision_tensor_model_parallel_size: int | None = None
    """Ranks that share each layer of encoder and projection; None: tensor_model_parallel_size."""

    @property
    def image_tokens(self) -> int:
        """Return the number of tokens of an image."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def has_module_layouts(self) -> bool:
        """Return whether encoder and language model have different parallel layouts or ranks."""
        vision = self.vision_tensor_model_parallel_size
        return self.language_rank_offset != 0 or vision not in (None, self.tensor_model_parallel_size)


def has_module_layouts(section: object) -> TypeGuard[MimoModelConfig]:
    """Return whether a model section of any family has modules with per-module parallelism."""
    return isinstance(section, MimoModelConfig) and section.has_module_layouts


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRanks:
    """Consecutive ranks of a module, and their parallel sizes."""

    first: int = 0
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1

    @property
    def ranks(self) -> range:
        """Return all ranks."""
        return range(self.first, self.first + self.tensor_parallel_size * self.data_parallel_size)


def module_ranks(config: MimoModelConfig, *, world_size: int) -> tuple[ModuleRanks, ModuleRanks]:
    """Return the ranks of encoder (with projection) and language model, for a world size.

    Each module has as many replicas as fit on its ranks; `mb_models.mimo.layout_rules.module_layout_error` describes
    ranks that do not fit.
    """
    first, tp = config.language_rank_offset, config.tensor_model_parallel_size
    vision_tp = config.vision_tensor_model_parallel_size or tp
    return (
        ModuleRanks(tensor_parallel_size=vision_tp, data_parallel_size=(first or world_size) // vision_tp),
        ModuleRanks(first=first, tensor_parallel_size=tp, data_parallel_size=(world_size - first) // tp),
    )


def encoder_section(config: MimoModelConfig) -> TransformerFields:
    """Return the section of the encoder's layers."""
    return TransformerFields(
        num_layers=config.vision_num_layers,
        hidden_size=config.vision_hidden_size,
        num_attention_heads=config.vision_num_attention_heads,
        ffn_hidden_size=config.vision_ffn_hidden_size,
        **{name: getattr(config, name) for name in SHARED},
    )


def projection_section(config: MimoModelConfig) -> TransformerFields:
    """Return the section of the projection's MLP, with one layer; its attention (one head per rank) is not built."""
    return TransformerFields(
        num_layers=1,
        hidden_size=config.hidden_size,
        num_attention_heads=config.tensor_model_parallel_size,
        kv_channels=1,
        ffn_hidden_size=config.projector_hidden_size or config.hidden_size,
        **{name: getattr(config, name) for name in SHARED},
    )
