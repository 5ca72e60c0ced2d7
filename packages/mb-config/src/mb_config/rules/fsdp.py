"""Rules on Megatron-FSDP. Resolving sets the fields that it requires (V170 to V174, V177)."""

from __future__ import annotations

from collections.abc import Mapping

from mb_schema.rule_kinds import requires, rule, within
from mb_schema.rules import Rule

FSDP_SWITCHES = ("ddp.use_megatron_fsdp", "dist.use_megatron_fsdp")
"""Fields that enable Megatron-FSDP. One is sufficient: resolving sets the other one."""

_CHECKPOINT = ("checkpoint.ckpt_format", "checkpoint.save", "checkpoint.load")
STRATEGIES = ("no_shard", "optim", "optim_grads", "optim_grads_params")
_OUTER = ("no_shard", "optim")


def _v130(
    form: str | None, save: object, load: object, torchs: bool | None, *megatrons: bool | None
) -> str | None:
    if form != "fsdp_dtensor" or not (save or load):
        return None
    if not any(megatrons):
        return "is fsdp_dtensor, but use_megatron_fsdp is false"
    return "is fsdp_dtensor, but use_torch_fsdp2 is true" if torchs else None


def _v175(form: str | None, save: object, load: object, *on: bool | None) -> str | None:
    if not any(on) or not (save or load) or form in (None, "fsdp_dtensor"):
        return None
    return f"is {form} under Megatron-FSDP"


def _v176(ddp: bool | None, dist: bool | None, env: Mapping[str, str]) -> str | None:
    if not (ddp or dist) or env.get("CUDA_DEVICE_MAX_CONNECTIONS") != "1":
        return None
    return "cannot be combined with CUDA_DEVICE_MAX_CONNECTIONS=1"


def _v178(strategy: str | None, interval: int | None, *on: bool | None) -> str | None:
    if not any(on) or strategy != "optim_grads_params" or not interval:
        return None
    return f"is {strategy}, but the comparison of weights every {interval} steps requires unsharded weights"


def _v179(mapping: bool | None, *on: bool | None) -> str | None:
    return "cannot be combined with Megatron-FSDP" if mapping and any(on) else None


def _v180(version: object) -> str | None:
    return None if version in (None, 1) else f"Megatron-FSDP has no version {version}"


def _norms_of_shards(requested: bool | None, *on: bool | None) -> str | None:
    return "is true under Megatron-FSDP" if requested and any(on) else None


def _norms_of_tensors(steps: list[int] | None, *on: bool | None) -> str | None:
    return f"is {steps} under Megatron-FSDP" if steps and any(on) else None


def _strategies(inner: str | None, outer: str | None) -> str | None:
    if inner is not None and inner not in STRATEGIES:
        return f"{inner!r} is not one of {', '.join(STRATEGIES)}"
    if outer is not None and outer not in _OUTER:
        return f"outer_dp_sharding_strategy={outer!r} is not one of {', '.join(_OUTER)}"
    return None


