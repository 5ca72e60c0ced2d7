"""Rules on fields that name files or directories: local paths only."""

from __future__ import annotations

from mb_schema.paths import path_rule
from mb_schema.rules import Rule

PATH_FIELDS = (
    "optimizer.config_logger_dir",
    "dist.nccl_communicator_config_path",
    "dist.flight_recorder_dump_path",
)
"""Fields that name files or directories."""

RULES: tuple[Rule, ...] = tuple(path_rule(number, path) for number, path in enumerate(PATH_FIELDS, start=61))
