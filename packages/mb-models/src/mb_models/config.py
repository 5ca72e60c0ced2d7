"""Section of a GPT in a training configuration: architecture, parallelism, precision and kernels.

Field names and defaults are Megatron Core's where it has the field, so that a value has the same meaning in both.
The fields are grouped in small classes that other model families share. Nothing here imports torch: dtypes and
activation functions are given by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from mb_models.fixed_values import FixedValues, FixedValuesType
from mb_models.gpt.variant_fields import (
    LatentAttentionFields,
    LayerVariantFields,
    PredictionFields,
    YarnFields,
)
from mb_models.megatron_fields import RENAMED, megatron_fields, named
from mb_schema.sections import StrictFields

DType = Literal["float32", "bfloat16", "float16"]
"""A floating-point type by name."""


@dataclass(kw_only=True)
class LayerFields:
    """Shape and arithmetic of a transformer layer."""

    num_layers: int
    """Transformer layers of the complete model."""
    hidden_size: int
    """Width of the residual stream."""
    num_attention_heads: int
    """Query heads of a layer."""
    num_query_groups: int | None = None
    """Key/value heads of a layer (grouped-query attention); None: one for each query head."""
    kv_channels: int | None = None
    """Width of one head; None: hidden_size / num_attention_heads."""
    ffn_hidden_size: int | None = None
    """Inner width of the MLP; None: four times hidden_size."""
    gated_linear_unit: bool = False
    """Multiply the activation by a second projection (SwiGLU with activation_func "silu")."""
    activation_func: Literal["gelu", "silu", "relu", "squared_relu", "quick_gelu", "fast_gelu"] = "gelu"
    """Non-linearity of the MLP, by name."""
    normalization: Literal["LayerNorm", "RMSNorm"] = "LayerNorm"
    """Kind of all norms."""
    layernorm_epsilon: float = 1e-5
    """Added to the variance (LayerNorm) or mean square (RMSNorm) before the root."""
    layernorm_zero_centered_gamma: bool = False
    """Store the norm's weight minus one."""
    add_bias_linear: bool = True
    """Biases on every linear layer but the output layer."""
    add_qkv_bias: bool = False
    """A bias on the query/key/value projection even if add_bias_linear is off."""
    qk_layernorm: bool = False
    """Normalise queries and keys, head by head."""
    qk_l2_norm: bool = False
    """Scale queries and keys to unit length, without weights (Transformer Engine only)."""
    qk_clip: bool = False
    """Scale query and key weights down after a step whose attention logits grew too large (Transformer Engine only)."""
    qk_clip_alpha: float = 0.5
    """Share of the clipping that the query weights take."""
    qk_clip_threshold: float = 100
    """Largest attention logit that is not clipped."""
    log_max_attention_logit: bool = False
    """Log the largest attention logit of each step (Transformer Engine only)."""
    softmax_scale: float | None = None
    """Factor on the attention scores; None: one over the root of kv_channels."""
    window_size: tuple[int, int] | None = None
    """Tokens that a query attends to on its left and right (sliding window); None: all previous tokens."""
    window_attn_skip_freq: int | list[int] | None = None
    """Every n-th layer attends to all previous tokens; a list has one 1 (window) or 0 (all) per layer; None: none."""
    softmax_type: Literal["vanilla", "off-by-one", "learnable"] = "vanilla"
    """Attention sink: "off-by-one" adds a score of 0 to the softmax, "learnable" a learned score for each head."""
    attention_output_gate: bool = False
    """Multiply attention's output by a gate of its input."""
    attention_softmax_in_fp32: bool = True
    """Compute the attention softmax in float32."""
    apply_query_key_layer_scaling: bool = False
    """Divide attention scores by the layer's number (and multiply back in the softmax)."""
    fp32_residual_connection: bool = False
    """Keep the residual stream in float32."""
    hidden_dropout: float = 0.1
    """Dropout probability after attention and MLP."""
    attention_dropout: float = 0.1
    """Dropout probability on attention weights."""
    init_method_std: float = 0.02
    """Standard deviation of the initial weights."""
    perform_initialization: bool = True
    """Initialise the weights; switch off if a checkpoint overwrites them."""
    use_cpu_initialization: bool = False
    """Initialise weights on the CPU, with the same values for any tensor-parallel size."""


