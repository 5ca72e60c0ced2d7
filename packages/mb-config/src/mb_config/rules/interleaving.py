"""Rules on microbatches of the interleaved pipeline schedule, which processes them in groups."""

from __future__ import annotations

from mb_config.rules.batch_sizes import is_valid_ramp, is_valid_schedule
from mb_config.rules.parallelism import SIZES, data_parallel_size
from mb_config.schedules.batch_stages import growing_stages, scheduled_stages
from mb_schema.rules import Rule


def _sizes(batch: int | None, ramp: list[int] | None, text: str | None) -> list[int]:
    """Return every global batch size of a training, or none if other rules reject the fields that determine it."""
    if text is not None:
        return [stage.size for stage in scheduled_stages(text)] if is_valid_schedule(text) else []
    if not batch or not is_valid_ramp(ramp, batch):
        return []
    return (
        [batch] if ramp is None else [stage.size for stage in growing_stages(ramp, global_batch_size=batch)]
    )


def _uneven_groups(sizes: list[int], *, unit: int, pp: int, group: int, lenient: bool) -> str | None:
    """Return the error of Megatron Core 0.19's interleaved schedule in the first step with one of the batch sizes."""
    if group < pp:
        return f"microbatch_group_size_per_vp_stage={group} is below pp={pp}"
    for size in sizes:
        number, rest = divmod(size, unit)
        if rest and not lenient:
            continue  # reported by V242, V119, TR03 or TR09
        each = f"{size} results in {number} microbatch{'es' if number != 1 else ''} per replica"
        if number < group:
            return f"{each}, less than a group of {group}"
        if 0 < number % group < pp:
            return f"{each}, of which {number % group} remain after the last full group of {group}, less than pp={pp}"
    return None


def _training(
    batch: int | None,
    micro: int | None,
    ramp: list[int] | None,
    text: str | None,
    lenient: bool | None,
    group: int | None,
    vp: int | None,
    world: int,
    tp: int | None,
    pp: int | None,
    cp: int | None,
) -> str | None:
    dp = data_parallel_size(world, tp, pp, cp)
    if (vp or 1) < 2 or not pp or pp < 2 or dp is None or not micro or micro < 1:
        return None
    return _uneven_groups(
        _sizes(batch, ramp, text), unit=micro * dp, pp=pp, group=group or pp, lenient=bool(lenient)
    )


def _evaluation(
    eval_batch: int | None,
    eval_micro: int | None,
    iters: int | None,
    batch: int | None,
    micro: int | None,
    text: str | None,
    lenient: bool | None,
    group: int | None,
    vp: int | None,
    world: int,
    tp: int | None,
    pp: int | None,
    cp: int | None,
    eval_cp: int | None,
) -> str | None:
    as_trained = eval_batch in (None, batch) and eval_micro in (None, micro) and eval_cp in (None, cp)
    if iters == 0 or (as_trained and text is None):
        return None  # as in training, which TR11 checks
    lenient = lenient and eval_batch in (None, batch)  # a separate batch size is not rounded down
    return _training(
        eval_batch or batch, eval_micro or micro, None, None, lenient, group, vp, world, tp, pp, eval_cp or cp
    )


_GROUP = ("model.microbatch_group_size_per_vp_stage", "model.virtual_pipeline_model_parallel_size")
_WHY = (
    "a virtual stage processes its microbatches in groups of microbatch_group_size_per_vp_stage (null: pp), and each "
    "group, including the last one, must fill the pipeline"
)
_LAYOUT = {"facts.world_size": 2, SIZES[0]: 1, SIZES[1]: 2, SIZES[2]: 1, _GROUP[1]: 2}

RULES: tuple[Rule, ...] = (
    Rule(
        id="TR11",
        fields=(
            "train.global_batch_size",
            "train.micro_batch_size",
            "train.rampup_batch_size",
            "train.step_batch_size_schedule",
            "train.decrease_batch_size_if_needed",
            *_GROUP,
            "facts.world_size",
            *SIZES,
        ),
        test=_training,
        why=_WHY,
        fix="Choose batch sizes that, in every stage of the training, are multiples of "
        "micro_batch_size x data parallel x group, or set model.virtual_pipeline_model_parallel_size=null.",
        fails={**_LAYOUT, "train.global_batch_size": 3, "train.micro_batch_size": 1},
        passes={**_LAYOUT, "train.global_batch_size": 4, "train.micro_batch_size": 1},
    ),
    Rule(
        id="TR12",
        fields=(
            "validation.eval_global_batch_size",
            "validation.eval_micro_batch_size",
            "validation.eval_iters",
            "train.global_batch_size",
            "train.micro_batch_size",
            "train.step_batch_size_schedule",
            "train.decrease_batch_size_if_needed",
            *_GROUP,
            "facts.world_size",
            *SIZES,
            "dist.eval_context_parallel_size",
        ),
        test=_evaluation,
        why=_WHY,
        fix="Choose a validation.eval_global_batch_size that is a multiple of "
        "eval_micro_batch_size x data parallel x group.",
        fails={**_LAYOUT, "validation.eval_global_batch_size": 3, "validation.eval_micro_batch_size": 1},
        passes={**_LAYOUT, "validation.eval_global_batch_size": 4, "validation.eval_micro_batch_size": 1},
    ),
)
