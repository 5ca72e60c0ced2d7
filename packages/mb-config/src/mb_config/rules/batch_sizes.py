"""Rules on batch sizes: an integer number of microbatches on every replica, in every stage of the training."""

from __future__ import annotations

from mb_config.rules.formatting import format_value
from mb_config.rules.parallelism import SIZES, data_parallel_size
from mb_config.schedules.batch_stages import scheduled_stages
from mb_schema.rule_kinds import rule, within
from mb_schema.rules import Rule

MAX_STEPS = 10_000
"""Maximum number of steps of a ramp-up, because each is checked separately."""


def _batch_sizes(batch: int | None, micro: int | None, schedule: str | None) -> str | None:
    wrong = [
        f"{name}={format_value(value)}"
        for name, value in (("global_batch_size", batch), ("micro_batch_size", micro))
        if (value is None and (schedule is None or name != "global_batch_size"))
        or (value is not None and value < 1)
    ]
    return f"both batch sizes must be at least 1 ({', '.join(wrong)})" if wrong else None


def _ramp(rampup: object, batch: int | None) -> str | None:
    if rampup is None:
        return None
    if not isinstance(rampup, list | tuple) or len(rampup) != 3 or min(rampup) < 1:
        return f"must be three positive numbers, not {rampup}"
    first, increment, _ = rampup
    if batch is None:
        return None
    if first > batch or (batch - first) % increment:
        return f"increments of {increment} from {first} do not reach {batch}"
    steps = (batch - first) // increment
    return f"has {steps:,} steps, more than {MAX_STEPS:,}" if steps > MAX_STEPS else None


def is_valid_ramp(rampup: object, batch: int | None) -> bool:
    """Return True if there is no ramp-up, or it is valid and ends at the batch."""
    return _ramp(rampup, batch) is None


def _ramp_divides(
    rampup: list[int] | None,
    batch: int | None,
    micro: int | None,
    lenient: bool | None,
    world: int,
    tp: int,
    pp: int,
    cp: int,
) -> str | None:
    dp = data_parallel_size(world, tp, pp, cp)
    if rampup is None or dp is None or not micro or not is_valid_ramp(rampup, batch):
        return None
    unit = micro * dp
    first_sizes = (rampup[0], rampup[0] + rampup[1])
    wrong = [size for size in first_sizes if (lenient and size < unit) or (not lenient and size % unit)]
    if wrong:
        return f"the batch size {wrong[0]} is not a multiple of {unit} (micro batch {micro} x data parallel {dp})"
    return None


def _scheduled(
    text: str | None,
    ramp: list[int] | None,
    lenient: bool | None,
    seq_length: int | None,
) -> str | None:
    if text is None:
        return None
    others = {"rampup_batch_size": ramp, "decrease_batch_size_if_needed": lenient}
    conflicting = [f"{name}={format_value(value)}" for name, value in others.items() if value]
    if conflicting:
        return f"cannot be combined with {', '.join(conflicting)}"
    try:
        scheduled_stages(text, seq_length=seq_length)
    except ValueError as error:
        return str(error)
    return None


def is_valid_schedule(text: str) -> bool:
    """Return True if a schedule can be parsed, with its thresholds as sequences."""
    return _scheduled(text, None, None, None) is None


def _schedule_divides(
    text: str | None, micro: int | None, world: int, tp: int, pp: int, cp: int
) -> str | None:
    dp = data_parallel_size(world, tp, pp, cp)
    if text is None or dp is None or not micro or not is_valid_schedule(text):
        return None
    wrong = [stage.size for stage in scheduled_stages(text) if stage.size % (micro * dp)]
    if not wrong:
        return None
    return f"the batch size {wrong[0]} is not a multiple of {micro * dp} (micro batch {micro} x data parallel {dp})"


def _less_than_one_batch(
    samples: int | None, batch: int | None, ramp: list[int] | None, schedule: str | None
) -> str | None:
    first = ramp[0] if ramp else batch
    if schedule is not None:  # the last batch is always read
        return None
    if samples is None or first is None or samples <= 0 or samples >= first:
        return None
    return f"{samples} sequences are less than one batch of {first}"


def _uneven_batch(
    batch: int | None, micro: int | None, lenient: bool, world: int, tp: int, pp: int, cp: int
) -> str | None:
    dp = data_parallel_size(world, tp, pp, cp)
    return None if dp is None else _uneven(batch, micro, dp, lenient=lenient)


def _uneven(batch: int | None, micro: int | None, dp: int, *, lenient: bool) -> str | None:
    if not batch or not micro or batch % (micro * dp) == 0 or (lenient and batch > micro * dp):
        return None
    wrong = "cannot be rounded down to a multiple" if lenient else "is not a multiple"
    return f"{batch} {wrong} of {micro * dp} (micro batch {micro} x data parallel {dp})"


