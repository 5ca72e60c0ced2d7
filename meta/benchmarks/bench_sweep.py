"""Benchmark of a sweep in points per second, compared with checking each point separately.

Run: python meta/benchmarks/bench_sweep.py
"""

import itertools
import time
from collections.abc import Callable

from mb_config import RULES, ConfigContainer, OptimizerConfig, SchedulerConfig, TrainingConfig, check
from mb_plan import Axis, run_sweep
from mb_plan.sweep.grid import at_point

MODEL = {
    "num_layers": 96,
    "hidden_size": 12288,
    "num_attention_heads": 96,
    "num_query_groups": 8,
    "seq_length": 4096,
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "virtual_pipeline_model_parallel_size": None,
    "context_parallel_size": 1,
    "expert_model_parallel_size": 1,
    "sequence_parallel": False,
}
AXES = [
    Axis(path="model.sequence_parallel", values=(False, True)),
    Axis(path="model.tensor_model_parallel_size", values=(1, 2, 3, 4, 8)),
    Axis(path="model.pipeline_model_parallel_size", values=(1, 2, 4, 5, 8, 16)),
    Axis(path="model.virtual_pipeline_model_parallel_size", values=(None, 2, 3, 6)),
    Axis(path="model.context_parallel_size", values=(1, 2, 4, 8)),
    Axis(path="train.micro_batch_size", values=(1, 2, 4, 8)),
    Axis(path="train.global_batch_size", values=(128, 256, 500, 512, 1024, 2048)),
    Axis(path="optimizer.lr", values=(1e-5, 3e-5, 1e-4, 3e-4, 6e-4)),
]
FACTS = {"world_size": 1024, "env": {}}


def seconds(work: Callable[[], object]) -> float:
    """Return the shortest of three runs."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Print points per second and the ratio."""
    config = ConfigContainer(
        train=TrainingConfig(train_iters=1000, global_batch_size=256, micro_batch_size=1),
        optimizer=OptimizerConfig(lr=1e-4),
        scheduler=SchedulerConfig(),
        model=MODEL,
        dataset=None,
        logger=None,
        tokenizer=None,
        checkpoint=None,
    )
    sections = config.sections()
    sweep = run_sweep(sections, AXES, RULES, facts=FACTS)
    elapsed = seconds(lambda: run_sweep(sections, AXES, RULES, facts=FACTS))
    some = list(
        itertools.islice(itertools.product(*(range(len(axis.values)) for axis in AXES)), 0, None, 200)
    )

    def one_by_one() -> None:
        for index in some:
            check(at_point(sections, AXES, index), RULES, facts=FACTS)

    single = seconds(one_by_one) / len(some)
    rejected = sum(group.count for group in sweep.rejected)
    print(
        f"{sweep.total:,} points, {len(RULES)} rules: {len(sweep.passing):,} pass, {rejected:,} are rejected"
    )
    print(f"{'':<24}{'points/s':>12}{'seconds for all':>18}{'ratio':>8}")
    print(f"{'each point separately':<24}{1 / single:>12,.0f}{single * sweep.total:>18.2f}{1:>8}")
    print(
        f"{'run_sweep':<24}{sweep.total / elapsed:>12,.0f}{elapsed:>18.2f}{single * sweep.total / elapsed:>8.0f}"
    )


if __name__ == "__main__":
    main()
