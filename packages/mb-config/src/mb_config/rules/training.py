"""Rules on training length, intervals and evaluation."""

from __future__ import annotations

from functools import partial

from mb_config.rules.batch_sizes import is_valid_ramp
from mb_config.rules.formatting import format_assignments, format_value
from mb_config.schedules.batch_stages import steps_within, unscheduled_stages
from mb_schema.rule_kinds import in_range, rules_for_each, section_rule
from mb_schema.rules import Rule

train_rule = partial(section_rule, "train")
validation_rule = partial(section_rule, "validation")


@train_rule(
    "V056",
    why="exactly one of the three sets the end of the training",
    fix="Set train.train_iters, train.train_samples or train.num_epochs, and the others to null.",
    fails={"train_iters": 10, "train_samples": 1000},
    passes={"train_iters": None},
)
def _length_not_set_once(
    train_iters, train_samples, num_epochs, global_batch_size, rampup_batch_size, step_batch_size_schedule
):
    given = [
        f"{name}={value}"
        for name, value in (
            ("train_iters", train_iters),
            ("train_samples", train_samples),
            ("num_epochs", num_epochs),
        )
        if value is not None
    ]
    if not given:
        return "the training length is not set"
    if len(given) == 1:
        return None
    rampup_batch_size = (
        rampup_batch_size if is_valid_ramp(rampup_batch_size, global_batch_size) else None
    )  # a wrong one is reported by itself
    if (
        train_samples
        and global_batch_size
        and num_epochs is None
        and train_iters
        == steps_within(
            train_samples, unscheduled_stages(global_batch_size=global_batch_size, ramp=rampup_batch_size)
        )
    ):
        return None
    # resolving compares the steps with the epochs, for which it needs the size of the dataset, and with the samples of
    # a schedule, for which it needs the sequence length
    if train_samples is None or (step_batch_size_schedule is not None and num_epochs is None):
        return None
    return f"the training length is set more than once ({', '.join(given)})"


@train_rule(
    "V057",
    why="the number of steps follows from both",
    fix="Set a positive train.train_samples and train.global_batch_size.",
    fails={"train_samples": 1000},
    passes={"global_batch_size": 30},
)
def _samples_without_batch(train_samples, global_batch_size, step_batch_size_schedule):
    if train_samples is None:
        return None
    if train_samples <= 0:
        return f"must be above 0, not {train_samples}"
    if global_batch_size is None and step_batch_size_schedule is None:
        return f"requires train.global_batch_size (train_samples={train_samples}, global_batch_size=null)"
    return None


@train_rule(
    "V058",
    why="the number of steps per epoch is the dataset size / global_batch_size",
    fix="Set a positive train.num_epochs and train.global_batch_size without a ramp-up or a schedule.",
    fails={"num_epochs": 0},
    passes={"num_epochs": 1.5, "global_batch_size": 8},
)
def _epochs_of_changing_batch(num_epochs, global_batch_size, rampup_batch_size, step_batch_size_schedule):
    if num_epochs is None:
        return None
    if num_epochs <= 0:
        return f"must be above 0, not {num_epochs}"
    if rampup_batch_size is not None or step_batch_size_schedule is not None:
        return f"cannot be combined with a batch size that changes (num_epochs={num_epochs:g})"
    return "requires train.global_batch_size" if global_batch_size is None else None


def _not_negative(iters: int | None) -> str | None:
    return f"must not be negative ({iters})" if iters is not None and iters < 0 else None


@validation_rule(
    "TR10",
    why="names identify multiple validation sets",
    fix="Use a unique name for each set, and set validation.multiple_validation_sets=true.",
    fails={"validation_set_names": ["books"]},
    passes={"validation_set_names": ["books", "web"], "multiple_validation_sets": True},
)
def _names(validation_set_names, multiple_validation_sets):
    if validation_set_names is None:
        return None
    if not multiple_validation_sets:
        return f"{format_value(validation_set_names)} requires multiple_validation_sets=true"
    if len(set(validation_set_names)) < len(validation_set_names):
        return f"{format_value(validation_set_names)} contains a name twice"
    return None


def _deprecated_fields(*values: object) -> str | None:
    moved = format_assignments(MOVED, values, where=_is_set)
    return f"uses a deprecated name ({moved})" if moved else None


def _is_set(value: object) -> bool:
    return value is not None


def _positive(value: int | None) -> str | None:
    return f"must be at least 1, not {value}" if value is not None and value < 1 else None


@train_rule(
    "TR05",
    why="steps are counted from 1",
    fix="Set a list of the steps to skip, such as [17, 18].",
    fails={"iterations_to_skip": [-1]},
    passes={"iterations_to_skip": [17, 18]},
)
def _skipped(iterations_to_skip):
    wrong = [step for step in iterations_to_skip or () if step < 1]
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
    _length_not_set_once,
    _samples_without_batch,
    _epochs_of_changing_batch,
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
    _names,
    *rules_for_each(
        "TR04",
        _INTERVALS,
        _positive,
        why="it is an interval in steps or minutes, and null disables it",
        fix="1 or more, or to null",
        fails=0,
        passes=100,
    ),
    _skipped,
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
