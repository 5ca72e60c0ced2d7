"""Rules on batch sizes: an integer number of microbatches on every replica, in every stage of the training."""

from __future__ import annotations

from mb_config.rules.parallelism import data_parallel_size
from mb_schema.batch_stages import scheduled_stages
from mb_schema.rule_kinds import assigned, train_rule, validation_rule
from mb_schema.rules import Rule, rules_in

MAX_STEPS = 10_000
"""Maximum number of steps of a ramp-up, because each is checked separately."""


@train_rule(
    "V118",
    why="training and evaluation both use them",
    fix="Set train.global_batch_size and train.micro_batch_size.",
    fails={"global_batch_size": 8},
    passes={"micro_batch_size": 2},
)
def _batch_size_below_one(global_batch_size, micro_batch_size, step_batch_size_schedule):
    sizes = {"global_batch_size": global_batch_size, "micro_batch_size": micro_batch_size}
    if step_batch_size_schedule is not None and global_batch_size is None:
        del sizes["global_batch_size"]
    wrong = {name: size for name, size in sizes.items() if size is None or size < 1}
    return f"both batch sizes must be at least 1 ({assigned(wrong)})" if wrong else None


@train_rule(
    "TR02",
    why="the batch size grows from the first value to the global batch size in equal increments",
    fix="Set [first batch, increment, sequences] such that the increments end at train.global_batch_size.",
    fails={"rampup_batch_size": [8, 5, 1000], "global_batch_size": 32},
    passes={"rampup_batch_size": [8, 8, 1000]},
)
def uneven_ramp(rampup_batch_size, global_batch_size):
    """Reject a ramp-up that does not end at the global batch size."""
    if rampup_batch_size is None:
        return None
    if (
        not isinstance(rampup_batch_size, list | tuple)
        or len(rampup_batch_size) != 3
        or min(rampup_batch_size) < 1
    ):
        return f"must be three positive numbers, not {rampup_batch_size}"
    first, increment, _ = rampup_batch_size
    if global_batch_size is None:
        return None
    if first > global_batch_size or (global_batch_size - first) % increment:
        return f"increments of {increment} from {first} do not reach {global_batch_size}"
    steps = (global_batch_size - first) // increment
    return f"has {steps:,} steps, more than {MAX_STEPS:,}" if steps > MAX_STEPS else None


def is_valid_ramp(rampup: object, batch: int | None) -> bool:
    """Return True if there is no ramp-up, or it is valid and ends at the batch."""
    return uneven_ramp.test(rampup, batch) is None


@train_rule(
    "TR03",
    why="each replica processes the same number of microbatches, also during the ramp-up",
    fix="Choose a first batch and an increment that are multiples of it.",
    fails={
        "rampup_batch_size": [16, 16, 1000],
        "global_batch_size": 32,
        "micro_batch_size": 4,
        "world_size": 8,
    },
    passes={"rampup_batch_size": [32, 32, 1000], "global_batch_size": 64},
)
def _ramp_not_divided_by_replicas(
    rampup_batch_size,
    global_batch_size,
    micro_batch_size,
    decrease_batch_size_if_needed,
    tp,
    pp,
    cp,
    *,
    world_size,
):
    dp = data_parallel_size(world_size, tp, pp, cp)
    if (
        rampup_batch_size is None
        or dp is None
        or not micro_batch_size
        or not is_valid_ramp(rampup_batch_size, global_batch_size)
    ):
        return None
    unit = micro_batch_size * dp
    first_sizes = (rampup_batch_size[0], rampup_batch_size[0] + rampup_batch_size[1])
    wrong = [
        size
        for size in first_sizes
        if (decrease_batch_size_if_needed and size < unit)
        or (not decrease_batch_size_if_needed and size % unit)
    ]
    if wrong:
        return (
            f"the batch size {wrong[0]} is not a multiple of {unit} (micro batch {micro_batch_size} x data "
            f"parallel {dp})"
        )
    return None


@train_rule(
    "TR08",
    why="it sets every batch size and the token at which it starts, beginning at 0 and increasing",
    fix='Write it as "0:768 250B:1536", without the other fields.',
    fails={"step_batch_size_schedule": "1B:512"},
    passes={"step_batch_size_schedule": "0:256 1B:512", "model__seq_length": 4096},
)
def _unusable_schedule(
    step_batch_size_schedule, rampup_batch_size, decrease_batch_size_if_needed, model__seq_length
):
    if step_batch_size_schedule is None:
        return None
    others = {
        "rampup_batch_size": rampup_batch_size,
        "decrease_batch_size_if_needed": decrease_batch_size_if_needed,
    }
    if conflicting := {name: value for name, value in others.items() if value}:
        return f"cannot be combined with {assigned(conflicting)}"
    try:
        scheduled_stages(step_batch_size_schedule, seq_length=model__seq_length)
    except ValueError as error:
        return str(error)
    return None


