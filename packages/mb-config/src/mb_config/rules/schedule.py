"""Rules on the learning-rate and weight-decay schedule."""

from __future__ import annotations

from functools import partial

from mb_schema.rule_kinds import assigned, excludes, in_range, optimizer_rule, section_rule, train_rule
from mb_schema.rules import Rule

scheduler_rule = partial(section_rule, "scheduler")

_STEPS = ("lr_decay_iters", "lr_warmup_iters", "lr_wsd_decay_iters")
_SAMPLES = ("lr_decay_samples", "lr_warmup_samples", "lr_wsd_decay_samples")
"""Lengths of the phases in steps, and in sequences."""


@scheduler_rule(
    "V060",
    why="the weight decay can only increase, from a value of 0 or more",
    fix="Set scheduler.end_weight_decay to at least scheduler.start_weight_decay.",
    fails={"start_weight_decay": 0.1, "end_weight_decay": 0.01},
    passes={"start_weight_decay": 0.01, "end_weight_decay": 0.1},
)
def _weight_decay_decreases(start_weight_decay, end_weight_decay):
    if start_weight_decay is not None and start_weight_decay < 0:
        return f"must not be negative ({start_weight_decay})"
    if (
        start_weight_decay is not None
        and end_weight_decay is not None
        and end_weight_decay < start_weight_decay
    ):
        return f"{start_weight_decay} is above end_weight_decay={end_weight_decay}"
    return None


@scheduler_rule(
    "V062",
    others=(*_STEPS, *_SAMPLES),
    why="a schedule has one unit",
    fix="Set all lengths of the schedule in steps (..._iters), or all in sequences (..._samples).",
    fails={"lr_decay_iters": 100, "lr_warmup_samples": 8},
    passes={"lr_warmup_samples": None, "lr_warmup_iters": 8},
)
def _steps_and_samples_mixed(**lengths):
    given = {name: length for name, length in lengths.items() if length}
    if given.keys().isdisjoint(_STEPS) or given.keys().isdisjoint(_SAMPLES):
        return None
    return f"steps and sequences are mixed ({assigned(given)})"


@scheduler_rule(
    "V063",
    why="each of them sets the warm-up",
    fix="Set scheduler.lr_warmup_fraction=null, or the other two to 0.",
    fails={"lr_warmup_fraction": 0.1, "lr_warmup_iters": 10},
    passes={"lr_warmup_iters": 0},
)
def _warmup_set_twice(lr_warmup_fraction, lr_warmup_iters, lr_warmup_samples):
    if lr_warmup_fraction is None or (not lr_warmup_iters and not lr_warmup_samples):
        return None
    return (
        f"{lr_warmup_fraction} is set together with lr_warmup_iters={lr_warmup_iters or 0}, "
        f"lr_warmup_samples={lr_warmup_samples or 0}"
    )


@scheduler_rule(
    "S02",
    others=(*_STEPS, *_SAMPLES),
    why="it is a number of steps or sequences",
    fix="Set it to 0 or more.",
    fails={"lr_warmup_iters": -1},
    passes={"lr_warmup_iters": 1},
)
def _negative_length(**lengths):
    negative = {name: length for name, length in lengths.items() if length is not None and length < 0}
    return f"lengths must not be negative ({assigned(negative)})" if negative else None


@train_rule(
    "V200",
    others=[f"scheduler.{name}" for name in (*_STEPS, "max_steps")],
    why="a run has one unit",
    fix="Use the fields ..._samples, or set train.train_iters.",
    fails={"train_samples": 1000, "scheduler.lr_warmup_iters": 10},
    passes={"scheduler.lr_warmup_iters": 0},
)
def _steps_in_run_of_samples(train_samples, **lengths):
    given = {path: length for path, length in lengths.items() if length}
    if train_samples is None or not given:
        return None
    return f"the length is in sequences, but {assigned(given)} is in steps"


@train_rule(
    "V201",
    others=[f"scheduler.{name}" for name in _SAMPLES],
    why="a run has one unit",
    fix="Use the fields ..._iters, or set train.train_samples.",
    fails={"scheduler.lr_decay_samples": 1000},
    passes={"train_samples": 1000},
)
def _samples_in_run_of_steps(train_samples, **lengths):
    given = {path: length for path, length in lengths.items() if length}
    if train_samples is not None or not given:
        return None
    return f"the length is in steps, but {assigned(given)} is in sequences"


