"""Fast settings: each with its condition and its reason.

Source: the performance recipes of Megatron-Bridge (`megatron.bridge.perf_recipes`, commit 067f987d), whose throughput
NVIDIA publishes. Three of their settings are left out because they change what is trained: gradients reduced in BF16,
experts loaded evenly by force (`moe_router_force_load_balancing`), and first and last layers in eight bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mb_config.perf.target import PerfTarget
from mb_schema.cuda_graphs import module_names

SMALL_HIDDEN_SIZE = 2048
"""Largest width of layers whose kernels, at the usual lengths, take less time on Hopper than the host needs to launch
them. An estimate: about 40 launches of 5 microseconds in a layer, forward."""
LAYER_PARTS = ("attn", "moe_router", "moe_preprocess")
"""Modules of a layer with experts whose shapes do not depend on the routing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FastSetting:
    """A field, or a variable of `env_vars`, with its fast value."""

    path: str
    value: object
    why: str
    when: Callable[[PerfTarget], Any]
    """Condition on the configuration with the settings before this one."""


def _always(target: PerfTarget) -> bool:
    return True


def _fused_gradients(target: PerfTarget) -> bool:
    return target.one_layout and not (target.fine_tuning or target.fsdp)


def _fused_loss(target: PerfTarget) -> bool:
    return target.one_layout and not target.model("deterministic_mode")


def _rotary(target: PerfTarget) -> bool:
    rotary = target.model("position_embedding_type") == "rope"
    return target.one_layout and rotary and not target.model("multi_latent_attention") and target.engine


def _fused_activation(target: PerfTarget) -> bool:
    activation, gated = target.model("activation_func"), target.model("gated_linear_unit")
    biased_experts = target.model("num_moe_experts") and target.model("add_bias_linear")
    swiglu = activation == "silu" and gated and not biased_experts
    # the kernel computes the tanh approximation of gelu, with which given weights were not trained
    given_weights = target.fine_tuning or target.get("checkpoint.pretrained_checkpoint") is not None
    gelu = activation == "gelu" and bool(target.model("add_bias_linear")) and not given_weights
    return target.one_layout and (swiglu or gelu)


def _experts(target: PerfTarget) -> bool:
    return target.one_layout and bool(target.model("num_moe_experts")) and target.engine


def _sharded_optimizer(target: PerfTarget) -> bool:
    return target.one_layout and target.adam and not target.fsdp


def _precision_aware(target: PerfTarget) -> bool:
    sharded = _sharded_optimizer(target) and target.get("optimizer.use_distributed_optimizer")
    installed = target.facts.get("transformer_engine") is not False
    # in eight bits, except by delayed scaling, Megatron Core keeps float32 weights itself: nothing is saved
    return bool(sharded and target.computes_in("bf16") and not target.eight_bits and installed)


def _averaged_on_the_way(target: PerfTarget) -> bool:
    own = target.model("calculate_per_token_loss") or target.fine_tuning
    return target.one_layout and not own and not target.fsdp


def _communicates(target: PerfTarget) -> bool:
    return target.data_parallel * target.size("tensor") * target.size("context") > 1


def _one_queue(target: PerfTarget) -> bool:
    ordered = target.size("tensor") * target.size("context") > 1
    overlapped = getattr(target.config.comm_overlap, "overlap_moe_expert_parallel_comm", False)
    return target.hopper and ordered and not overlapped


PRECISIONS = {
    ("hopper", "fp8"): "bf16_with_fp8_current_scaling_mixed",
    ("blackwell", "fp8"): "bf16_with_mxfp8_mixed",
    ("blackwell", "nvfp4"): "bf16_with_nvfp4_mixed",
}
"""Generation and suffix of `perf` to a precision recipe. Ada (compute capability 8.9) computes FP8 as Hopper does."""


def precision_of(target: PerfTarget) -> FastSetting | None:
    """Return the precision that `perf` selects; None: that of the configuration is kept."""
    if target.precision and target.one_layout:
        generation = "blackwell" if target.blackwell else "hopper"
        name, why = PRECISIONS[generation, target.precision], f"{target.gpu} computes fastest in this format"
    elif target.float32 and target.one_layout:
        name, why = "bf16_mixed", "tensor cores compute BF16 many times faster than float32"
    else:
        return None
    return FastSetting(path="mixed_precision", value=name, why=why, when=_always)


