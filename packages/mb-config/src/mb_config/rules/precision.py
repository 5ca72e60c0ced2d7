"""Rules on precision: recipes, dtypes, and consistency of model and optimizer."""

from __future__ import annotations

from functools import partial

from mb_config.resolve.precision_table import canonical, precision_field, precision_names
from mb_config.rules.formatting import format_assignments, format_value
from mb_schema.rule_kinds import excludes, requires, rule, section_rule, within
from mb_schema.rules import Rule
from mb_schema.versions import at_least

mixed_precision_rule = partial(section_rule, "mixed_precision")
optimizer_rule = partial(section_rule, "optimizer")

DTYPES = ("float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "uint8")


@mixed_precision_rule(
    "V011",
    paths={"mixed_precision": "mixed_precision"},
    why="there is no precision recipe of that name",
    fix="Use a name from the list, with underscores or hyphens.",
    fails={"mixed_precision": "bf17_mixed"},
    passes={"mixed_precision": "bf16-mixed"},
)
def _unknown_recipe(mixed_precision):
    if not isinstance(mixed_precision, str) or canonical(mixed_precision) in precision_names():
        return None
    return f"{mixed_precision!r} is not one of {', '.join(precision_names())}"


def _fp4_is_old(fp4: object, version: str) -> str | None:
    if not fp4 or at_least(version, 2, 7):
        return None
    return f"FP4 requires Transformer Engine 2.7, not {version}"


def _aliases_differ(param, gather):
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


@optimizer_rule(
    "V147",
    why="its state extends the parameters of the model",
    fix="Set the same precision for model and optimizer, or set it to false.",
    fails={"use_precision_aware_optimizer": True, "model__bf16": True},
    passes={"bf16": True},
)
def _formats_differ(use_precision_aware_optimizer, model__bf16, model__fp16, bf16, fp16):
    if not use_precision_aware_optimizer or (bool(model__bf16), bool(model__fp16)) == (
        bool(bf16),
        bool(fp16),
    ):
        return None
    return (
        f"the model computes in {_format(model__bf16, model__fp16)}, the optimizer in {_format(bf16, fp16)}"
    )


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
    mixed_precision_rule(
        "V013",
        paths={"param": "mixed_precision.fp8_param", "gather": "mixed_precision.fp8_param_gather"},
        why="both are names of one field",
        fix="Set only mixed_precision.fp8_param_gather.",
        fails={"param": True, "gather": False},
        passes={"gather": True},
    )(_aliases_differ),
    mixed_precision_rule(
        "V014",
        paths={"param": "mixed_precision.fp4_param", "gather": "mixed_precision.fp4_param_gather"},
        why="both are names of one field",
        fix="Set only mixed_precision.fp4_param_gather.",
        fails={"param": True, "gather": False},
        passes={"gather": True},
    )(_aliases_differ),
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
    dtype_rule("DT01", within("mixed_precision", "params_dtype pipeline_dtype autocast_dtype")),
)

RULES: tuple[Rule, ...] = (
    _unknown_recipe,
    *RECIPE_RULES,
    mixed_precision_rule(
        "V016",
        paths={"mixed_precision": "mixed_precision"},
        why="earlier versions have no 4-bit kernels",
        fix="Install Transformer Engine 2.7 or later, or choose a different mixed_precision.",
        fails={"mixed_precision": "bf16_with_nvfp4_mixed", "transformer_engine_version": "2.6.1"},
        passes={"transformer_engine_version": "2.7.0.dev0"},
    )(
        lambda mixed_precision, *, transformer_engine_version: _fp4_is_old(
            precision_field(mixed_precision, "fp4"), transformer_engine_version
        )
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
    _formats_differ,
)
