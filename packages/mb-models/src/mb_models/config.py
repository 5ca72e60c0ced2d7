"""The GPT section of a training configuration: what the model is, and how it is split and computed.

Field names and defaults are Megatron Core's wherever it has the field, so that a value means here what it means there.
The fields are grouped by noun in small classes that other model families share. Nothing here imports torch: dtypes and
activation functions are names.
"""

from dataclasses import dataclass, field
from typing import Literal

from mb_models.strict_fields import StrictFields
from mb_models.variant_fields import LatentAttentionFields, PredictionFields, YarnFields

DType = Literal["float32", "bfloat16", "float16"]
"""A floating-point type by name."""


@dataclass(kw_only=True)
class LayerFields:
    """Shape and arithmetic of a transformer layer."""

    num_layers: int
    """Transformer layers of the whole model."""
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
    """Largest attention logit that is left alone."""
    log_max_attention_logit: bool = False
    """Measure the largest attention logit of each step (Transformer Engine only)."""
    softmax_scale: float | None = None
    """Factor on the attention scores; None: one over the root of kv_channels."""
    window_size: tuple[int, int] | None = None
    """Tokens that a query sees to its left and right (sliding window); None: all of the past."""
    window_attn_skip_freq: int | list[int] | None = None
    """Every so many layers one sees all of the past, or one 1 (window) or 0 (all) for each layer; None: none."""
    softmax_type: Literal["vanilla", "off-by-one", "learnable"] = "vanilla"
    """Attention may also attend to nothing: with score 0 ("off-by-one"), or a learned one for each head."""
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
    """Draw initial weights; off when a checkpoint overwrites them anyway."""
    use_cpu_initialization: bool = False
    """Draw them on the host, the same for any tensor-parallel size."""


@dataclass(kw_only=True)
class ParallelFields:
    """How many ranks share the model, and along which dimension."""

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
    """Ranks that share each expert's matrices; None: as tensor_model_parallel_size."""
    sequence_parallel: bool = False
    """Split norms and dropouts along the sequence over the tensor-parallel ranks."""
    cp_comm_type: str | list[str] | None = None
    """Context-parallel exchange: "p2p", "all_gather", "a2a" or "a2a+p2p", for all layers or one a layer."""
    hierarchical_context_parallel_sizes: list[int] | None = None
    """Context-parallel sizes of the levels, for "a2a+p2p"."""
    microbatch_group_size_per_vp_stage: int | None = None
    """Microbatches that a virtual stage runs in a row; None: the pipeline size."""
    num_layers_in_first_pipeline_stage: int | None = None
    """Layers of the first stage; None: as many as the others."""
    num_layers_in_last_pipeline_stage: int | None = None
    """Layers of the last stage; None: as many as the others."""
    pipeline_model_parallel_layout: str | list[list[str]] | None = None
    """What each stage holds, virtual ones too: letters E (embedding), t (layer), m (further tokens), L (loss), with
    | between stages and *n for repetition, or their names in lists; None: layers in equal numbers."""
    account_for_embedding_in_pipeline_split: bool = False
    """Count the embedding as a layer when layers are split over stages."""
    account_for_loss_in_pipeline_split: bool = False
    """Count the output layer as a layer when layers are split over stages."""


@dataclass(kw_only=True)
class PrecisionFields:
    """Types of parameters and arithmetic; a mixed-precision recipe writes most of them."""

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
    """How 8-bit scales are found."""
    fp8_param: bool | None = False
    """Keep parameters in 8 bits."""
    fp8_margin: int = 0
    """Headroom of the scale, in powers of two."""
    fp8_amax_history_len: int = 1
    """Steps whose largest values decide a delayed scale."""
    fp8_amax_compute_algo: Literal["most_recent", "max"] = "most_recent"
    """Which of those steps counts."""
    fp8_wgrad: bool = True
    """Weight gradients in 8 bits."""
    fp8_dot_product_attention: bool = False
    """The attention core in 8 bits."""
    fp8_multi_head_attention: bool = False
    """The whole of attention in 8 bits."""
    first_last_layers_bf16: bool = False
    """Keep the outermost layers in bfloat16."""
    num_layers_at_start_in_bf16: int = 1
    """How many at the start."""
    num_layers_at_end_in_bf16: int = 1
    """How many at the end."""
    fp4: Literal["e2m1"] | None = None
    """4-bit format of the GEMMs."""
    fp4_recipe: Literal["nvfp4", "custom"] | None = "nvfp4"
    """How 4-bit scales are found."""
    fp4_param: bool | None = False
    """Keep parameters in 4 bits."""


