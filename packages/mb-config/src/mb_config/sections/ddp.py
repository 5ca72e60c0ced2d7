"""Section of the data-parallel wrapper: gradient reduction, parameter gather, sharding."""

from __future__ import annotations

from dataclasses import dataclass

from mb_config.container.section import Section
from mb_config.preflight.problems import reject
from mb_config.rules.ddp import SECTION_RULES


@dataclass(kw_only=True)
class DistributedDataParallelConfig(Section):
    """Settings of Megatron Core's data-parallel wrapper, dtypes as text.

    `mb_config.mcore.to_megatron` converts it to Megatron's class.
    """

    grad_reduce_in_fp32: bool = False
    """Accumulate and reduce gradients in float32."""

    overlap_grad_reduce: bool = False
    """Overlap the gradient reduction with the backward pass."""

    overlap_param_gather: bool = False
    """Overlap the parameter all-gather with the forward pass."""

    align_param_gather: bool = False
    """Start the parameter all-gather of all pipeline stages at the same time."""

    use_distributed_optimizer: bool = False
    """Shard the optimizer state: gradients are reduce-scattered, parameters all-gathered."""

    num_distributed_optimizer_instances: int = 1
    """Number of copies of the sharded state over the data-parallel ranks."""

    check_for_nan_in_grad: bool = False
    """Raise an error for NaN or infinity in a gradient before it is reduced."""

    check_for_large_grads: bool = False
    """Raise an error for an unusually large gradient before it is reduced."""

    bucket_size: int | None = None
    """Parameters per bucket; None: Megatron's default, which grows with the data-parallel size."""

    num_buckets: int | None = None
    """Number of buckets, as an alternative to `bucket_size`."""

    pad_buckets_for_high_nccl_busbw: bool = False
    """Pad buckets to a large power of two, which increases NCCL's bus bandwidth on many ranks."""

    reduce_scatter_with_fp32_accumulation: bool = False
    """Communicate in low precision, accumulate in float32."""

    param_name_patterns_for_fp32_local_accumulation: tuple[str, ...] = ()
    """Patterns (fnmatch) of parameters whose gradients accumulate in float32; "all": every parameter."""

    average_in_collective: bool = False
    """Average in the collective instead of dividing before a sum."""

    fp8_param_gather: bool = False
    """Store and gather parameters in FP8."""

    fp4_param_gather: bool = False
    """Store and gather parameters in FP4."""

    reuse_grad_buf_for_mxfp8_param_ag: bool = False
    """Gather MXFP8 parameters through the gradient buffer."""

    use_megatron_fsdp: bool = False
    """Wrap the model with Megatron-FSDP. Resolving sets the fields that it requires (V170 to V174, V177)."""

    use_custom_fsdp: bool = False
    """Deprecated name of `use_megatron_fsdp`. Not supported: rejected if set."""

    data_parallel_sharding_strategy: str = "no_shard"
    """State that FSDP shards: no_shard, optim, optim_grads, optim_grads_params (F01)."""

    gradient_reduce_div_fusion: bool = True
    """Divide and reduce gradients in one operation."""

    suggested_communication_unit_size: int | None = None
    """Elements per communication of FSDP; None: its default."""

    keep_fp8_transpose_cache: bool = False
    """Cache transposed FP8 weights under FSDP."""

    nccl_ub: bool = False
    """Register parameter and gradient buffers with NCCL."""

    fsdp_double_buffer: bool = False
    """Use two persistent buffers for FSDP's communication."""

    fsdp_db_use_persist_buf_on_alloc_fail: bool = False
    """Allocate a persistent buffer for a bucket that does not fit a double buffer."""

    fsdp_all_gather_in_start_param_sync: bool = True
    """Begin a step of FSDP with an all-gather of the first parameters."""

    outer_dp_sharding_strategy: str = "no_shard"
    """State that hybrid FSDP shards between groups: no_shard or optim."""

    disable_symmetric_registration: bool = False
    """Register buffers with NCCL locally, not symmetrically."""

    fsdp_manual_registration: bool = False
    """Register FSDP's buffers manually, in few calls."""

    delay_wgrad_compute: bool = False
    """Delay the computation of weight gradients for more overlap."""

    megatron_fsdp_main_params_dtype: str | None = "float32"
    """FSDP: dtype of master weights; None: the model's."""

    megatron_fsdp_main_grads_dtype: str | None = None
    """FSDP: dtype of main gradients; None: the model's."""

    megatron_fsdp_grad_comm_dtype: str | None = None
    """FSDP: dtype of communicated gradients; None: that of the main gradients."""

    megatron_fsdp_use_decoupled_grad: bool = False
    """FSDP: store gradients separately from the parameters, for the precision-aware optimizer."""

    megatron_fsdp_cuda_graph_mode: bool = False
    """FSDP: use a memory layout for CUDA graphs."""

    megatron_fsdp_enable_fine_grained_param_gather: bool = False
    """FSDP: gather smaller groups of parameters more often."""

    megatron_fsdp_max_pool_double_buffer: bool = False
    """FSDP: double buffers for models whose units differ in size; implies `fsdp_double_buffer`."""

    def finalize(self) -> None:
        """Check the section by itself. Does not modify it: Megatron derives the implied double buffer.

        Raises:
            ConfigError: If Megatron Core would reject the settings (V050).
        """
        reject({"ddp": self}, SECTION_RULES)
