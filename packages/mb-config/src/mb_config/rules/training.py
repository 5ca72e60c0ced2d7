"""Rules on training length, intervals and evaluation."""

from __future__ import annotations

from mb_config.rules.batch_sizes import is_valid_ramp
from mb_schema.batch_stages import steps_within, unscheduled_stages
from mb_schema.rule_kinds import assigned, in_range, lettered, shown, train_rule, validation_rule
from mb_schema.rules import Rule


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
    lengths = {"train_iters": train_iters, "train_samples": train_samples, "num_epochs": num_epochs}
    given = {name: value for name, value in lengths.items() if value is not None}
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
    return f"the training length is set more than once ({assigned(given)})"


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


@validation_rule(
    "TR10",
    why="names identify multiple validation sets",
    fix="Use a unique name for each set, and set validation.multiple_validation_sets=true.",
    fails={"validation_set_names": ["books"]},
    passes={"validation_set_names": ["books", "web"], "multiple_validation_sets": True},
)
def _names_do_not_identify_sets(validation_set_names, multiple_validation_sets):
    if validation_set_names is None:
        return None
    if not multiple_validation_sets:
        return f"{shown(validation_set_names)} requires multiple_validation_sets=true"
    if len(set(validation_set_names)) < len(validation_set_names):
        return f"{shown(validation_set_names)} contains a name twice"
    return None


MOVED = ("eval_iters", "eval_interval", "skip_train")
"""Fields that both `train` and `validation` have; those of `train` are deprecated."""


@train_rule(
    "V139d",
    others=MOVED,
    why="these fields belong to validation; resolving moves them",
    fix="Set validation.eval_iters, validation.eval_interval and validation.skip_train instead.",
    fails={"eval_iters": 3},
    passes={"eval_iters": None},
    severity="warning",
)
def _deprecated_fields(**fields):
    given = {name: value for name, value in fields.items() if value is not None}
    return f"uses a deprecated name ({assigned(given)})" if given else None


@train_rule(
    "TR05",
    why="steps are counted from 1",
    fix="Set a list of the steps to skip, such as [17, 18].",
    fails={"iterations_to_skip": [-1]},
    passes={"iterations_to_skip": [17, 18]},
)
def _skipped_before_the_first(iterations_to_skip):
    wrong = [step for step in iterations_to_skip or () if step < 1]
    return f"{wrong[0]} is not a step" if wrong else None


_INTERVALS = (
    "train.exit_interval",
    "train.exit_duration_in_mins",
    "train.train_sync_interval",
    "train.check_weight_hash_across_dp_replicas_interval",
)
_COUNTS = ("validation.eval_iters", "validation.start_eval_at_iter", "validation.eval_interval")
_EVALUATION_BATCHES = ("validation.eval_global_batch_size", "validation.eval_micro_batch_size")

LENGTH_RULES: tuple[Rule, ...] = (
    _length_not_set_once,
    _samples_without_batch,
    _epochs_of_changing_batch,
    in_range("TR01", "train.train_iters", 0, why="it is a number of steps"),
)

RULES: tuple[Rule, ...] = (
    *LENGTH_RULES,
    _names_do_not_identify_sets,
    *(
        in_range(
            id,
            path,
            1,
            why="it is an interval in steps or minutes, and null disables it",
            fix=f"Set {path} to 1 or more, or to null.",
        )
        for id, path in lettered("TR04", _INTERVALS)
    ),
    _skipped_before_the_first,
    *(
        in_range(
            id,
            path,
            0,
            why="it is a number of batches or steps, and 0 means none",
            fix=f"Set {path} to 0 or more, or to null.",
        )
        for id, path in lettered("TR06", _COUNTS)
    ),
    *(
        in_range(
            id,
            path,
            1,
            why="it is a number of sequences, and null means as in training",
            fix=f"Set {path} to 1 or more, or to null.",
        )
        for id, path in lettered("TR07", _EVALUATION_BATCHES)
    ),
    _deprecated_fields,
)