@dataclass(kw_only=True)
class OverlapFields:
    """Communication beside computation; the overlap section writes most of them."""

    tp_comm_overlap: bool = False
    """Overlap tensor-parallel exchange with GEMMs (Transformer Engine's user buffers)."""
    tp_comm_overlap_cfg: dict[str, object] | None = None
    """Buffer settings by layer, handed to Transformer Engine at start; None: its own."""
    tp_comm_bootstrap_backend: Literal["nccl", "mpi", "gloo"] | None = "nccl"
    """Backend that sets the user buffers up."""
    overlap_p2p_comm: bool = False
    """Overlap the exchange between pipeline stages (interleaved schedule only)."""
    batch_p2p_comm: bool = True
    """Send and receive between stages in one batch; off when overlap_p2p_comm is on."""
    overlap_moe_expert_parallel_comm: bool = False
    """Overlap the experts' all-to-all with another microbatch."""
    delay_wgrad_compute: bool = False
    """Compute weight gradients later, to widen that overlap."""
    defer_embedding_wgrad_compute: bool = False
    """Compute the output layer's weight gradient while the pipeline drains."""
    wgrad_deferral_limit: int = 0
    """Microbatches that may be deferred; 0: all."""
    deallocate_pipeline_outputs: bool = False
    """Free a stage's output once it is sent."""


@dataclass(kw_only=True)
class KernelFields:
    """Which kernels and graphs compute the model, and what is computed twice to save memory."""

    transformer_impl: Literal["transformer_engine", "local"] = "transformer_engine"
    """Whose layers the layer spec uses: Transformer Engine's, or Megatron's and torch's own."""
    attention_backend: Literal["flash", "fused", "unfused", "local", "auto"] = "auto"
    """Attention kernel that Transformer Engine should take."""
    deterministic_mode: bool = False
    """Only operations that give the same bits each time."""
    calculate_per_token_loss: bool = False
    """Weigh every token of the global batch alike, not every microbatch."""
    gradient_accumulation_fusion: bool = False
    """Add weight gradients into the float32 buffer inside the GEMM (GPU)."""
    cross_entropy_loss_fusion: bool = False
    """One fused cross-entropy."""
    cross_entropy_fusion_impl: Literal["native", "te"] = "native"
    """Whose fused cross-entropy."""
    bias_activation_fusion: bool = False
    """Fuse the MLP's bias and activation."""
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
    """How CUDA graphs are captured (GPU)."""
    cuda_graph_modules: str | list[str] = "full"
    """Modules that are captured, or "full"."""
    cuda_graph_warmup_steps: int = 3
    """Steps before the capture."""
    use_te_rng_tracker: bool = False
    """Transformer Engine's random-state tracker, which CUDA graphs need (GPU)."""
    recompute_granularity: Literal["full", "selective"] | None = None
    """Compute whole layers ("full") or chosen modules ("selective") again in the backward pass."""
    recompute_method: Literal["uniform", "block"] | None = None
    """Which layers "full" picks."""
    recompute_num_layers: int | None = None
    """Layers in each recomputed group."""
    recompute_modules: list[str] | None = None
    """Modules that "selective" picks; None: Megatron's choice."""
    distribute_saved_activations: bool | None = False
    """Spread recomputation's inputs over tensor-parallel ranks."""
    fine_grained_activation_offloading: bool = False
    """Move chosen modules' activations to the host (GPU)."""