MODEL: tuple[FastSetting, ...] = (
    FastSetting(
        path="model.gradient_accumulation_fusion",
        value=True,
        why="weight gradients are added within the matrix product that computes them",
        when=_fused_gradients,
    ),
    FastSetting(
        path="model.cross_entropy_loss_fusion", value=True, why="one kernel for the loss", when=_fused_loss
    ),
    FastSetting(
        path="model.cross_entropy_fusion_impl",
        value="te",
        why="Transformer Engine computes the loss in place, without a copy of the logits",
        when=lambda target: (
            _fused_loss(target) and target.engine and target.model("cross_entropy_loss_fusion")
        ),
    ),
    FastSetting(
        path="model.apply_rope_fusion",
        value=True,
        why="one kernel rotates queries and keys",
        when=_rotary,
    ),
    FastSetting(
        path="model.bias_activation_fusion",
        value=True,
        why="one kernel for bias and activation",
        when=_fused_activation,
    ),
    FastSetting(
        path="model.bias_dropout_fusion",
        value=True,
        why="one kernel for bias, dropout and residual",
        when=lambda target: target.one_layout,
    ),
    FastSetting(
        path="model.moe_grouped_gemm",
        value=True,
        why="one matrix product for all experts of a rank",
        when=_experts,
    ),
    FastSetting(
        path="model.moe_permute_fusion",
        value=True,
        why="one kernel sorts the tokens by expert",
        when=_experts,
    ),
    FastSetting(
        path="model.moe_token_dispatcher_type",
        value="alltoall",
        why="a rank receives only the tokens of its experts",
        when=lambda target: _experts(target) and target.model("moe_token_dispatcher_type") == "allgather",
    ),
    FastSetting(
        path="model.deallocate_pipeline_outputs",
        value=True,
        why="frees what a stage has sent",
        when=lambda target: target.one_layout and target.size("pipeline") > 1,
    ),
)
"""Settings of the model without CUDA graphs and recomputation."""

SHARDED_OPTIMIZER: tuple[FastSetting, ...] = tuple(
    FastSetting(
        path=f"{section}.use_distributed_optimizer",
        value=True,
        why="each replica updates its share of the weights",
        when=_sharded_optimizer,
    )
    for section in ("ddp", "optimizer")
)
"""The two fields of the distributed optimizer, which are set together."""

RUN: tuple[FastSetting, ...] = (
    FastSetting(
        path="optimizer.use_precision_aware_optimizer",
        value=True,
        why="master weights take two bytes in addition to the BF16 weights instead of four, without loss",
        when=_precision_aware,
    ),
    FastSetting(
        path="ddp.average_in_collective",
        value=True,
        why="NCCL divides while it adds, which saves a kernel over all gradients",
        when=_averaged_on_the_way,
    ),
    FastSetting(
        path="train.manual_gc",
        value=True,
        why="all ranks collect garbage in the same step, so that none waits for another",
        when=_always,
    ),
    FastSetting(
        path="train.manual_gc_interval",
        value=100,
        why="garbage of Python is small",
        when=lambda target: target.get("train.manual_gc"),
    ),
)
"""Settings of optimizer, gradients and training."""

VARIABLES: tuple[FastSetting, ...] = (
    FastSetting(
        path="CUDA_DEVICE_MAX_CONNECTIONS",
        value=1,
        why="one queue keeps the launch order, in which collectives of tensor and context parallelism overlap",
        when=_one_queue,
    ),
    FastSetting(
        path="CUDA_DEVICE_MAX_CONNECTIONS",
        value=32,
        why="Blackwell orders launches itself, and streams do not block each other in separate queues",
        when=lambda target: target.blackwell,
    ),
    FastSetting(
        path="TORCH_NCCL_HIGH_PRIORITY",
        value=1,
        why="collectives get the next free SM rather than waiting for matrix products",
        when=_communicates,
    ),
    FastSetting(
        path="TORCH_NCCL_AVOID_RECORD_STREAMS",
        value=1,
        why="buffers of collectives are freed without a wait of the allocator",
        when=lambda target: _communicates(target) and target.model("cuda_graph_impl") != "full_iteration",
    ),
    FastSetting(
        path="NCCL_NVLS_ENABLE",
        value=0,
        why="NVLink SHARP takes memory and SMs that training needs more",
        when=lambda target: _communicates(target) and not target.get("ddp.nccl_ub"),
    ),
    FastSetting(
        path="NCCL_P2P_NET_CHUNKSIZE",
        value=2_097_152,
        why="larger messages between pipeline stages on different nodes",
        when=lambda target: target.size("pipeline") > 1,
    ),
    FastSetting(
        path="PYTORCH_CUDA_ALLOC_CONF",
        value="expandable_segments:True",
        why="memory of varying sizes does not fragment",
        when=lambda target: target.variable("PYTORCH_ALLOC_CONF") is None,
    ),
    *(
        FastSetting(
            path=f"NVTE_{way}_LAYERNORM_SM_MARGIN",
            value=20,
            why="norms leave SMs to collectives, which would wait otherwise",
            when=_communicates,
        )
        for way in ("FWD", "BWD")
    ),
    *(
        FastSetting(
            path=f"NVTE_NORM_{way}_USE_CUDNN",
            value=1,
            why="cuDNN's norms are fused with the conversion to eight bits",
            when=lambda target: target.eight_bits,
        )
        for way in ("FWD", "BWD")
    ),
)
"""Environment variables. The first that applies is taken for a name."""


