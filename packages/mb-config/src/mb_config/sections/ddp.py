"""The data-parallel wrapper: reduction, gathering, sharding."""

from __future__ import annotations

from dataclasses import dataclass

from mb_config.problems import reject
from mb_config.rules.ddp import SECTION_RULES
from mb_config.section import Section


@dataclass(kw_only=True)
class DistributedDataParallelConfig(Section):
    """Megatron Core's wrapper settings, dtypes as strings. `mb_config.mcore.to_megatron` makes the real one."""

    grad_reduce_in_fp32: bool = False
    """Accumulate and reduce gradients in float32."""

    overlap_grad_reduce: bool = False
    """Reduce gradients while the backward pass still runs."""

    overlap_param_gather: bool = False
    """Gather parameters while the forward pass already runs."""

    align_param_gather: bool = False
    """Start the gather of all pipeline stages at the same time."""

    use_distributed_optimizer: bool = False
    """Shard the optimizer's state: gradients are reduce-scattered, parameters gathered."""

    num_distributed_optimizer_instances: int = 1
    """Copies of the sharded state over the data-parallel ranks."""

    check_for_nan_in_grad: bool = False
    """Stop on NaN or infinity in a gradient before it is reduced."""

    check_for_large_grads: bool = False
    """Stop on an unusually large gradient before it is reduced."""

    bucket_size: int | None = None
    """Parameters in a bucket; None: Megatron's choice, which grows with the data-parallel size."""

    num_buckets: int | None = None
    """Number of buckets, instead of their size."""

    pad_buckets_for_high_nccl_busbw: bool = False
    """Pad buckets to a large power of two, which NCCL moves faster on many ranks."""

    reduce_scatter_with_fp32_accumulation: bool = False
    """Send low precision over the wire, add in float32."""

    param_name_patterns_for_fp32_local_accumulation: tuple[str, ...] = ()
    """Patterns (as for file names) of parameters whose gradients accumulate in float32; "all": every one."""

    average_in_collective: bool = False
    """Let the collective average, instead of dividing before a sum."""

    fp8_param_gather: bool = False
    """Keep and gather parameters in FP8."""

    fp4_param_gather: bool = False
    """Keep and gather parameters in FP4."""

    reuse_grad_buf_for_mxfp8_param_ag: bool = False
    """Gather MXFP8 parameters through the gradient buffer."""

    use_megatron_fsdp: bool = False
    """Wrap with Megatron-FSDP; resolving switches on what goes with it (V170 to V174, V177)."""

    use_custom_fsdp: bool = False
    """Old name of `use_megatron_fsdp`. Nothing reads it: refused."""

    data_parallel_sharding_strategy: str = "no_shard"
    """What FSDP shards: no_shard, optim, optim_grads, optim_grads_params (F01)."""

    gradient_reduce_div_fusion: bool = True
    """Divide and reduce gradients in one operation."""

    suggested_communication_unit_size: int | None = None
    """Elements that FSDP moves at once; None: its own choice."""

    keep_fp8_transpose_cache: bool = False
    """Keep transposed FP8 weights under FSDP."""

    nccl_ub: bool = False
    """Register parameter and gradient buffers with NCCL."""

    fsdp_double_buffer: bool = False
    """Keep two persistent buffers for FSDP's communication."""

    fsdp_db_use_persist_buf_on_alloc_fail: bool = False
    """Give a bucket that fits no double buffer a persistent one."""

    fsdp_all_gather_in_start_param_sync: bool = True
    """Begin a step of FSDP with an all-gather of the first parameters."""

    outer_dp_sharding_strategy: str = "no_shard"
    """What hybrid FSDP shards between groups: no_shard or optim."""

    disable_symmetric_registration: bool = False
    """Register buffers with NCCL locally, not symmetrically."""

    fsdp_manual_registration: bool = False
    """Register FSDP's buffers by hand, in few calls."""

    delay_wgrad_compute: bool = False
    """Compute weight gradients later, to overlap more."""

    megatron_fsdp_main_params_dtype: str | None = "float32"
    """FSDP: dtype of master weights; None: the model's."""

    megatron_fsdp_main_grads_dtype: str | None = None
    """FSDP: dtype of main gradients; None: the model's."""

    megatron_fsdp_grad_comm_dtype: str | None = None
    """FSDP: dtype of gradients on the wire; None: as the main gradients."""

    megatron_fsdp_use_decoupled_grad: bool = False
    """FSDP: keep gradients beside the parameters, for the precision-aware optimizer."""

    megatron_fsdp_cuda_graph_mode: bool = False
    """FSDP: lay memory out for CUDA graphs."""

    megatron_fsdp_enable_fine_grained_param_gather: bool = False
    """FSDP: gather smaller pieces more often."""

    megatron_fsdp_max_pool_double_buffer: bool = False
    """FSDP: double buffers for models whose units differ in size; implies `fsdp_double_buffer`."""

    def finalize(self) -> None:
        """Check the section alone. Changes nothing: Megatron derives the implied double buffer by itself.

        Raises:
            ConfigError: settings that Megatron Core would refuse (V050).
        """
        reject({"ddp": self}, SECTION_RULES)
