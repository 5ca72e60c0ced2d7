"""Rules on data-parallel overlap."""

from functools import partial

from mb_schema.rule_kinds import in_range, section_rule
from mb_schema.rules import Rule, rules_in

comm_overlap_rule = partial(section_rule, "comm_overlap")


@comm_overlap_rule(
    "O14",
    why="it determines whether the distributed optimizer communicates at all",
    fix="Leave comm_overlap.data_parallel_size unset, or set it to world_size / (tp*pp*cp).",
    fails={"data_parallel_size": 8, "world_size": 8, "tp": 2},
    passes={"data_parallel_size": 4},
)
def _other_size_than_layout(data_parallel_size, tp, pp, cp, *, world_size):
    model_ranks = (tp or 1) * (pp or 1) * (cp or 1)
    if data_parallel_size is None or data_parallel_size * model_ranks == world_size:
        return None
    return (
        "does not match the parallel layout "
        f"(data_parallel_size={data_parallel_size}, tp*pp*cp={model_ranks}, world_size={world_size})"
    )


@comm_overlap_rule(
    "O22",
    why="this section only controls the communication of the distributed optimizer",
    fix="Set ddp.use_distributed_optimizer=true, or set the field of ddp directly.",
    fails={"overlap_grad_reduce": True},
    passes={"ddp__use_distributed_optimizer": True},
    severity="warning",
)
def _requests_without_effect(
    overlap_grad_reduce,
    overlap_param_gather,
    overlap_param_gather_with_optimizer_step,
    align_param_gather,
    bucket_size,
    ddp__use_distributed_optimizer,
    ddp__use_megatron_fsdp,
    optimizer__use_distributed_optimizer,
):
    requests = {
        "overlap_grad_reduce": overlap_grad_reduce,
        "overlap_param_gather": overlap_param_gather,
        "overlap_param_gather_with_optimizer_step": overlap_param_gather_with_optimizer_step,
        "align_param_gather": align_param_gather,
        "bucket_size": bucket_size,
    }
    requested = ", ".join(f"{name}={value}" for name, value in requests.items() if value)
    read = ddp__use_distributed_optimizer or ddp__use_megatron_fsdp or optimizer__use_distributed_optimizer
    return (
        f"has no effect without the distributed optimizer ({requested})" if requested and not read else None
    )


RULES: tuple[Rule, ...] = (
    in_range(
        "O25",
        "comm_overlap.bucket_size",
        1,
        why="it is a number of parameters",
        fix="Set it to 1 or more, or to null.",
    ),
    in_range(
        "O26",
        "comm_overlap.wgrad_deferral_limit",
        0,
        why="it is a number of microbatches",
        fix="Set it to 0 (all of them) or more, or to null.",
    ),
    *rules_in(globals()),
)
"""Every rule of this file."""
