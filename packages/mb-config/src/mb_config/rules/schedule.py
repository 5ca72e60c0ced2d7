"""Rules on the learning-rate and weight-decay schedule."""

from __future__ import annotations

from functools import partial

from mb_config.rules.formatting import format_assignments
from mb_schema.rule_kinds import in_range, rule, section_rule, within
from mb_schema.rules import Rule

optimizer_rule = partial(section_rule, "optimizer")
scheduler_rule = partial(section_rule, "scheduler")

_ITERATIONS = ("scheduler.lr_decay_iters", "scheduler.lr_warmup_iters", "scheduler.lr_wsd_decay_iters")
_SAMPLES = ("scheduler.lr_decay_samples", "scheduler.lr_warmup_samples", "scheduler.lr_wsd_decay_samples")
_LENGTHS_OF_PHASES = (*_ITERATIONS, *_SAMPLES)


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
    "V061",
    why="a resumed run uses either the configured or the stored schedule",
    fix="Set one of the two to false.",
    fails={"override_opt_param_scheduler": True, "use_checkpoint_opt_param_scheduler": True},
    passes={"use_checkpoint_opt_param_scheduler": None},
)
def _two_schedules(override_opt_param_scheduler, use_checkpoint_opt_param_scheduler):
    if override_opt_param_scheduler and use_checkpoint_opt_param_scheduler:
        return "cannot be combined with use_checkpoint_opt_param_scheduler"
    return None


def _mixed_units(*values: float | None) -> str | None:
    if not any(values[:3]) or not any(values[3:]):
        return None
    return f"steps and sequences are mixed ({format_assignments(_LENGTHS_OF_PHASES, values, where=bool)})"


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


def _negative(*values: float | None) -> str | None:
    wrong = format_assignments(_LENGTHS_OF_PHASES, values, where=_below_zero)
    return f"lengths must not be negative ({wrong})" if wrong else None


def _below_zero(value: float | None) -> bool:
    return value is not None and value < 0


def _steps_in_run_of_samples(samples: int | None, *values: int | None) -> str | None:
    if samples is None or not any(values):
        return None
    given = format_assignments((*_ITERATIONS, "scheduler.max_steps"), values, where=bool)
    return f"the length is in sequences, but {given} is in steps"


def _samples_in_run_of_steps(samples: int | None, *values: int | None) -> str | None:
    if samples is not None or not any(values):
        return None
    return f"the length is in steps, but {format_assignments(_SAMPLES, values, where=bool)} is in sequences"


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


def _horizon(
    iters: int | None,
    samples: int | None,
    decay_iters: int | None,
    decay_samples: int | None,
    max_steps: int | None,
) -> int | None:
    """Return the end of the decay, in steps or sequences, from the values of `_LENGTHS`."""
    if samples is not None:
        return samples if decay_samples is None else decay_samples
    return next((value for value in (max_steps, decay_iters, iters) if value is not None), None)


def _no_horizon(*values: int | None) -> str | None:
    horizon = _horizon(*values)
    return f"the decay would end at {horizon}" if horizon is not None and horizon <= 0 else None


def _warmup_longer_than_decay(
    fraction: float | None, warmup_iters: int | None, warmup_samples: int | None, *values: int | None
) -> str | None:
    horizon, samples = _horizon(*values), values[1]
    if not horizon or horizon <= 0 or fraction not in (None, 1):
        return None
    warmup = warmup_iters if samples is None else warmup_samples
    warmup = warmup if fraction is None else horizon
    if not warmup or warmup < horizon:
        return None
    return f"the warm-up of {warmup} does not end before the end of the decay at {horizon}"


