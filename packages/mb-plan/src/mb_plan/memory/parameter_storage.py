"""Bytes per parameter of weights, gradients and optimizer state, and their sharding over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mb_plan.memory.parameter_counts import ParameterCount
from mb_plan.shape.fields import read_field

MOMENTS = {"adam": 2, "adamw": 2, "sgd": 1, "lion": 1}
"""Optimizer to the number of state tensors of the size of a parameter, without the master weight."""

_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int16": 2, "uint8": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterStorage:
    """Bytes per parameter, and the sharding over the ranks that hold replicas."""

    weights: int
    linear_weights: float
    """Of a weight of a linear layer in the layers, with its copies in FP8 or FP4."""
    gradients: int
    optimizer: float | None
    """Master weight and moments on the device; None: not counted for this optimizer."""
    host: float
    """Optimizer state on the host."""
    saved: int | None
    """Weight, master weight and moments in a checkpoint; None: not counted."""
    weights_sharded: bool
    gradients_sharded: bool
    optimizer_sharded: bool
    instances: int
    """Number of copies of sharded state over the replicas."""
    optimizer_instances: int
    """Number of copies of the sharded optimizer state over the replicas."""
    notes: tuple[str, ...] = ()
    """Omissions, as text for users."""


def dtype_bytes(dtype: Any) -> int:
    """Return the bytes of a dtype by its name, such as "bfloat16", or of a torch dtype."""
    name = str(dtype).removeprefix("torch.")
    return 1 if name.startswith("float8") else _BYTES.get(name, 4)


def compute_bytes(model: object, optimizer: object) -> int:
    """Return the bytes of a weight in computation: 2 with bf16 or fp16, otherwise those of params_dtype."""
    sections = [section for section in (model, optimizer) if section is not None]
    if any(read_field(section, name, False) for section in sections for name in ("bf16", "fp16")):
        return 2
    return dtype_bytes(read_field(model, "params_dtype", "float32"))


def parameter_storage(
    model: object, *, optimizer: object, ddp: object, checkpoint: object = None
) -> ParameterStorage:
    """Return the bytes per parameter for these sections, of which all but the model may be None.

    Megatron stores gradients in a separate buffer in the dtype of the weights (float32 with `grad_reduce_in_fp32`), and
    float32 master weights for half-precision weights. Adam adds two moments. The distributed optimizer shards master
    weights and moments over the data-parallel ranks. Megatron-FSDP shards these (optim), also gradients
    (optim_grads), and also weights (optim_grads_params): stages 1 to 3 of Rajbhandari et al., "ZeRO: Memory
    Optimizations Toward Training Trillion Parameter Models" (2020), section 5.
    """
    weights = compute_bytes(model, optimizer)
    notes = _format_notes(model)
    fsdp = bool(read_field(ddp, "use_megatron_fsdp", False) or read_field(ddp, "use_custom_fsdp", False))
    strategy = str(read_field(ddp, "data_parallel_sharding_strategy", "no_shard")) if fsdp else ""
    main = _fsdp_main_bytes(ddp) if fsdp else _main_bytes(weights, optimizer)
    moments = _moment_bytes(optimizer)
    distributed = bool(
        read_field(ddp, "use_distributed_optimizer", False)
        or read_field(optimizer, "use_distributed_optimizer", False)
    )
    state = None if moments is None else main + moments
    if state is None:
        notes += (f"optimizer.optimizer: the state of {read_field(optimizer, 'optimizer')!r} is not counted",)
    offloaded = _offloaded(optimizer)
    sharded = strategy not in ("", "no_shard")
    if strategy == "optim_grads_params":
        notes += ("Megatron-FSDP: gathered weights of the active layers are not counted",)
    instances = read_field(ddp, "num_distributed_optimizer_instances", 1) or 1
    outer = fsdp and read_field(ddp, "outer_dp_sharding_strategy", "no_shard") == "optim"
    return ParameterStorage(
        weights=weights,
        linear_weights=_linear_bytes(model, weights),
        gradients=_gradient_bytes(weights, ddp, fsdp=fsdp),
        optimizer=None if state is None else state * (1 - offloaded),
        host=0 if state is None else state * offloaded,
        saved=_saved(weights, state, optimizer, checkpoint, distributed=distributed and not fsdp),
        weights_sharded=strategy == "optim_grads_params",
        gradients_sharded=strategy in ("optim_grads", "optim_grads_params"),
        optimizer_sharded=sharded or (distributed and not fsdp),
        instances=instances,
        optimizer_instances=1 if outer else instances,
        notes=notes,
    )


def _linear_bytes(model: object, weights: int) -> float:
    """Return the bytes of a weight that Transformer Engine quantizes: one copy by rows, and one by columns.

    They are kept over the microbatches, in addition to the weight unless they are the primary weights (`fp8_param`,
    `fp4_param`). 32 values of MXFP8 and 16 of NVFP4 share a scaling factor of one byte.
    """
    if read_field(model, "fp4"):
        copies, primary = 2 * (1 / 2 + 1 / 16), read_field(model, "fp4_param", False)
    elif read_field(model, "fp8"):
        blocks = 1 / 32 if read_field(model, "fp8_recipe") == "mxfp8" else 0.0
        copies, primary = 2 * (1 + blocks), read_field(model, "fp8_param", False)
    else:
        return weights
    return copies if primary else weights + copies


def _format_notes(model: object) -> tuple[str, ...]:
    if not (read_field(model, "fp8") or read_field(model, "fp4")):
        return ()
    return ("8- and 4-bit formats: activations are counted with 2 bytes",)


def _fsdp_main_bytes(ddp: object) -> int:
    """Return the bytes of a master weight of Megatron-FSDP, which also keeps one for a float32 weight."""
    dtype = read_field(ddp, "megatron_fsdp_main_params_dtype", "float32")
    return 0 if dtype is None else dtype_bytes(dtype)


def _main_bytes(weights: int, optimizer: object) -> int:
    """Return the bytes of a master weight; 0 for a float32 weight."""
    if read_field(optimizer, "use_precision_aware_optimizer", False):
        main = dtype_bytes(read_field(optimizer, "main_params_dtype", "float32"))
        offloaded = read_field(optimizer, "optimizer_cpu_offload", False)
        if main == 4 and read_field(optimizer, "fp8_recipe") not in (None, "delayed") and not offloaded:
            # Megatron Core keeps them itself, see `use_precision_aware_optimizer_no_fp8_or_ds_fp8`
            return main
        halves = read_field(optimizer, "store_param_remainders", True) and read_field(
            optimizer, "bf16", False
        )
        return 2 if main == 4 and halves else main
    return 0 if weights == 4 else 4


def _moment_bytes(optimizer: object) -> int | None:
    """Return the bytes of the optimizer's moments for each parameter; None for an optimizer that is not known."""
    name = str(read_field(optimizer, "optimizer", "adam"))
    if name not in MOMENTS:
        return None
    if name == "sgd":
        return 4 if read_field(optimizer, "sgd_momentum", 0.9) else 0
    if name == "lion":
        return 4
    if not read_field(optimizer, "use_precision_aware_optimizer", False):
        return 8
    return sum(
        dtype_bytes(read_field(optimizer, field, "float32"))
        for field in ("exp_avg_dtype", "exp_avg_sq_dtype")
    )


