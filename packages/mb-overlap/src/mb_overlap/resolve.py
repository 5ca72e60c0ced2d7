"""Which overlap a parallel layout gets: wishes and sizes in, one decision for each field out, nothing written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mb_overlap.pipeline_p2p import choose_p2p_comm
from mb_overlap.pipeline_rules import P2P_COMM
from mb_overlap.tensor_rules import ENGINE_LAYERS, SEQUENCE_PARALLEL, TENSOR_PARALLEL, TRANSFORMER_ENGINE
from mb_overlap.violations import Conflict, check_rule

MODEL_FIELDS = (
    "tp_comm_overlap",
    "tp_comm_overlap_cfg",
    "tp_comm_bootstrap_backend",
    "overlap_p2p_comm",
    "batch_p2p_comm",
    "defer_embedding_wgrad_compute",
    "wgrad_deferral_limit",
    "overlap_moe_expert_parallel_comm",
    "delay_wgrad_compute",
)
"""Fields that are decided for the model."""

DATA_PARALLEL_FIELDS = (
    "bucket_size",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "overlap_param_gather_with_optimizer_step",
    "align_param_gather",
)
"""Fields that are decided for the optimizer and for DDP, under the distributed optimizer."""

_MOE_FIELDS = ("overlap_moe_expert_parallel_comm", "delay_wgrad_compute")

BUCKET_SIZE = 128 * 1024 * 1024
"""Parameters in one bucket of an overlapped gradient reduction."""


class DataParallelSizeError(ValueError):
    """The distributed optimizer's overlap is to be chosen, but the data-parallel size is not set."""


class OverlapConflictError(ValueError):
    """Values that the user set contradict each other, break the pipeline schedule, or lack what they need."""

    def __init__(self, text: str, *, conflicts: Sequence[Conflict] = ()) -> None:
        super().__init__(text)
        self.conflicts = tuple(conflicts)
        """The rules that are broken, where rules decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLayout:
    """What the rules look at."""

    tp: int = 1
    """Ranks in the tensor-parallel group."""
    pp: int = 1
    """Pipeline stages."""
    vp: int | None = None
    """Model chunks in a stage; None counts as 1."""
    dp: int | None = None
    """Ranks in the data-parallel group; needed with the distributed optimizer."""
    sequence_parallel: bool = False
    """Whether activations are split along the sequence between tensor-parallel regions."""
    transformer_engine: bool | None = None
    """Whether Transformer Engine is there; None is not known, and does not stand in the way."""
    transformer_impl: str | None = None
    """Whose layers the model has: "transformer_engine", "local", or None where the section does not tell."""
    distributed_optimizer: bool = False
    """Whether optimizer states are sharded over the data-parallel group."""
    num_buckets: int | None = None
    """Number of DDP buckets where the user gave one: a bucket size beside it is illegal."""

    @property
    def interleaved(self) -> bool:
        """Whether stages hold several chunks, and their schedule is the interleaved one."""
        return self.pp > 1 and (self.vp or 1) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What one field becomes, and who decided."""

    value: object
    """Value of the field; None leaves the sections as they are."""
    rule: str
    """Id of the rule; "O15" is the user's own wish."""
    why: str
    """Reason, with the values that decided."""
    rejected: bool = False
    """Whether the user wished something else."""


def resolve_overlap(requests: Mapping[str, Any], layout: ParallelLayout) -> dict[str, Decision]:
    """Decide every field that this layout has something to say about.

    A wish wins over what the layout suggests, False included. It is refused only where it cannot be had:
    tensor-parallel overlap without what it needs, data-parallel overlap without the distributed optimizer.

    Args:
        requests: fields of `CommOverlapConfig` that are set, as its `requests()` returns them.
        layout: sizes and facts.

    Raises:
        DataParallelSizeError: `layout.distributed_optimizer` without `layout.dp`.
        OverlapConflictError: the way of sending between stages breaks the pipeline schedule.
    """
    suggested = {**_pipeline(requests, layout), **_embedding(requests), **_data_parallel(layout)}
    requested = {
        name: _from_request(requests[name]) for name in (*suggested, *_MOE_FIELDS) if name in requests
    }
    rejected = {} if layout.distributed_optimizer else _without_distributed_optimizer(requests)
    return {**_tensor_parallel(requests, layout), **suggested, **requested, **rejected}


def _from_request(requested: object) -> Decision:
    return Decision(value=requested, rule="O15", why="the user's wish")