@optimizer_rule(
    "V208",
    why="the learning rate increases to optimizer.lr and decreases to optimizer.min_lr",
    fix="Set optimizer.lr, and the other fields to at most that value.",
    fails={"lr": 1e-4, "min_lr": 1e-3},
    passes={"lr": 1e-3, "min_lr": 1e-4},
)
def _learning_rate(lr, min_lr, scheduler__lr_warmup_init):
    if lr is None:
        return "is not set"
    if lr < 0:
        return f"must not be negative ({lr})"
    if min_lr is not None and not 0 <= min_lr <= lr:
        return f"min_lr={min_lr} is not between 0 and lr={lr}"
    if scheduler__lr_warmup_init is not None and scheduler__lr_warmup_init > lr:
        return f"lr_warmup_init={scheduler__lr_warmup_init} is above lr={lr}"
    return None


@scheduler_rule(
    "S03",
    why="a constant weight decay has one value",
    fix="Set scheduler.weight_decay_incr_style=linear, or set both to the same value.",
    fails={"weight_decay_incr_style": "constant", "start_weight_decay": 0.01, "end_weight_decay": 0.1},
    passes={"weight_decay_incr_style": "linear"},
)
def _constant_decay(weight_decay_incr_style, start_weight_decay, end_weight_decay):
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
def _weight_decay_range(
    weight_decay_incr_style, start_weight_decay, end_weight_decay, optimizer__weight_decay
):
    if (
        weight_decay_incr_style == "constant"
        or optimizer__weight_decay is None
        or (start_weight_decay is None) == (end_weight_decay is None)
    ):
        return None  # both set: checked by V060; none: a constant
    first, last = (
        (optimizer__weight_decay if start_weight_decay is None else start_weight_decay),
        (optimizer__weight_decay if end_weight_decay is None else end_weight_decay),
    )
    return f"decreases from {first} to {last}" if last < first else None


def _wsd_unused(style: str | None, *lengths: int | None) -> str | None:
    given = [value for value in lengths if value]
    return f"is {style}, which has no decay phase (length {given[0]})" if given and style != "WSD" else None


def _wsd_without_length(style: str | None, *lengths: int | None) -> str | None:
    if style != "WSD" or any(lengths):
        return None
    return "is WSD without a length of the decay phase, so that the decay takes the full training"


def _wsd_too_long(iters: int | None, samples: int | None, *values: int | None) -> str | None:
    horizon, last = _horizon(*values), iters if values[1] is None else samples
    if not horizon or not last or last <= horizon:
        return None
    return f"the decay phase of {last} exceeds the horizon of {horizon}"


_LENGTHS = (
    "train.train_iters",
    "train.train_samples",
    "scheduler.lr_decay_iters",
    "scheduler.lr_decay_samples",
    "scheduler.max_steps",
)

