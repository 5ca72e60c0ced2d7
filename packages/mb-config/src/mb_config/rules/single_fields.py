"""Rules on one field each: fields without an implementation, numbers that exceed any machine, and paths."""

from __future__ import annotations

from mb_schema.paths import path_rule
from mb_schema.rule_kinds import at_most, unsupported
from mb_schema.rules import Rule

_NOT_IMPLEMENTED = (
    "this option is not implemented; ignoring it silently would hide the problem until the run is in progress"
)

_FIELDS: tuple[tuple[str, str, object, object, str], ...] = (
    (
        "I03",
        "train.gpu_sniff_test_interval",
        None,
        100,
        "Leave it unset and monitor the step time in the log.",
    ),
    (
        "I04",
        "train.exit_signal_handler_for_training",
        False,
        True,
        "Leave it unset and use train.exit_signal_handler, which saves a checkpoint and exits.",
    ),
    (
        "I08",
        "scheduler.no_weight_decay_cond_type",
        None,
        "qwen3_next",
        "Leave it unset and use optimizer.apply_wd_to_qk_layernorm.",
    ),
    (
        "I09",
        "mixed_precision.autocast_enabled",
        False,
        True,
        "Leave it unset and set model.enable_autocast, which Megatron Core reads.",
    ),
    (
        "I11",
        "mixed_precision.fp32",
        False,
        True,
        "Leave it unset; without mixed_precision the run is in float32.",
    ),
    (
        "I12",
        "ddp.use_custom_fsdp",
        False,
        True,
        "Leave it unset and set ddp.use_megatron_fsdp, its new name.",
    ),
    ("T14", "validation.test_mode", False, True, "Leave it at false."),
    ("T39", "optimizer.optimizer_cuda_graph", False, True, "Leave it at false."),
)
"""Id, field, neutral value, an example that fails, and the fix."""

SIZE_RULES = "SZ"
"""Prefix of the rules of all packages on numbers so large that they are typos, which are reported before anything is
computed."""

_BATCHES = {
    "SZ06a": "train.global_batch_size",
    "SZ06b": "train.micro_batch_size",
    "SZ06c": "validation.eval_global_batch_size",
    "SZ06d": "validation.eval_micro_batch_size",
}

PATH_FIELDS = (
    "optimizer.config_logger_dir",
    "dist.nccl_communicator_config_path",
    "dist.flight_recorder_dump_path",
)
"""Fields that name files or directories: local paths only."""

RULES: tuple[Rule, ...] = (
    *(
        at_most(number, path, 10**8, why="a step reads all of these sequences before it updates the weights")
        for number, path in _BATCHES.items()
    ),
    at_most("SZ07", "facts.world_size", 10**8, why="no cluster has so many GPUs"),
    *(
        unsupported(number, path, neutral, fails=fails, fix=fix, why=_NOT_IMPLEMENTED)
        for number, path, neutral, fails, fix in _FIELDS
    ),
    *(path_rule(number, path) for number, path in enumerate(PATH_FIELDS, start=61)),
)
