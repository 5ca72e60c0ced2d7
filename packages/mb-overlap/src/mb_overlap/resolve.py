"""Resolution of overlap settings: a pure function from requested values and a parallel layout to decisions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mb_overlap.errors import OverlapError
from mb_overlap.rules.pipeline import choose_p2p_comm, requested_p2p_breaks_schedule
from mb_overlap.rules.tensor import NEEDS
from mb_schema.rules import Problem, RuleError

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
"""Fields of the model section that are decided."""

DATA_PARALLEL_FIELDS = (
    "bucket_size",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "overlap_param_gather_with_optimizer_step",
    "align_param_gather",
)
"""Fields of the optimizer and DDP sections that are decided with the distributed optimizer."""

_MOE_FIELDS = ("overlap_moe_expert_parallel_comm", "delay_wgrad_compute")

BUCKET_SIZE = 128 * 1024 * 1024
"""Number of parameters in one bucket of an overlapped gradient reduction."""


class DataParallelSizeError(OverlapError, ValueError):
    """The distributed optimizer is on, but the data-parallel size is not set."""


class OverlapConflictError(OverlapError, RuleError):
    """Requested values contradict each other, break the pipeline schedule, or lack a requirement."""

    @property
    def conflicts(self) -> tuple[Problem, ...]:
        """Violated rules, as in `problems`."""
        return self.problems


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLayout:
    """Parallel sizes and features of a run that the rules read."""

    tp: int = 1
    """Number of ranks in the tensor-parallel group."""
    pp: int = 1
    """Number of pipeline stages."""
    vp: int | None = None
    """Number of model chunks in a stage; None counts as 1."""
    dp: int | None = None
    """Number of ranks in the data-parallel group; required with the distributed optimizer."""
    sequence_parallel: bool = False
    """Whether activations are split along the sequence between tensor-parallel regions."""
    transformer_engine: bool | None = None
    """Whether Transformer Engine is installed; None if unknown, which rejects nothing."""
    transformer_impl: str | None = None
    """Implementation of the layers: "transformer_engine", "local", or None if the section has no such field."""
    distributed_optimizer: bool = False
    """Whether optimizer states are sharded over the data-parallel group."""
    num_buckets: int | None = None
    """Number of DDP buckets if the user set it; a bucket size is illegal in addition to it."""

    @property
    def interleaved(self) -> bool:
        """Whether stages hold several model chunks, so that the interleaved schedule applies."""
        return self.pp > 1 and (self.vp or 1) > 1

    def values(self) -> dict[str, object]:
        """Return what rules read of the layout, by path."""
        return {
            "model.tensor_model_parallel_size": self.tp,
            "model.pipeline_model_parallel_size": self.pp,
            "model.virtual_pipeline_model_parallel_size": self.vp,
            "model.sequence_parallel": self.sequence_parallel,
            "model.transformer_impl": self.transformer_impl,
            "facts.transformer_engine": self.transformer_engine,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Value of one field, and the rule that decided it."""

    value: object
    """Value of the field; None leaves the sections unchanged."""
    rule: str
    """Id of the rule; "O15" for a value that the user set."""
    why: str
    """Reason, with the deciding values."""
    rejected: bool = False
    """Whether the user requested another value."""


def resolve_overlap(requests: Mapping[str, Any], layout: ParallelLayout) -> dict[str, Decision]:
    """Return a decision for every field that this layout determines.

    A requested value, including False, takes precedence over the default of the layout. It is rejected only if it is
    not available: tensor-parallel overlap without its requirements, data-parallel overlap without the distributed
    optimizer.

    Args:
        requests: fields of `CommOverlapConfig` that are set, as returned by `requested_fields()`.
        layout: parallel sizes and features.

    Raises:
        DataParallelSizeError: `layout.distributed_optimizer` without `layout.dp`.
        OverlapConflictError: the point-to-point mode breaks the pipeline schedule.
    """
    suggested = {**_pipeline(requests, layout), **_embedding(requests), **_data_parallel(layout)}
    requested = {
        name: _from_request(requests[name]) for name in (*suggested, *_MOE_FIELDS) if name in requests
    }
    rejected = {} if layout.distributed_optimizer else _without_distributed_optimizer(requests)
    return {**_tensor_parallel(requests, layout), **suggested, **requested, **rejected}


