"""Rules on the settings of Megatron Core's optimizer."""

from __future__ import annotations

from difflib import get_close_matches

from mb_config.rules.parallelism import data_parallel_size
from mb_config.rules.precision import unknown_dtypes
from mb_schema.rule_kinds import assigned, excludes, in_range, lettered, optimizer_rule, requires, shown
from mb_schema.rules import Rule

_STATE_DTYPES = ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
"""Fields with the types of the optimizer's state."""

EMERGING = ("lion", "muon", "adaptive_muon", "soap")
"""Optimizers of the package emerging-optimizers."""

ALGORITHMS = ("adam", "sgd", "lion", "muon", "adaptive_muon", "soap")
"""Values of `optimizer.optimizer` in Megatron Core. The prefix `dist_` shards by entire layers."""


@optimizer_rule(
    "V051",
    others=_STATE_DTYPES,
    why="only the precision-aware optimizer supports state below float32",
    fix="Set optimizer.use_precision_aware_optimizer=true, or set the dtypes to float32.",
    fails={"exp_avg_dtype": "bfloat16"},
    passes={"use_precision_aware_optimizer": True},
)
def _state_below_float32(use_precision_aware_optimizer, **dtypes):
    low = {name: dtype for name, dtype in dtypes.items() if dtype not in (None, "float32")}
    return f"is false, but {assigned(low)} is set" if low and not use_precision_aware_optimizer else None


@optimizer_rule(
    "OP01",
    why="Megatron Core implements no other optimizer",
    fix="Use a name from the list; adam with optimizer.decoupled_weight_decay=true is AdamW.",
    fails={"optimizer": "adamw2"},
    passes={"optimizer": "adam"},
)
def _unknown_algorithm(optimizer):
    if optimizer is None or str(optimizer).removeprefix("dist_") in ALGORITHMS:
        return None
    near = get_close_matches(str(optimizer)[:100], ALGORITHMS, n=1)
    nearest = f"; nearest: {near[0]}" if near else ""
    return f"{optimizer!r} is not one of {', '.join(ALGORITHMS)}{nearest}"


@optimizer_rule(
    "OP04",
    why="Megatron Core takes this optimizer from that package",
    fix="Install it: pip install emerging-optimizers. Or choose adam or sgd.",
    fails={"optimizer": "muon"},
    passes={"emerging_optimizers_installed": True},
)
def _package_missing(optimizer, *, emerging_optimizers_installed):
    if str(optimizer).removeprefix("dist_") not in EMERGING or emerging_optimizers_installed:
        return None
    return f"{optimizer} requires emerging-optimizers, which is not installed"


def _shards_layers(optimizer: object, layer_wise: object) -> bool:
    """Return whether an optimizer is sharded by entire layers."""
    return str(optimizer).startswith("dist_") or (bool(layer_wise) and optimizer in EMERGING)


@optimizer_rule(
    "OP05",
    why="Megatron Core shards by entire layers only the float32 copies of bfloat16 weights",
    fix="Set mixed_precision=bf16_mixed, or do not shard it (no dist_, use_layer_wise_distributed_optimizer=false).",
    fails={"optimizer": "dist_muon", "bf16": False, "resolved": True},
    passes={"bf16": True},
)
def _sharded_by_layers_without_bf16(optimizer, bf16, use_layer_wise_distributed_optimizer, *, resolved):
    layer_wise = _shards_layers(optimizer, use_layer_wise_distributed_optimizer)
    if not layer_wise or bf16 or not resolved:  # the precision recipe sets bf16
        return None
    return f"{optimizer}, sharded by layers, requires bf16 (bf16={shown(bf16)})"


@optimizer_rule(
    "OP06",
    why="the parts of the replicas have different sizes, which gloo cannot gather",
    fix="On CPUs do not shard it (no dist_, use_layer_wise_distributed_optimizer=false).",
    fails={"optimizer": "dist_muon", "cpu": True, "world_size": 2},
    passes={"cpu": False},
)
def _sharded_by_layers_on_cpus(
    optimizer, use_layer_wise_distributed_optimizer, tp, pp, cp, *, cpu, world_size
):
    replicas = data_parallel_size(world_size, tp, pp, cp)
    if (
        not _shards_layers(optimizer, use_layer_wise_distributed_optimizer)
        or not cpu
        or replicas in (None, 1)
    ):
        return None
    return f"{optimizer}, sharded by layers, cannot run on CPUs with {replicas} replicas"


@optimizer_rule(
    "OP09",
    why="Megatron Core shards only the optimizers of emerging-optimizers by entire layers",
    fix="Set use_layer_wise_distributed_optimizer=false; adam is sharded by ddp.use_distributed_optimizer=true.",
    fails={"use_layer_wise_distributed_optimizer": True, "optimizer": "adam"},
    passes={"optimizer": "muon"},
)
def _layers_of_another_optimizer(use_layer_wise_distributed_optimizer, optimizer):
    if not use_layer_wise_distributed_optimizer or _shards_layers(optimizer, True):
        return None
    return f"has no effect on {optimizer}"


@optimizer_rule(
    "OP07",
    why="Megatron Core offloads parameters on a GPU only, and finds no copy of the others",
    fix="Set optimizer.optimizer_cpu_offload=false: without a GPU, everything is on the host.",
    fails={"optimizer_cpu_offload": True, "cpu": True, "use_distributed_optimizer": True},
    passes={"cpu": False},
)
def _shards_offloaded_without_gpu(
    optimizer_cpu_offload, use_distributed_optimizer, ddp__use_distributed_optimizer, *, cpu
):
    if optimizer_cpu_offload and cpu and (use_distributed_optimizer or ddp__use_distributed_optimizer):
        return "cannot run on CPUs with use_distributed_optimizer=true"
    return None


