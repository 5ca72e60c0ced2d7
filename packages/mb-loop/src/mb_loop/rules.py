"""Rules on the settings of the loop, checked before launch. Standard library only."""

from mb_schema.rules import Rule


def _valid_gc_interval(manual: bool, interval: int) -> str | None:
    return f"manual_gc_interval={interval} is negative" if manual and interval < 0 else None


SHARDS = ("ddp.use_distributed_optimizer", "ddp.use_megatron_fsdp", "dist.use_torch_fsdp2")


def _unsharded_weights(clips: bool, *sharded: bool | None) -> str | None:
    if not clips or not any(sharded):
        return None
    found = ", ".join(f"{path}=true" for path, on in zip(SHARDS, sharded, strict=True) if on)
    return f"is true with {found}"


RULES: tuple[Rule, ...] = (
    Rule(
        id="LP02",
        fields=("train.manual_gc", "train.manual_gc_interval"),
        test=_valid_gc_interval,
        why="no step is a multiple of a negative interval",
        fix="Use 0 (collect around evaluations only) or a number of steps.",
        fails={"train.manual_gc": True, "train.manual_gc_interval": -1},
        passes={"train.manual_gc": True, "train.manual_gc_interval": 0},
    ),
    Rule(
        id="LP03",
        fields=("model.qk_clip", *SHARDS),
        test=_unsharded_weights,
        why="Megatron's attention scales complete query and key weights, including the optimizer's float32 copies, "
        "but a rank holds only a shard of them",
        fix="Disable sharding or model.qk_clip. model.log_max_attention_logit alone works with sharding.",
        fails={"model.qk_clip": True, **dict.fromkeys(SHARDS, False), SHARDS[0]: True},
        passes={"model.qk_clip": True, **dict.fromkeys(SHARDS, False)},
    ),
)
"""All rules of this package. A rule whose section is absent does not apply."""
