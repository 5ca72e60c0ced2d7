"""Rules on precision: recipes, dtypes, and consistency of model and optimizer."""

from __future__ import annotations

from mb_config.resolve.precision_table import canonical, precision_field, precision_names
from mb_config.rules.formatting import format_assignments, format_value
from mb_schema.rule_kinds import excludes, requires, rule, within
from mb_schema.rules import Rule
from mb_schema.versions import at_least

DTYPES = ("float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "uint8")


def _unknown_recipe(precision: object) -> str | None:
    if not isinstance(precision, str) or canonical(precision) in precision_names():
        return None
    return f"{precision!r} is not one of {', '.join(precision_names())}"


def _fp4_is_old(fp4: object, version: str) -> str | None:
    if not fp4 or at_least(version, 2, 7):
        return None
    return f"FP4 requires Transformer Engine 2.7, not {version}"


def _aliases_differ(param: bool | None, gather: bool | None) -> str | None:
    if param is None or gather is None or param == gather:
        return None
    return f"is {format_value(param)}, but its alias is {format_value(gather)}"


def dtype_rule(id: str, fields: tuple[str, ...]) -> Rule:
    """Return the rule that fields name dtypes of torch."""

    def unknown_dtypes(*names: str | None) -> str | None:
        wrong = format_assignments(fields, names, where=lambda name: name not in (None, *DTYPES))
        return f"{wrong}: not one of {', '.join(DTYPES)}" if wrong else None

    return rule(
        id,
        fields,
        unknown_dtypes,
        why="torch has no other dtype for it",
        fix="Use a name from the list.",
        fails=("bf16",),
        passes=("bfloat16",),
    )


def _formats_differ(
    aware: bool | None, model_bf16: object, model_fp16: object, bf16: object, fp16: object
) -> str | None:
    if not aware or (bool(model_bf16), bool(model_fp16)) == (bool(bf16), bool(fp16)):
        return None
    return f"the model computes in {_format(model_bf16, model_fp16)}, the optimizer in {_format(bf16, fp16)}"


def _format(bf16: object, fp16: object) -> str:
    return "bfloat16" if bf16 else "float16" if fp16 else "float32"


def _mxfp8_gather(
    reuse: bool | None, gather: bool | None, fp8: object, recipe: str | None, *fsdp: bool | None
) -> str | None:
    if not gather or not fp8 or recipe != "mxfp8" or reuse or any(fsdp):
        return None
    return "is false, but MXFP8 parameters are all-gathered (fp8_param_gather=true, fp8_recipe=mxfp8)"


def _unsharded_fp8(gather: bool | None, param: bool | None, *sharded: bool | None) -> str | None:
    return "requires the distributed optimizer or FSDP" if (gather or param) and not any(sharded) else None


RECIPE_RULES: tuple[Rule, ...] = (
    rule(
        "V013",
        within("mixed_precision", "fp8_param fp8_param_gather"),
        _aliases_differ,
        why="both are names of one field",
        fix="Set only mixed_precision.fp8_param_gather.",
        fails=(True, False),
        passes=(True, True),
    ),
    rule(
        "V014",
        within("mixed_precision", "fp4_param fp4_param_gather"),
        _aliases_differ,
        why="both are names of one field",
        fix="Set only mixed_precision.fp4_param_gather.",
        fails=(True, False),
        passes=(True, True),
    ),
    excludes(
        "V015",
        {"mixed_precision.fp8": True, "mixed_precision.fp4": True},
        why="a matrix product is computed in one format",
        fix="Set one of them to null.",
        fails=("hybrid", "e2m1"),
        passes=("hybrid", None),
    ),
    requires(
        "V122",
        {"mixed_precision.fp8_param_gather": True, "mixed_precision.fp8_recipe": "mxfp8"},
        {"mixed_precision.reuse_grad_buf_for_mxfp8_param_ag": True},
        why="MXFP8 parameters are all-gathered through it",
        fix="Set mixed_precision.reuse_grad_buf_for_mxfp8_param_ag=true or fp8_param_gather=false.",
        fails=(True, "mxfp8"),
        passes=(True, "tensorwise"),
    ),
    dtype_rule("DT01", within("mixed_precision", "params_dtype pipeline_dtype autocast_dtype")),
)

RULES: tuple[Rule, ...] = (
    rule(
        "V011",
        "mixed_precision",
        _unknown_recipe,
        why="there is no precision recipe of that name",
        fix="Use a name from the list, with underscores or hyphens.",
        fails=("bf17_mixed",),
        passes=("bf16-mixed",),
    ),
    *RECIPE_RULES,
    rule(
        "V016",
        ("mixed_precision", "facts.transformer_engine_version"),
        lambda precision, version: _fp4_is_old(precision_field(precision, "fp4"), version),
        why="earlier versions have no 4-bit kernels",
        fix="Install Transformer Engine 2.7 or later, or choose a different mixed_precision.",
        fails=("bf16_with_nvfp4_mixed", "2.6.1"),
        passes=("bf16_with_nvfp4_mixed", "2.7.0.dev0"),
    ),
    Rule(
        id="V122a",
        fields=(
            "ddp.reuse_grad_buf_for_mxfp8_param_ag",
            "ddp.fp8_param_gather",
            "model.fp8",
            "model.fp8_recipe",
            "ddp.use_megatron_fsdp",
            "dist.use_megatron_fsdp",
        ),
        test=_mxfp8_gather,
        why="MXFP8 parameters are all-gathered through the gradient buffer unless Megatron-FSDP gathers them",
        fix="Set ddp.reuse_grad_buf_for_mxfp8_param_ag=true or ddp.fp8_param_gather=false.",
        fails={"ddp.fp8_param_gather": True, "model.fp8": "e4m3", "model.fp8_recipe": "mxfp8"},
        passes={"ddp.fp8_param_gather": True, "model.fp8": "hybrid", "model.fp8_recipe": "tensorwise"},
    ),
    Rule(
        id="V122b",
        fields=(
            "ddp.fp8_param_gather",
            "model.fp8_param",
            "ddp.use_distributed_optimizer",
            "optimizer.use_distributed_optimizer",
            "ddp.use_megatron_fsdp",
            "dist.use_megatron_fsdp",
            "dist.use_torch_fsdp2",
        ),
        test=_unsharded_fp8,
        why="only these quantize the updated weights",
        fix="Set ddp.use_distributed_optimizer=true, or mixed_precision.fp8_param_gather=false.",
        fails={"ddp.fp8_param_gather": True, "ddp.use_distributed_optimizer": False},
        passes={"ddp.fp8_param_gather": True, "ddp.use_distributed_optimizer": True},
    ),
    Rule(
        id="V147",
        fields=(
            "optimizer.use_precision_aware_optimizer",
            "model.bf16",
            "model.fp16",
            "optimizer.bf16",
            "optimizer.fp16",
        ),
        test=_formats_differ,
        why="its state extends the parameters of the model",
        fix="Set the same precision for model and optimizer, or set it to false.",
        fails={"optimizer.use_precision_aware_optimizer": True, "model.bf16": True},
        passes={
            "optimizer.use_precision_aware_optimizer": True,
            "model.bf16": True,
            "optimizer.bf16": True,
        },
    ),
)
