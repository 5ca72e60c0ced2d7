"""Model sections under the names of Megatron-Bridge's providers, with their defaults. No torch.

Only what determines the model or its numbers has another default than in the sections of mb_models; fused kernels are
on where these providers have them on.
"""

import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_type_hints

from mb_config import given_fields
from mb_models import GPTModelConfig, MambaModelConfig, T5ModelConfig
from mb_models.trainer_api import DType, main_layers, megatron_fields
from mb_trainer.bridge import missing_member
from mb_trainer.config import HuggingFaceSource

BUILT_BY_MEGATRON = {
    "transformer_layer_spec": (
        None,
        "a section is data. Pass code that changes the model with mb_trainer.UserCode",
    ),
    "scatter_embedding_sequence_parallel": (True, "embeddings are scattered with sequence_parallel"),
    "should_pad_vocab": (
        False,
        "the tokenizer's size is padded where vocab_size is None, and vocab_size is not",
    ),
    "restore_modelopt_state": (False, "models of Model Optimizer are not read"),
    "mtp_enabled": (False, "mtp_num_layers alone decides"),
    "moe_a2a_overlap": (False, "comm_overlap.overlap_moe_expert_parallel_comm is the setting"),
    "dense_grouped_gemm": (False, "an MLP without experts is one GEMM"),
    "use_arbitrary_attention_mask": (None, "it belongs to layers of Model Optimizer"),
}
"""Fields of Megatron-Bridge's providers that steer how it builds a model."""


_CHUNKS = (
    "provide_distributed_model of a GPT's or a hybrid's section builds this rank's chunks, and "
    "mb_models.build_training_model those of any section."
)
_HOOKS = "Hooks are arguments of provide_distributed_model, and fields of mb_trainer.UserCode."
_AUTO_BRIDGE = "mb_trainer.bridge.AutoBridge reads and writes models of Hugging Face."
ELSEWHERE: Mapping[str, str] = {
    "provide": _CHUNKS,
    "meta_model": _CHUNKS,
    "pre_wrap_hook": _HOOKS,
    "post_wrap_hook": _HOOKS,
    "from_hf_pretrained": _AUTO_BRIDGE,
    "save_hf_pretrained": _AUTO_BRIDGE,
    "apply_overrides_and_finalize": "Assign the fields: a section is checked when a model is built from it.",
}
"""Member of Megatron-Bridge's providers that is not here -> what is in its place."""


class ProviderDefaults:
    """Subclasses declare fields with the types of torch, and further fields of Megatron's TransformerConfig.

    `activation_func: Callable = F.silu` is a new default for a name, `offload_modules: list = None` an entry of
    `transformer`.
    """

    _further_defaults: ClassVar[dict[str, object]]

    def finalize(self) -> None:
        """Return: a section is checked when a model is built from it."""

    if not TYPE_CHECKING:  # a type checker would take any name for valid

        def __getattr__(self, name: str) -> Any:
            """Raise for a member that is missing here, with what is in its place."""
            if name in ELSEWHERE:
                raise missing_member(self, name, ELSEWHERE[name])
            return super().__getattr__(name)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        base = next((base for base in cls.__mro__[1:] if is_dataclass(base)), None)
        if base is None or cls.__module__ == __name__:
            return
        declared, types = vars(cls).get("__annotations__", {}), get_type_hints(base)
        known = {item.name for item in fields(base)}
        declared |= {name: types[name] for name in known & declared.keys()}
        further = (declared.keys() - known) & megatron_fields().keys()
        cls._further_defaults = {
            **getattr(base, "_further_defaults", {}),
            **{name: vars(cls)[name] for name in further if name in vars(cls)},
        }
        for name in further:
            del declared[name]
            if name in vars(cls):
                delattr(cls, name)


class BuiltProvider:
    """Section of which a script builds a model itself."""

    def initialize_model_parallel(
        self, seed: int | None = None, **options: Any
    ) -> AbstractContextManager[Any]:
        """Open the process groups of the layout, and return their owner; see `process_groups`."""
        opened: AbstractContextManager[Any] = _models().initialize_model_parallel(self, seed, **options)
        return opened

    def provide_distributed_model(self, ddp_config: Any = None, **options: Any) -> list[Any]:
        """Return this rank's chunks. Arguments and errors as `distributed_model.provide_distributed_model`."""
        chunks: list[Any] = _models().provide_distributed_model(self, ddp_config, **options)
        return chunks

    def register_pre_wrap_hook(self, hook: Any, prepend: bool = False) -> None:
        """Reject a hook.

        Raises:
            NotImplementedError: Always.
        """
        raise _reject_hook("pre_wrap_hook", "pre_wrap_hooks")

    def register_post_wrap_hook(self, hook: Any, prepend: bool = False) -> None:
        """Reject a hook.

        Raises:
            NotImplementedError: Always.
        """
        raise _reject_hook("post_wrap_hook", "post_wrap_hooks")


def _models() -> Any:
    return import_module("mb_trainer.bridge.distributed_model")  # imports torch, as late as this