def _from_request(requested: object) -> Decision:
    return Decision(value=requested, rule="O15", why="set by the user")


def _tensor_parallel(requests: Mapping[str, Any], layout: ParallelLayout) -> dict[str, Decision]:
    if not requests.get("tp_comm_overlap"):
        off = Decision(value=False, rule="O01", why="not requested")
        return {"tp_comm_overlap": _from_request(False) if "tp_comm_overlap" in requests else off}
    values = {"comm_overlap.tp_comm_overlap": True, **layout.values()}
    for rule in NEEDS:
        if problem := rule.check(values):
            return {
                "tp_comm_overlap": Decision(value=False, rule=rule.id, why=problem.sentence, rejected=True)
            }
    names = ("tp_comm_overlap", "tp_comm_overlap_cfg", "tp_comm_bootstrap_backend")
    return {name: _from_request(requests[name]) for name in names if name in requests}


def _pipeline(requests: Mapping[str, Any], layout: ParallelLayout) -> dict[str, Decision]:
    """Decide the communication between pipeline stages.

    Raises:
        OverlapConflictError: The requested combination does not work with the schedule.
    """
    requested = (requests.get("overlap_p2p_comm"), requests.get("batch_p2p_comm"))
    requests_by_path = dict(
        zip(("comm_overlap.overlap_p2p_comm", "comm_overlap.batch_p2p_comm"), requested, strict=True)
    )
    if conflict := requested_p2p_breaks_schedule.check({**requests_by_path, **layout.values()}):
        raise OverlapConflictError([conflict])
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
    # A limit of -1 is valid only while nothing is deferred: Megatron Core rejects it otherwise.
    deferred = bool(requests.get("defer_embedding_wgrad_compute"))
    limit, why = (0, "all microbatches are deferred") if deferred else (-1, "nothing is deferred")
    return {
        "defer_embedding_wgrad_compute": Decision(value=False, rule="O01", why="not requested"),
        "wgrad_deferral_limit": Decision(value=limit, rule="O01", why=why),
    }


def _data_parallel(layout: ParallelLayout) -> dict[str, Decision]:
    """Decide the communication of the distributed optimizer; nothing without one.

    Raises:
        DataParallelSizeError: The number of data-parallel ranks is not set.
    """
    if not layout.distributed_optimizer:
        return {}
    if layout.dp is None:
        raise DataParallelSizeError(
            "comm_overlap.data_parallel_size: is not set (data_parallel_size=None, use_distributed_optimizer=True), "
            "because it determines whether the distributed optimizer communicates at all. Set it to "
            "world_size / (tp*pp*cp) before setup."
        )
    overlap = layout.dp > 1
    rule = "O12" if overlap else "O11"
    why = f"dp={layout.dp} with the distributed optimizer"
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
            value=False, rule="O11", why="checkpoints would miss parameters that are still being gathered"
        ),
    }


def _bucket_size(layout: ParallelLayout, *, rule: str, why: str) -> Decision:
    if layout.num_buckets is not None:
        return Decision(value=None, rule=rule, why=f"ddp.num_buckets={layout.num_buckets} is set instead")
    return Decision(value=BUCKET_SIZE if rule == "O12" else None, rule=rule, why=why)


def _without_distributed_optimizer(requests: Mapping[str, Any]) -> dict[str, Decision]:
    why = (
        "has no effect (ddp.use_distributed_optimizer=False), because this section only controls the communication of "
        "the distributed optimizer. Set ddp.use_distributed_optimizer=true, or set the field of ddp directly."
    )
    return {
        name: Decision(value=None, rule="O22", why=why, rejected=True)
        for name in DATA_PARALLEL_FIELDS
        if name in requests
    }
