"""Rules on number formats: Megatron Core's conditions on 8 and 4 bits, and what GPUs and libraries support."""

from mb_schema.gpu_capabilities import unsupported_format
from mb_schema.rule_kinds import excludes, model_rule, requires
from mb_schema.rules import Rule, rules_in
from mb_schema.versions import at_least


@model_rule(
    "K10",
    why="a custom recipe is a user-defined function",
    fix="Set it there, as package.module.function, or use another fp8_recipe.",
    fails={"fp8_recipe": "custom", "fp8": "hybrid", "transformer": {}},
    passes={"transformer": {"fp8_quantizer_factory": "mine.quantizers.make"}},
)
def _custom_fp8_recipe_without_quantizer(fp8_recipe, fp8, transformer):
    missing = fp8 and fp8_recipe == "custom" and not transformer.get("fp8_quantizer_factory")
    return "custom needs transformer.fp8_quantizer_factory" if missing else None


@model_rule(
    "K11",
    why="a custom recipe is a user-defined function",
    fix="Set it there, as package.module.function, or use another fp4_recipe.",
    fails={"fp4_recipe": "custom", "fp4": "e2m1", "transformer": {}},
    passes={"transformer": {"fp4_quantizer_factory": "mine.quantizers.make"}},
)
def _custom_fp4_recipe_without_quantizer(fp4_recipe, fp4, transformer):
    missing = fp4 and fp4_recipe == "custom" and not transformer.get("fp4_quantizer_factory")
    return "custom needs transformer.fp4_quantizer_factory" if missing else None


@model_rule(
    "K13",
    why="the layers in bfloat16 are on the first and on the last stage",
    fix="Lower both numbers.",
    fails={
        "num_layers_at_start_in_bf16": 3,
        "num_layers_at_end_in_bf16": 1,
        "first_last_layers_bf16": True,
        "fp8": "hybrid",
        "num_layers": 4,
        "pp": 2,
    },
    passes={"num_layers_at_start_in_bf16": 2},
)
def _bf16_layers_beyond_stage(
    num_layers_at_start_in_bf16, num_layers_at_end_in_bf16, first_last_layers_bf16, fp8, num_layers, pp
):
    stage_layers = num_layers // pp if pp > 0 else 0
    if not (first_last_layers_bf16 and fp8) or (
        0 <= num_layers_at_start_in_bf16 <= stage_layers and 0 <= num_layers_at_end_in_bf16 <= stage_layers
    ):
        return None
    return (
        f"{num_layers_at_start_in_bf16} at the start and {num_layers_at_end_in_bf16} at the end, but a "
        f"pipeline stage has {stage_layers} layers"
    )


@model_rule(
    "H03",
    why="its tensor cores do not support this format",
    fix="Choose a different precision of the model or a different GPU.",
    fails={"bf16": True, "fp8": "hybrid", "gpu": "a100"},
    passes={"gpu": "h100"},
)
def _format_unsupported_on_gpu(bf16, fp8, fp8_recipe, fp4, *, gpu):
    return unsupported_format(gpu, bf16=bf16, fp8=fp8, fp8_recipe=fp8_recipe, fp4=fp4)


@model_rule(
    "V016a",
    why="earlier versions have no 4-bit kernels",
    fix="Install Transformer Engine 2.7 or later, or set model.fp4=null.",
    fails={"fp4": "e2m1", "transformer_engine_version": "2.6.1"},
    passes={"fp4": None},
)
def _transformer_engine_too_old_for_fp4(fp4, *, transformer_engine_version):
    if not fp4 or at_least(transformer_engine_version, 2, 7):
        return None
    return f"FP4 requires Transformer Engine 2.7, not {transformer_engine_version}"


RULES: tuple[Rule, ...] = (
    requires(
        "K07",
        {"model.fp8_param": True},
        {"model.fp8": True},
        why="parameters are kept in 8 bits for GEMMs in 8 bits",
        fix="Set fp8, or unset fp8_param.",
        passes={"model.fp8": "hybrid"},
    ),
    requires(
        "K08",
        {"model.fp4_param": True},
        {"model.fp4": True},
        why="parameters are kept in 4 bits for GEMMs in 4 bits",
        fix="Set fp4, or unset fp4_param.",
        passes={"model.fp4": "e2m1"},
    ),
    excludes(
        "K09",
        {"model.fp8": True, "model.fp4": True},
        why="a GEMM has one format",
        fix="Unset one of them.",
        fails={"model.fp8": "hybrid", "model.fp4": "e2m1"},
    ),
    *rules_in(globals()),
    excludes(
        "K12",
        {"model.first_last_layers_bf16": True, "model.fp8": True, "model.fp8_recipe": "delayed"},
        why="delayed scaling applies to all layers or to none",
        fix="Use another fp8_recipe, or set first_last_layers_bf16=false.",
        fails={"model.fp8": "hybrid"},
    ),
    excludes(
        "V145",
        {"model.fp16": True, "model.bf16": True},
        why="a model computes in one format",
        fix="Set one of them to false.",
    ),
)
