"""Rules on process groups and start-up (`dist.*`), to check before a launch. The standard library only."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A condition on some fields, with the message for a violation."""

    id: str
    fields: tuple[str, ...]
    test: Callable[..., str | None]
    why: str
    fix: str
    severity: Literal["error", "warning"] = "error"
    fails: Mapping[str, object]
    passes: Mapping[str, object]


def _unsupported(
    number: int,
    path: str,
    default: object,
    *,
    requested: object,
    instead: str = "",
    why: str = "this option is not implemented",
) -> Rule:
    """Return a rule that rejects every value of a field but its default and null."""
    return Rule(
        id=f"T{number:02d}",
        fields=(path,),
        test=lambda value: (
            None if value in (default, None) else f"{json.dumps(value, default=str)} would have no effect"
        ),
        why=why,
        fix=f"Leave it at {json.dumps(default)}. {instead}".strip(),
        fails={path: requested},
        passes={path: default},
    )


_GLOBAL_STATE: Mapping[str, tuple[object, ...]] = {
    "model.mtp_num_layers": (0,),
    "model.multi_latent_attention": (False,),
    "model.decoder_seq_length": (),
    "ddp.use_megatron_fsdp": (False,),
    "dist.use_megatron_fsdp": (False,),
    "dist.use_torch_fsdp2": (False,),
    "ddp.num_distributed_optimizer_instances": (1,),
    "model.qk_clip": (False,),
    "model.log_max_attention_logit": (False,),
    "dist.use_sharp": (False,),
    "dist.nccl_communicator_config_path": (),
    "dist.high_priority_stream_groups": ([],),
}
"""Field of a feature that reads Megatron's global groups -> values, in addition to null, that leave it off."""


def _reads_global_groups(decentralized: bool | None, *values: object) -> str | None:
    found = [
        f"{path}={json.dumps(value, default=str)}"
        for (path, off), value in zip(_GLOBAL_STATE.items(), values, strict=True)
        if value is not None and value not in off
    ]
    return f"does not support {', '.join(found)}" if decentralized and found else None


def _lacks_einops(instances: int | None, sizes: list[int] | None, installed: bool) -> str | None:
    found = [f"num_distributed_optimizer_instances={instances}"] if (instances or 1) > 1 else []
    found += [f"hierarchical_context_parallel_sizes={sizes}"] if sizes else []
    return f"{' and '.join(found)}, but einops is not installed" if found and not installed else None


def _different_stages(
    mapping: bool | None, pp: int | None, tp: int | None, cp: int | None, ep: int | None, etp: int | None
) -> str | None:
    dense, expert = (tp or 1) * (cp or 1), (etp or tp or 1) * (ep or 1)
    if not mapping or (pp or 1) == 1 or dense == expert:
        return None
    return f"is true with pp={pp}, and tp x cp is {dense}, but etp x ep is {expert}"


def _single_replica(group: str | None, instances: int | None) -> str | None:
    if group != "dp_replica" or (instances or 1) >= 2:
        return None
    return "dp_replica, but there is one replica of the optimizer"


_MAPPING = (
    "dist.use_tp_pp_dp_mapping",
    "model.pipeline_model_parallel_size",
    "model.tensor_model_parallel_size",
    "model.context_parallel_size",
    "model.expert_model_parallel_size",
    "model.expert_tensor_parallel_size",
)

RULES: tuple[Rule, ...] = (
    _unsupported(20, "dist.lazy_mpu_init", False, requested=True),
    Rule(
        id="T23",
        fields=("dist.use_decentralized_pg", *_GLOBAL_STATE),
        test=_reads_global_groups,
        why="Megatron Core looks up or creates groups for it in its global parallel_state, which is then empty",
        fix="Set dist.use_decentralized_pg=false, or leave the others at their defaults.",
        fails={"dist.use_decentralized_pg": True, "model.mtp_num_layers": 1, "ddp.use_megatron_fsdp": False},
        passes={"dist.use_decentralized_pg": True, "model.mtp_num_layers": 0, "ddp.use_megatron_fsdp": False},
    ),
    _unsupported(26, "dist.disable_jit_fuser", False, requested=True),
    _unsupported(27, "dist.enable_megatron_core_experimental", False, requested=True),
    _unsupported(
        28,
        "dist.eval_context_parallel_size",
        None,
        requested=2,
        instead="Evaluation splits sequences as training does (model.context_parallel_size).",
        why="the attention layers and all process groups are built for one context-parallel size, and Megatron Core "
        "has no second set of groups for evaluation",
    ),
    Rule(
        id="T40",
        fields=("dist.sharp_enabled_group", "ddp.num_distributed_optimizer_instances"),
        test=_single_replica,
        why="that group connects the replicas of the distributed optimizer",
        fix="Set dist.sharp_enabled_group=dp, or ddp.num_distributed_optimizer_instances.",
        fails={"dist.sharp_enabled_group": "dp_replica", "ddp.num_distributed_optimizer_instances": 1},
        passes={"dist.sharp_enabled_group": "dp_replica", "ddp.num_distributed_optimizer_instances": 2},
    ),
    Rule(
        id="T41",
        fields=("dist.use_sharp", "facts.cpu"),
        test=lambda on, cpu: "is true, but this machine has no GPU" if on and cpu else None,
        why="NVIDIA's network performs reductions for NCCL, and a run without a GPU uses gloo",
        fix="Set dist.use_sharp=false, or check for a machine with GPUs: mb check --gpu h100.",
        fails={"dist.use_sharp": True, "facts.cpu": True},
        passes={"dist.use_sharp": True, "facts.cpu": False},
    ),
    Rule(
        id="T37",
        fields=(
            "ddp.num_distributed_optimizer_instances",
            "model.hierarchical_context_parallel_sizes",
            "facts.einops_installed",
        ),
        test=_lacks_einops,
        why="Megatron Core enumerates such nested groups with it",
        fix="Install einops (Transformer Engine depends on it), or leave both unset.",
        fails={
            "ddp.num_distributed_optimizer_instances": 1,
            "model.hierarchical_context_parallel_sizes": [2, 2],
            "facts.einops_installed": False,
        },
        passes={
            "ddp.num_distributed_optimizer_instances": 2,
            "model.hierarchical_context_parallel_sizes": None,
            "facts.einops_installed": True,
        },
    ),
    Rule(
        id="T38",
        fields=_MAPPING,
        test=_different_stages,
        why="in this order of ranks experts would be in different pipeline groups than the layers around them",
        fix="Set dist.use_tp_pp_dp_mapping=false, or make the products equal.",
        fails=dict(zip(_MAPPING, (True, 2, 1, 1, 2, 1), strict=True)),
        passes=dict(zip(_MAPPING, (True, 2, 2, 1, 2, 1), strict=True)),
    ),
)
"""All rules of this package."""
