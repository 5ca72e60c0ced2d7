"""The rules on the sections that every trainer shares, one file per subject."""

from mb_config.rules import (
    batch_sizes,
    context_parallel,
    cuda_graphs,
    ddp,
    determinism,
    distributed,
    environment,
    experts,
    fine_tuning,
    fsdp,
    hardware,
    interleaving,
    local_paths,
    model_numbers,
    optimizer,
    parallelism,
    precision,
    schedule,
    sizes,
    training,
    types,
    unsupported_fields,
)
from mb_config.rules.rule import Rule

__all__ = ["RULES", "Rule"]

RULES: tuple[Rule, ...] = (
    *environment.RULES,
    *hardware.RULES,
    *training.RULES,
    *batch_sizes.RULES,
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
    *fine_tuning.RULES,
    *unsupported_fields.RULES,
    *types.RULES,
    *local_paths.RULES,
)
