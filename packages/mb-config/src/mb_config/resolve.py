"""Resolving: the one step that fills in what follows from the rest, and says what it changed."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from inspect import signature
from typing import Any

from mb_config.container import ConfigContainer
from mb_config.problems import ConfigError, check
from mb_config.provenance import Provenance
from mb_config.resolution import Change, Resolution
from mb_config.resolve_fsdp import apply_fsdp
from mb_config.resolve_model import apply_model
from mb_config.resolve_precision import apply_precision
from mb_config.rules import schedule
from mb_config.rules.training import LENGTH_RULES
from mb_config.schedule import scheduler_steps, weight_decays
from mb_config.section import unrecorded

__all__ = ["Change", "runtime_config_update"]

_PAIRS = (
    ("V143", "ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer"),
    ("V144", "ddp.overlap_param_gather", "optimizer.overlap_param_gather"),
    ("V115", "rng.te_rng_tracker", "model.use_te_rng_tracker"),
)
_MOVED = ("eval_iters", "eval_interval", "skip_train")
_STEPS = ("lr_decay_steps", "lr_warmup_steps", "wd_incr_steps", "wsd_decay_steps")


def runtime_config_update(
    config: ConfigContainer, *, world_size: int, provenance: Provenance | None = None
) -> list[Change]:
    """Resolve `config` in place for `world_size` processes and return every change. Doing it again changes nothing.

    In this order: precision, data-parallel size, communication overlap, the model's switches, Megatron-FSDP, wrapper
    and optimizer made equal, evaluation defaults, length, schedule. What the user set (in a file, on the command line,
    in code) is kept where that is legal.

    Args:
        config: The sections. Overlap is `config.comm_overlap.setup(model, optimizer, ddp)`, if there is such a method;
            where it takes `keep`, it is told the paths that the user set.
        world_size: Number of processes.
        provenance: Where the values came from; is told of each change. Without it, what the sections remember was
            set in code.

    Raises:
        ConfigError: wishes that exclude each other, or a layout that does not fit; the config is partly resolved then.
        UnknownPrecisionError: `mixed_precision` names no recipe.
    """
    run = Resolution(config=config, provenance=Provenance() if provenance is None else provenance)
    apply_precision(run)
    _set_data_parallel_size(run, world_size)
    _overlap(run)
    apply_model(run)
    apply_fsdp(run)
    for rule, first, second in _PAIRS:
        _make_equal(run, rule, first, second)
    _initialise_on_cpu(run)
    _evaluation(run)
    _length(run)
    _schedule(run)
    if run.problems:
        raise ConfigError(run.problems)
    return run.net_changes()


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


def _overlap(run: Resolution) -> None:
    config = run.config
    if run.problems or not hasattr(config.comm_overlap, "setup"):
        return
    names = ("model", "optimizer", "ddp")
    sections = [getattr(config, name) for name in names]
    before = {f"{name}.{leaf}": value for name in names for leaf, value in _values(getattr(config, name))}
    chosen = [path for path in before if run.rank(path) == 2]
    keeps = "keep" in signature(config.comm_overlap.setup).parameters
    with unrecorded(*sections):
        config.comm_overlap.setup(*sections, **({"keep": chosen} if keeps else {}))
        for path, old in before.items():
            new = run.get(path)
            if old == new and type(old) is type(new):
                continue
            if path in chosen:
                section, _, leaf = path.partition(".")
                setattr(getattr(config, section), leaf, old)
            else:
                run.record(path, old, new, rule="comm_overlap", why="communication overlap")


def _values(section: Any) -> list[tuple[str, Any]]:
    if is_dataclass(section) and not isinstance(section, type):
        return [(item.name, getattr(section, item.name)) for item in fields(section)]
    return list(vars(section).items())


def _make_equal(run: Resolution, rule: str, first: str, second: str) -> None:
    """The side that carries more weight decides; at the same weight the one that is on, unless both were chosen."""
    if not (run.has(first) and run.has(second)) or run.get(first) == run.get(second):
        return
    ranks = run.rank(first), run.rank(second)
    if ranks[0] == ranks[1] > 0:
        run.conflict(
            (first, second),
            rule=rule,
            message=f"is {run.get(first)}, but {second} is {run.get(second)}",
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
                message=f"is {run.get(old)}, but {new} is {run.get(new)}",
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


def _schedule(run: Resolution) -> None:
    config, section = run.config, run.config.scheduler
    start, end = weight_decays(section, config.optimizer)
    defaults = {
        "scheduler.start_weight_decay": start,
        "scheduler.end_weight_decay": end,
        "optimizer.min_lr": config.optimizer.min_lr or 0.0,
    }
    for path, value in defaults.items():
        run.set(path, value, rule="V208", why="the schedule needs a number")
    wrong = check(config.sections(), [rule for rule in schedule.RULES if rule.id == "V204"])
    run.problems += wrong
    known = config.train.train_iters is not None and config.train.global_batch_size
    if run.problems or not known:
        return
    steps = scheduler_steps(config.train, section, data_parallel_size=config.data_parallel_size)
    for name in _STEPS:
        run.set(f"scheduler.{name}", getattr(steps, name), rule="V202", why="computed, in sequences")