@dataclass(kw_only=True)
class ParallelFields:
    """Parallel sizes: the number of ranks that share the model along each dimension."""

    tensor_model_parallel_size: int = 1
    """Ranks that share each layer's matrices."""
    pipeline_model_parallel_size: int = 1
    """Ranks that share the layers, in order."""
    virtual_pipeline_model_parallel_size: int | None = None
    """Model chunks on each pipeline rank (interleaved schedule); None: one, without interleaving."""
    context_parallel_size: int = 1
    """Ranks that share each sequence."""
    expert_model_parallel_size: int = 1
    """Ranks that share the experts."""
    expert_tensor_parallel_size: int | None = None
    """Ranks that share each expert's matrices; None: tensor_model_parallel_size."""
    sequence_parallel: bool = False
    """Split norms and dropouts along the sequence over the tensor-parallel ranks."""
    cp_comm_type: str | list[str] | None = None
    """Context-parallel exchange: "p2p", "all_gather", "a2a" or "a2a+p2p", or a list with one per layer."""
    hierarchical_context_parallel_sizes: list[int] | None = None
    """Context-parallel sizes of the levels, for "a2a+p2p"."""
    microbatch_group_size_per_vp_stage: int | None = None
    """Consecutive microbatches of a virtual stage; None: the pipeline size."""
    num_layers_in_first_pipeline_stage: int | None = None
    """Layers of the first stage; None: as many as the others."""
    num_layers_in_last_pipeline_stage: int | None = None
    """Layers of the last stage; None: as many as the others."""
    pipeline_model_parallel_layout: str | list[list[str]] | None = None
    """Contents of each stage, virtual stages included: letters E (embedding), t (layer), m (multi-token prediction),
    L (loss), with | between stages and *n for repetition, or lists of their names; None: equal numbers of layers.
    """
    variable_seq_lengths: bool = False
    """Exchange the shape of the activations between pipeline stages with each microbatch, since lengths differ."""
    account_for_embedding_in_pipeline_split: bool = False
    """Count the embedding as a layer when layers are distributed over stages."""
    account_for_loss_in_pipeline_split: bool = False
    """Count the output layer as a layer when layers are distributed over stages."""


@dataclass(kw_only=True)
class PrecisionFields:
    """Types of parameters and arithmetic; a mixed-precision recipe sets most of them."""

    bf16: bool = False
    """Compute in bfloat16."""
    fp16: bool = False
    """Compute in float16, with loss scaling."""
    params_dtype: DType = "float32"
    """Type in which parameters are created."""
    pipeline_dtype: DType | None = None
    """Type sent between pipeline stages; None: params_dtype."""
    enable_autocast: bool = False
    """Run the forward pass under torch.autocast."""
    autocast_dtype: DType | None = None
    """Type of autocast; None: params_dtype."""
    fp8: Literal["e4m3", "hybrid"] | None = None
    """8-bit format of the GEMMs."""
    fp8_recipe: Literal["tensorwise", "delayed", "mxfp8", "blockwise", "custom"] | None = "delayed"
    """Scaling recipe of the 8-bit formats."""
    fp8_param: bool | None = False
    """Store parameters in 8 bits."""
    fp8_margin: int = 0
    """Headroom of the scale, in powers of two."""
    fp8_amax_history_len: int = 1
    """Steps in the history of maxima of delayed scaling."""
    fp8_amax_compute_algo: Literal["most_recent", "max"] = "most_recent"
    """Step of that history that determines the scale."""
    fp8_wgrad: bool = True
    """Compute weight gradients in 8 bits."""
    fp8_dot_product_attention: bool = False
    """Compute the attention core in 8 bits."""
    fp8_multi_head_attention: bool = False
    """Compute all of attention in 8 bits."""
    first_last_layers_bf16: bool = False
    """Keep the first and the last layers in bfloat16."""
    num_layers_at_start_in_bf16: int = 1
    """Number of first layers in bfloat16."""
    num_layers_at_end_in_bf16: int = 1
    """Number of last layers in bfloat16."""
    fp4: Literal["e2m1"] | None = None
    """4-bit format of the GEMMs."""
    fp4_recipe: Literal["nvfp4", "custom"] | None = "nvfp4"
    """Scaling recipe of the 4-bit formats."""
    fp4_param: bool | None = False
    """Store parameters in 4 bits."""