@dataclass(kw_only=True)
class MoEFields:
    """Experts and their router; used when num_moe_experts is set."""

    num_moe_experts: int | None = None
    """Experts in each layer; None: a dense MLP."""
    moe_layer_freq: int | list[int] = 1
    """Every how many layers there are experts, or one 0 (dense) or 1 (experts) for each layer."""
    moe_ffn_hidden_size: int | None = None
    """Inner width of an expert; None: ffn_hidden_size."""
    moe_shared_expert_intermediate_size: int | None = None
    """Inner width of the experts that every token visits, together; None: no such expert."""
    moe_shared_expert_gate: bool = False
    """Weigh the shared experts' output by a learned gate."""
    moe_shared_expert_overlap: bool = False
    """Compute the shared experts while tokens are on their way."""
    moe_router_topk: int = 2
    """Experts that a token visits."""
    moe_router_load_balancing_type: str | list[str] = "aux_loss"
    """How experts are kept busy: "aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none", or several."""
    moe_aux_loss_coeff: float | list[float] = 0.0
    """Weight of the balancing loss, one for each type."""
    moe_z_loss_coeff: float | None = None
    """Weight of the router's z-loss."""
    moe_router_score_function: Literal["softmax", "sigmoid", "sqrtsoftplus"] = "softmax"
    """How scores become probabilities."""
    moe_router_pre_softmax: bool = False
    """Softmax before the choice of experts instead of after."""
    moe_router_dtype: Literal["fp32", "fp64"] | None = None
    """Type of the router's arithmetic; None: the model's."""
    moe_router_enable_expert_bias: bool = False
    """Balance by a bias on scores instead of a loss."""
    moe_router_bias_update_rate: float = 1e-3
    """Step of that bias."""
    moe_router_num_groups: int | None = None
    """Groups of experts for group-limited routing."""
    moe_router_group_topk: int | None = None
    """Groups that a token may use."""
    moe_router_topk_scaling_factor: float | None = None
    """Factor on the chosen experts' weights."""
    moe_token_dispatcher_type: Literal["allgather", "alltoall", "flex"] = "allgather"
    """How tokens reach their experts."""
    moe_expert_capacity_factor: float | None = None
    """Tokens an expert takes, over its even share; None: all that come."""
    moe_pad_expert_input_to_capacity: bool = False
    """Fill experts up to their capacity."""
    moe_token_drop_policy: Literal["probs", "position"] = "probs"
    """Which tokens are dropped above capacity."""
    moe_grouped_gemm: bool = False
    """One GEMM for all local experts (GPU)."""
    moe_permute_fusion: bool = False
    """Fuse the permutation of tokens (GPU)."""
    moe_router_fusion: bool = False
    """Fuse the router (GPU)."""
    moe_per_layer_logging: bool = False
    """Report balancing losses layer by layer."""


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
    StrictFields,
):
    """What Megatron's TransformerConfig takes, whatever the family of the model."""

    rotary_interleaved: bool = False
    """Rotate neighbouring pairs instead of the two halves of a head."""
    transformer: dict[str, object] = field(default_factory=dict)
    """Any other field of Megatron's TransformerConfig, by name."""


@dataclass(kw_only=True)
class GPTModelConfig(YarnFields, TransformerFields):
    """A decoder-only language model on Megatron Core.

    Constructing one reads nothing and checks nothing: `mb_models.rules` says what is wrong with one, and
    `mb_models.transformer.transformer_config` builds Megatron's own configuration from it.
    """

    vocab_size: int | None = None
    """Rows of the embedding, kept as they are; None: the tokenizer's size, padded."""
    make_vocab_size_divisible_by: int = 128
    """A vocabulary that comes from the tokenizer is padded to a multiple of this times the tensor-parallel size."""
    seq_length: int = 1024
    """Tokens of a training sequence."""
    max_position_embeddings: int | None = None
    """Longest sequence the model can take, which sizes learned position embeddings; None: seq_length."""
    position_embedding_type: Literal["learned_absolute", "rope", "mrope", "yarn", "none"] = "learned_absolute"
    """How positions enter."""
    rotary_base: int = 10000
    """Base of the rotary frequencies."""
    rotary_percent: float = 1.0
    """Share of each head that is rotated."""
    rope_scaling: bool = False
    """Stretch low rotary frequencies as Llama 3.1 does."""
    rope_scaling_factor: float = 8.0
    """By how much."""
    seq_len_interpolation_factor: float | None = None
    """Divide positions by this (linear interpolation of rotary positions)."""
    share_embeddings_and_output_weights: bool = False
    """Tie the output layer to the embedding."""
    fp16_lm_cross_entropy: bool = False
    """Compute the loss in float16 instead of float32."""
    parallel_output: bool = True
    """Leave logits split over tensor-parallel ranks."""
