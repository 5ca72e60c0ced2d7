"""Names of memory metrics per pipeline stage. Imports the standard library only."""

from collections.abc import Callable, Mapping

from mb_metrics.recorder.recorded_steps import Reduction, Value
from mb_metrics.recorder.samplers import MEMORY

Sampler = Callable[[int], Mapping[str, Value]]


def add_stage_reductions(reductions: Mapping[str, Reduction], *, stages: int) -> dict[str, Reduction]:
    """Return the reductions, with those of memory also per stage if there are several pipeline stages."""
    found = dict(reductions)
    for stage in range(stages if stages > 1 else 0):
        found |= {stage_name(name, stage): how for name, how in reductions.items() if name.startswith(MEMORY)}
    return found


def add_stage_values(sampler: Sampler, *, stage: int, stages: int) -> Sampler:
    """Return the sampler, with its memory values also under the name of this stage if there are several."""

    def sample(step: int) -> Mapping[str, Value]:
        found = sampler(step)
        return {
            **found,
            **{stage_name(name, stage): value for name, value in found.items() if name.startswith(MEMORY)},
        }

    return sample if stages > 1 else sampler


def stage_name(name: str, stage: int) -> str:
    """Return the name of a memory metric of a stage.

    >>> stage_name("memory/mem-allocated-gigabytes", 1)
    'memory/stage 1/mem-allocated-gigabytes'
    """
    return f"{MEMORY}stage {stage}/{name.removeprefix(MEMORY)}"