RULES: tuple[Rule, ...] = (
    Rule(
        id="V120",
        fields=("dist.use_torch_fsdp2", *FSDP_SWITCHES),
        test=lambda torchs, *on: "cannot be combined with use_megatron_fsdp" if torchs and any(on) else None,
        why="each parameter is sharded by one of them",
        fix="Set one of them to false.",
        fails={"dist.use_torch_fsdp2": True, "dist.use_megatron_fsdp": True},
        passes={"dist.use_megatron_fsdp": True},
    ),
    Rule(
        id="V130",
        fields=(*_CHECKPOINT, "dist.use_torch_fsdp2", *FSDP_SWITCHES),
        test=_v130,
        why="this format stores the shards of Megatron-FSDP",
        fix="Set checkpoint.ckpt_format=torch_dist, or ddp.use_megatron_fsdp=true and dist.use_torch_fsdp2=false.",
        fails={"checkpoint.ckpt_format": "fsdp_dtensor", "checkpoint.save": "checkpoints"},
        passes={
            "checkpoint.ckpt_format": "fsdp_dtensor",
            "checkpoint.save": "checkpoints",
            "ddp.use_megatron_fsdp": True,
        },
    ),
    Rule(
        id="V175",
        fields=(*_CHECKPOINT, *FSDP_SWITCHES),
        test=_v175,
        why="other formats do not support its sharding",
        fix="Set checkpoint.ckpt_format=fsdp_dtensor.",
        fails={
            "checkpoint.ckpt_format": "torch_dist",
            "checkpoint.load": "checkpoints",
            "ddp.use_megatron_fsdp": True,
        },
        passes={
            "checkpoint.ckpt_format": "fsdp_dtensor",
            "checkpoint.load": "checkpoints",
            "ddp.use_megatron_fsdp": True,
        },
    ),
    Rule(
        id="V176",
        fields=(*FSDP_SWITCHES, "facts.env"),
        test=_v176,
        why="with one queue the parameter all-gather cannot overlap with computation",
        fix="Unset CUDA_DEVICE_MAX_CONNECTIONS in the shell and in env_vars, or set it to a different value.",
        fails={"ddp.use_megatron_fsdp": True, "facts.env": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}},
        passes={"ddp.use_megatron_fsdp": True, "facts.env": {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}},
    ),
    requires(
        "V177",
        {"ddp.fsdp_manual_registration": True},
        {"ddp.nccl_ub": True},
        why="it registers the buffers of nccl_ub",
        fix="Set ddp.nccl_ub=true or ddp.fsdp_manual_registration=false.",
        fails=(True,),
        passes=(True, True),
    ),
    rule(
        "V178",
        (
            "ddp.data_parallel_sharding_strategy",
            "train.check_weight_hash_across_dp_replicas_interval",
            *FSDP_SWITCHES,
        ),
        _v178,
        why="no rank holds the complete weights",
        fix="Set train.check_weight_hash_across_dp_replicas_interval=null.",
        fails=("optim_grads_params", 100, True),
        passes=("optim_grads", 100, True),
    ),
    rule(
        "V179",
        ("dist.use_tp_pp_dp_mapping", *FSDP_SWITCHES),
        _v179,
        why="its device mesh orders the ranks tp-cp-ep-dp-pp",
        fix="Set dist.use_tp_pp_dp_mapping=false.",
        fails=(True, True),
        passes=(True,),
    ),
    rule(
        "V180",
        "ddp.megatron_fsdp_version",
        _v180,
        why="Megatron Core 0.19 has one version, which is not configurable",
        fix="Remove ddp.megatron_fsdp_version.",
        fails=(2,),
        passes=(None,),
    ),
    rule(
        "F01",
        within("ddp", "data_parallel_sharding_strategy outer_dp_sharding_strategy"),
        _strategies,
        why="Megatron-FSDP has no other strategy",
        fix="Use a name from the list.",
        fails=("full",),
        passes=("optim_grads_params",),
    ),
    Rule(
        id="T36",
        fields=("logger.log_l2_norm_grad_to_tensorboard", *FSDP_SWITCHES),
        test=_norms_of_shards,
        why="it keeps entire rows of a gradient on some of the ranks and none of it on others, which then have no norm "
        "to add",
        fix="Set logger.log_l2_norm_grad_to_tensorboard=false; grad-norm, of all gradients together, is always logged.",
        fails={**dict.fromkeys(FSDP_SWITCHES, True), "logger.log_l2_norm_grad_to_tensorboard": True},
        passes={**dict.fromkeys(FSDP_SWITCHES, True), "logger.log_l2_norm_grad_to_tensorboard": False},
    ),
    Rule(
        id="T36a",
        fields=("logger.tensor_norms_steps", *FSDP_SWITCHES),
        test=_norms_of_tensors,
        why="it keeps entire rows of a tensor on some of the ranks and none of it on others, which then have no norm "
        "to add",
        fix="Set logger.tensor_norms_steps=null.",
        fails={**dict.fromkeys(FSDP_SWITCHES, True), "logger.tensor_norms_steps": [5]},
        passes={**dict.fromkeys(FSDP_SWITCHES, True), "logger.tensor_norms_steps": None},
    ),
)
