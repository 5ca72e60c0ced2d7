"""Resolving: the one step that fills in what follows from the rest, and says what it changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mb_config.container import ConfigContainer, world_size_of_environment
from mb_config.merging import merge_problems
from mb_config.problems import NOTHING, ConfigError, RuleLike, check
from mb_config.provenance import Provenance
from mb_config.resolution import Change, Resolution
from mb_config.resolve_fsdp import apply_fsdp
from mb_config.resolve_model import apply_model
from mb_config.resolve_overlap import apply_overlap
from mb_config.resolve_precision import apply_precision
from mb_config.rules import batches, schedule
from mb_config.rules.training import LENGTH_RULES
from mb_config.rules.wording import shown
from mb_config.schedule import scheduler_steps, weight_decays
from mb_config.section_types import wrong_types

__all__ = ["Change", "mimo_runtime_config_update", "runtime_config_update"]

_PAIRS = (
    ("V143", "ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer"),
    ("V144", "ddp.overlap_param_gather", "optimizer.overlap_param_gather"),
    ("V115", "rng.te_rng_tracker", "model.use_te_rng_tracker"),
)
_MOVED = ("eval_iters", "eval_interval", "skip_train")
_COMPUTABLE = ("V118", "V204", "TR02", "TR08")
"""Rules without which the lengths of the schedule cannot be computed."""
_STEPS = ("lr_decay_steps", "lr_warmup_steps", "wd_incr_steps", "wsd_decay_steps")


def runtime_config_update(
    cfg: ConfigContainer,
    *,
    world_size: int | None = None,
    provenance: Provenance | None = None,
    facts: Mapping[str, object] = NOTHING,
    rules: Iterable[RuleLike] | None = None,
) -> list[Change]:
    """Resolve `cfg` in place for `world_size` processes and return every change. Doing it again changes nothing.

    In this order: precision, data-parallel size, communication overlap, the model's switches, Megatron-FSDP, wrapper
    and optimizer made equal, evaluation defaults, length, schedule, and last the rules. What the user set (in a file,
    on the command line, in code) is kept where that is legal. Behind the changes stand, with severity "warning",
    wishes for overlap that this layout cannot grant; these are told each time.

    Args:
        cfg: The sections; a model may be a plain mapping with Megatron's field names. Overlap is
            `cfg.comm_overlap.setup(model, optimizer, ddp)`, if there is such a method; `keep` (the paths that the
            user set) and `transformer_engine` are handed to it where it takes them. What it returns says why: records
            with `field`, `new`, `why`, `rule` and `severity`.
        world_size: Number of processes; None: the environment's WORLD_SIZE, which torchrun sets, or 1.
        provenance: Where the values came from; is told of each change. Without it, what the sections remember was
            set in code.
        facts: What rules may ask, as for `check`; overlap is told `facts["transformer_engine"]`.
        rules: To be held by the resolved config; None: `cfg.installed_rules()`, () for callers that check themselves.

    Raises:
        ConfigError: wishes that exclude each other, a layout that does not fit, or a broken rule; the config is partly
            resolved then.
        UnknownPrecisionError: `mixed_precision` names no recipe.
        ValueError: what `setup` raises for wishes that contradict each other.
    """
    run = _begin(cfg, provenance)
    processes = world_size_of_environment() if world_size is None else world_size
    apply_precision(run)
    _set_data_parallel_size(run, processes)
    apply_overlap(run, facts=facts)
    apply_model(run, facts=facts)
    apply_fsdp(run)
    for rule, first, second in _PAIRS:
        _make_equal(run, rule, first, second)
    _initialise_on_cpu(run)
    _evaluation(run)
    _length(run)
    _schedule(run, facts={"world_size": processes})
    return _finish(run, rules, {**facts, "world_size": processes})


def mimo_runtime_config_update(
    cfg: ConfigContainer,
    *,
    provenance: Provenance | None = None,
    facts: Mapping[str, object] = NOTHING,
    rules: Iterable[RuleLike] | None = None,
) -> list[Change]:
    """`runtime_config_update` for a model of several modules, each with a layout of its own (MIMO).

    Nothing is asked of `cfg.model` but whether it is deterministic. The data-parallel size is 1; wrapper and
    optimizer are made equal, and evaluation defaults, length and schedule are filled in as for other models. Precision
    and overlap belong to the modules: a `mixed_precision` or `comm_overlap` is refused.

    Raises:
        ConfigError: as `runtime_config_update`.
    """
    run = _begin(cfg, provenance)
    for name in ("mixed_precision", "comm_overlap"):
        _refuse_for_mimo(run, name)
    before, cfg.data_parallel_size = cfg.data_parallel_size, 1
    if before != 1:
        run.record("data_parallel_size", before, 1, rule="V221", why="modules have layouts of their own")
    apply_model(run, facts=facts)
    for rule, first, second in _PAIRS[:2]:
        _make_equal(run, rule, first, second)
    _evaluation(run)
    _length(run)
    _schedule(run)
    return _finish(run, rules, facts)


def _begin(config: ConfigContainer, provenance: Provenance | None) -> Resolution:
    """Return the record of a resolution.

    Raises:
        ConfigError: values have a wrong type, so that nothing can be computed from them.
    """
    run = Resolution(config=config, provenance=Provenance() if provenance is None else provenance)
    wrong = wrong_types(config, provenance=run.provenance)
    if wrong:
        raise ConfigError(wrong)
    return run


def _finish(run: Resolution, rules: Iterable[RuleLike] | None, facts: Mapping[str, object]) -> list[Change]:
    config = run.config
    applied = config.installed_rules() if rules is None else rules
    found = check(config.sections(), applied, facts={**facts, "resolved": True}, provenance=run.provenance)
    errors = [problem for problem in found if problem.severity == "error"]
    problems = merge_problems(run.problems, errors)
    if problems:
        raise ConfigError(problems)
    return run.net_changes()


def _refuse_for_mimo(run: Resolution, name: str) -> None:
    if getattr(run.config, name) is not None:
        run.conflict(
            (name,),
            rule="V224",
            message="is set for a model of several modules",
            why="each module has its own layout and precision, and nothing would read it",
            fix=f"Leave {name} unset.",
        )


def _set_data_parallel_size(run: Resolution, world_size: int) -> None:
    before = run.config.data_parallel_size
    try:
        run.config.set_data_parallel_size(world_size)
    except ConfigError as error:
        run.problems += error.problems
        return
    now = run.config.data_parallel_size
    if hasattr(run.config.comm_overlap, "data_parallel_size"):
        run.provenance.note("comm_overlap.data_parallel_size", "resolve: V031")
    if before != now:
        run.record("data_parallel_size", before, now, rule="V031", why="processes / (tp x pp x cp)")


def _make_equal(run: Resolution, rule: str, first: str, second: str) -> None:
    """The side that carries more weight decides; at the same weight the one that is on, unless both were chosen."""
    if not (run.has(first) and run.has(second)) or run.get(first) == run.get(second):
        return
    ranks = run.rank(first), run.rank(second)
    if ranks[0] == ranks[1] > 0:
        run.conflict(
            (first, second),
            rule=rule,
            message=f"is {shown(run.get(first))}, but {second} is {shown(run.get(second))}",
            why="the two are one switch",
            fix="Set both to the same value, or only one of them.",
        )
        return
    value = True if ranks[0] == ranks[1] else run.get(first if ranks[0] > ranks[1] else second)
    for path in (first, second):
        run.set(path, value, rule=rule, why=f"{first} and {second} are one switch")


def _initialise_on_cpu(run: Resolution) -> None:
    path = "model.use_cpu_initialization"
    if run.has(path) and run.get("dist.lazy_mpu_init"):
        run.set(path, True, rule="V133", why="dist.lazy_mpu_init leaves the process groups to the caller")


def _evaluation(run: Resolution) -> None:
    for name in _MOVED:
        old, new = f"train.{name}", f"validation.{name}"
        if run.get(old) is None or run.get(old) == run.get(new):
            continue
        if run.rank(new) > 0:
            run.conflict(
                (old, new),
                rule="V139d",
                message=f"is {shown(run.get(old))}, but {new} is {shown(run.get(new))}",
                why="the first is the old place of the second",
                fix=f"Set only {new}.",
            )
        else:
            run.set(new, run.get(old), rule="V139d", why=f"{old} is its old place")
    for name in ("global_batch_size", "micro_batch_size"):
        if run.get(f"validation.eval_{name}") is None:
            run.set(f"validation.eval_{name}", run.get(f"train.{name}"), rule="V118", why="as in training")


def _length(run: Resolution) -> None:
    train = run.config.train
    wrong = check({"train": train}, LENGTH_RULES, provenance=run.provenance)
    run.problems += wrong
    if not wrong and train.train_samples is not None:
        run.set(
            "train.train_iters",
            train.train_samples // train.global_batch_size,
            rule="V057",
            why="train_samples / global_batch_size, rounded down",
        )


def _schedule(run: Resolution, *, facts: Mapping[str, object] = NOTHING) -> None:
    config, section = run.config, run.config.scheduler
    start, end = weight_decays(section, config.optimizer)
    defaults = {
        "scheduler.start_weight_decay": start,
        "scheduler.end_weight_decay": end,
        "optimizer.min_lr": config.optimizer.min_lr or 0.0,
    }
    for path, value in defaults.items():
        run.set(path, value, rule="V208", why="the schedule needs a number")
    rounded = (
        ("V242",) if config.train.decrease_batch_size_if_needed else ()
    )  # a batch may round down to none
    needed = [rule for rule in (*schedule.RULES, *batches.RULES) if rule.id in (*_COMPUTABLE, *rounded)]
    run.problems += check(config.sections(), needed, facts=facts, provenance=run.provenance)
    known = config.train.train_iters is not None and config.train.global_batch_size
    if run.problems or not known:
        return
    steps = scheduler_steps(
        config.train,
        section,
        data_parallel_size=config.data_parallel_size,
        seq_length=run.get("model.seq_length") if config.train.step_batch_size_schedule else None,
    )
    for name in _STEPS:
        run.set(f"scheduler.{name}", getattr(steps, name), rule="V202", why="computed, in sequences")