def _reject_hook(name: str, field: str) -> NotImplementedError:
    return NotImplementedError(
        f"register_{name}: is not supported, because a section is data, and a saved one would lose the hook. Pass "
        f"provide_distributed_model({name}=hook), or pretrain(code=mb_trainer.UserCode({field}=[hook]))."
    )


@dataclass(kw_only=True)
class GPTModelProvider(BuiltProvider, ProviderDefaults, HuggingFaceSource, GPTModelConfig):
    """Section of a GPT."""

    fixed_values: ClassVar[Mapping[str, tuple[object, str]]] = BUILT_BY_MEGATRON
    num_layers: int = 0
    hidden_size: int = 0
    num_attention_heads: int = 0
    share_embeddings_and_output_weights: bool = True
    attention_softmax_in_fp32: bool = False
    deallocate_pipeline_outputs: bool = True
    cross_entropy_loss_fusion: bool = True
    masked_softmax_fusion: bool = True
    gradient_accumulation_fusion: bool = True
    rope_scaling_factor: float = 1.0
    use_transformer_engine_full_layer_spec: bool = False
    """Warn that layers are built of Transformer Engine's modules one by one, which compute the same."""

    def __post_init__(self) -> None:
        """Warn of another way to build the layers."""
        if self.use_transformer_engine_full_layer_spec:
            warnings.warn(
                "use_transformer_engine_full_layer_spec: layers are built of Transformer Engine's modules one by one, "
                "which compute the same; names in checkpoints are theirs.",
                stacklevel=3,
            )


@dataclass(kw_only=True)
class MLAModelProvider(GPTModelProvider):
    """Section of a GPT with latent attention."""

    multi_latent_attention: bool = True


@dataclass(kw_only=True)
class Gemma3ModelProvider(GPTModelProvider):
    """Section of Gemma 3 for text, whose embeddings are multiplied by the root of hidden_size."""

    seq_length: int = 131072
    normalization: Literal["LayerNorm", "RMSNorm"] = "RMSNorm"
    layernorm_zero_centered_gamma: bool = True
    layernorm_epsilon: float = 1e-6
    norm_position: Literal["pre", "post", "pre_and_post"] = "pre_and_post"
    qk_layernorm: bool = True
    position_embedding_type: Literal["learned_absolute", "rope", "mrope", "yarn", "none"] = "rope"
    rotary_base: int = 1_000_000
    rotary_base_local: int | None = 10_000
    window_size: tuple[int, int] | None = (511, 0)
    """Tokens before and after a token that it attends to in layers with a window; a number n is (n - 1, 0)."""
    window_attn_skip_freq: int | list[int] | None = 6
    softmax_scale: float | None = 1 / 16
    activation_func: Literal["gelu", "silu", "relu", "squared_relu", "quick_gelu", "fast_gelu"] = "fast_gelu"
    gated_linear_unit: bool = True
    add_bias_linear: bool = False
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    bf16: bool = True
    params_dtype: DType = "bfloat16"

    def __post_init__(self) -> None:
        """Compute the factor on the embeddings, which follows `hidden_size` unless it is set."""
        super().__post_init__()
        self._scale_embeddings()

    def __setattr__(self, name: str, value: object) -> None:
        if name == "window_size" and isinstance(value, int):
            value = (value - 1, 0)  # theirs counts the token itself
        super().__setattr__(name, value)
        if name == "hidden_size" and "embedding_multiplier" in vars(self):
            self._scale_embeddings()

    def _scale_embeddings(self) -> None:
        if "embedding_multiplier" not in given_fields(self):
            vars(self)["embedding_multiplier"] = self.hidden_size**0.5  # not recorded as set


@dataclass(kw_only=True)
class OlMoEModelProvider(GPTModelProvider):
    """Section of OLMoE 7B."""

    num_layers: int = 16
    hidden_size: int = 2048
    ffn_hidden_size: int | None = 1024
    num_attention_heads: int = 16
    num_query_groups: int | None = 16
    kv_channels: int | None = 128
    vocab_size: int | None = 50304
    seq_length: int = 4096
    normalization: Literal["LayerNorm", "RMSNorm"] = "RMSNorm"
    activation_func: Literal["gelu", "silu", "relu", "squared_relu", "quick_gelu", "fast_gelu"] = "silu"
    gated_linear_unit: bool = True
    add_bias_linear: bool = False
    share_embeddings_and_output_weights: bool = False
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    qk_layernorm: bool = True
    qk_layernorm_scope: Literal["head", "all_heads"] = "all_heads"
    position_embedding_type: Literal["learned_absolute", "rope", "mrope", "yarn", "none"] = "rope"
    num_moe_experts: int | None = 64
    moe_ffn_hidden_size: int | None = 1024
    moe_router_topk: int = 8
    moe_router_pre_softmax: bool = True
    moe_router_load_balancing_type: str | list[str] = "seq_aux_loss"
    moe_router_dtype: Literal["fp32", "fp64"] | None = "fp32"
    moe_aux_loss_coeff: float | list[float] = 1e-2
    moe_token_dispatcher_type: Literal["allgather", "alltoall", "flex"] = "alltoall"
    moe_grouped_gemm: bool = True
    moe_permute_fusion: bool = True
    persist_layer_norm: bool = True
    autocast_dtype: DType | None = "bfloat16"


