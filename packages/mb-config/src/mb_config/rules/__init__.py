"""Rules on the shared sections, one file per topic."""

from mb_config.rules import (
    batch_sizes,
    ddp,
    distributed,
    environment,
    fsdp,
    hardware,
    interleaving,
    optimizer,
    parallelism,
    perf,
    precision,
    schedule,
    single_fields,
    training,
    types,
)
from mb_schema.rules import Rule

__all__ = ["RULES", "Rule"]

RULES: tuple[Rule, ...] = (
    *environment.RULES,
    *hardware.RULES,
    *perf.RULES,
    *training.RULES,
    *batch_sizes.RULES,
    *interleaving.RULES,
    *parallelism.RULES,
    *single_fields.RULES,
    *schedule.RULES,
    *precision.RULES,
    *optimizer.RULES,
    *ddp.RULES,
    *distributed.RULES,
    *fsdp.RULES,
    *types.RULES,
)
