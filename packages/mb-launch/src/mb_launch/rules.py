"""Rules on process groups and start-up (`dist.*`), to check before a launch. The standard library only."""

import json
from collections.abc import Mapping

from mb_schema.rule_kinds import ddp_rule, dist_rule, unsupported
from mb_schema.rules import Rule, rules_in

NOT_IMPLEMENTED = "this option is not implemented"

_GLOBAL_STATE: Mapping[str, tuple[object, ...]] = {
    "model.mtp_num_layers": (0,),
    "model.multi_latent_attention": (False,),
    "model.decoder_seq_length": (),
    "ddp.use_megatron_fsdp": (False,),
    "dist.use_megatron_fsdp": (False,),
    "dist.use_torch_fsdp2": (False,),
    "ddp.num_distributed_optimizer_instances": (1,),
    "model.qk_clip": (False,),
    "model.distribute_saved_activations": (False,),
    "model.pipeline_model_parallel_layout": (),
    "model.log_max_attention_logit": (False,),
    "dist.use_sharp": (False,),
    "dist.nccl_communicator_config_path": (),
    "dist.high_priority_stream_groups": ([],),
}
"""Field of a feature that reads Megatron's global groups -> values, in addition to null, that leave it off."""


@dist_rule(
    "T23",
    others=_GLOBAL_STATE,
    why="Megatron Core looks up or creates groups for it in its global parallel_state, which is then empty",
    fix="Set dist.use_decentralized_pg=false, or leave the others at their defaults.",
    fails={"use_decentralized_pg": True, "model.mtp_num_layers": 1},
    passes={"model.mtp_num_layers": 0},
)
def _features_read_global_groups(use_decentralized_pg, **features):
    on = [
        f"{path}={json.dumps(value, default=str)}"
        for path, value in features.items()
        if value is not None and value not in _GLOBAL_STATE[path]
    ]
    return f"does not support {', '.join(on)}" if use_decentralized_pg and on else None


@ddp_rule(
    "T37",
    why="Megatron Core enumerates such nested groups with it",
    fix="Install einops (Transformer Engine depends on it), or leave both unset.",
    fails={"num_distributed_optimizer_instances": 1, "model__hierarchical_context_parallel_sizes": [2, 2]},
    passes={
        "num_distributed_optimizer_instances": 2,
        "model__hierarchical_context_parallel_sizes": None,
        "einops_installed": True,
    },
)
def _lacks_einops(
    num_distributed_optimizer_instances, model__hierarchical_context_parallel_sizes, *, einops_installed
):
    settings = []
    if (num_distributed_optimizer_instances or 1) > 1:
        settings.append(f"num_distributed_optimizer_instances={num_distributed_optimizer_instances}")
    if model__hierarchical_context_parallel_sizes:
        settings.append(f"hierarchical_context_parallel_sizes={model__hierarchical_context_parallel_sizes}")
    if settings and not einops_installed:
        return f"{' and '.join(settings)}, but einops is not installed"
    return None


@dist_rule(
    "T38",
    why="in this order of ranks experts would be in different pipeline groups than the layers around them",
    fix="Set dist.use_tp_pp_dp_mapping=false, or make the products equal.",
    fails={"use_tp_pp_dp_mapping": True, "pp": 2, "ep": 2, "etp": 1},
    passes={"tp": 2},
)
def _different_stages(use_tp_pp_dp_mapping, pp, tp, cp, ep, etp):
    dense, expert = (tp or 1) * (cp or 1), (etp or tp or 1) * (ep or 1)
    if not use_tp_pp_dp_mapping or (pp or 1) == 1 or dense == expert:
        return None
    return f"is true with pp={pp}, and tp x cp is {dense}, but etp x ep is {expert}"


@dist_rule(
    "T40",
    why="that group connects the replicas of the distributed optimizer",
    fix="Set dist.sharp_enabled_group=dp, or ddp.num_distributed_optimizer_instances.",
    fails={"sharp_enabled_group": "dp_replica"},
    passes={"ddp__num_distributed_optimizer_instances": 2},
)
def _single_replica(sharp_enabled_group, ddp__num_distributed_optimizer_instances):
    if sharp_enabled_group != "dp_replica" or (ddp__num_distributed_optimizer_instances or 1) >= 2:
        return None
    return "dp_replica, but there is one replica of the optimizer"


@dist_rule(
    "T41",
    why="NVIDIA's network performs reductions for NCCL, and a run without a GPU uses gloo",
    fix="Set dist.use_sharp=false, or check for a machine with GPUs: mb check --gpu h100.",
    fails={"use_sharp": True, "cpu": True},
    passes={"cpu": False},
)
def _sharp_without_gpu(use_sharp, *, cpu):
    return "is true, but this machine has no GPU" if use_sharp and cpu else None


RULES: tuple[Rule, ...] = (
    unsupported("T20", "dist.lazy_mpu_init", False, fails=True, why=NOT_IMPLEMENTED),
    *rules_in(globals()),
    unsupported("T26", "dist.disable_jit_fuser", False, fails=True, why=NOT_IMPLEMENTED),
    unsupported("T27", "dist.enable_megatron_core_experimental", False, fails=True, why=NOT_IMPLEMENTED),
    unsupported(
        "T28",
        "dist.eval_context_parallel_size",
        None,
        fails=2,
        fix="Leave it at null. Evaluation splits sequences as training does (model.context_parallel_size).",
        why="the attention layers and all process groups are built for one context-parallel size, and Megatron Core "
        "has no second set of groups for evaluation",
    ),
)
"""All rules of this package."""
