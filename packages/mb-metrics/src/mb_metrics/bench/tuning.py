"""Search for the fastest settings of a run: one after another, each measured for a few steps. No torch.

The base is the run without changes. A setting is kept if the run with it and the settings kept so far is faster than
the best run by more than the noise, and its losses are those of the base. Running out of memory, and any other failure,
is the result of a trial and does not end the search.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from mb_metrics.bench.command import BenchRunError
from mb_metrics.bench.result import BenchResult

LEAST_GAIN = 0.02
"""Speedup above 1 from which a run is faster: the step times of two equal runs differ by less."""
LARGEST_DIFFERENCE = 0.02
"""Relative difference of a loss to that of the base above which a setting trains something else."""
KILLED = (-9, 137)
"""Exit codes of a process that the system killed (SIGKILL), as it does when memory runs out."""
_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|out of memory|Cannot allocate memory", re.IGNORECASE)

Overrides = tuple[str, ...]
"""Changes of the configuration, each `field=value`."""


Chain = Sequence[Overrides]
"""Alternatives to one setting, nearest first. A later one is tried only if the previous one was faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One measured run, or the reason why there is none."""

    overrides: Overrides
    """Overrides that are on trial, beyond those kept before."""
    outcome: str
    """"base", "faster", "equal", "slower", "out of memory", or what is wrong."""
    result: BenchResult | None = None
    speedup: float | None = None
    """Step time of the previous best run, over that of this one."""


@dataclass(slots=True)
class Search:
    """Result of a search."""

    trials: list[Trial] = field(default_factory=list)
    kept: Overrides = ()
    """Overrides that made the run faster."""
    untried: list[Overrides] = field(default_factory=list)
    """Alternatives that the time did not suffice for."""
    best: BenchResult | None = None

    @property
    def speedup(self) -> float:
        """Step time of the base, over that of the best run."""
        base = self.trials[0].result if self.trials else None
        return 1.0 if base is None or self.best is None else base.step_seconds / self.best.step_seconds


def search(
    chains: Iterable[Chain],
    run: Callable[[Overrides, int], BenchResult],
    *,
    seconds: float,
    rejected: Callable[[Overrides], str | None] = lambda overrides: None,
    log: Callable[[Trial], object] = lambda trial: None,
    clock: Callable[[], float] = time.monotonic,
) -> Search:
    """Measure the base and every alternative on top of what has been kept, until the time is over.

    Args:
        chains: What is tried, in this order.
        run: Measures a run with overrides and the number of the trial; raises BenchRunError if it fails.
        seconds: Time of the search. A trial is not started if less is left than the longest trial so far took.
        rejected: Returns why a run with overrides could not start; None if it can.
        log: Called with each trial.
        clock: Monotonic clock in seconds.

    Raises:
        BenchRunError: The base failed.
    """
    began, result = clock(), Search()
    base = run((), 0)
    longest = clock() - began
    result.best = base
    _add(result, Trial(overrides=(), outcome="base", result=base), log)
    for alternatives in chains:
        for number, overrides in enumerate(alternatives):
            if clock() - began + longest > seconds:
                result.untried += alternatives[number:]
                break
            started = clock()
            trial = _run_trial(result, overrides, base, run, rejected)
            longest = max(longest, clock() - started)
            _add(result, trial, log)
            if trial.outcome != "faster":
                break
            result.kept = merged(result.kept, overrides)
            result.best = trial.result
    return result


def merged(kept: Overrides, overrides: Overrides) -> Overrides:
    """Return overrides with later ones in place of those of the same field."""
    names = {_path(override) for override in overrides}
    return (*(override for override in kept if _path(override) not in names), *overrides)


def _path(override: str) -> str:
    """Return the field of an override, without the signs with which one may be added."""
    return override.partition("=")[0].lstrip("+")


def _run_trial(
    so_far: Search,
    overrides: Overrides,
    base: BenchResult,
    run: Callable[[Overrides, int], BenchResult],
    rejected: Callable[[Overrides], str | None],
) -> Trial:
    """Measure the base with the overrides kept so far and those on trial, and compare it with the best run."""
    combined = merged(so_far.kept, overrides)
    if reason := rejected(combined):
        return Trial(overrides=overrides, outcome=reason)
    try:
        result = run(combined, len(so_far.trials))
    except BenchRunError as error:
        return Trial(overrides=overrides, outcome=failure(error))
    loss_difference = difference(result, base)
    speedup = so_far.best.step_seconds / result.step_seconds if so_far.best is not None else 1.0
    if not loss_difference <= LARGEST_DIFFERENCE:
        outcome = f"other losses ({loss_difference:.1%} apart)"
    elif speedup > 1 + LEAST_GAIN:
        outcome = "faster"
    else:
        outcome = "slower" if speedup < 1 - LEAST_GAIN else "equal"
    return Trial(overrides=overrides, outcome=outcome, result=result, speedup=speedup)


def failure(error: BenchRunError) -> str:
    """Return what ended a run: "out of memory", or its last line."""
    if error.exit_code in KILLED or _OUT_OF_MEMORY.search(str(error)):
        return "out of memory"
    return str(error).rstrip().rpartition("\n")[2].strip()[:120]


def difference(result: BenchResult, base: BenchResult) -> float:
    """Return the largest relative difference of the losses of two runs; NaN if one of them is NaN."""
    pairs = zip(result.losses, base.losses, strict=False)
    differences = [abs(loss - of_base) / max(abs(of_base), 1e-12) for loss, of_base in pairs]
    return math.nan if any(map(math.isnan, differences)) else max(differences, default=0.0)


def _add(result: Search, trial: Trial, log: Callable[[Trial], object]) -> None:
    result.trials.append(trial)
    log(trial)


def table(found: Search) -> str:
    """Return the trials as a table, and what was not tried."""
    rows = [("setting", "ms/step", "tokens/s", "GiB", "x best", "outcome")]
    for trial in found.trials:
        result = trial.result
        numbers = ("-", "-", "-", "-")
        if result is not None:
            tokens = result.tokens_per_second
            numbers = (
                f"{1000 * result.step_seconds:.1f}",
                "-" if tokens is None else f"{tokens:,.0f}",
                f"{result.peak_memory_gib:.2f}",
                "-" if trial.speedup is None else f"{trial.speedup:.3f}",
            )
        rows.append((" ".join(trial.overrides) or "(as given)", *numbers, trial.outcome))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if index in (0, 5) else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    if found.untried:
        lines.append(
            "not tried, the time is over: " + "; ".join(" ".join(overrides) for overrides in found.untried)
        )
    return "\n".join(lines)


def override_file(found: Search, *, heading: Sequence[str], fixed: Overrides = ()) -> str:
    """Return a YAML file with the overrides that were kept, which `--config` reads.

    Args:
        found: Result of the search.
        heading: Lines of the comment at the head.
        fixed: Overrides of every trial, the base included, which the user did not give.
    """
    lines = [f"# {line}" for line in heading]
    sections: dict[str, list[str]] = {}
    for override in merged(fixed, found.kept):
        section, _, name = _path(override).rpartition(".")
        value = override.partition("=")[2]
        sections.setdefault(section, []).append(f"{name}: {value}")
    for section, entries in sorted(sections.items()):
        parts = section.split(".") if section else []
        lines += [f"{'  ' * depth}{part}:" for depth, part in enumerate(parts)]
        lines += ["  " * len(parts) + entry for entry in entries]
    return "\n".join([*lines, *([] if sections else ["{}"])]) + "\n"