SECTION_RULES: tuple[Rule, ...] = (
    in_range(
        "V059",
        "scheduler.max_steps",
        1,
        why="it is a number of steps",
        fix="Set a positive scheduler.max_steps, or null.",
    ),
    _weight_decay_decreases,
    _two_schedules,
    Rule(
        id="V062",
        fields=_LENGTHS_OF_PHASES,
        test=_mixed_units,
        why="a schedule has one unit",
        fix="Set all lengths of the schedule in steps (..._iters), or all in sequences (..._samples).",
        fails={"scheduler.lr_decay_iters": 100, "scheduler.lr_warmup_samples": 8},
        passes={"scheduler.lr_decay_iters": 100, "scheduler.lr_warmup_iters": 8},
    ),
    _warmup_set_twice,
    in_range(
        "S01",
        "scheduler.lr_warmup_fraction",
        0,
        1,
        why="it is a fraction of the horizon",
        fix="Set scheduler.lr_warmup_fraction to a number such as 0.1.",
    ),
    Rule(
        id="S02",
        fields=_LENGTHS_OF_PHASES,
        test=_negative,
        why="it is a number of steps or sequences",
        fix="Set it to 0 or more.",
        fails={"scheduler.lr_warmup_iters": -1},
        passes={"scheduler.lr_warmup_iters": 1},
    ),
    *(
        rule(
            f"S07{letter}",
            (f"scheduler.{name}", f"optimizer.{rate}"),
            lambda here, there: (
                f"is {here}, and the optimizer has {there}" if here not in (None, there) else None
            ),
            why="the optimizer's rate is the one that is used",
            fix=f"Set optimizer.{rate}, and leave scheduler.{name} unset.",
            fails=(5e-6, 1e-4),
            passes=(5e-6, 5e-6),
        )
        for letter, name, rate in (("", "max_lr", "lr"), ("a", "min_lr", "min_lr"))
    ),
    rule(
        "S04",
        within("scheduler", "lr_decay_style lr_wsd_decay_iters lr_wsd_decay_samples"),
        _wsd_unused,
        why="only the style WSD has a separate decay phase",
        fix="Set scheduler.lr_decay_style=WSD, or leave the length of the decay phase unset.",
        fails=("cosine", 20),
        passes=("WSD", 20),
    ),
    rule(
        "S06",
        within("scheduler", "lr_decay_style lr_wsd_decay_iters lr_wsd_decay_samples"),
        _wsd_without_length,
        why="the phases are warm-up, stable and decay, and the start of the decay follows from its length",
        fix="Set scheduler.lr_wsd_decay_iters (or lr_wsd_decay_samples), for example to 10 % of the training.",
        severity="warning",
        fails=("WSD",),
        passes=("WSD", 20),
    ),
    _constant_decay,
)

RULES: tuple[Rule, ...] = (
    *SECTION_RULES,
    Rule(
        id="V200",
        fields=("train.train_samples", *_ITERATIONS, "scheduler.max_steps"),
        test=_steps_in_run_of_samples,
        why="a run has one unit",
        fix="Use the fields ..._samples, or set train.train_iters.",
        fails={"train.train_samples": 1000, "scheduler.lr_warmup_iters": 10},
        passes={"train.train_samples": 1000, "scheduler.lr_warmup_iters": 0},
    ),
    Rule(
        id="V201",
        fields=("train.train_samples", *_SAMPLES),
        test=_samples_in_run_of_steps,
        why="a run has one unit",
        fix="Use the fields ..._iters, or set train.train_samples.",
        fails={"scheduler.lr_decay_samples": 1000},
        passes={"train.train_samples": 1000, "scheduler.lr_decay_samples": 1000},
    ),
    _horizon_too_short,
    Rule(
        id="V204",
        fields=_LENGTHS,
        test=_no_horizon,
        why="a schedule requires a horizon",
        fix="Set train.train_iters or scheduler.lr_decay_iters above 0.",
        fails={"train.train_iters": 10, "scheduler.lr_decay_iters": 0},
        passes={"train.train_iters": 10},
    ),
    Rule(
        id="V205",
        fields=(
            "scheduler.lr_warmup_fraction",
            "scheduler.lr_warmup_iters",
            "scheduler.lr_warmup_samples",
            *_LENGTHS,
        ),
        test=_warmup_longer_than_decay,
        why="the learning rate would still increase at the end of the decay; the warm-up is cut to one sequence less",
        fix="Shorten the warm-up or train longer.",
        severity="warning",
        fails={"scheduler.lr_warmup_iters": 10, "train.train_iters": 2},
        passes={"scheduler.lr_warmup_iters": 10, "train.train_iters": 100},
    ),
    _learning_rate,
    _weight_decay_range,
    Rule(
        id="S05",
        fields=("scheduler.lr_wsd_decay_iters", "scheduler.lr_wsd_decay_samples", *_LENGTHS),
        test=_wsd_too_long,
        why="the decay phase would begin before the first step",
        fix="Lower scheduler.lr_wsd_decay_iters or scheduler.lr_wsd_decay_samples.",
        fails={"scheduler.lr_wsd_decay_iters": 200, "train.train_iters": 100},
        passes={"scheduler.lr_wsd_decay_iters": 20, "train.train_iters": 100},
    ),
)