@dataclass(kw_only=True)
class OverlapFields:
    """Overlap of communication with computation; the overlap section sets most of these fields."""

    tp_comm_overlap: bool = False
    """Overlap tensor-parallel exchange with GEMMs (Transformer Engine's user buffers)."""
    tp_comm_overlap_cfg: dict[str, object] | None = None
    """User-buffer settings by layer, passed to Transformer Engine at start; None: its defaults."""
    tp_comm_bootstrap_backend: Literal["nccl", "mpi", "gloo"] | None = "nccl"
    """Backend that initialises the user buffers."""
    overlap_p2p_comm: bool = False
    """Overlap the exchange between pipeline stages (interleaved schedule only)."""
    batch_p2p_comm: bool = True
    """Send and receive between stages in one batch; off when overlap_p2p_comm is on."""
    overlap_moe_expert_parallel_comm: bool = False
    """Overlap the experts' all-to-all with the computation of another microbatch."""
    delay_wgrad_compute: bool = False
    """Delay the computation of weight gradients, to widen that overlap."""
    defer_embedding_wgrad_compute: bool = False
    """Compute the output layer's weight gradient while the pipeline drains."""
    wgrad_deferral_limit: int = 0
    """Microbatches that may be deferred; 0: all."""
    deallocate_pipeline_outputs: bool = False
    """Free the output of a stage after it is sent."""


@dataclass(kw_only=True)
class KernelFields:
    """Kernels, CUDA graphs and activation recomputation."""

    transformer_impl: Literal["transformer_engine", "local"] = "transformer_engine"
    """Layers of the layer spec: Transformer Engine's, or Megatron's and torch's ("local")."""
    attention_backend: Literal["flash", "fused", "unfused", "local", "auto"] | None = "auto"
    """Attention kernel of Transformer Engine; None: that which its environment variables choose."""
    deterministic_mode: bool = False
    """Use only operations with bitwise reproducible results."""
    calculate_per_token_loss: bool = False
    """Weight every token of the global batch equally, instead of every microbatch."""
    gradient_accumulation_fusion: bool = False
    """Add weight gradients into the float32 buffer inside the GEMM (GPU)."""
    cross_entropy_loss_fusion: bool = False
    """Use a fused cross-entropy."""
    cross_entropy_fusion_impl: Literal["native", "te"] = "native"
    """Implementation of the fused cross-entropy: Megatron Core's or Transformer Engine's."""
    bias_activation_fusion: bool = False
    """Fuse the MLP's bias and activation. Fused, gelu is its tanh approximation, which differs by up to 5e-4."""
    bias_dropout_fusion: bool = False
    """Fuse bias, dropout and residual."""
    masked_softmax_fusion: bool = False
    """Fuse mask and softmax of unfused attention (GPU)."""
    apply_rope_fusion: bool = False
    """Fuse the rotary embedding (GPU)."""
    persist_layer_norm: bool = False
    """Apex's persistent LayerNorm kernel (GPU)."""
    fused_residual_rmsnorm: bool = False
    """Fuse residual and RMSNorm (Transformer Engine only)."""
    cuda_graph_impl: Literal["none", "local", "transformer_engine", "full_iteration"] = "none"
    """Capture of CUDA graphs (GPU)."""
    cuda_graph_modules: str | list[str] = "full"
    """Captured modules, or "full"."""
    cuda_graph_warmup_steps: int = 3
    """Warm-up steps before the capture."""
    use_te_rng_tracker: bool = False
    """Use Transformer Engine's random-state tracker, which CUDA graphs need (GPU)."""
    recompute_granularity: Literal["full", "selective"] | None = None
    """Recompute complete layers ("full") or selected modules ("selective") in the backward pass."""
    recompute_method: Literal["uniform", "block"] | None = None
    """Selection of the recomputed layers with "full"."""
    recompute_num_layers: int | None = None
    """Layers in each recomputed group."""
    recompute_modules: list[str] | None = None
    """Recomputed modules with "selective"; None: Megatron's default."""
    distribute_saved_activations: bool | None = False
    """Distribute the inputs of recomputed layers over tensor-parallel ranks."""
    fine_grained_activation_offloading: bool = False
    """Offload the activations of selected modules to the host (GPU)."""


