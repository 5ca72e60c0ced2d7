"""Fields with a Megatron name that this version does not implement. Setting one is rejected, not ignored."""

from __future__ import annotations

from mb_config._rule_kinds import unsupported
from mb_config._rules import Rule

_NOT_IMPLEMENTED = (
    "this option is not implemented; ignoring it silently would hide the problem until the run is in progress"
)

RULES: tuple[Rule, ...] = (
    unsupported(
        "I03",
        "train.gpu_sniff_test_interval",
        None,
        fails=100,
        fix="Leave it unset and monitor the step time in the log.",
        why=_NOT_IMPLEMENTED,
    ),
    unsupported(
        "I04",
        "train.exit_signal_handler_for_training",
        False,
        fails=True,
        fix="Leave it unset and use train.exit_signal_handler, which saves a checkpoint and exits.",
        why=_NOT_IMPLEMENTED,
    ),
    unsupported(
        "I08",
        "scheduler.no_weight_decay_cond_type",
        None,
        fails="qwen3_next",
        fix="Leave it unset and use optimizer.apply_wd_to_qk_layernorm.",
        why=_NOT_IMPLEMENTED,
    ),
    unsupported(
        "I09",
        "mixed_precision.autocast_enabled",
        False,
        fails=True,
        fix="Leave it unset and set model.enable_autocast, which Megatron Core reads.",
        why=_NOT_IMPLEMENTED,
    ),
    unsupported(
        "I10",
        "train.num_epochs",
        None,
        fails=3.0,
        fix="Leave it unset and set the length as train.train_iters or train.train_samples.",
        why=_NOT_IMPLEMENTED,
    ),
    unsupported(
        "I11",
        "mixed_precision.fp32",
        False,
        fails=True,
        fix="Leave it unset; without mixed_precision the run is in float32.",
        why=_NOT_IMPLEMENTED,
    ),
    unsupported(
        "I12",
        "ddp.use_custom_fsdp",
        False,
        fails=True,
        fix="Leave it unset and set ddp.use_megatron_fsdp, its new name.",
        why=_NOT_IMPLEMENTED,
    ),
    unsupported(
        "T14", "validation.test_mode", False, fails=True, fix="Leave it at false.", why=_NOT_IMPLEMENTED
    ),
    unsupported(
        "T15",
        "dataset.full_validation",
        None,
        fails=True,
        fix="Leave it unset and use validation.full_validation.",
        why=_NOT_IMPLEMENTED,
    ),
    unsupported(
        "T39",
        "optimizer.optimizer_cuda_graph",
        False,
        fails=True,
        fix="Leave it at false.",
        why=_NOT_IMPLEMENTED,
    ),
)
