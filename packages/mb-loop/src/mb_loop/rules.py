"""Rules on the settings of the loop, checked before launch. Standard library only."""

from mb_schema.rule_kinds import SET, assigned, excludes, in_range, model_rule, no_effect, train_rule
from mb_schema.rules import Rule, rules_in


@train_rule(
    "LP02",
    why="no step is a multiple of a negative interval",
    fix="Use 0 (collect around evaluations only) or a number of steps.",
    fails={"manual_gc": True, "manual_gc_interval": -1},
    passes={"manual_gc_interval": 0},
)
def _negative_gc_interval(manual_gc, manual_gc_interval):
    if manual_gc and manual_gc_interval < 0:
        return f"manual_gc_interval={manual_gc_interval} is negative"
    return None


@model_rule(
    "LP03",
    others=("ddp.use_distributed_optimizer", "ddp.use_megatron_fsdp", "dist.use_torch_fsdp2"),
    why="Megatron's attention scales complete query and key weights, including the optimizer's float32 copies, "
    "but a rank holds only a shard of them",
    fix="Disable sharding or model.qk_clip. model.log_max_attention_logit alone works with sharding.",
    fails={"qk_clip": True, "ddp.use_distributed_optimizer": True},
    passes={"ddp.use_distributed_optimizer": False},
)
def _clipped_weights_are_sharded(qk_clip, **sharding):
    enabled = {path: on for path, on in sharding.items() if on}
    return f"is true with {assigned(enabled)}" if qk_clip and enabled else None


@train_rule(
    "LP05",
    why="training ends when a metric of the evaluations stops improving",
    fix="Set validation.eval_interval and validation.eval_iters.",
    fails={"early_stop_patience": 3, "validation__eval_iters": 10},
    passes={"validation__eval_interval": 100},
)
def _early_stop_without_evaluations(
    early_stop_patience, validation__eval_interval, validation__eval_iters, validation__full_validation
):
    if early_stop_patience is None or (
        validation__eval_interval and (validation__eval_iters or validation__full_validation)
    ):
        return None
    return (
        f"is {early_stop_patience} without evaluations during training "
        f"(eval_interval={validation__eval_interval}, eval_iters={validation__eval_iters})"
    )


RULES: tuple[Rule, ...] = (
    in_range(
        "LP04",
        "train.early_stop_patience",
        1,
        why="it is a number of evaluations without an improvement",
        fix="Set it to 1 or more, or to null.",
    ),
    *rules_in(globals()),
    no_effect(
        "LP06",
        "train.early_stop_patience",
        {
            "train.early_stop_metric": "lm loss",
            "train.early_stop_min_delta": 0.0,
            "train.early_stop_mode": "min",
        },
        why="they describe the improvements that the patience counts",
        fix="Set train.early_stop_patience.",
        fails={"train.early_stop_metric": "accuracy"},
        passes={"train.early_stop_patience": 3},
    ),
    excludes(
        "LP08",
        {
            "train.early_stop_metric": "lm loss",
            "train.early_stop_patience": SET,
            "validation.multiple_validation_sets": True,
        },
        why="the metrics of several sets end with the name of the set, and the first evaluation would have no such one",
        fix='Name one, such as train.early_stop_metric="lm loss SET".',
        fails={"train.early_stop_patience": 3},
        passes={"train.early_stop_metric": "lm loss code"},
    ),
    in_range("LP07", "train.early_stop_min_delta", 0, why="it is the size of a change"),
)
"""All rules of this package. A rule whose section is absent does not apply."""
