"""Rules on the section `straggler`. Standard library only."""

from mb_resilience.rule_kinds import Defaults, unused_while_disabled, without_effect
from mb_schema.cuda_graphs import captures_full_iteration
from mb_schema.rule_kinds import rule, within
from mb_schema.rules import Rule


def _timer_settings_valid(on: bool, opened: bool, port: int, count: int) -> str | None:
    if on and opened and not 0 <= port <= 65535:
        return f"straggler_ctrlr_port={port} is not a valid port"
    return f"straggler_minmax_count={count} is not a positive number of ranks" if on and count < 1 else None


_R31 = rule(
    "R31",
    within("straggler", "log_straggler straggler_ctrlr straggler_ctrlr_port straggler_minmax_count"),
    _timer_settings_valid,
    why="rank 0 listens on the port, and each report lists at least the slowest and the fastest rank",
    fix="Set a port up to 65535 that is free on the machine of rank 0, or 0 for any free one, and at least 1 rank.",
    fails=(True, True, 70000, 1),
    passes=(True, True, 65535, 1),
)


def _timer_can_start(on: bool, opened: bool, enabled: bool, disabled: bool) -> str | None:
    if not on or opened or (enabled and not disabled):
        return None
    return "the timer starts paused, and straggler_ctrlr=false leaves no way to resume it"


_R37 = rule(
    "R37",
    within(
        "straggler", "log_straggler straggler_ctrlr enable_straggler_on_startup disable_straggler_on_startup"
    ),
    _timer_can_start,
    why="only a request to rank 0 resumes a paused timer",
    fix="Set straggler.straggler_ctrlr=true, or start with the timer on.",
    fails=(True, False, False, False),
    passes=(True, True, False, False),
)


def _unused_port(defaults: Defaults) -> Rule:
    """Return a rule that warns about the port or the address of a switch that is not opened."""
    paths = ("straggler.straggler_ctrlr_port", "straggler.straggler_ctrlr_host")

    def test(on: bool, opened: bool, *values: object) -> str | None:
        changed = [
            f"{path.split('.')[1]}={value!r}"
            for path, value in zip(paths, values, strict=True)
            if value != defaults[path]
        ]
        if on and not opened and changed:
            return f"{without_effect(changed)} while straggler_ctrlr=false"
        return None

    return rule(
        "R36",
        within("straggler", "log_straggler straggler_ctrlr straggler_ctrlr_port straggler_ctrlr_host"),
        test,
        why="rank 0 listens for requests only if straggler_ctrlr is set",
        fix="Set straggler.straggler_ctrlr=true, or remove the port and the address.",
        fails=(True, False, 7000, "127.0.0.1"),
        passes=(True, True, 7000, "127.0.0.1"),
    )


_TIMED = (
    "straggler.log_straggler",
    "model.cuda_graph_impl",
    "model.cuda_graph_modules",
    "model.overlap_moe_expert_parallel_comm",
)


def _no_separate_forward_passes(
    timed: bool | None, implementation: str | None, modules: object, overlapped: bool | None
) -> str | None:
    in_graph = captures_full_iteration(implementation, modules)
    reason = "the step is one CUDA graph" if in_graph else "they are computed together with backward passes"
    return f"is true, but {reason}" if timed and (in_graph or overlapped) else None


_SEPARATE_FORWARD_PASSES = rule(
    "T42",
    _TIMED,
    _no_separate_forward_passes,
    why="the speed of a rank is the time of its forward passes, which are not called one by one",
    fix="Set straggler.log_straggler=false, or the other at its default.",
    fails=(True, "full_iteration", None, False),
    passes=(True, "transformer_engine", None, False),
)


def straggler_rules(defaults: Defaults) -> tuple[Rule, ...]:
    """Return the rules on the section."""
    unused = unused_while_disabled("R12", defaults, switch="straggler.log_straggler")
    return (unused, _R31, _unused_port(defaults), _R37, _SEPARATE_FORWARD_PASSES)
