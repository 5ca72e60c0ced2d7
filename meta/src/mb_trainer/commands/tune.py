"""`mb tune`: the fastest settings of a run on this machine, measured one after another, as a file for `--config`."""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path

from mb_config.trainer_api import (
    AUTO,
    CommandInput,
    Examination,
    PerfName,
    TargetMachine,
    gpu_of,
    perf_target,
    tunable,
)
from mb_launch.trainer_api import require_single_process
from mb_metrics.trainer_api import (
    BenchPlan,
    BenchResult,
    Overrides,
    Search,
    Trial,
    measure_once,
    override_file,
    search,
    table,
)
from mb_trainer.commands.bench import bench_command
from mb_trainer.commands.sweep import sweep_points
from mb_trainer.requests import examine_request

PERF = ("perf=auto",)
LAYOUTS = 3
"""Parallel layouts that are measured on several GPUs."""


def tune(
    arguments: Sequence[str],
    *,
    files: Sequence[Path],
    processes: int | None,
    minutes: float,
    steps: int,
    out: Path,
) -> int:
    """Measure, print the table, and write the file; return the exit code."""
    require_single_process(os.environ, option="--nproc")
    with tempfile.TemporaryDirectory(prefix="tune-") as folder:
        result, fixed, device = _search(
            arguments,
            files=files,
            processes=processes,
            seconds=60 * minutes,
            plan=BenchPlan(steps=steps, warmup=max(2, steps // 3), profiled=0),
            folder=Path(folder),
        )
    heading = [
        f"mb tune {' '.join(arguments)}: {result.speedup:.2f} times the speed of these settings alone,",
        f"measured on {device}, {date.today().isoformat()}. Use it with --config {out.name}.",
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(override_file(result, heading=heading, fixed=fixed), encoding="utf-8")
    print(table(result))
    kept = " ".join(result.kept) or "nothing"
    print(f"{kept}: {result.speedup:.2f} times as fast; written to {out}")
    return 0


def _search(
    arguments: Sequence[str],
    *,
    files: Sequence[Path],
    processes: int | None,
    seconds: float,
    plan: BenchPlan,
    folder: Path,
) -> tuple[Search, Overrides, str]:
    """Return the result, the overrides of every trial beyond those of the user, and the device."""
    machine = TargetMachine(world_size=processes or 1)

    def read(overrides: Overrides) -> Examination:
        given = CommandInput(arguments=[*arguments, *overrides], files=files)
        return examine_request(given, target=machine)

    examined = read(())
    fixed: Overrides = ()
    # GPU of this machine for which perf=auto has settings
    gpu = None if examined.facts.get("cpu") else gpu_of(PerfName(AUTO, ""), examined.facts.get("gpu"))
    if gpu is not None and examined.request.config.perf is None:
        fixed = PERF
        examined = read(fixed)
    config = examined.request.config
    sizes = [
        getattr(config.model, f"{name}_model_parallel_size", 1) or 1
        for name in ("tensor", "pipeline", "context")
    ]
    ranks = sizes[0] * sizes[1] * sizes[2]
    alternatives = tunable(
        config,
        target=perf_target(config, examined.facts),
        cpus=os.cpu_count() or 1,
        replicas=max(1, (processes or 1) // ranks),
    )
    given = CommandInput(arguments=[*arguments, *fixed], files=files)
    layouts = (
        fastest_layouts(given, target=replace(machine, gpu=gpu)) if gpu and machine.world_size != 1 else []
    )

    def rejected(overrides: Overrides) -> str | None:
        problems = read((*fixed, *overrides)).result.problems
        errors = [problem for problem in problems if problem.severity == "error"]
        return f"rejected: {errors[0].id}" if errors else None

    def run(overrides: Overrides, number: int) -> BenchResult:
        given = [*_options(files, processes), *arguments, *fixed, *overrides]
        name = " ".join(overrides) or "as given"
        return measure_once(name, partial(bench_command, given), folder / f"trial-{number}", plan)

    def log(trial: Trial) -> None:
        setting = " ".join(trial.overrides) or "as given"
        measured = "" if trial.result is None else f", {trial.result.as_text()}"
        print(f"{setting}: {trial.outcome}{measured}", file=sys.stderr, flush=True)

    chains = [*([layout] for layout in layouts), *alternatives]
    result = search(chains, run, seconds=seconds, rejected=rejected, log=log)
    device = result.best.device if result.best is not None else "this machine"
    return result, fixed, f"{device} with {os.cpu_count()} CPUs" if device == "cpu" else device


def fastest_layouts(given: CommandInput, *, target: TargetMachine) -> list[Overrides]:
    """Return the parallel layouts with the best predicted throughput, which are tried before other settings.

    Args:
        given: Recipe or file, and overrides; sizes that they set are kept.
        target: Number of processes, and GPU.
    """
    points = sweep_points(given, targets=[target], top=LAYOUTS, layouts=True).shown
    return [
        tuple(f"{path}={json.dumps(value)}" for path, value in point.values.items())
        for point in points
        if not point.verdict
    ]


def _options(files: Sequence[Path], processes: int | None) -> list[str]:
    ranks = [] if processes is None else ["--nproc", str(processes)]
    return [*ranks, *(f"--config={file}" for file in files)]