@dataclass(kw_only=True)
class MoEFields:
    """Mixture of experts and router; used when num_moe_experts is set."""

    num_moe_experts: int | None = None
    """Experts in each layer; None: a dense MLP."""
    moe_layer_freq: int | list[int] = 1
    """Every n-th layer has experts; a list has one 0 (dense) or 1 (experts) per layer."""
    moe_ffn_hidden_size: int | None = None
    """Inner width of an expert; None: ffn_hidden_size."""
    moe_shared_expert_intermediate_size: int | None = None
    """Total inner width of the shared experts, which process every token; None: no shared expert."""
    moe_shared_expert_gate: bool = False
    """Multiply the shared experts' output by a learned gate."""
    moe_shared_expert_overlap: bool = False
    """Compute the shared experts while tokens are exchanged."""
    moe_router_topk: int = 2
    """Experts per token."""
    moe_router_load_balancing_type: str | list[str] = "aux_loss"
    """Load balancing: "aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none", or a list of several."""
    moe_aux_loss_coeff: float | list[float] = 0.0
    """Weight of the load-balancing loss; a list has one per type."""
    moe_z_loss_coeff: float | None = None
    """Weight of the router's z-loss."""
    moe_router_score_function: Literal["softmax", "sigmoid", "sqrtsoftplus"] = "softmax"
    """Function from router scores to probabilities."""
    moe_router_pre_softmax: bool = False
    """Apply the softmax before the top-k selection instead of after it."""
    moe_router_dtype: Literal["fp32", "fp64"] | None = None
    """Data type of the router's arithmetic; None: the model's."""
    moe_router_enable_expert_bias: bool = False
    """Balance load by a bias on the scores instead of a loss."""
    moe_router_bias_update_rate: float = 1e-3
    """Update rate of that bias."""
    moe_router_num_groups: int | None = None
    """Groups of experts for group-limited routing."""
    moe_router_group_topk: int | None = None
    """Groups per token."""
    moe_router_topk_scaling_factor: float | None = None
    """Scaling factor of the selected experts' weights."""
    moe_token_dispatcher_type: Literal["allgather", "alltoall", "flex"] = "allgather"
    """Exchange of tokens between expert-parallel ranks."""
    moe_expert_capacity_factor: float | None = None
    """Capacity of an expert, relative to its even share of tokens; None: unlimited."""
    moe_pad_expert_input_to_capacity: bool = False
    """Pad the input of each expert to its capacity."""
    moe_token_drop_policy: Literal["probs", "position"] = "probs"
    """Policy for dropping tokens above the capacity."""
    moe_grouped_gemm: bool = False
    """Compute all local experts in one grouped GEMM (GPU)."""
    moe_permute_fusion: bool = False
    """Fuse the permutation of tokens (GPU)."""
    moe_router_fusion: bool = False
    """Fuse the router (GPU)."""
    moe_per_layer_logging: bool = False
    """Log load-balancing losses for each layer."""


class _MegatronFields(FixedValuesType):
    """Class of sections whose constructor takes every field of Megatron's TransformerConfig."""

    _further_defaults: dict[str, object]

    def __call__(cls, *args: Any, **values: Any) -> Any:
        """Construct a section; values of fields that it does not declare are entries of `transformer`."""
        values = {RENAMED.get(name, name): value for name, value in values.items()}
        further = {name: values.pop(name) for name in [*values] if _only_megatrons(cls, name)}
        if further or cls._further_defaults:
            # first: before the record of `dataclasses.replace`, that is, among what was set
            merged = {**cls._further_defaults, **values.pop("transformer", {}), **further}
            values = {"transformer": merged, **values}
        return super().__call__(*args, **values)


