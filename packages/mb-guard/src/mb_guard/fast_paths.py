"""Fast paths that Megatron Core loses in silence when an import fails, and what each costs.

Megatron Core imports optional kernels inside `try`: where a name is missing, it computes otherwise, without a word.
`tests/test_fast_paths.py` compares this table with every such import of the installed Megatron Core.
"""

from dataclasses import dataclass

from mb_guard.sources import defines, module_file


@dataclass(frozen=True, slots=True, kw_only=True)
class FastPath:
    """Names that Megatron Core imports inside `try`, and what it does without them."""

    module: str
    names: tuple[str, ...]
    """Names of `module`; empty: the module itself."""
    used_for: str
    without: str
    """What Megatron Core does without them, and what that costs."""
    matters: str
    """Models and settings for which it matters."""
    distribution: str

    @property
    def id(self) -> str:
        """Module and first name."""
        return ".".join([self.module, *self.names[:1]])


FAST_PATHS: tuple[FastPath, ...] = (
    FastPath(
        module="transformer_engine.pytorch",
        names=(),
        used_for="fused layers, FP8, fused attention, the fused optimizer",
        without="local layers of torch: no FP8, no fused norms and no communication overlap of GEMMs",
        matters="every model on a GPU",
        distribution="transformer-engine[pytorch]",
    ),
    FastPath(
        module="transformer_engine.pytorch.attention",
        names=("_SplitAlongDim",),
        used_for="splitting q, k and v without copies in the backward pass",
        without="torch.split, whose backward concatenates: 6 % of a step of a GPT of 355 M parameters on an H200. "
        "mb_guard.install() restores it where Transformer Engine has it under its new name",
        matters="every attention layer without fused_single_qkv_rope",
        distribution="transformer-engine[pytorch]",
    ),
    FastPath(
        module="transformer_engine.pytorch.attention.rope",
        names=("apply_rotary_pos_emb", "apply_fused_qkv_rotary_pos_emb"),
        used_for="fused rotary positions (apply_rope_fusion, fused_single_qkv_rope)",
        without="several element-wise kernels per layer and pass",
        matters="models with rotary positions",
        distribution="transformer-engine[pytorch]",
    ),
    FastPath(
        module="transformer_engine.pytorch.optimizers",
        names=("FusedAdam", "FusedSGD"),
        used_for="one kernel for an optimizer step",
        without="Apex's, else torch's AdamW: one kernel per tensor and operation, and another state of the optimizer",
        matters="every model on a GPU",
        distribution="transformer-engine[pytorch]",
    ),
    FastPath(
        module="transformer_engine.pytorch.optimizers",
        names=(
            "multi_tensor_applier",
            "multi_tensor_l2norm",
            "multi_tensor_scale",
            "multi_tensor_scale_tensor",
        ),
        used_for="gradient norm and clipping of all parameters in a few kernels",
        without="Apex's, else a loop over the parameters: a few kernels per tensor",
        matters="every model on a GPU",
        distribution="transformer-engine[pytorch]",
    ),
    FastPath(
        module="transformer_engine.pytorch.cross_entropy",
        names=("parallel_cross_entropy",),
        used_for="cross_entropy_fusion_impl=te",
        without="an error if that is set; otherwise Megatron's own loss",
        matters="cross_entropy_loss_fusion with cross_entropy_fusion_impl=te",
        distribution="transformer-engine[pytorch]",
    ),
    FastPath(
        module="transformer_engine.pytorch.permutation",
        names=(
            *("moe_permute", "moe_permute_with_probs", "moe_permute_and_pad_with_probs", "moe_unpermute"),
            *("moe_sort_chunks_by_index", "moe_sort_chunks_by_index_with_probs"),
        ),
        used_for="moe_permute_fusion",
        without="sorting, gathering and scattering of tokens by separate kernels of torch",
        matters="mixtures of experts",
        distribution="transformer-engine[pytorch]",
    ),
    FastPath(
        module="transformer_engine.pytorch",
        names=("Fp8Padding", "Fp8Unpadding"),
        used_for="padding of tokens to the sizes that FP8 GEMMs need",
        without="an assertion that fails where padding is needed",
        matters="experts and inference in FP8",
        distribution="transformer-engine[pytorch]",
    ),
    FastPath(
        module="transformer_engine.pytorch.ops",
        names=("GroupedLinear", "ScaledSwiGLU", "ScaledClampedQGeGLU", "ScaledSReLU"),
        used_for="use_transformer_engine_op_fuser for experts",
        without="separate GEMMs and activations",
        matters="mixtures of experts with use_transformer_engine_op_fuser",
        distribution="transformer-engine[pytorch]",
    ),
    FastPath(
        module="transformer_engine.pytorch.graph",
        names=(
            *("make_graphed_callables", "save_fp8_tensors", "restore_fp8_tensors"),
            *("set_capture_start", "set_capture_end"),
        ),
        used_for="CUDA graphs of layers",
        without="an error with cuda_graph_impl, or graphs without FP8 state",
        matters="cuda_graph_impl",
        distribution="transformer-engine[pytorch]",
    ),
    FastPath(
        module="transformer_engine.pytorch.cpp_extensions",
        names=("general_gemm",),
        used_for="the router's product in its own precision (moe_router_dtype)",
        without="a conversion and a GEMM of torch",
        matters="mixtures of experts",
        distribution="transformer-engine[pytorch]",
    ),
    FastPath(
        module="fused_weight_gradient_mlp_cuda",
        names=(),
        used_for="gradient_accumulation_fusion of local layers: the GEMM adds to the main gradient itself",
        without="a separate addition per weight and microbatch; an error if the setting is true",
        matters="transformer_impl=local on a GPU, tied embeddings and the output layer",
        distribution="apex (built with --cuda_ext)",
    ),
    FastPath(
        module="apex.contrib.layer_norm.layer_norm",
        names=("FastLayerNormFN",),
        used_for="persist_layer_norm of local layers",
        without="Apex's fused norm, else torch's",
        matters="transformer_impl=local on a GPU",
        distribution="apex (built with --fast_layer_norm)",
    ),
    FastPath(
        module="apex.normalization.fused_layer_norm",
        names=("FusedLayerNormAffineFunction",),
        used_for="the norm of local layers",
        without="torch's norm",
        matters="transformer_impl=local on a GPU",
        distribution="apex",
    ),
    FastPath(
        module="flash_attn",
        names=("flash_attn_varlen_func", "flash_attn_func"),
        used_for="FlashAttention 2 of Transformer Engine's attention",
        without="cuDNN's fused attention where it supports the case, else unfused attention, whose memory grows with "
        "the square of the sequence",
        matters="attention on GPUs or shapes that cuDNN does not support",
        distribution="flash-attn",
    ),
    FastPath(
        module="flash_attn_3.flash_attn_interface",
        names=("flash_attn_with_kvcache",),
        used_for="FlashAttention 3",
        without="FlashAttention 2 or cuDNN's attention",
        matters="Hopper",
        distribution="flash-attn-3",
    ),
    FastPath(
        module="flash_attn.cute",
        names=("flash_attn_varlen_func",),
        used_for="FlashAttention 4",
        without="FlashAttention 2 or cuDNN's attention",
        matters="Blackwell",
        distribution="flash-attn-4",
    ),
    FastPath(
        module="deep_ep",
        names=("Buffer", "HybridEPBuffer"),
        used_for="moe_token_dispatcher_type=flex: dispatch and combine of tokens over NVLink and InfiniBand",
        without="an error with flex; the all-to-all dispatcher is slower beyond one node",
        matters="expert parallelism over several nodes",
        distribution="deep-ep",
    ),
    FastPath(
        module="mamba_ssm.ops.triton.ssd_combined",
        names=("mamba_chunk_scan_combined", "mamba_split_conv1d_scan_combined"),
        used_for="the scan of Mamba layers",
        without="an error when the layer is built",
        matters="hybrid models",
        distribution="mamba-ssm",
    ),
    FastPath(
        module="causal_conv1d",
        names=("causal_conv1d_fn",),
        used_for="the convolution of Mamba layers",
        without="torch's convolution, several kernels",
        matters="hybrid models",
        distribution="causal-conv1d",
    ),
    FastPath(
        module="fla.ops.gated_delta_rule",
        names=("chunk_gated_delta_rule",),
        used_for="gated-delta-net layers",
        without="an error when the layer is built",
        matters="gated-delta-net layers",
        distribution="flash-linear-attention",
    ),
    FastPath(
        module="triton",
        names=(),
        used_for="fused kernels of Megatron Core: token indices of experts, sequence packing, losses",
        without="the same in torch, or an error where a setting requires the kernel",
        matters="mixtures of experts, FSDP",
        distribution="triton",
    ),
    FastPath(
        module="emerging_optimizers.orthogonalized_optimizers",
        names=("OrthogonalizedOptimizer", "AdaptiveMuon"),
        used_for="optimizer=muon and its relatives",
        without="an error with these optimizers",
        matters="optimizer=muon, adaptive_muon, soap",
        distribution="emerging-optimizers",
    ),
    FastPath(
        module="nvidia_resiliency_ext.checkpointing.async_ckpt.core",
        names=("AsyncCallsQueue", "AsyncRequest"),
        used_for="asynchronous checkpoints in a persistent process",
        without="Megatron's own writer",
        matters="async_save",
        distribution="nvidia-resiliency-ext",
    ),
    FastPath(
        module="psutil",
        names=(),
        used_for="the memory report of checkpoint writers",
        without="a RuntimeError while a checkpoint is written",
        matters="dist_checkpointing",
        distribution="psutil",
    ),
    FastPath(
        module="multistorageclient",
        names=(),
        used_for="checkpoints and data in object storage",
        without="an error with such a path",
        matters="paths that begin with msc://",
        distribution="multi-storage-client",
    ),
)


def lost_names(path: FastPath) -> tuple[str, ...]:
    """Return the names that an import would miss, without importing anything; all of them without the package."""
    file = module_file(path.module)
    if file is None:
        return path.names or (path.module,)
    if file.suffix != ".py":
        return ()
    return tuple(name for name in path.names if not defines(path.module, name))
