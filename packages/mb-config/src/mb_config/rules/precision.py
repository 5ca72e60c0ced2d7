"""Rules on precision: recipes, dtypes, and consistency of model and optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mb_config.resolve.precision_table import canonical, precision_field, precision_names
from mb_schema.rule_kinds import (
    assigned,
    config_rule,
    ddp_rule,
    excludes,
    optimizer_rule,
    requires,
    section_rule,
    shown,
)
from mb_schema.rules import Rule
from mb_schema.versions import at_least

mixed_precision_rule = partial(section_rule, "mixed_precision")

DTYPES = ("float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "uint8")


@config_rule(
    "V011",
    why="there is no precision recipe of that name",
    fix="Use a name from the list, with underscores or hyphens.",
    fails={"mixed_precision": "bf17_mixed"},
    passes={"mixed_precision": "bf16-mixed"},
)
def _unknown_recipe(mixed_precision):
    if not isinstance(mixed_precision, str) or canonical(mixed_precision) in precision_names():
        return None
    return f"{mixed_precision!r} is not one of {', '.join(precision_names())}"


@config_rule(
    "V016",
    why="earlier versions have no 4-bit kernels",
    fix="Install Transformer Engine 2.7 or later, or choose a different mixed_precision.",
    fails={"mixed_precision": "bf16_with_nvfp4_mixed", "transformer_engine_version": "2.6.1"},
    passes={"transformer_engine_version": "2.7.0.dev0"},
)
def _engine_too_old_for_fp4(mixed_precision, *, transformer_engine_version):
    if not precision_field(mixed_precision, "fp4") or at_least(transformer_engine_version, 2, 7):
        return None
    return f"FP4 requires Transformer Engine 2.7, not {transformer_engine_version}"


def _two_names_of_one_field(id: str, param: str, gather: str) -> Rule:
    def differ(param, gather):
        if param is None or gather is None or param == gather:
            return None
        return f"is {shown(param)}, but its alias is {shown(gather)}"

    return mixed_precision_rule(
        id,
        paths={"param": f"mixed_precision.{param}", "gather": f"mixed_precision.{gather}"},
        why="both are names of one field",
        fix=f"Set only mixed_precision.{gather}.",
        fails={"param": True, "gather": False},
        passes={"gather": True},
    )(differ)


def unknown_dtypes(id: str, section: str, names: Sequence[str]) -> Rule:
    """Return the rule that fields of a section name dtypes of torch."""

    def unknown(**dtypes):
        wrong = {name: dtype for name, dtype in dtypes.items() if dtype not in (None, *DTYPES)}
        return f"{assigned(wrong)}: not one of {', '.join(DTYPES)}" if wrong else None

    return section_rule(
        section,
        id,
        others=names,
        why="torch has no other dtype for it",
        fix="Use a name from the list.",
        fails={names[0]: "bf16"},
        passes={names[0]: "bfloat16"},
    )(unknown)


@optimizer_rule(
    "V147",
    why="its state extends the parameters of the model",
    fix="Set the same precision for model and optimizer, or set it to false.",
    fails={"use_precision_aware_optimizer": True, "model__bf16": True, "resolved": True},
    passes={"bf16": True},
)
def _formats_differ(use_precision_aware_optimizer, model__bf16, model__fp16, bf16, fp16, *, resolved):
    same = (bool(model__bf16), bool(model__fp16)) == (bool(bf16), bool(fp16))
    if not use_precision_aware_optimizer or same or not resolved:  # the precision recipe sets both formats
        return None
    return (
        f"the model computes in {_format(model__bf16, model__fp16)}, the optimizer in {_format(bf16, fp16)}"
    )


def _format(bf16: object, fp16: object) -> str:
    return "bfloat16" if bf16 else "float16" if fp16 else "float32"


@ddp_rule(
    "V122a",
    why="MXFP8 parameters are all-gathered through the gradient buffer unless Megatron-FSDP gathers them",
    fix="Set ddp.reuse_grad_buf_for_mxfp8_param_ag=true or ddp.fp8_param_gather=false.",
    fails={"fp8_param_gather": True, "model__fp8": "e4m3", "model__fp8_recipe": "mxfp8"},
    passes={"model__fp8_recipe": "tensorwise"},
)
def _mxfp8_gather_without_buffer(
    reuse_grad_buf_for_mxfp8_param_ag,
    fp8_param_gather,
    model__fp8,
    model__fp8_recipe,
    use_megatron_fsdp,
    dist__use_megatron_fsdp,
):
    if (
        not fp8_param_gather
        or not model__fp8
        or model__fp8_recipe != "mxfp8"
        or reuse_grad_buf_for_mxfp8_param_ag
        or use_megatron_fsdp
        or dist__use_megatron_fsdp
    ):
        return None
    return "is false, but MXFP8 parameters are all-gathered (fp8_param_gather=true, fp8_recipe=mxfp8)"


@ddp_rule(
    "V122b",
    why="only these quantize the updated weights",
    fix="Set ddp.use_distributed_optimizer=true, or mixed_precision.fp8_param_gather=false.",
    fails={"fp8_param_gather": True, "use_distributed_optimizer": False},
    passes={"use_distributed_optimizer": True},
)
def _fp8_parameters_unsharded(
    fp8_param_gather,
    model__fp8_param,
    use_distributed_optimizer,
    optimizer__use_distributed_optimizer,
    use_megatron_fsdp,
    dist__use_megatron_fsdp,
    dist__use_torch_fsdp2,
):
    sharded = (
        use_distributed_optimizer
        or optimizer__use_distributed_optimizer
        or use_megatron_fsdp
        or dist__use_megatron_fsdp
        or dist__use_torch_fsdp2
    )
    if (fp8_param_gather or model__fp8_param) and not sharded:
        return "requires the distributed optimizer or FSDP"
    return None


RECIPE_RULES: tuple[Rule, ...] = (
    _two_names_of_one_field("V013", "fp8_param", "fp8_param_gather"),
    _two_names_of_one_field("V014", "fp4_param", "fp4_param_gather"),
    excludes(
        "V015",
        {"mixed_precision.fp8": True, "mixed_precision.fp4": True},
        why="a matrix product is computed in one format",
        fix="Set one of them to null.",
        fails={"mixed_precision.fp8": "hybrid", "mixed_precision.fp4": "e2m1"},
    ),
    requires(
        "V122",
        {"mixed_precision.fp8_param_gather": True, "mixed_precision.fp8_recipe": "mxfp8"},
        {"mixed_precision.reuse_grad_buf_for_mxfp8_param_ag": True},
        why="MXFP8 parameters are all-gathered through it",
        fix="Set mixed_precision.reuse_grad_buf_for_mxfp8_param_ag=true or fp8_param_gather=false.",
    ),
    unknown_dtypes("DT01", "mixed_precision", ("params_dtype", "pipeline_dtype", "autocast_dtype")),
)

RULES: tuple[Rule, ...] = (
    _unknown_recipe,
    *RECIPE_RULES,
    _engine_too_old_for_fp4,
    _mxfp8_gather_without_buffer,
    _fp8_parameters_unsharded,
    _formats_differ,
)
