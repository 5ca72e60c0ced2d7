"""Rules on microbatches of the interleaved pipeline schedule, which processes them in groups."""

from __future__ import annotations

from mb_config.rules.batch_sizes import is_valid_ramp, is_valid_schedule
from mb_config.rules.parallelism import data_parallel_size
from mb_schema.batch_stages import growing_stages, scheduled_stages
from mb_schema.rule_kinds import train_rule, validation_rule
from mb_schema.rules import Rule, rules_in

_WHY = (
    "a virtual stage processes its microbatches in groups of microbatch_group_size_per_vp_stage (null: pp), and each "
    "group, including the last one, must fill the pipeline"
)


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


@train_rule(
    "TR11",
    why=_WHY,
    fix="Choose batch sizes that, in every stage of the training, are multiples of "
    "micro_batch_size x data parallel x group, or set model.virtual_pipeline_model_parallel_size=null.",
    fails={"global_batch_size": 3, "micro_batch_size": 1, "vp": 2, "world_size": 2, "pp": 2},
    passes={"global_batch_size": 4},
)
def _training(
    global_batch_size,
    micro_batch_size,
    rampup_batch_size,
    step_batch_size_schedule,
    decrease_batch_size_if_needed,
    model__microbatch_group_size_per_vp_stage,
    vp,
    tp,
    pp,
    cp,
    *,
    world_size,
):
    dp = data_parallel_size(world_size, tp, pp, cp)
    if (vp or 1) < 2 or not pp or pp < 2 or dp is None or not micro_batch_size or micro_batch_size < 1:
        return None
    return _uneven_groups(
        _sizes(global_batch_size, rampup_batch_size, step_batch_size_schedule),
        unit=micro_batch_size * dp,
        pp=pp,
        group=model__microbatch_group_size_per_vp_stage or pp,
        lenient=bool(decrease_batch_size_if_needed),
    )


@validation_rule(
    "TR12",
    why=_WHY,
    fix="Choose a validation.eval_global_batch_size that is a multiple of "
    "eval_micro_batch_size x data parallel x group.",
    fails={"eval_global_batch_size": 3, "eval_micro_batch_size": 1, "vp": 2, "world_size": 2, "pp": 2},
    passes={"eval_global_batch_size": 4},
)
def _evaluation(
    eval_global_batch_size,
    eval_micro_batch_size,
    eval_iters,
    train__global_batch_size,
    train__micro_batch_size,
    train__step_batch_size_schedule,
    train__decrease_batch_size_if_needed,
    model__microbatch_group_size_per_vp_stage,
    vp,
    tp,
    pp,
    cp,
    dist__eval_context_parallel_size,
    *,
    world_size,
):
    as_trained = (
        eval_global_batch_size in (None, train__global_batch_size)
        and eval_micro_batch_size in (None, train__micro_batch_size)
        and dist__eval_context_parallel_size in (None, cp)
    )
    if eval_iters == 0 or (as_trained and train__step_batch_size_schedule is None):
        return None  # as in training, which TR11 checks
    # a separate batch size is not rounded down
    lenient = train__decrease_batch_size_if_needed and eval_global_batch_size in (
        None,
        train__global_batch_size,
    )
    return _training.test(
        global_batch_size=eval_global_batch_size or train__global_batch_size,
        micro_batch_size=eval_micro_batch_size or train__micro_batch_size,
        rampup_batch_size=None,
        step_batch_size_schedule=None,
        decrease_batch_size_if_needed=lenient,
        model__microbatch_group_size_per_vp_stage=model__microbatch_group_size_per_vp_stage,
        vp=vp,
        world_size=world_size,
        tp=tp,
        pp=pp,
        cp=dist__eval_context_parallel_size or cp,
    )


RULES: tuple[Rule, ...] = rules_in(globals())
