"""Rules on data-parallel overlap."""

from mb_schema.rule_kinds import in_range, rule
from mb_schema.rules import Rule

_SIZES = (
    "comm_overlap.data_parallel_size",
    "facts.world_size",
    "model.tensor_model_parallel_size",
    "model.pipeline_model_parallel_size",
    "model.context_parallel_size",
)
_NAMES = (
    "overlap_grad_reduce",
    "overlap_param_gather",
    "overlap_param_gather_with_optimizer_step",
    "align_param_gather",
    "bucket_size",
)
_REQUESTS = (
    *(f"comm_overlap.{name}" for name in _NAMES),
    "ddp.use_distributed_optimizer",
    "ddp.use_megatron_fsdp",
    "optimizer.use_distributed_optimizer",
)


def _matches_layout(
    dp: int | None, world_size: int, tp: int | None, pp: int | None, cp: int | None
) -> str | None:
    model_ranks = (tp or 1) * (pp or 1) * (cp or 1)
    if dp is None or dp * model_ranks == world_size:
        return None
    return (
        "does not match the parallel layout "
        f"(data_parallel_size={dp}, tp*pp*cp={model_ranks}, world_size={world_size})"
    )


def _has_effect(*values: object) -> str | None:
    requests, switches = values[: len(_NAMES)], values[len(_NAMES) :]
    requested = [f"{name}={requested}" for name, requested in zip(_NAMES, requests, strict=True) if requested]
    if not requested or any(switches):
        return None
    return f"has no effect without the distributed optimizer ({', '.join(requested)})"


BUCKET_SIZE = in_range(
    "O25",
    "comm_overlap.bucket_size",
    1,
    why="it is a number of parameters",
    fix="Set it to 1 or more, or to null.",
)
DEFERRAL_LIMIT = in_range(
    "O26",
    "comm_overlap.wgrad_deferral_limit",
    0,
    why="it is a number of microbatches",
    fix="Set it to 0 (all of them) or more, or to null.",
)

DATA_PARALLEL_SIZE = rule(
    "O14",
    _SIZES,
    _matches_layout,
    why="it determines whether the distributed optimizer communicates at all",
    fix="Leave comm_overlap.data_parallel_size unset, or set it to world_size / (tp*pp*cp).",
    fails=(8, 8, 2, 1, 1),
    passes=(4, 8, 2, 1, 1),
)

DISTRIBUTED_OPTIMIZER = rule(
    "O22",
    _REQUESTS,
    _has_effect,
    why="this section only controls the communication of the distributed optimizer",
    fix="Set ddp.use_distributed_optimizer=true, or set the field of ddp directly.",
    fails=(True, None, None, None, None, False, False, False),
    passes=(True, None, None, None, None, True, False, False),
    severity="warning",
)

RULES: tuple[Rule, ...] = (BUCKET_SIZE, DEFERRAL_LIMIT, DATA_PARALLEL_SIZE, DISTRIBUTED_OPTIMIZER)
"""Every rule of this file."""