@dataclass(kw_only=True)
class HybridModelProvider(BuiltProvider, ProviderDefaults, HuggingFaceSource, MambaModelConfig):
    """Section of a hybrid."""

    fixed_values: ClassVar[Mapping[str, tuple[object, str]]] = {
        **BUILT_BY_MEGATRON,
        "hybrid_stack_spec": BUILT_BY_MEGATRON["transformer_layer_spec"],
        "is_hybrid_model": (True, "the section is that of a hybrid"),
        "hybrid_attention_ratio": (0.0, "hybrid_layer_pattern names every layer"),
        "hybrid_mlp_ratio": (0.0, "hybrid_layer_pattern names every layer"),
        "hybrid_override_pattern": (None, "hybrid_layer_pattern is its name"),
        "mamba_stack_spec": BUILT_BY_MEGATRON["transformer_layer_spec"],
    }
    hidden_size: int = 0
    hybrid_layer_pattern: str = ""
    num_layers: int = 0
    """Letters of the pattern; 0: counted, and again when the pattern changes."""
    num_attention_heads: int = 1
    normalization: Literal["LayerNorm", "RMSNorm"] = "RMSNorm"
    add_bias_linear: bool = False
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    bf16: bool = True
    params_dtype: DType = "bfloat16"
    seq_length: int = 8192
    deallocate_pipeline_outputs: bool = True
    cross_entropy_loss_fusion: bool = True
    gradient_accumulation_fusion: bool = True
    bias_dropout_fusion: bool = True
    apply_rope_fusion: bool = True
    mtp_hybrid_override_pattern: str | None = None
    """Layers that predict a further token; `hybrid_layer_pattern` has them `mtp_num_layers` times, each after a /."""
    keep_mtp_spec_in_bf16: bool = False
    """Without effect, as in Megatron-Bridge 0.6.2."""

    def __post_init__(self) -> None:
        """Count the layers of the pattern."""
        if not self.num_layers and self.hybrid_layer_pattern:
            self.num_layers = len(main_layers(self.hybrid_layer_pattern))

    def __setattr__(self, name: str, value: object) -> None:
        values = vars(self)
        again, before = name in values, values.get("hybrid_layer_pattern") or ""
        super().__setattr__(name, value)
        counted = values.get("num_layers") in (0, len(main_layers(before)))
        if name == "hybrid_layer_pattern" and value and counted:
            super().__setattr__("num_layers", len(main_layers(str(value))))
        main, *blocks = (values.get("hybrid_layer_pattern") or "").split("/")
        block = values.get("mtp_hybrid_override_pattern") or next(iter(blocks or before.split("/")[1:]), None)
        number = values.get("mtp_num_layers")
        if block and main and (number or (again and name == "mtp_num_layers")):
            super().__setattr__("mtp_hybrid_override_pattern", None if number else block)
            super().__setattr__("hybrid_layer_pattern", "/".join([main, *[block] * (number or 0)]))


@dataclass(kw_only=True)
class MambaModelProvider(HybridModelProvider):
    """Section of a hybrid, under its former name."""


@dataclass(kw_only=True)
class T5ModelProvider(ProviderDefaults, T5ModelConfig):
    """Section of a T5."""

    fixed_values: ClassVar[Mapping[str, tuple[object, str]]] = {
        **BUILT_BY_MEGATRON,
        "relative_attention_num_buckets": (32, "positions are learned or rotary"),
        "relative_attention_max_distance": (128, "positions are learned or rotary"),
        "encoder_pipeline_model_parallel_size": (0, "a T5 has one pipeline stage"),
    }

    attention_softmax_in_fp32: bool = False
    deallocate_pipeline_outputs: bool = True
    bias_activation_fusion: bool = True
    bias_dropout_fusion: bool = True
    masked_softmax_fusion: bool = True
    apply_rope_fusion: bool = True
    persist_layer_norm: bool = True

    @property
    def seq_length_dec(self) -> int:
        """Alias of `decoder_seq_length`, under Megatron-Bridge's name."""
        return self.decoder_seq_length

    @seq_length_dec.setter
    def seq_length_dec(self, length: int) -> None:
        self.decoder_seq_length = length


def provider_of(section: Any) -> Any:
    """Return a GPT's or a hybrid's section in the class of its provider; others as they are."""
    kinds: dict[type[Any], type[Any]] = {
        GPTModelConfig: GPTModelProvider,
        MambaModelConfig: HybridModelProvider,
    }
    kind = kinds.get(type(section))
    return (
        section
        if kind is None
        else kind(**{item.name: getattr(section, item.name) for item in fields(section)})
    )
