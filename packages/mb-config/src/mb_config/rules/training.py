"""Rules on training length, intervals and evaluation."""

from __future__ import annotations

from mb_config.rules.batch_sizes import is_valid_ramp
from mb_config.rules.formatting import format_assignments, format_value
from mb_config.schedules.batch_stages import steps_within
from mb_schema.rule_kinds import in_range, rule, rules_for_each, within
from mb_schema.rules import Rule


def _length_not_set_once(
    iters: int | None,
    samples: int | None,
    epochs: float | None,
    batch: int | None,
    ramp: list[int] | None,
    schedule: str | None,
) -> str | None:
    given = [
        f"{name}={value}"
        for name, value in (("train_iters", iters), ("train_samples", samples), ("num_epochs", epochs))
        if value is not None
    ]
    if not given:
        return "the training length is not set"
    if len(given) == 1:
        return None
    ramp = ramp if is_valid_ramp(ramp, batch) else None  # a wrong one is reported by itself
    if (
        samples
        and batch
        and epochs is None
        and iters == steps_within(samples, global_batch_size=batch, ramp=ramp)
    ):
        return None
    # resolving compares the steps with the epochs, for which it needs the size of the dataset, and with the samples of
    # a schedule, for which it needs the sequence length
    if samples is None or (schedule is not None and epochs is None):
        return None
    return f"the training length is set more than once ({', '.join(given)})"


def _samples_without_batch(samples: int | None, batch: int | None, schedule: str | None) -> str | None:
    if samples is None:
        return None
    if samples <= 0:
        return f"must be above 0, not {samples}"
    if batch is None and schedule is None:
        return f"requires train.global_batch_size (train_samples={samples}, global_batch_size=null)"
    return None


def _epochs_of_changing_batch(
    epochs: float | None, batch: int | None, rampup: list[int] | None, schedule: str | None
) -> str | None:
    if epochs is None:
        return None
    if epochs <= 0:
        return f"must be above 0, not {epochs}"
    if rampup is not None or schedule is not None:
        return f"cannot be combined with a batch size that changes (num_epochs={epochs:g})"
    return "requires train.global_batch_size" if batch is None else None


def _not_negative(iters: int | None) -> str | None:
    return f"must not be negative ({iters})" if iters is not None and iters < 0 else None


def _names(names: list[str] | None, several: bool | None) -> str | None:
    if names is None:
        return None
    if not several:
        return f"{format_value(names)} requires multiple_validation_sets=true"
    return f"{format_value(names)} contains a name twice" if len(set(names)) < len(names) else None


def _deprecated_fields(*values: object) -> str | None:
    moved = format_assignments(MOVED, values, where=_is_set)
    return f"uses a deprecated name ({moved})" if moved else None


def _is_set(value: object) -> bool:
    return value is not None


def _positive(value: int | None) -> str | None:
    return f"must be at least 1, not {value}" if value is not None and value < 1 else None


def _skipped(steps: list[int] | None) -> str | None:
    wrong = [step for step in steps or () if step < 1]
    return f"{wrong[0]} is not a step" if wrong else None


_INTERVALS = (
    "train.exit_interval",
    "train.exit_duration_in_mins",
    "train.train_sync_interval",
    "train.check_weight_hash_across_dp_replicas_interval",
    "validation.eval_interval",
)

MOVED = ("eval_iters", "eval_interval", "skip_train")
"""Fields that both `train` and `validation` have; those of `train` are deprecated."""


LENGTH_RULES: tuple[Rule, ...] = (
    Rule(
        id="V056",
        fields=(
            "train.train_iters",
            "train.train_samples",
            "train.num_epochs",
            "train.global_batch_size",
            "train.rampup_batch_size",
            "train.step_batch_size_schedule",
        ),
        test=_length_not_set_once,
        why="exactly one of the three sets the end of the training",
        fix="Set train.train_iters, train.train_samples or train.num_epochs, and the others to null.",
        fails={"train.train_iters": 10, "train.train_samples": 1000, "train.global_batch_size": 30},
        passes={"train.train_samples": 1000, "train.global_batch_size": 30},
    ),
    rule(
        "V057",
        within("train", "train_samples global_batch_size step_batch_size_schedule"),
        _samples_without_batch,
        why="the number of steps follows from both",
        fix="Set a positive train.train_samples and train.global_batch_size.",
        fails=(1000,),
        passes=(1000, 30),
    ),
    rule(
        "V058",
        within("train", "num_epochs global_batch_size rampup_batch_size step_batch_size_schedule"),
        _epochs_of_changing_batch,
        why="the number of steps per epoch is the dataset size / global_batch_size",
        fix="Set a positive train.num_epochs and train.global_batch_size without a ramp-up or a schedule.",
        fails=(0,),
        passes=(1.5, 8),
    ),
    in_range(
        "TR01",
        "train.train_iters",
        0,
        why="it is a number of steps",
        fix="Set train.train_iters to 0 or more.",
        fails=-1,
        passes=100,
    ),
)

RULES: tuple[Rule, ...] = (
    *LENGTH_RULES,
    rule(
        "TR10",
        within("validation", "validation_set_names multiple_validation_sets"),
        _names,
        why="names identify multiple validation sets",
        fix="Use a unique name for each set, and set validation.multiple_validation_sets=true.",
        fails=(["books"], False),
        passes=(["books", "web"], True),
    ),
    *rules_for_each(
        "TR04",
        _INTERVALS,
        _positive,
        why="it is an interval in steps or minutes, and null disables it",
        fix="1 or more, or to null",
        fails=0,
        passes=100,
    ),
    rule(
        "TR05",
        "train.iterations_to_skip",
        _skipped,
        why="steps are counted from 1",
        fix="Set a list of the steps to skip, such as [17, 18].",
        fails=([-1],),
        passes=([17, 18],),
    ),
    *rules_for_each(
        "TR06",
        ("validation.eval_iters", "validation.start_eval_at_iter"),
        _not_negative,
        why="it is a number of batches or steps",
        fix="0 or more, or to null",
        fails=-1,
        passes=0,
    ),
    *rules_for_each(
        "TR07",
        ("validation.eval_global_batch_size", "validation.eval_micro_batch_size"),
        _positive,
        why="it is a number of sequences, and null means as in training",
        fix="1 or more, or to null",
        fails=0,
        passes=8,
    ),
    Rule(
        id="V139d",
        fields=tuple(f"train.{name}" for name in MOVED),
        test=_deprecated_fields,
        why="these fields belong to validation; resolving moves them",
        fix="Set validation.eval_iters, validation.eval_interval and validation.skip_train instead.",
        severity="warning",
        fails={"train.eval_iters": 3},
        passes={"train.eval_iters": None},
    ),
)
