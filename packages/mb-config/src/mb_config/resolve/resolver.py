"""Resolver: computes the fields that follow from other fields, and returns every change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mb_config.container.container import ConfigContainer, world_size_of_environment
from mb_config.container.section_types import wrong_types
from mb_config.overrides.provenance import Provenance
from mb_config.perf.resolve_perf import resolve_perf
from mb_config.preflight.problems import ConfigError, check, merge_problems
from mb_config.resolve.fallbacks import apply_fallbacks
from mb_config.resolve.fsdp import resolve_fsdp
from mb_config.resolve.model import resolve_model
from mb_config.resolve.overlap import resolve_overlap
from mb_config.resolve.precision import resolve_precision
from mb_config.resolve.state import Change, Priority, ResolverState
from mb_config.rules import batch_sizes, schedule
from mb_config.rules.training import LENGTH_RULES, MOVED
from mb_config.schedules.learning_rate import epoch_iterations, scheduler_steps, weight_decays
from mb_schema.batch_stages import scheduled_stages, sequences_in, steps_within, unscheduled_stages
from mb_schema.rule_kinds import shown
from mb_schema.rules import NOTHING, Problem, Rule

__all__ = ["Change", "apply_perf", "mimo_runtime_config_update", "runtime_config_update"]

_MIRRORED_FIELDS = (
    ("V143", "ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer"),
    ("V144", "ddp.overlap_param_gather", "optimizer.overlap_param_gather"),
    ("V115", "rng.te_rng_tracker", "model.use_te_rng_tracker"),
)
MIRRORED = frozenset(rule for rule, _, _ in _MIRRORED_FIELDS)
"""Rules on two fields that control one setting."""
_LENGTH_RULE_IDS = ("V118", "V204", "TR02", "TR08")
"""Rules that must hold so that the lengths of the schedule can be computed."""
TRAINING_SAMPLES = "training_samples"
"""Fact: sequences in one epoch of the training data, samples or packs."""

_STEPS = ("lr_decay_steps", "lr_warmup_steps", "wd_incr_steps", "wsd_decay_steps")


def runtime_config_update(
    cfg: ConfigContainer,
    *,
    world_size: int | None = None,
    provenance: Provenance | None = None,
    facts: Mapping[str, object] = NOTHING,
    rules: Iterable[Rule] | None = None,
) -> list[Change]:
    """Resolve `cfg` in place for `world_size` processes and return every change. Idempotent.

    The order is: fast settings (`perf`), precision, data-parallel size, communication overlap, model, Megatron-FSDP,
    fields that the data-parallel wrapper and the optimizer share, evaluation, training length, schedule, rules. Values
    that the user set in a file, on the command line or in code are kept if they are legal. Overlap settings that the
    parallel layout does not support are appended to the changes with severity "warning" at each call.

    Args:
        cfg: The sections. A model may be a plain mapping with Megatron's field names. If `cfg.comm_overlap` has a
            method `setup(model, optimizer, ddp)`, it is called; it also receives `keep` (the paths that the user set)
            and `transformer_engine` if it has these parameters. It may return records with `field`, `new`, `why`,
            `rule` and `severity`, which explain its changes.
        world_size: Number of processes; None: `world_size_of_environment()`.
        provenance: Origins of the values; receives each change. Without it, values that the sections record as set
            count as set in code.
        facts: Facts that rules read, as for `check`. Overlap receives `facts["transformer_engine"]`. The length of
            `train.num_epochs` needs `facts["training_samples"]`, the number of sequences in one epoch of the training
            data; without it `train.train_iters` and the lengths of the schedule stay unset.
        rules: Rules that the resolved configuration must satisfy; None: `cfg.installed_rules()`. Pass () to check
            separately.

    Raises:
        ConfigError: If settings exclude each other, the parallel layout does not fit the world size, or a rule is
            violated. `cfg` is partly resolved in this case.
        UnknownPrecisionError: If `mixed_precision` is not the name of a recipe.
        ValueError: If `setup` raises it for settings that contradict each other.
    """
    state = _begin(cfg, provenance)
    state.changes += apply_fallbacks(cfg, _on_sections_alone(cfg), facts=NOTHING, provenance=state.provenance)
    processes = world_size_of_environment() if world_size is None else world_size
    resolve_perf(state, resolve=runtime_config_update, facts={**facts, "world_size": processes})
    # The order matters: overlap reads the precision and the data-parallel size, Megatron-FSDP overrides fields that
    # the recipe and overlap set, and the lengths of the schedule need the final batch sizes.
    resolve_precision(state)
    _set_data_parallel_size(state, processes)
    resolve_overlap(state, facts=facts)
    resolve_model(state, facts=facts)
    resolve_fsdp(state)
    for rule, first, second in _MIRRORED_FIELDS:
        _make_equal(state, rule, first, second)
    _initialise_on_cpu(state)
    _evaluation(state)
    _length(state, {**facts, "world_size": processes})
    _schedule(state, facts={"world_size": processes})
    return _finish(state, rules, {**facts, "world_size": processes})


def _on_sections_alone(cfg: ConfigContainer) -> list[Rule]:
    """Return the rules with fallbacks that read no facts about a machine."""
    return [
        rule
        for rule in cfg.installed_rules()
        if getattr(rule, "fallback", None) and not any(path.startswith("facts.") for path in rule.fields)
    ]


def apply_perf(
    cfg: ConfigContainer, *, facts: Mapping[str, object], provenance: Provenance | None = None
) -> list[Change]:
    """Apply the fast settings of `cfg.perf` in place, as `runtime_config_update` does first, and return the changes.

    Nothing is applied in a configuration with values of a wrong type.
    """
    state = ResolverState(config=cfg, provenance=Provenance() if provenance is None else provenance)
    if cfg.perf is None or wrong_types(cfg):
        return []
    resolve_perf(state, resolve=runtime_config_update, facts=facts)
    return state.net_changes()


def mimo_runtime_config_update(
    cfg: ConfigContainer,
    *,
    provenance: Provenance | None = None,
    facts: Mapping[str, object] = NOTHING,
    rules: Iterable[Rule] | None = None,
) -> list[Change]:
    """Resolve the configuration of a MIMO model, whose modules have separate parallel layouts.

    Of `cfg.model`, only deterministic mode is read. The data-parallel size is 1. Shared fields of the data-parallel
    wrapper and the optimizer, evaluation, length and schedule are resolved as for other models. Precision and overlap
    are settings of the modules, so `mixed_precision` and `comm_overlap` are rejected.

    Raises:
        ConfigError: As for `runtime_config_update`.
    """
    state = _begin(cfg, provenance)
    resolve_perf(state, resolve=mimo_runtime_config_update, facts=facts)
    for name in ("mixed_precision", "comm_overlap"):
        _reject_for_mimo(state, name)
    before, cfg.data_parallel_size = cfg.data_parallel_size, 1
    if before != 1:
        state.record(
            "data_parallel_size", before, 1, rule="V221", why="each module has its own parallel layout"
        )
    resolve_model(state, facts=facts)
    for rule, first, second in _MIRRORED_FIELDS[:2]:
        _make_equal(state, rule, first, second)
    _evaluation(state)
    _length(state, facts)
    _schedule(state)
    return _finish(state, rules, facts)


def _begin(config: ConfigContainer, provenance: Provenance | None) -> ResolverState:
    """Return the initial state of the resolver.

    Raises:
        ConfigError: If values have a wrong type, so that nothing can be computed from them.
    """
    state = ResolverState(config=config, provenance=Provenance() if provenance is None else provenance)
    wrong = wrong_types(config, provenance=state.provenance)
    if wrong:
        raise ConfigError(wrong)
    return state


def _finish(state: ResolverState, rules: Iterable[Rule] | None, facts: Mapping[str, object]) -> list[Change]:
    config = state.config
    # Conflicts are collected up to here, so that one error reports them together with the violated rules.
    applied = config.installed_rules() if rules is None else rules
    found = check(config.sections(), applied, facts={**facts, "resolved": True}, provenance=state.provenance)
    errors = [problem for problem in found if problem.severity == "error"]
    problems = merge_problems(state.problems, errors)
    if problems:
        raise ConfigError(problems)
    return state.net_changes()


def _reject_for_mimo(state: ResolverState, name: str) -> None:
    if getattr(state.config, name) is not None:
        state.conflict(
            (name,),
            rule="V224",
            message="is set for a MIMO model",
            why="each module has its own parallel layout and precision, so that the section would have no effect",
            fix=f"Leave {name} unset.",
        )


def _set_data_parallel_size(state: ResolverState, world_size: int) -> None:
    before = state.config.data_parallel_size
    try:
        state.config.set_data_parallel_size(world_size)
    except ConfigError as error:
        state.problems += error.problems
        return
    now = state.config.data_parallel_size
    if hasattr(state.config.comm_overlap, "data_parallel_size"):
        state.provenance.note("comm_overlap.data_parallel_size", "resolve: V031")
    if before != now:
        state.record("data_parallel_size", before, now, rule="V031", why="processes / (tp x pp x cp)")


def _make_equal(state: ResolverState, rule: str, first: str, second: str) -> None:
    """Set two fields to the value with the higher priority.

    At equal priority the value is True, unless both values were set by a recipe or the user, which is a conflict. With
    `follows_megatron_bridge` it is True in any case.
    """
    if not (state.has(first) and state.has(second)) or state.get(first) == state.get(second):
        return
    of_first, of_second = state.priority(first), state.priority(second)
    if state.config.follows_megatron_bridge:
        of_first = of_second = Priority.COMPUTED
    if of_first == of_second and of_first > Priority.COMPUTED:
        state.conflict(
            (first, second),
            rule=rule,
            message=f"is {shown(state.get(first))}, but {second} is {shown(state.get(second))}",
            why="both fields control one setting",
            fix="Set both to the same value, or only one of them.",
        )
        return
    value = True
    if of_first != of_second:
        value = state.get(first if of_first > of_second else second)
    for path in (first, second):
        state.set(path, value, rule=rule, why=f"{first} and {second} control one setting")


def _initialise_on_cpu(state: ResolverState) -> None:
    path = "model.use_cpu_initialization"
    if state.has(path) and state.get("dist.lazy_mpu_init"):
        state.set(
            path, True, rule="V133", why="with dist.lazy_mpu_init the caller creates the process groups"
        )


def _evaluation(state: ResolverState) -> None:
    """Set the batch sizes of evaluations, and fields of `validation` from their deprecated names in `train`."""
    for name in MOVED:
        old, new = f"train.{name}", f"validation.{name}"
        if state.get(old) is None or state.get(old) == state.get(new):
            continue
        if state.priority(new) > Priority.COMPUTED and state.priority(old) <= state.priority(new):
            state.conflict(
                (old, new),
                rule="V139d",
                message=f"is {shown(state.get(old))}, but {new} is {shown(state.get(new))}",
                why="the first is the deprecated name of the second",
                fix=f"Set only {new}.",
            )
        else:
            state.set(new, state.get(old), rule="V139d", why=f"{old} is its deprecated name")
    train = state.config.train
    sizes = {"global_batch_size": train.global_batch_size, "micro_batch_size": train.micro_batch_size}
    why = dict.fromkeys(sizes, "as in training")
    if (
        train.global_batch_size is None
        and train.step_batch_size_schedule is not None
        and train.micro_batch_size
    ):
        sizes["global_batch_size"] = train.micro_batch_size * state.config.data_parallel_size
        why["global_batch_size"] = "one micro batch on each replica, as in Megatron-LM"
    for name, size in sizes.items():
        if state.get(f"validation.eval_{name}") is None:
            state.set(f"validation.eval_{name}", size, rule="V118", why=why[name])


def _length(state: ResolverState, facts: Mapping[str, object]) -> None:
    train = state.config.train
    wrong = check({"train": train}, LENGTH_RULES, provenance=state.provenance)
    state.problems += wrong
    if not wrong and train.num_epochs is not None:
        _epochs(state, facts.get(TRAINING_SAMPLES))
    elif wrong or train.train_samples is None or _batch_problems(state, facts):
        return
    else:
        _full_batches(state)


def _full_batches(state: ResolverState) -> None:
    """Compute the number of steps from that of the samples. A number of steps that the user set as well must be it."""
    train, path = state.config.train, "train.train_iters"
    if train.step_batch_size_schedule is not None:
        stages = scheduled_stages(train.step_batch_size_schedule, seq_length=state.get("model.seq_length"))
    else:
        stages = unscheduled_stages(global_batch_size=train.global_batch_size, ramp=train.rampup_batch_size)
    steps = steps_within(train.train_samples, stages)
    rest = train.train_samples - sequences_in(steps, stages)
    if state.priority(path) > Priority.COMPUTED and train.train_iters not in (None, steps):
        state.conflict(
            (path, "train.train_samples", "train.step_batch_size_schedule"),
            rule="V056",
            message=f"is {train.train_iters}, and train.train_samples is {train.train_samples}, which is {steps} steps "
            "with a full batch",
            why="both set the end of the training",
            fix=f"Set one of the two to null, such as {path}=null.",
        )
    else:
        left_out = f"; the last {rest} samples fill none and are left out" if rest else ""
        state.set(path, steps, rule="V057", why=f"the steps with a full batch in train_samples{left_out}")


def _epochs(state: ResolverState, size: object) -> None:
    """Compute the number of steps from that of epochs. The choice of the user replaces the length of a recipe."""
    train, path, epochs = state.config.train, "train.train_iters", "train.num_epochs"
    steps = None
    if isinstance(size, int):
        steps = epoch_iterations(
            train.num_epochs, dataset_size=size, global_batch_size=train.global_batch_size
        )
    is_computed = state.priority(path) == Priority.COMPUTED  # by an earlier call
    if is_computed and steps is None:
        return
    differs = not is_computed and train.train_iters not in (None, steps)
    if differs and state.priority(epochs) <= state.priority(path):
        state.conflict(
            (path, epochs),
            rule="V056",
            message=f"is {train.train_iters}, and train.num_epochs is {train.num_epochs:g}"
            + ("" if steps is None else f", which is {steps} steps"),
            why="both set the end of the training",
            fix=f"Set one of the two to null, such as {path}=null.",
        )
    else:
        why = f"{train.num_epochs:g} epochs of {size} sequences / global_batch_size"
        state.set(
            path, steps, rule="V206", why=why if steps is not None else "the number of sequences is not known"
        )


def _batch_problems(state: ResolverState, facts: Mapping[str, object]) -> list[Problem]:
    """Return the problems with which the lengths of the schedule cannot be computed."""
    # a batch may be rounded down to 0
    rounded = ("V242",) if state.config.train.decrease_batch_size_if_needed else ()
    needed = [
        rule for rule in (*schedule.RULES, *batch_sizes.RULES) if rule.id in (*_LENGTH_RULE_IDS, *rounded)
    ]
    return check(state.config.sections(), needed, facts=facts, provenance=state.provenance)


def _schedule(state: ResolverState, *, facts: Mapping[str, object] = NOTHING) -> None:
    """Set weight decays, and the lengths of the schedule in sequences if the batch sizes are known and valid."""
    config, section = state.config, state.config.scheduler
    start, end = weight_decays(section, config.optimizer)
    defaults = {
        "scheduler.start_weight_decay": start,
        "scheduler.end_weight_decay": end,
        "optimizer.min_lr": config.optimizer.min_lr or 0.0,
    }
    for path, value in defaults.items():
        state.set(path, value, rule="V208", why="the schedule requires a number")
    state.problems += _batch_problems(state, facts)
    sized = config.train.global_batch_size or config.train.step_batch_size_schedule
    known = config.train.train_iters is not None and sized
    if state.problems or not known:
        return
    steps = scheduler_steps(
        config.train,
        section,
        data_parallel_size=config.data_parallel_size,
        seq_length=state.get("model.seq_length") if config.train.step_batch_size_schedule else None,
    )
    for name in _STEPS:
        state.set(f"scheduler.{name}", getattr(steps, name), rule="V202", why="computed, in sequences")
