"""Rules on the shared sections, one file per topic.

Rules on single fields first (`types.py`, `single_fields.py`), then a file for each section or pair of them, and last
those that read facts of the machine (`hardware.py`, `environment.py`). `external_fields.py` has the types of fields
that belong to other packages and are read here.
"""

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
