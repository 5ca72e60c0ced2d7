"""Rules on number formats: Megatron Core's conditions on 8 and 4 bits, and what GPUs and libraries support."""

from collections.abc import Callable, Mapping

from mb_models.rules.model_rule import model_rule
from mb_schema.gpu_capabilities import unsupported_format
from mb_schema.rule_kinds import excludes, requires, rule
from mb_schema.rules import Rule
from mb_schema.versions import at_least


def _custom_recipe_without_quantizer(bits: str) -> Callable[..., str | None]:
    def test(recipe: str | None, chosen: str | None, extra: Mapping[str, object]) -> str | None:
        missing = chosen and recipe == "custom" and not extra.get(f"fp{bits}_quantizer_factory")
        return f"custom needs transformer.fp{bits}_quantizer_factory" if missing else None

    return test


def _bf16_layers_beyond_stage(
    start: int, end: int, on: bool, fp8: str | None, layers: int, pp: int
) -> str | None:
    stage_layers = layers // pp if pp > 0 else 0
    if not (on and fp8) or (0 <= start <= stage_layers and 0 <= end <= stage_layers):
        return None
    return f"{start} at the start and {end} at the end, but a pipeline stage has {stage_layers} layers"


def _format_unsupported_on_gpu(
    bf16: object, fp8: object, fp8_recipe: object, fp4: object, gpu: str
) -> str | None:
    return unsupported_format(gpu, bf16=bf16, fp8=fp8, fp8_recipe=fp8_recipe, fp4=fp4)


def _transformer_engine_too_old_for_fp4(fp4: object, version: str) -> str | None:
    if not fp4 or at_least(version, 2, 7):
        return None
    return f"FP4 requires Transformer Engine 2.7, not {version}"


RULES: tuple[Rule, ...] = (
    requires(
        "K07",
        {"model.fp8_param": True},
        {"model.fp8": True},
        why="parameters are kept in 8 bits for GEMMs in 8 bits",
        fix="Set fp8, or unset fp8_param.",
        fails=(True, None),
        passes=(True, "hybrid"),
    ),
    requires(
        "K08",
        {"model.fp4_param": True},
        {"model.fp4": True},
        why="parameters are kept in 4 bits for GEMMs in 4 bits",
        fix="Set fp4, or unset fp4_param.",
        fails=(True, None),
        passes=(True, "e2m1"),
    ),
    excludes(
        "K09",
        {"model.fp8": True, "model.fp4": True},
        why="a GEMM has one format",
        fix="Unset one of them.",
        fails=("hybrid", "e2m1"),
        passes=(None, "e2m1"),
    ),
    model_rule(
        "K10",
        ("fp8_recipe", "fp8", "transformer"),
        _custom_recipe_without_quantizer("8"),
        why="a custom recipe is a user-defined function",
        fix="Set it there, as package.module.function, or use another fp8_recipe.",
        fails=("custom", "hybrid", {}),
        passes=("custom", "hybrid", {"fp8_quantizer_factory": "mine.quantizers.make"}),
    ),
    model_rule(
        "K11",
        ("fp4_recipe", "fp4", "transformer"),
        _custom_recipe_without_quantizer("4"),
        why="a custom recipe is a user-defined function",
        fix="Set it there, as package.module.function, or use another fp4_recipe.",
        fails=("custom", "e2m1", {}),
        passes=("custom", "e2m1", {"fp4_quantizer_factory": "mine.quantizers.make"}),
    ),
    excludes(
        "K12",
        {"model.first_last_layers_bf16": True, "model.fp8": True, "model.fp8_recipe": "delayed"},
        why="delayed scaling applies to all layers or to none",
        fix="Use another fp8_recipe, or set first_last_layers_bf16=false.",
        fails=(True, "hybrid", "delayed"),
        passes=(True, "hybrid", "tensorwise"),
    ),
    model_rule(
        "K13",
        (
            "num_layers_at_start_in_bf16",
            "num_layers_at_end_in_bf16",
            "first_last_layers_bf16",
            "fp8",
            "num_layers",
            "pipeline_model_parallel_size",
        ),
        _bf16_layers_beyond_stage,
        why="the layers in bfloat16 are on the first and on the last stage",
        fix="Lower both numbers.",
        fails=(3, 1, True, "hybrid", 4, 2),
        passes=(2, 1, True, "hybrid", 4, 2),
    ),
    rule(
        "V016a",
        ("model.fp4", "facts.transformer_engine_version"),
        _transformer_engine_too_old_for_fp4,
        why="earlier versions have no 4-bit kernels",
        fix="Install Transformer Engine 2.7 or later, or set model.fp4=null.",
        fails=("e2m1", "2.6.1"),
        passes=(None, "2.6.1"),
    ),
    excludes(
        "V145",
        {"model.fp16": True, "model.bf16": True},
        why="a model computes in one format",
        fix="Set one of them to false.",
        fails=(True, True),
        passes=(False, True),
    ),
    Rule(
        id="H03",
        fields=("model.bf16", "model.fp8", "model.fp8_recipe", "model.fp4", "facts.gpu"),
        test=_format_unsupported_on_gpu,
        why="its tensor cores do not support this format",
        fix="Choose a different precision of the model or a different GPU.",
        fails={"model.bf16": True, "model.fp8": "hybrid", "facts.gpu": "a100"},
        passes={"model.bf16": True, "model.fp8": "hybrid", "facts.gpu": "h100"},
    ),
)
