"""Megatron Core's conditions on 8-bit and 4-bit formats."""

from collections.abc import Callable, Mapping

from mb_models.rule import Rule, model_rule


def _needs(what: str) -> Callable[..., str | None]:
    """Return a test of a switch (first) that requires another setting (second)."""
    return lambda on, other: f"is {on} without {what}" if on and not other else None


def _one_narrow_format(fp8: str | None, fp4: str | None) -> str | None:
    return f"is {fp8} with fp4={fp4}" if fp8 and fp4 else None


def _custom_quantizer(bits: str) -> Callable[..., str | None]:
    def test(recipe: str | None, chosen: str | None, extra: Mapping[str, object]) -> str | None:
        missing = chosen and recipe == "custom" and not extra.get(f"fp{bits}_quantizer_factory")
        return f"custom needs transformer.fp{bits}_quantizer_factory" if missing else None

    return test


def _outer_layers(on: bool, fp8: str | None, recipe: str | None) -> str | None:
    return "is incompatible with fp8_recipe=delayed" if on and fp8 and recipe == "delayed" else None


def _outer_counts(start: int, end: int, on: bool, fp8: str | None, layers: int, pp: int) -> str | None:
    most = layers // pp if pp > 0 else 0
    if not (on and fp8) or (0 <= start <= most and 0 <= end <= most):
        return None
    return f"{start} at the start and {end} at the end, but a pipeline stage has {most} layers"


RULES: tuple[Rule, ...] = (
    model_rule(
        "K07",
        ("fp8_param", "fp8"),
        _needs("fp8"),
        why="parameters are kept in 8 bits for GEMMs in 8 bits",
        fix="Set fp8, or unset fp8_param.",
        fails=(True, None),
        passes=(True, "hybrid"),
    ),
    model_rule(
        "K08",
        ("fp4_param", "fp4"),
        _needs("fp4"),
        why="parameters are kept in 4 bits for GEMMs in 4 bits",
        fix="Set fp4, or unset fp4_param.",
        fails=(True, None),
        passes=(True, "e2m1"),
    ),
    model_rule(
        "K09",
        ("fp8", "fp4"),
        _one_narrow_format,
        why="a GEMM has one format",
        fix="Unset one of them.",
        fails=("hybrid", "e2m1"),
        passes=(None, "e2m1"),
    ),
    model_rule(
        "K10",
        ("fp8_recipe", "fp8", "transformer"),
        _custom_quantizer("8"),
        why="a custom recipe is a user-defined function",
        fix="Set it there, as package.module.function, or use another fp8_recipe.",
        fails=("custom", "hybrid", {}),
        passes=("custom", "hybrid", {"fp8_quantizer_factory": "mine.quantizers.make"}),
    ),
    model_rule(
        "K11",
        ("fp4_recipe", "fp4", "transformer"),
        _custom_quantizer("4"),
        why="a custom recipe is a user-defined function",
        fix="Set it there, as package.module.function, or use another fp4_recipe.",
        fails=("custom", "e2m1", {}),
        passes=("custom", "e2m1", {"fp4_quantizer_factory": "mine.quantizers.make"}),
    ),
    model_rule(
        "K12",
        ("first_last_layers_bf16", "fp8", "fp8_recipe"),
        _outer_layers,
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
        _outer_counts,
        why="the layers in bfloat16 are on the first and on the last stage",
        fix="Lower both numbers.",
        fails=(3, 1, True, "hybrid", 4, 2),
        passes=(2, 1, True, "hybrid", 4, 2),
    ),
)
