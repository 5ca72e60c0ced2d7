"""Rules on the settings of Megatron Core's optimizer."""

from __future__ import annotations

from difflib import get_close_matches
from functools import partial

from mb_config.rules.formatting import format_assignments, format_value
from mb_config.rules.parallelism import SIZES, data_parallel_size
from mb_config.rules.precision import dtype_rule
from mb_schema.rule_kinds import as_warning, excludes, in_range, requires, rule, rules_for_each, section_rule
from mb_schema.rules import Rule

optimizer_rule = partial(section_rule, "optimizer")

_MOMENTS = (
    "optimizer.main_grads_dtype",
    "optimizer.main_params_dtype",
    "optimizer.exp_avg_dtype",
    "optimizer.exp_avg_sq_dtype",
)

EMERGING = ("lion", "muon", "adaptive_muon", "soap")
"""Optimizers of the package emerging-optimizers."""

ALGORITHMS = ("adam", "sgd", "lion", "muon", "adaptive_muon", "soap")
"""Values of `optimizer.optimizer` in Megatron Core. The prefix `dist_` shards by entire layers."""


def _low_precision(aware: bool | None, *dtypes: str | None) -> str | None:
    low = format_assignments(_MOMENTS, dtypes, where=_below_float32)
    return f"is false, but {low} is set" if low and not aware else None


def _below_float32(dtype: str | None) -> bool:
    return dtype not in (None, "float32")


def _aware_of_shards(aware: bool | None, *sharded: bool | None) -> str | None:
    return "requires use_distributed_optimizer" if aware and not any(sharded) else None


@optimizer_rule(
    "OP01",
    why="Megatron Core implements no other optimizer",
    fix="Use a name from the list; adam with optimizer.decoupled_weight_decay=true is AdamW.",
    fails={"optimizer": "adamw2"},
    passes={"optimizer": "adam"},
)
def _known_algorithm(optimizer):
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
def _emerging(optimizer, *, emerging_optimizers_installed):
    if str(optimizer).removeprefix("dist_") not in EMERGING or emerging_optimizers_installed:
        return None
    return f"{optimizer} requires emerging-optimizers, which is not installed"


@optimizer_rule(
    "OP05",
    why="Megatron Core shards by entire layers only the float32 copies of bfloat16 weights",
    fix="Set mixed_precision=bf16_mixed, or choose the optimizer without dist_.",
    fails={"optimizer": "dist_muon", "bf16": False, "resolved": True},
    passes={"bf16": True},
)
def _by_layers(optimizer, bf16, *, resolved):
    if not str(optimizer).startswith("dist_") or bf16 or not resolved:  # the precision recipe sets bf16
        return None
    return f"{optimizer} requires bf16 (bf16={format_value(bf16)})"


def _by_layers_on_host(name: str | None, cpu: bool, *sizes: int) -> str | None:
    replicas = data_parallel_size(*sizes)
    if not str(name).startswith("dist_") or not cpu or replicas in (None, 1):
        return None
    return f"{name} cannot run on CPUs with {replicas} replicas"


def _offloaded_shards(offload: bool | None, cpu: bool, *sharded: bool | None) -> str | None:
    return (
        "cannot run on CPUs with use_distributed_optimizer=true" if offload and cpu and any(sharded) else None
    )


def _kept_part(value: float | None) -> str | None:
    if value is None or 0 <= value < 1:
        return None
    return f"must be in [0, 1), not {value}"


@optimizer_rule(
    "V051d",
    why="only Transformer Engine implements Adam with state below float32",
    fix="Install transformer-engine[pytorch], set optimizer.optimizer_cpu_offload=true, or set it to false.",
    fails={"use_precision_aware_optimizer": True},
    passes={"transformer_engine": True},
)
def _needs_fused_adam(use_precision_aware_optimizer, optimizer_cpu_offload, *, transformer_engine):
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
    Rule(
        id="V051",
        fields=("optimizer.use_precision_aware_optimizer", *_MOMENTS),
        test=_low_precision,
        why="only the precision-aware optimizer supports state below float32",
        fix="Set optimizer.use_precision_aware_optimizer=true, or set the dtypes to float32.",
        fails={"optimizer.exp_avg_dtype": "bfloat16"},
        passes={"optimizer.use_precision_aware_optimizer": True, "optimizer.exp_avg_dtype": "bfloat16"},
    ),
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
    as_warning(
        requires(
            "V051c",
            {"optimizer.fp8_recipe": "mxfp8"},
            {"optimizer.reuse_grad_buf_for_mxfp8_param_ag": True},
            why="a second buffer of the size of the parameters is allocated for the all-gather",
            fix="Set reuse_grad_buf_for_mxfp8_param_ag=true and fp8_param_gather=true, in mixed_precision or in ddp.",
        )
    ),
    _needs_fused_adam,
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
        fix="Set optimizer.weight_decay to 0 or more.",
        fails=-0.1,
        passes=0.1,
    ),
    _known_algorithm,
    in_range(
        "OP02",
        "optimizer.clip_grad",
        0,
        why="a norm is not negative, and 0 disables clipping",
        fix="Set optimizer.clip_grad to the maximum norm, such as 1.0, or to 0.",
        fails=-1.0,
        passes=1.0,
    ),
    *rules_for_each(
        "OP03",
        ("optimizer.adam_beta1", "optimizer.adam_beta2", "optimizer.sgd_momentum"),
        _kept_part,
        why="it is the decay of a running average",
        fix="a number such as 0.9",
        fails=1.0,
        passes=0.95,
    ),
    dtype_rule("DT02", ("optimizer.params_dtype", *_MOMENTS)),
)


def _sharded(*elsewhere: str) -> Rule:
    """Return the rule on sharded state. `elsewhere` are other fields that enable sharding when resolved."""
    aware, sharded = "optimizer.use_precision_aware_optimizer", "optimizer.use_distributed_optimizer"
    return Rule(
        id="V051e",
        fields=(aware, sharded, *elsewhere),
        test=_aware_of_shards,
        why="it requires sharded state",
        fix="Set optimizer.use_distributed_optimizer=true, or set it to false.",
        fails={aware: True, sharded: False},
        passes={aware: True, sharded: True},
    )


SECTION_RULES: tuple[Rule, ...] = (*_COMMON, _sharded())

_LAYOUT = {"facts.world_size": 2, **dict.fromkeys(SIZES, 1)}

RULES: tuple[Rule, ...] = (
    *_COMMON,
    _emerging,
    _by_layers,
    Rule(
        id="OP06",
        fields=("optimizer.optimizer", "facts.cpu", "facts.world_size", *SIZES),
        test=_by_layers_on_host,
        why="the parts of the replicas have different sizes, which gloo cannot gather",
        fix="Choose the optimizer without dist_ on CPUs.",
        fails={"optimizer.optimizer": "dist_muon", "facts.cpu": True, **_LAYOUT},
        passes={"optimizer.optimizer": "dist_muon", "facts.cpu": False, **_LAYOUT},
    ),
    rule(
        "OP07",
        (
            "optimizer.optimizer_cpu_offload",
            "facts.cpu",
            "optimizer.use_distributed_optimizer",
            "ddp.use_distributed_optimizer",
        ),
        _offloaded_shards,
        why="Megatron Core offloads parameters on a GPU only, and finds no copy of the others",
        fix="Set optimizer.optimizer_cpu_offload=false: without a GPU, everything is on the host.",
        fails=(True, True, True),
        passes=(True, False, True),
    ),
    _sharded("ddp.use_distributed_optimizer", "ddp.use_megatron_fsdp", "dist.use_megatron_fsdp"),
)