def _gradient_bytes(weights: int, ddp: object, *, fsdp: bool) -> int:
    if fsdp:
        dtype = read_field(ddp, "megatron_fsdp_main_grads_dtype")
        return weights if dtype is None else dtype_bytes(dtype)
    return 4 if read_field(ddp, "grad_reduce_in_fp32", False) else weights


def _offloaded(optimizer: object) -> float:
    if not read_field(optimizer, "optimizer_cpu_offload", False):
        return 0.0
    return float(read_field(optimizer, "optimizer_offload_fraction", 0.0))


def _saved(
    weights: int, state: int | None, optimizer: object, checkpoint: object, *, distributed: bool
) -> int | None:
    """Return the bytes in a checkpoint. The distributed optimizer also saves float32 weights as main parameters.

    For the fully reshardable form, Megatron gathers main parameters and moments of any dtype in float32
    (`DistributedOptimizer.get_parameter_state_dp_zero`).
    """
    if not read_field(checkpoint, "save_optim", True):
        return weights
    if state is None:
        return None
    if distributed and read_field(checkpoint, "dist_ckpt_optim_fully_reshardable", False):
        return weights + 4 * (1 + MOMENTS[str(read_field(optimizer, "optimizer", "adam"))])
    return weights + state + (4 if weights == 4 and distributed else 0)


def sharded_bytes(count: ParameterCount, size: float, *, dense_over: int, expert_over: int) -> int:
    """Return the bytes per rank of parameters of `size` bytes each, sharded over ranks, without padding."""
    dense, expert = -(-count.dense // dense_over), -(-count.expert // expert_over)
    return round((dense + expert) * size)