@scheduler_rule(
    "V203",
    why="it is the horizon of the full run",
    fix="Set scheduler.max_steps to at least train.train_iters, and scheduler.lr_decay_iters=null.",
    fails={"max_steps": 50, "train__train_iters": 100},
    passes={"max_steps": 1000},
)
def _horizon_too_short(max_steps, train__train_iters, lr_decay_iters):
    if max_steps is None:
        return None
    if train__train_iters is not None and max_steps < train__train_iters:
        return f"{max_steps} is below train_iters={train__train_iters}"
    if lr_decay_iters not in (None, max_steps):
        return f"{max_steps} differs from lr_decay_iters={lr_decay_iters}"
    return None


_HORIZON = (
    "train__train_iters",
    "train__train_samples",
    "lr_decay_iters",
    "lr_decay_samples",
    "max_steps",
)
"""Fields that set the end of the decay, the arguments of `_end_of_decay`."""


def _end_of_decay(
    train__train_iters: int | None,
    train__train_samples: int | None,
    lr_decay_iters: int | None,
    lr_decay_samples: int | None,
    max_steps: int | None,
) -> int | None:
    """Return the step at which the decay ends; in a run of samples, the sequence."""
    if train__train_samples is not None:
        return train__train_samples if lr_decay_samples is None else lr_decay_samples
    return next((end for end in (max_steps, lr_decay_iters, train__train_iters) if end is not None), None)


@scheduler_rule(
    "V204",
    others=_HORIZON,
    why="a schedule requires a horizon",
    fix="Set train.train_iters or scheduler.lr_decay_iters above 0.",
    fails={"train__train_iters": 10, "lr_decay_iters": 0},
    passes={"lr_decay_iters": None},
)
def _no_horizon(**horizon):
    end = _end_of_decay(**horizon)
    return f"the decay would end at {end}" if end is not None and end <= 0 else None


@scheduler_rule(
    "V205",
    others=_HORIZON,
    why="the learning rate would still increase at the end of the decay; the warm-up is cut to one sequence less",
    fix="Shorten the warm-up or train longer.",
    fails={"lr_warmup_iters": 10, "train__train_iters": 2},
    passes={"train__train_iters": 100},
    severity="warning",
)
def _warmup_longer_than_decay(lr_warmup_iters, lr_warmup_fraction, lr_warmup_samples, **horizon):
    end = _end_of_decay(**horizon)
    if not end or end <= 0 or lr_warmup_fraction not in (None, 1):
        return None
    warmup = lr_warmup_iters if horizon["train__train_samples"] is None else lr_warmup_samples
    if lr_warmup_fraction is not None:
        warmup = end
    if not warmup or warmup < end:
        return None
    return f"the warm-up of {warmup} does not end before the end of the decay at {end}"


@optimizer_rule(
    "V208",
    why="the learning rate increases to optimizer.lr and decreases to optimizer.min_lr",
    fix="Set optimizer.lr, and the other fields to at most that value.",
    fails={"lr": 1e-4, "min_lr": 1e-3},
    passes={"lr": 1e-3, "min_lr": 1e-4},
)
def _learning_rate_out_of_order(lr, min_lr, scheduler__lr_warmup_init):
    if lr is None:
        return "is not set"
    if lr < 0:
        return f"must not be negative ({lr})"
    if min_lr is not None and not 0 <= min_lr <= lr:
        return f"min_lr={min_lr} is not between 0 and lr={lr}"
    if scheduler__lr_warmup_init is not None and scheduler__lr_warmup_init > lr:
        return f"lr_warmup_init={scheduler__lr_warmup_init} is above lr={lr}"
    return None


def _rate_set_twice(id: str, name: str, rate: str) -> Rule:
    def differs(here, there):
        return f"is {here}, and the optimizer has {there}" if here not in (None, there) else None

    return scheduler_rule(
        id,
        paths={"here": f"scheduler.{name}", "there": f"optimizer.{rate}"},
        why="the optimizer's rate is the one that is used",
        fix=f"Set optimizer.{rate}, and leave scheduler.{name} unset.",
        fails={"here": 5e-6, "there": 1e-4},
        passes={"there": 5e-6},
    )(differs)


@scheduler_rule(
    "S03",
    why="a constant weight decay has one value",
    fix="Set scheduler.weight_decay_incr_style=linear, or set both to the same value.",
    fails={"weight_decay_incr_style": "constant", "start_weight_decay": 0.01, "end_weight_decay": 0.1},
    passes={"weight_decay_incr_style": "linear"},
)
def _constant_weight_decay_changes(weight_decay_incr_style, start_weight_decay, end_weight_decay):
    if (
        weight_decay_incr_style != "constant"
        or start_weight_decay is None
        or end_weight_decay is None
        or start_weight_decay == end_weight_decay
    ):
        return None
    return f"is constant, but the values differ ({start_weight_decay}, {end_weight_decay})"


