"""Time of `install`, and of a training step with and without the corrections: `python bench_install.py`.

The steps alternate within one process, and which is first, so that other work on the machine affects both.
"""

import statistics
import sys
import time
from pathlib import Path

import mb_guard
import mb_host

ROUNDS = 20


def main() -> None:
    """Print the times."""
    start = time.perf_counter()
    report = mb_guard.install(quiet=True)
    installed = time.perf_counter() - start
    [times] = mb_host.run_ranks(mb_host.function_in(Path(__file__), "steps"), 1)
    medians = {
        guarded: statistics.median(taken for flag, taken in times if flag is guarded)
        for guarded in (True, False)
    }
    sys.stdout.write(
        f"install: {1000 * installed:.1f} ms for {len(report.statuses)} faults\n"
        f"step of a small GPT, guarded: {1000 * medians[True]:.2f} ms\n"
        f"step of a small GPT, without: {1000 * medians[False]:.2f} ms\n"
    )


def steps() -> list[tuple[bool, float]]:
    """Return the seconds of steps that alternate between guarded and not."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    mb_guard.install(quiet=True)
    from case_optimizer import Run  # noqa: PLC0415 - imports Megatron

    run = Run(seed=1)
    everything = [fault.id for fault in mb_guard.FAULTS]
    for number in range(3):
        run.step(number)
    times = []
    for number in range(ROUNDS):
        for guarded in (True, False) if number % 2 else (False, True):
            with mb_guard.without(*([] if guarded else everything)):
                start = time.perf_counter()
                run.step(number)
                times.append((guarded, time.perf_counter() - start))
    return times


if __name__ == "__main__":
    main()