def _only_megatrons(cls: Any, name: str) -> bool:
    """Return whether Megatron's TransformerConfig has a field that a section does not declare."""
    known = {item.name for item in fields(cls)} | cls.fixed_values.keys()
    return not (name.startswith("_") or name in known or hasattr(cls, name)) and name in megatron_fields()


class _FieldAliases:
    """Other name of Megatron's class -> field, or entry of `transformer`, of a section and of its class."""

    def __get__(self, section: object, cls: Any) -> Mapping[str, str]:
        only = {name: f"transformer.{name}" for name in megatron_fields() if _only_megatrons(cls, name)}
        return {**only, **RENAMED}


@dataclass(kw_only=True)
class TransformerFields(
    PredictionFields,
    LatentAttentionFields,
    MoEFields,
    KernelFields,
    OverlapFields,
    PrecisionFields,
    ParallelFields,
    LayerFields,
    FixedValues,
    StrictFields,
    metaclass=_MegatronFields,
):
    """Fields of Megatron's TransformerConfig, shared by all model families.

    A field of the installed TransformerConfig that is not declared here may be passed, assigned and read like the
    others: it is an entry of `transformer`. Dtypes, activation functions and members of Megatron's enumerations become
    their names.
    """

    rotary_interleaved: bool = False
    """Rotate neighbouring pairs instead of the two halves of a head."""
    transformer: dict[str, object] = field(default_factory=dict)
    """Any other field of Megatron's TransformerConfig, by name."""
    _further_defaults: ClassVar[dict[str, object]] = {}
    """Entries of `transformer` that every section of a class begins with."""

    field_aliases: ClassVar[_FieldAliases] = _FieldAliases()

    if not TYPE_CHECKING:  # a type checker would take any name for valid

        def __setattr__(self, name: str, value: Any) -> None:
            name = RENAMED.get(name, name)
            if _only_megatrons(type(self), name):
                self.transformer = {**self.transformer, name: value}
            else:
                super().__setattr__(name, named(value))

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or name in type(self).fixed_values:
                return super().__getattr__(name)
            value = vars(self).get("transformer", {}).get(name, megatron_fields().get(name, ...))
            return super().__getattr__(name) if value is ... else value


@dataclass(kw_only=True)
class GPTModelConfig(LayerVariantFields, YarnFields, TransformerFields):
    """A decoder-only language model on Megatron Core.

    The constructor reads no file and validates nothing: `mb_models.rules` lists the violations of a section, and
    `mb_models.gpt.transformer.transformer_config` builds Megatron's configuration from it.
    """

    vocab_size: int | None = None
    """Rows of the embedding, used without padding; None: the padded size of the tokenizer."""
    make_vocab_size_divisible_by: int = 128
    """The tokenizer's vocabulary size is padded to a multiple of this times the tensor-parallel size."""
    seq_length: int = 1024
    """Tokens of a training sequence."""
    max_position_embeddings: int | None = None
    """Maximum sequence length of the model, which sizes learned position embeddings; None: seq_length."""
    position_embedding_type: Literal["learned_absolute", "rope", "mrope", "yarn", "none"] = "learned_absolute"
    """Kind of position embedding."""
    rotary_base: float = 10000
    """Base of the rotary frequencies."""
    rotary_percent: float = 1.0
    """Fraction of each head that is rotated."""
    rope_scaling: bool = False
    """Scale low rotary frequencies as Llama 3.1 does."""
    rope_scaling_factor: float = 8.0
    """Factor of that scaling."""
    seq_len_interpolation_factor: float | None = None
    """Divide positions by this (linear interpolation of rotary positions)."""
    share_embeddings_and_output_weights: bool = False
    """Tie the output layer to the embedding."""
    fp16_lm_cross_entropy: bool = False
    """Compute the loss in float16 instead of float32."""
    parallel_output: bool = True
    """Keep logits split over tensor-parallel ranks."""