def _uneven_eval_batch(
    eval_batch: int | None,
    eval_micro: int | None,
    batch: int | None,
    micro: int | None,
    lenient: bool,
    world: int,
    tp: int,
    pp: int,
    cp: int,
    eval_cp: int | None,
) -> str | None:
    if eval_batch is None and eval_micro is None and eval_cp is None:
        return None  # as in training, which V242 checks
    lenient = lenient and eval_batch in (None, batch)  # a separate batch size is not rounded down
    batch, micro = eval_batch or batch, eval_micro or micro
    dp = data_parallel_size(world, tp, pp, eval_cp or cp)
    if dp is None and eval_cp is not None:
        return f"the parallel layout of the evaluation does not fit ({world} processes, tp={tp}, pp={pp}, cp={eval_cp})"
    return None if dp is None else _uneven(batch, micro, dp, lenient=lenient)


_BATCH = {"train.global_batch_size": 32, "train.micro_batch_size": 4, "facts.world_size": 8}
_STAGES = {"train.micro_batch_size": 4, "facts.world_size": 8}
_LAYOUT = dict.fromkeys(SIZES, 1)

RAMP_UP = rule(
    "TR02",
    within("train", "rampup_batch_size global_batch_size"),
    _ramp,
    why="the batch size grows from the first value to the global batch size in equal increments",
    fix="Set [first batch, increment, sequences] such that the increments end at train.global_batch_size.",
    fails=([8, 5, 1000], 32),
    passes=([8, 8, 1000], 32),
)


RULES: tuple[Rule, ...] = (
    RAMP_UP,
    Rule(
        id="TR03",
        fields=(
            "train.rampup_batch_size",
            "train.global_batch_size",
            "train.micro_batch_size",
            "train.decrease_batch_size_if_needed",
            "facts.world_size",
            *SIZES,
        ),
        test=_ramp_divides,
        why="each replica processes the same number of microbatches, also during the ramp-up",
        fix="Choose a first batch and an increment that are multiples of it.",
        fails={**_BATCH, **_LAYOUT, "train.rampup_batch_size": [16, 16, 1000]},
        passes={
            **_BATCH,
            **_LAYOUT,
            "train.rampup_batch_size": [32, 32, 1000],
            "train.global_batch_size": 64,
        },
    ),
    Rule(
        id="TR08",
        fields=(
            "train.step_batch_size_schedule",
            "train.rampup_batch_size",
            "train.decrease_batch_size_if_needed",
            "model.seq_length",
        ),
        test=_scheduled,
        why="it sets every batch size and the token at which it starts, beginning at 0 and increasing",
        fix='Write it as "0:768 250B:1536", without the other fields.',
        fails={"train.step_batch_size_schedule": "1B:512"},
        passes={"train.step_batch_size_schedule": "0:256 1B:512", "model.seq_length": 4096},
    ),
    Rule(
        id="TR09",
        fields=("train.step_batch_size_schedule", "train.micro_batch_size", "facts.world_size", *SIZES),
        test=_schedule_divides,
        why="each replica processes the same number of microbatches in every stage",
        fix="Choose batch sizes that are multiples of it.",
        fails={**_STAGES, **_LAYOUT, "train.step_batch_size_schedule": "0:32 1M:48"},
        passes={**_STAGES, **_LAYOUT, "train.step_batch_size_schedule": "0:32 1M:64"},
    ),
    rule(
        "V247",
        within("train", "train_samples global_batch_size rampup_batch_size step_batch_size_schedule"),
        _less_than_one_batch,
        why="incomplete batches are dropped, so that no step would be trained",
        fix="Lower train.global_batch_size or raise train.train_samples.",
        fails=(100, 128),
        passes=(1000, 128),
    ),
    rule(
        "V118",
        within("train", "global_batch_size micro_batch_size step_batch_size_schedule"),
        _batch_sizes,
        why="training and evaluation both use them",
        fix="Set train.global_batch_size and train.micro_batch_size.",
        fails=(8,),
        passes=(8, 2),
    ),
    Rule(
        id="V242",
        fields=(
            "train.global_batch_size",
            "train.micro_batch_size",
            "train.decrease_batch_size_if_needed",
            "facts.world_size",
            *SIZES,
        ),
        test=_uneven_batch,
        why="each replica processes the same number of microbatches",
        fix="Change train.global_batch_size or train.micro_batch_size, "
        "or set train.decrease_batch_size_if_needed=true.",
        fails={**_BATCH, "train.micro_batch_size": 3, **_LAYOUT},
        passes={**_BATCH, **_LAYOUT},
    ),
    Rule(
        id="V119",
        fields=(
            "validation.eval_global_batch_size",
            "validation.eval_micro_batch_size",
            "train.global_batch_size",
            "train.micro_batch_size",
            "train.decrease_batch_size_if_needed",
            "facts.world_size",
            *SIZES,
            "dist.eval_context_parallel_size",
        ),
        test=_uneven_eval_batch,
        why="each replica processes the same number of microbatches in evaluations as well",
        fix="Change validation.eval_global_batch_size or validation.eval_micro_batch_size.",
        fails={
            "validation.eval_global_batch_size": 6,
            "validation.eval_micro_batch_size": 4,
            "facts.world_size": 1,
            **_LAYOUT,
        },
        passes={**_BATCH, **_LAYOUT},
    ),
)
