"""Rules on process groups, sharding and random numbers."""

from __future__ import annotations

from mb_config.rules.rule import Rule

_FORMATS = ("torch_dist", "fsdp_dtensor")


def _v134(decentralized: bool | None, gloo: bool | None) -> str | None:
    return "needs gloo groups off (use_gloo_process_groups=true)" if decentralized and gloo else None


def _v135(gloo: bool | None, sharded: bool | None, checkpoint_format: str | None) -> str | None:
    if gloo is not False or not sharded or checkpoint_format in (None, *_FORMATS):
        return None
    return f"{checkpoint_format} is none of {', '.join(_FORMATS)}"


def _differ(ours: object, theirs: object) -> str | None:
    if ours is None or theirs is None or ours == theirs:
        return None
    return f"ddp has {str(ours).lower()}, the optimizer {str(theirs).lower()}"


def _v240(seed: int | None) -> str | None:
    return f"must be above 0, not {seed}" if seed is not None and seed <= 0 else None


def _needs(on: object, needed: object, name: str) -> str | None:
    return f"needs {name}" if on and not needed else None


RULES: tuple[Rule, ...] = (
    Rule(
        id="V120",
        fields=("dist.use_megatron_fsdp", "dist.use_torch_fsdp2"),
        test=lambda ours, torchs: "is on together with use_torch_fsdp2" if ours and torchs else None,
        why="a parameter is sharded by one of them",
        fix="Switch one of them off.",
        fails={"dist.use_megatron_fsdp": True, "dist.use_torch_fsdp2": True},
        passes={"dist.use_megatron_fsdp": True},
    ),
    Rule(
        id="V134",
        fields=("dist.use_decentralized_pg", "dist.use_gloo_process_groups"),
        test=_v134,
        why="groups that are handed over have no gloo twins",
        fix="Set dist.use_gloo_process_groups=false.",
        fails={"dist.use_decentralized_pg": True, "dist.use_gloo_process_groups": True},
        passes={"dist.use_decentralized_pg": True, "dist.use_gloo_process_groups": False},
    ),
    Rule(
        id="V135",
        fields=(
            "dist.use_gloo_process_groups",
            "optimizer.use_distributed_optimizer",
            "checkpoint.ckpt_format",
        ),
        test=_v135,
        why="other formats collect the sharded state over gloo",
        fix="Set checkpoint.ckpt_format=torch_dist or dist.use_gloo_process_groups=true.",
        fails={
            "dist.use_gloo_process_groups": False,
            "optimizer.use_distributed_optimizer": True,
            "checkpoint.ckpt_format": "torch",
        },
        passes={
            "dist.use_gloo_process_groups": False,
            "optimizer.use_distributed_optimizer": True,
            "checkpoint.ckpt_format": "torch_dist",
        },
    ),
    Rule(
        id="R01",
        fields=("dist.eval_context_parallel_size", "dist.use_decentralized_pg"),
        test=lambda size, on: _needs(size is not None, on, "use_decentralized_pg"),
        why="the evaluation then has process groups of its own",
        fix="Set dist.use_decentralized_pg=true or dist.eval_context_parallel_size=null.",
        fails={"dist.eval_context_parallel_size": 2},
        passes={"dist.eval_context_parallel_size": 2, "dist.use_decentralized_pg": True},
    ),
    Rule(
        id="R02",
        fields=("dist.sharp_enabled_group", "dist.use_sharp"),
        test=lambda group, on: _needs(group is not None, on, "use_sharp"),
        why="it says where to reduce in the network",
        fix="Set dist.use_sharp=true or dist.sharp_enabled_group=null.",
        fails={"dist.sharp_enabled_group": "dp"},
        passes={"dist.sharp_enabled_group": "dp", "dist.use_sharp": True},
    ),
    Rule(
        id="R03",
        fields=(
            "ddp.overlap_param_gather",
            "ddp.use_distributed_optimizer",
            "optimizer.use_distributed_optimizer",
            "optimizer.use_layer_wise_distributed_optimizer",
        ),
        test=lambda on, *sharded: _needs(on, any(sharded), "use_distributed_optimizer"),
        why="only sharded parameters are gathered",
        fix="Set ddp.use_distributed_optimizer=true or ddp.overlap_param_gather=false.",
        fails={"ddp.overlap_param_gather": True},
        passes={"ddp.overlap_param_gather": True, "ddp.use_distributed_optimizer": True},
    ),
    Rule(
        id="R04",
        fields=("ddp.overlap_param_gather", "ddp.overlap_grad_reduce"),
        test=lambda on, needed: _needs(on, needed, "overlap_grad_reduce"),
        why="the gather follows the buckets of the overlapped reduction",
        fix="Set ddp.overlap_grad_reduce=true or ddp.overlap_param_gather=false.",
        fails={"ddp.overlap_param_gather": True, "ddp.overlap_grad_reduce": False},
        passes={"ddp.overlap_param_gather": True, "ddp.overlap_grad_reduce": True},
    ),
    Rule(
        id="V143",
        fields=("ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer"),
        test=_differ,
        why="wrapper and optimizer shard together; resolving makes them equal",
        fix="Set both to the same value.",
        severity="warning",
        fails={"ddp.use_distributed_optimizer": True, "optimizer.use_distributed_optimizer": False},
        passes={"ddp.use_distributed_optimizer": True, "optimizer.use_distributed_optimizer": True},
    ),
    Rule(
        id="V144",
        fields=("ddp.overlap_param_gather", "optimizer.overlap_param_gather"),
        test=_differ,
        why="wrapper and optimizer gather together; resolving makes them equal",
        fix="Set both to the same value.",
        severity="warning",
        fails={"ddp.overlap_param_gather": True, "optimizer.overlap_param_gather": False},
        passes={"ddp.overlap_param_gather": True, "optimizer.overlap_param_gather": True},
    ),
    Rule(
        id="V240",
        fields=("rng.seed",),
        test=_v240,
        why="Megatron Core refuses any other seed",
        fix="Set a positive rng.seed.",
        fails={"rng.seed": 0},
        passes={"rng.seed": 1234},
    ),
)