# CUDA graphs


def _static(target: PerfTarget) -> bool:
    """Return whether every microbatch launches the same kernels on the same shapes."""
    dynamic = (
        target.get("dataset.pack_sequences_in_batch"),
        target.get("dataset.packed_sequence_specs") is not None,
        target.model("variable_seq_lengths"),
        target.model("decoder_seq_length"),
        target.model("cpu_offloading"),
        target.model("fine_grained_activation_offloading"),
        target.model("recompute_granularity"),
        target.model("overlap_moe_expert_parallel_comm"),
        getattr(target.config.comm_overlap, "overlap_moe_expert_parallel_comm", False),
        target.config.straggler is not None,
        target.config.tensor_inspect is not None,
        target.get("logger.tensor_norms_steps"),
        target.model("qk_clip"),
        target.model("log_max_attention_logit"),
    )
    return target.engine and target.one_layout and not (target.fine_tuning or target.images or any(dynamic))


def whole_step(target: PerfTarget) -> str | None:
    """Return why one graph captures the whole step; None: none does."""
    experts = target.model("num_moe_experts") or target.model("hybrid_layer_pattern")
    further = target.model("mtp_num_layers") or target.size("pipeline") > 1 or target.fsdp
    # The scale of the loss is a new tensor whenever it changes, which a graph would not see.
    host = (
        target.computes_in("fp16")
        or target.reads_losses_at_once
        or module_names(target.model("cuda_graph_modules"))
    )
    if not (target.hopper or target.blackwell) or not _static(target) or experts or further or host:
        return None
    return (
        "the host launches a step at once; on an H200, 355 million parameters take 166.5 ms a step, with graphs of "
        "layers 176.2, without 335 (27 November 2026)"
    )


def captured_modules(target: PerfTarget) -> tuple[list[str] | str, str] | None:
    """Return the modules of each layer that are captured in graphs, and the reason; None: none are."""
    if not _static(target) or whole_step(target) is not None:
        return None
    experts = bool(target.model("num_moe_experts"))
    if target.model("hybrid_layer_pattern"):
        parts = ["mamba", "attn"] if target.blackwell else ["mamba"]
        routed = ["moe_router", "moe_preprocess"] if experts and target.blackwell else []
        return [*parts, *routed], "Mamba layers launch many short kernels"
    if experts:
        fast = target.blackwell or (target.hopper and target.eight_bits)
        why = "the host launches attention and router of a layer at once"
        return (list(LAYER_PARTS), why) if fast else None
    small = (target.model("hidden_size") or SMALL_HIDDEN_SIZE + 1) <= SMALL_HIDDEN_SIZE
    if target.hopper and small and not target.model("mtp_num_layers"):
        return (
            "full",
            f"kernels of layers up to {SMALL_HIDDEN_SIZE} wide end before the host can launch the next ones",
        )
    return None


def graph_settings(target: PerfTarget) -> list[FastSetting]:
    """Return the settings of CUDA graphs, to be set together but for `cuda_graph_modules`; empty: no graphs."""
    whole, modules = whole_step(target), captured_modules(target)
    if whole is not None:
        values: dict[str, object] = {"model.cuda_graph_impl": "full_iteration"}
        why = whole
    elif modules is not None:
        chosen, why = modules
        values = {"model.cuda_graph_impl": "transformer_engine", "model.cuda_graph_modules": chosen}
    else:
        return []
    random = {"model.use_te_rng_tracker": True, "rng.te_rng_tracker": True}
    texts = {
        **dict.fromkeys(values, why),
        **dict.fromkeys(random, "graphs need Transformer Engine's random states"),
    }
    return [
        FastSetting(path=path, value=value, why=texts[path], when=_always)
        for path, value in {**values, **random}.items()
    ]
