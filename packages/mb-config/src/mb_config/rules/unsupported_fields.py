"""Fields with a Megatron name that this version does not implement. Setting one is rejected, not ignored."""

from __future__ import annotations

from mb_config.rules.formatting import format_value
from mb_config.rules.rule import Rule


def _inert(number: str, field: str, *, default: object, example: object, instead: str) -> Rule:
    def test(value: object) -> str | None:
        return None if value in (default, None) else f"{format_value(value)} would have no effect"

    return Rule(
        id=number,
        fields=(field,),
        test=test,
        why="this option is not implemented; ignoring it silently would hide the problem until the run is in progress",
        fix=instead,
        fails={field: example},
        passes={field: default},
    )


RULES: tuple[Rule, ...] = (
    _inert(
        "I03",
        "train.gpu_sniff_test_interval",
        default=None,
        example=100,
        instead="Leave it unset and monitor the step time in the log.",
    ),
    _inert(
        "I04",
        "train.exit_signal_handler_for_training",
        default=False,
        example=True,
        instead="Leave it unset and use train.exit_signal_handler, which saves a checkpoint and exits.",
    ),
    _inert(
        "I08",
        "scheduler.no_weight_decay_cond_type",
        default=None,
        example="qwen3_next",
        instead="Leave it unset and use optimizer.apply_wd_to_qk_layernorm.",
    ),
    _inert(
        "I09",
        "mixed_precision.autocast_enabled",
        default=False,
        example=True,
        instead="Leave it unset and set model.enable_autocast, which Megatron Core reads.",
    ),
    _inert(
        "I10",
        "train.num_epochs",
        default=None,
        example=3.0,
        instead="Leave it unset and set the length as train.train_iters or train.train_samples.",
    ),
    _inert(
        "I11",
        "mixed_precision.fp32",
        default=False,
        example=True,
        instead="Leave it unset; without mixed_precision the run is in float32.",
    ),
    _inert(
        "I12",
        "ddp.use_custom_fsdp",
        default=False,
        example=True,
        instead="Leave it unset and set ddp.use_megatron_fsdp, its new name.",
    ),
)