def _tensor_parallel(requests: Mapping[str, Any], layout: ParallelLayout) -> dict[str, Decision]:
    if not requests.get("tp_comm_overlap"):
        off = Decision(value=False, rule="O01", why="not asked for")
        return {"tp_comm_overlap": _from_request(False) if "tp_comm_overlap" in requests else off}
    for rule, values in (
        (TENSOR_PARALLEL, (True, layout.tp)),
        (SEQUENCE_PARALLEL, (True, layout.tp, layout.sequence_parallel)),
        (TRANSFORMER_ENGINE, (True, layout.transformer_engine)),
        (ENGINE_LAYERS, (True, layout.transformer_impl)),
    ):
        if problem := rule.check(*values):
            return {"tp_comm_overlap": Decision(value=False, rule=rule.id, why=problem, rejected=True)}
    names = ("tp_comm_overlap", "tp_comm_overlap_cfg", "tp_comm_bootstrap_backend")
    return {name: _from_request(requests[name]) for name in names if name in requests}


def _pipeline(requests: Mapping[str, Any], layout: ParallelLayout) -> dict[str, Decision]:
    requested = (requests.get("overlap_p2p_comm"), requests.get("batch_p2p_comm"))
    if conflict := check_rule(P2P_COMM, (*requested, layout.pp, layout.vp)):
        raise OverlapConflictError(str(conflict), conflicts=[conflict])
    overlap, batch = choose_p2p_comm(layout.pp, layout.vp, *requested)
    if layout.interleaved:
        rule, why = "O05", f"pp={layout.pp}, vp={layout.vp}: sends hide under another chunk's computation"
    elif layout.pp > 1:
        rule, why = "O06", f"pp={layout.pp} without interleaving: sends are grouped into one call"
    else:
        rule, why = "O07", "pp=1: there is no other stage to send to"
    return {
        "overlap_p2p_comm": Decision(value=overlap, rule=rule, why=why),
        "batch_p2p_comm": Decision(value=batch, rule=rule, why=why),
    }


def _embedding(requests: Mapping[str, Any]) -> dict[str, Decision]:
    # A limit of -1 is right only while nothing is deferred: Megatron Core refuses it otherwise.
    deferred = bool(requests.get("defer_embedding_wgrad_compute"))
    limit, why = (0, "all microbatches are deferred") if deferred else (-1, "nothing is deferred")
    return {
        "defer_embedding_wgrad_compute": Decision(value=False, rule="O01", why="not asked for"),
        "wgrad_deferral_limit": Decision(value=limit, rule="O01", why=why),
    }


def _data_parallel(layout: ParallelLayout) -> dict[str, Decision]:
    if not layout.distributed_optimizer:
        return {}
    if layout.dp is None:
        raise DataParallelSizeError(
            "comm_overlap.data_parallel_size: is not set (data_parallel_size=None, use_distributed_optimizer=True), "
            "because whether the distributed optimizer has anything to overlap depends on it. Set it to "
            "world_size / (tp*pp*cp) before setup."
        )
    overlap = layout.dp > 1
    rule = "O12" if overlap else "O11"
    why = f"dp={layout.dp} under the distributed optimizer"
    aligned = overlap and layout.interleaved
    return {
        "overlap_grad_reduce": Decision(value=overlap, rule=rule, why=why),
        "overlap_param_gather": Decision(value=overlap, rule=rule, why=why),
        "bucket_size": _bucket_size(layout, rule=rule, why=why),
        "align_param_gather": Decision(
            value=aligned,
            rule="O13" if aligned else "O11",
            why=f"dp={layout.dp}, pp={layout.pp}, vp={layout.vp}",
        ),
        "overlap_param_gather_with_optimizer_step": Decision(
            value=False, rule="O11", why="checkpoints would miss the parameters that are still on their way"
        ),
    }


def _bucket_size(layout: ParallelLayout, *, rule: str, why: str) -> Decision:
    if layout.num_buckets is not None:
        return Decision(value=None, rule=rule, why=f"ddp.num_buckets={layout.num_buckets} stands instead")
    return Decision(value=BUCKET_SIZE if rule == "O12" else None, rule=rule, why=why)


def _without_distributed_optimizer(requests: Mapping[str, Any]) -> dict[str, Decision]:
    why = (
        "has no effect (ddp.use_distributed_optimizer=False), because this section only steers the distributed "
        "optimizer's communication. Set ddp.use_distributed_optimizer=true, or set the field of ddp itself."
    )
    return {
        name: Decision(value=None, rule="O22", why=why, rejected=True)
        for name in DATA_PARALLEL_FIELDS
        if name in requests
    }