@optimizer_rule(
    "OP08",
    why="Megatron Core's distributed optimizer shards Adam only: sgd loses its state, and with another one a replica "
    "updates most weights with its own gradients",
    fix="Set optimizer.optimizer=adam, or use_distributed_optimizer=false in optimizer and ddp, without Megatron-FSDP.",
    fails={"optimizer": "sgd", "use_distributed_optimizer": True},
    passes={"optimizer": "adam"},
)
def _other_optimizer_sharded(
    optimizer,
    use_distributed_optimizer,
    ddp__use_distributed_optimizer,
    ddp__use_megatron_fsdp,
    dist__use_megatron_fsdp,
):
    sharding = (ddp__use_distributed_optimizer, ddp__use_megatron_fsdp, dist__use_megatron_fsdp)
    if optimizer not in (None, "adam") and (use_distributed_optimizer or any(sharding)):
        return f"is {optimizer}, but the distributed optimizer is set"
    return None


@optimizer_rule(
    "V051d",
    why="only Transformer Engine implements Adam with state below float32",
    fix="Install transformer-engine[pytorch], set optimizer.optimizer_cpu_offload=true, or set it to false.",
    fails={"use_precision_aware_optimizer": True},
    passes={"transformer_engine": True},
)
def _fused_adam_missing(use_precision_aware_optimizer, optimizer_cpu_offload, *, transformer_engine):
    if not use_precision_aware_optimizer or optimizer_cpu_offload or transformer_engine:
        return None
    return "requires Transformer Engine (transformer_engine=false)"


_COMMON: tuple[Rule, ...] = (
    excludes(
        "V146",
        {"optimizer.fp16": True, "optimizer.bf16": True},
        why="a model computes in one format",
        fix="Set one of them to false.",
    ),
    _state_below_float32,
    requires(
        "V051a",
        {"optimizer.use_precision_aware_optimizer": True},
        {"optimizer.optimizer": "adam"},
        why="it is a variant of Adam",
        fix="Set optimizer.optimizer=adam, or set it to false.",
        fails={"optimizer.optimizer": "sgd"},
    ),
    excludes(
        "V051b",
        {
            "optimizer.overlap_param_gather_with_optimizer_step": True,
            "optimizer.reuse_grad_buf_for_mxfp8_param_ag": True,
        },
        why="the all-gather would use the gradient buffer while the optimizer step reads it",
        fix="Set one of the two to false.",
    ),
    requires(
        "V051c",
        {"optimizer.fp8_recipe": "mxfp8"},
        {"optimizer.reuse_grad_buf_for_mxfp8_param_ag": True},
        why="a second buffer of the size of the parameters is allocated for the all-gather",
        fix="Set reuse_grad_buf_for_mxfp8_param_ag=true and fp8_param_gather=true, in mixed_precision or in ddp.",
        severity="warning",
    ),
    _fused_adam_missing,
    requires(
        "V051g",
        {"optimizer.optimizer_cpu_offload": True},
        {"optimizer.use_precision_aware_optimizer": True},
        why="Megatron Core's optimizer on the host finds main weights on the path of the precision-aware one alone; "
        "without it the run trains, and no checkpoint of it can be loaded",
        fix="Set optimizer.use_precision_aware_optimizer=true, or optimizer.optimizer_cpu_offload=false.",
    ),
    in_range(
        "V208a",
        "optimizer.weight_decay",
        0,
        why="the weight-decay schedule starts from it",
    ),
    _unknown_algorithm,
    in_range(
        "OP02",
        "optimizer.clip_grad",
        0,
        why="a norm is not negative, and 0 disables clipping",
        fix="Set optimizer.clip_grad to the maximum norm, such as 1.0, or to 0.",
    ),
    *(
        in_range(
            id,
            path,
            0,
            below=1,
            why="it is the decay of a running average",
            fix=f"Set {path} to a number such as 0.9.",
        )
        for id, path in lettered(
            "OP03", ("optimizer.adam_beta1", "optimizer.adam_beta2", "optimizer.sgd_momentum")
        )
    ),
    unknown_dtypes("DT02", "optimizer", ("params_dtype", *_STATE_DTYPES)),
)


def _aware_of_unsharded_state(*other_switches: str) -> Rule:
    """Return the rule on unsharded state. `other_switches` are fields that enable sharding when resolved."""

    def unsharded(use_precision_aware_optimizer, use_distributed_optimizer, **other_switches):
        if not use_precision_aware_optimizer or use_distributed_optimizer or any(other_switches.values()):
            return None
        return "requires use_distributed_optimizer"

    return optimizer_rule(
        "V051e",
        others=other_switches,
        why="it requires sharded state",
        fix="Set optimizer.use_distributed_optimizer=true, or set it to false.",
        fails={"use_precision_aware_optimizer": True, "use_distributed_optimizer": False},
        passes={"use_distributed_optimizer": True},
    )(unsharded)


SECTION_RULES: tuple[Rule, ...] = (*_COMMON, _aware_of_unsharded_state())

RULES: tuple[Rule, ...] = (
    *_COMMON,
    _package_missing,
    _sharded_by_layers_without_bf16,
    _sharded_by_layers_on_cpus,
    _shards_offloaded_without_gpu,
    _layers_of_another_optimizer,
    _other_optimizer_sharded,
    _aware_of_unsharded_state(
        "ddp.use_distributed_optimizer", "ddp.use_megatron_fsdp", "dist.use_megatron_fsdp"
    ),
)
