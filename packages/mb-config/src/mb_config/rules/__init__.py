"""The rules on the sections that every trainer shares, one file per subject."""

from mb_config.rules import (
    batches,
    context_parallel,
    cuda_graphs,
    ddp,
    determinism,
    distributed,
    environment,
    experts,
    fsdp,
    hardware,
    inert,
    interleaving,
    local_paths,
    model_numbers,
    optimizer,
    parallelism,
    precision,
    schedule,
    sizes,
    starting,
    training,
    types,
)
from mb_config.rules.rule import Rule

__all__ = ["RULES", "Rule"]

RULES: tuple[Rule, ...] = (
    *environment.RULES,
    *hardware.RULES,
    *training.RULES,
    *batches.RULES,
    *interleaving.RULES,
    *parallelism.RULES,
    *context_parallel.RULES,
    *experts.RULES,
    *model_numbers.RULES,
    *sizes.RULES,
    *schedule.RULES,
    *precision.RULES,
    *optimizer.RULES,
    *ddp.RULES,
    *distributed.RULES,
    *fsdp.RULES,
    *determinism.RULES,
    *cuda_graphs.RULES,
    *starting.RULES,
    *inert.RULES,
    *types.RULES,
    *local_paths.RULES,
)