@scheduler_rule(
    "V208b",
    why="the weight decay can only increase, and a value that is not set is optimizer.weight_decay",
    fix="Set both scheduler.start_weight_decay and scheduler.end_weight_decay.",
    fails={"weight_decay_incr_style": "linear", "end_weight_decay": 0.001, "optimizer__weight_decay": 0.01},
    passes={"end_weight_decay": 0.1},
)
def _weight_decay_decreases_from_optimizer(
    weight_decay_incr_style, start_weight_decay, end_weight_decay, optimizer__weight_decay
):
    if (
        weight_decay_incr_style == "constant"
        or optimizer__weight_decay is None
        or (start_weight_decay is None) == (end_weight_decay is None)
    ):
        return None  # both set: checked by V060; none: a constant
    first = optimizer__weight_decay if start_weight_decay is None else start_weight_decay
    last = optimizer__weight_decay if end_weight_decay is None else end_weight_decay
    return f"decreases from {first} to {last}" if last < first else None


@scheduler_rule(
    "S04",
    why="only the style WSD has a separate decay phase",
    fix="Set scheduler.lr_decay_style=WSD, or leave the length of the decay phase unset.",
    fails={"lr_decay_style": "cosine", "lr_wsd_decay_iters": 20},
    passes={"lr_decay_style": "WSD"},
)
def _wsd_length_unused(lr_decay_style, lr_wsd_decay_iters, lr_wsd_decay_samples):
    length = lr_wsd_decay_iters or lr_wsd_decay_samples
    if not length or lr_decay_style == "WSD":
        return None
    return f"is {lr_decay_style}, which has no decay phase (length {length})"


@scheduler_rule(
    "S06",
    why="the phases are warm-up, stable and decay, and the start of the decay follows from its length",
    fix="Set scheduler.lr_wsd_decay_iters (or lr_wsd_decay_samples), for example to 10 % of the training.",
    fails={"lr_decay_style": "WSD"},
    passes={"lr_wsd_decay_iters": 20},
    severity="warning",
)
def _wsd_without_length(lr_decay_style, lr_wsd_decay_iters, lr_wsd_decay_samples):
    if lr_decay_style != "WSD" or lr_wsd_decay_iters or lr_wsd_decay_samples:
        return None
    return "is WSD without a length of the decay phase, so that the decay takes the full training"


@scheduler_rule(
    "S05",
    others=_HORIZON,
    why="the decay phase would begin before the first step",
    fix="Lower scheduler.lr_wsd_decay_iters or scheduler.lr_wsd_decay_samples.",
    fails={"lr_wsd_decay_iters": 200, "train__train_iters": 100},
    passes={"lr_wsd_decay_iters": 20},
)
def _wsd_too_long(lr_wsd_decay_iters, lr_wsd_decay_samples, **horizon):
    end = _end_of_decay(**horizon)
    length = lr_wsd_decay_iters if horizon["train__train_samples"] is None else lr_wsd_decay_samples
    if not end or not length or length <= end:
        return None
    return f"the decay phase of {length} exceeds the horizon of {end}"


SECTION_RULES: tuple[Rule, ...] = (
    in_range(
        "V059",
        "scheduler.max_steps",
        1,
        why="it is a number of steps",
        fix="Set a positive scheduler.max_steps, or null.",
    ),
    _weight_decay_decreases,
    excludes(
        "V061",
        {
            "scheduler.override_opt_param_scheduler": True,
            "scheduler.use_checkpoint_opt_param_scheduler": True,
        },
        why="a resumed run uses either the configured or the stored schedule",
        fix="Set one of the two to false.",
    ),
    _steps_and_samples_mixed,
    _warmup_set_twice,
    in_range(
        "S01",
        "scheduler.lr_warmup_fraction",
        0,
        1,
        why="it is a fraction of the horizon",
        fix="Set scheduler.lr_warmup_fraction to a number such as 0.1.",
    ),
    _negative_length,
    _rate_set_twice("S07", "max_lr", "lr"),
    _rate_set_twice("S07a", "min_lr", "min_lr"),
    _wsd_length_unused,
    _wsd_without_length,
    _constant_weight_decay_changes,
)

RULES: tuple[Rule, ...] = (
    *SECTION_RULES,
    _steps_in_run_of_samples,
    _samples_in_run_of_steps,
    _horizon_too_short,
    _no_horizon,
    _warmup_longer_than_decay,
    _learning_rate_out_of_order,
    _weight_decay_decreases_from_optimizer,
    _wsd_too_long,
)
