"""Rules on point-to-point communication between pipeline stages."""

from mb_overlap.pipeline_p2p import choose_p2p_comm, p2p_comm_problem
from mb_schema.rule_kinds import rule
from mb_schema.rules import Rule

_WAY = "each pipeline schedule of Megatron Core supports certain point-to-point modes only"
_MODEL = (
    "model.overlap_p2p_comm",
    "model.batch_p2p_comm",
    "model.pipeline_model_parallel_size",
    "model.virtual_pipeline_model_parallel_size",
    "facts.resolved",
)
_REQUEST = ("comm_overlap.overlap_p2p_comm", "comm_overlap.batch_p2p_comm", *_MODEL[2:4])


def _requested_p2p_fits_schedule(
    overlap_p2p_comm: bool | None, batch_p2p_comm: bool | None, pp: int | None, vp: int | None
) -> str | None:
    return p2p_comm_problem(pp, vp, *choose_p2p_comm(pp, vp, overlap_p2p_comm, batch_p2p_comm))


def _model_p2p_fits_schedule(
    overlap_p2p_comm: bool | None, batch_p2p_comm: bool | None, pp: int | None, vp: int | None, resolved: bool
) -> str | None:
    return p2p_comm_problem(pp, vp, bool(overlap_p2p_comm), bool(batch_p2p_comm)) if resolved else None


def _p2p_overlaps(
    overlap_p2p_comm: bool | None, batch_p2p_comm: bool | None, pp: int | None, vp: int | None, resolved: bool
) -> str | None:
    if not resolved or overlap_p2p_comm or (pp or 1) < 2 or (vp or 1) < 2:
        return None
    if p2p_comm_problem(pp, vp, False, bool(batch_p2p_comm)):
        return None
    return f"interleaved stages send without overlap (pp={pp}, vp={vp}, overlap_p2p_comm={overlap_p2p_comm})"


P2P_COMM = rule(
    "O05",
    _REQUEST,
    _requested_p2p_fits_schedule,
    why=_WAY,
    fix="Leave comm_overlap.overlap_p2p_comm and comm_overlap.batch_p2p_comm unset.",
    fails=(None, True, 2, 2),
    passes=(None, None, 2, 2),
)

MODEL_P2P_COMM = rule(
    "O05M",
    _MODEL,
    _model_p2p_fits_schedule,
    why=_WAY,
    fix="Add a comm_overlap section, or set model.overlap_p2p_comm=true and model.batch_p2p_comm=false with "
    "virtual pipeline stages, and the opposite values without.",
    fails=(False, True, 2, 2, True),
    passes=(True, False, 2, 2, True),
)
"""`facts.resolved` is set if no `comm_overlap` section will change these values."""

EXPOSED_P2P_COMM = rule(
    "O05W",
    _MODEL,
    _p2p_overlaps,
    why="more chunks mean more messages, and each of them blocks the stage",
    fix="Set model.overlap_p2p_comm=true and model.batch_p2p_comm=false, or disable the virtual stages.",
    fails=(False, True, 4, 2, True),
    passes=(True, False, 4, 2, True),
    severity="warning",
)

RULES: tuple[Rule, ...] = (P2P_COMM, MODEL_P2P_COMM, EXPOSED_P2P_COMM)
"""Every rule of this file."""
