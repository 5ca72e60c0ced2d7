"""Description of a family of Hugging Face models as data: fields of config.json and names of weights. No torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mb_models.config import DType, GPTModelConfig
from mb_models.hybrid.config import MambaModelConfig

Form = Literal[
    "plain", "qkv", "gated_qkv", "glu", "mamba", "convolution", "gated_delta", "gated_delta_convolution"
]
Section = GPTModelConfig | MambaModelConfig
"""Section of a model that can be converted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorOrigin:
    """Tensors that a parameter is made of, and their fusion."""

    tensors: tuple[str, ...]
    """Names in the folder, in the order of the fusion, with {layer} and {expert} for their numbers."""
    form: Form = "plain"
    split: int | None = None
    """Dimension of each tensor that tensor-parallel ranks share; None: the tensors are replicated."""
    packed: bool = False
    """Whether the parts of the fusion are consecutive rows of a single tensor."""
    vocabulary: bool = False
    """Whether the tensor has a row for each token."""
    offset: float = 0.0
    """Difference of the tensor and the parameter, such as 1 of a zero-centred norm whose tensor is not."""
    stacked: bool = False
    """Whether the single tensor holds all experts, each one transposed, with rows of gate and up projection in turn."""
    expert: int = 0
    """Number of the expert in a stacked tensor."""


def _nothing(_values: Any) -> dict[str, Any]:
    return {}


def _equal(_content: Mapping[str, Any]) -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFaceFamily:
    """One architecture of transformers, as the differences from Llama.

    Every field of config.json is in `COMMON_FIELDS`, `defaults`, `must_be` or `WITHOUT_EFFECT`; others are rejected.
    """

    model_type: str
    """Name in config.json."""
    architecture: str
    """Class of transformers."""
    layers: Mapping[str, TensorOrigin]
    """Pattern of a parameter's name after `decoder.layers.N.` -> its origin."""
    outside: Mapping[str, TensorOrigin] | None = None
    """Parameter outside the layers -> its origin; None: as in Llama."""
    section: Mapping[str, object] = field(default_factory=dict)
    """Values of the model section that all models of the family have."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Further fields that are read, and values that transformers uses for missing fields."""
    must_be: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Fields with their convertible values; a missing field has the value in `defaults`, or None."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other spelling of a field -> its name here."""
    unread: frozenset[str] = frozenset()
    """Names here that transformers reads in the other spelling alone."""
    partial_rotation: bool = False
    """Whether only a part of each head may be rotated."""
    local_rotation: bool = False
    """Whether layers with a window have a rotary base of their own."""
    unequal: Callable[[Mapping[str, Any]], Sequence[str]] = _equal
    """Function from config.json to what Megatron Core computes differently with the same weights."""
    notices: Callable[[Mapping[str, Any]], Sequence[str]] = _equal
    """Function from config.json to what transformers computes differently by little, which loading logs."""
    read: Callable[[Mapping[str, Any]], dict[str, Any]] = _nothing
    """Function from config.json to further fields of the section."""
    write: Callable[[GPTModelConfig], dict[str, Any]] = _nothing
    """Function from a section without unset sizes to further fields of config.json."""
    hybrid: "HybridConversion | None" = None
    """Conversion of hybrid models, in place of the fields above that add to Llama's; None: the models are GPTs."""

    @property
    def kind(self) -> type:
        """Class of the section."""
        return GPTModelConfig if self.hybrid is None else MambaModelConfig

    def layer_of(self, position: int) -> int:
        """Return the layer of transformers that a layer of the model belongs to."""
        return position if self.hybrid is None else position // self.hybrid.layers_of_a_layer


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridConversion:
    """Complete conversion between config.json and the section of a hybrid model."""

    required: tuple[str, ...]
    """Fields of config.json that determine the shapes of the weights."""
    read: Callable[[Mapping[str, Any], DType], MambaModelConfig]
    """Function from config.json with all defaults, and the type of the weights, to the section."""
    write: Callable[[MambaModelConfig], dict[str, Any]]
    """Function from a section to config.json, without vocab_size, dtype and the names of the family."""
    outside: Mapping[str, TensorOrigin]
    """Parameter outside the layers -> its origin."""
    layers_of_a_layer: int = 1
    """Layers of a pattern that are one layer of transformers."""


COMMON_FIELDS: Mapping[str, str] = {
    "num_hidden_layers": "num_layers",
    "hidden_size": "hidden_size",
    "intermediate_size": "ffn_hidden_size",
    "num_attention_heads": "num_attention_heads",
    "num_key_value_heads": "num_query_groups",
    "head_dim": "kv_channels",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_position_embeddings",
    "rms_norm_eps": "layernorm_epsilon",
    "tie_word_embeddings": "share_embeddings_and_output_weights",
    "initializer_range": "init_method_std",
    "attention_dropout": "attention_dropout",
}
"""Field of config.json -> field of the section with the same meaning, in all families."""

ROTARY_FIELDS = ("rope_parameters", "rope_theta", "rope_scaling", "partial_rotary_factor")
"""Fields of the rotary embedding; the first is that of transformers 5."""

REQUIRED = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
"""Fields of config.json that determine the shapes of the weights; they have no defaults."""

COMMON_DEFAULTS: Mapping[str, object] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "attention_dropout": 0.0,
    "num_key_value_heads": None,
    "head_dim": None,
}
"""Values that transformers uses for missing fields, in most families."""

WITHOUT_EFFECT = frozenset(
    [
        "model_type",
        "architectures",
        "auto_map",
        "dtype",
        "torch_dtype",
        "transformers_version",
        "tokenizer_class",
        "use_cache",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "sep_token_id",
        "unk_token_id",
        "decoder_start_token_id",
        "id2label",
        "label2id",
        "num_labels",
        "problem_type",
        "finetuning_task",
        "task_specific_params",
        "return_dict",
        "return_dict_in_generate",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "output_scores",
        "chunk_size_feed_forward",
        "pretraining_tp",
        "max_length",
        "min_length",
        "do_sample",
        "temperature",
        "top_k",
        "top_p",
        "num_beams",
        "repetition_penalty",
        "max_window_layers",
        "classifier_dropout",
        "ep_size",
        "aux_loss_alpha",
        "seq_aux",
        "num_nextn_predict_layers",
        "is_encoder_decoder",
        "torchscript",
        "tf_legacy_loss",
        "cache_implementation",
        "keys_to_ignore_at_inference",
    ]
)
"""Fields that do not change the logits; those of generation, of losses and of additional heads among them.

is_encoder_decoder is fixed by the architecture. Layers for further tokens (num_nextn_predict_layers) are rejected
where their weights are found.
"""


def settings_of_weights(dtype: DType) -> dict[str, Any]:
    """Return the fields of a model section that all families share, with the floating-point type of the weights."""
    return {
        "add_bias_linear": False,
        "hidden_dropout": 0.0,
        "calculate_per_token_loss": True,
        "params_dtype": dtype,
        "bf16": dtype == "bfloat16",
        "fp16": dtype == "float16",
    }