def is_valid_schedule(text: str) -> bool:
    """Return True if a schedule can be parsed, with its thresholds as sequences."""
    return _unusable_schedule.test(text, None, None, None) is None


@train_rule(
    "TR09",
    why="each replica processes the same number of microbatches in every stage",
    fix="Choose batch sizes that are multiples of it.",
    fails={"step_batch_size_schedule": "0:32 1M:48", "micro_batch_size": 4, "world_size": 8},
    passes={"step_batch_size_schedule": "0:32 1M:64"},
)
def _schedule_not_divided_by_replicas(step_batch_size_schedule, micro_batch_size, tp, pp, cp, *, world_size):
    dp = data_parallel_size(world_size, tp, pp, cp)
    if (
        step_batch_size_schedule is None
        or dp is None
        or not micro_batch_size
        or not is_valid_schedule(step_batch_size_schedule)
    ):
        return None
    wrong = [
        stage.size
        for stage in scheduled_stages(step_batch_size_schedule)
        if stage.size % (micro_batch_size * dp)
    ]
    if not wrong:
        return None
    return (
        f"the batch size {wrong[0]} is not a multiple of {micro_batch_size * dp} (micro batch "
        f"{micro_batch_size} x data parallel {dp})"
    )


@train_rule(
    "V247",
    why="incomplete batches are dropped, so that no step would be trained",
    fix="Lower the batch size or raise train.train_samples.",
    fails={"train_samples": 100, "global_batch_size": 128},
    passes={"train_samples": 1000},
)
def _less_than_one_batch(train_samples, global_batch_size, rampup_batch_size, step_batch_size_schedule):
    first = rampup_batch_size[0] if rampup_batch_size else global_batch_size
    if step_batch_size_schedule is not None:
        valid = is_valid_schedule(step_batch_size_schedule)  # a wrong one is reported by itself
        first = scheduled_stages(step_batch_size_schedule)[0].size if valid else None
    if train_samples is None or first is None or train_samples <= 0 or train_samples >= first:
        return None
    return f"{train_samples} sequences are less than one batch of {first}"


@train_rule(
    "V242",
    why="each replica processes the same number of microbatches",
    fix="Change train.global_batch_size or train.micro_batch_size, "
    "or set train.decrease_batch_size_if_needed=true.",
    fails={"global_batch_size": 32, "micro_batch_size": 3, "world_size": 8},
    passes={"micro_batch_size": 4},
)
def _uneven_batch(
    global_batch_size, micro_batch_size, decrease_batch_size_if_needed, tp, pp, cp, *, world_size
):
    dp = data_parallel_size(world_size, tp, pp, cp)
    return (
        None
        if dp is None
        else _uneven(global_batch_size, micro_batch_size, dp, lenient=decrease_batch_size_if_needed)
    )


def _uneven(batch: int | None, micro: int | None, dp: int, *, lenient: bool) -> str | None:
    if not batch or not micro or batch % (micro * dp) == 0 or (lenient and batch > micro * dp):
        return None
    wrong = "cannot be rounded down to a multiple" if lenient else "is not a multiple"
    return f"{batch} {wrong} of {micro * dp} (micro batch {micro} x data parallel {dp})"


@validation_rule(
    "V119",
    why="each replica processes the same number of microbatches in evaluations as well",
    fix="Change validation.eval_global_batch_size or validation.eval_micro_batch_size.",
    fails={"eval_global_batch_size": 6, "eval_micro_batch_size": 4, "world_size": 1},
    passes={"eval_global_batch_size": 8},
)
def _uneven_eval_batch(
    eval_global_batch_size,
    eval_micro_batch_size,
    train__global_batch_size,
    train__micro_batch_size,
    train__decrease_batch_size_if_needed,
    tp,
    pp,
    cp,
    dist__eval_context_parallel_size,
    *,
    world_size,
):
    if (
        eval_global_batch_size is None
        and eval_micro_batch_size is None
        and dist__eval_context_parallel_size is None
    ):
        return None  # as in training, which V242 checks
    # a separate batch size is not rounded down
    lenient = train__decrease_batch_size_if_needed and eval_global_batch_size in (
        None,
        train__global_batch_size,
    )
    batch = eval_global_batch_size or train__global_batch_size
    micro = eval_micro_batch_size or train__micro_batch_size
    dp = data_parallel_size(world_size, tp, pp, dist__eval_context_parallel_size or cp)
    if dp is None and dist__eval_context_parallel_size is not None:
        return (
            f"the parallel layout of the evaluation does not fit ({world_size} processes, tp={tp}, pp={pp}, "
            f"cp={dist__eval_context_parallel_size})"
        )
    return None if dp is None else _uneven(batch, micro, dp, lenient=lenient)


RULES: tuple[Rule, ...] = rules_in(globals())
