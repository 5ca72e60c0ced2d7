"""Rules on point-to-point communication between pipeline stages."""

from functools import partial

from mb_overlap.pipeline_p2p import choose_p2p_comm, p2p_comm_problem
from mb_schema.rule_kinds import section_rule
from mb_schema.rules import Rule

comm_overlap_rule = partial(section_rule, "comm_overlap")
model_rule = partial(section_rule, "model")

_WAY = "each pipeline schedule of Megatron Core supports certain point-to-point modes only"


@comm_overlap_rule(
    "O05",
    why=_WAY,
    fix="Leave comm_overlap.overlap_p2p_comm and comm_overlap.batch_p2p_comm unset.",
    fails={"overlap_p2p_comm": None, "batch_p2p_comm": True, "pp": 2, "vp": 2},
    passes={"batch_p2p_comm": None},
)
def _requested_p2p_fits_schedule(overlap_p2p_comm, batch_p2p_comm, pp, vp):
    return p2p_comm_problem(pp, vp, *choose_p2p_comm(pp, vp, overlap_p2p_comm, batch_p2p_comm))


@model_rule(
    "O05M",
    why=_WAY,
    fix="Add a comm_overlap section, or set model.overlap_p2p_comm=true and model.batch_p2p_comm=false with "
    "virtual pipeline stages, and the opposite values without.",
    fails={"overlap_p2p_comm": False, "batch_p2p_comm": True, "pp": 2, "vp": 2, "resolved": True},
    passes={"overlap_p2p_comm": True, "batch_p2p_comm": False},
)
def _model_p2p_fits_schedule(overlap_p2p_comm, batch_p2p_comm, pp, vp, *, resolved):
    return p2p_comm_problem(pp, vp, bool(overlap_p2p_comm), bool(batch_p2p_comm)) if resolved else None


@model_rule(
    "O05W",
    why="more chunks mean more messages, and each of them blocks the stage",
    fix="Set model.overlap_p2p_comm=true and model.batch_p2p_comm=false, or disable the virtual stages.",
    fails={"overlap_p2p_comm": False, "pp": 4, "vp": 2, "resolved": True},
    passes={"overlap_p2p_comm": True, "batch_p2p_comm": False},
    severity="warning",
)
def _p2p_overlaps(overlap_p2p_comm, batch_p2p_comm, pp, vp, *, resolved):
    if not resolved or overlap_p2p_comm or (pp or 1) < 2 or (vp or 1) < 2:
        return None
    if p2p_comm_problem(pp, vp, False, bool(batch_p2p_comm)):
        return None
    return f"interleaved stages send without overlap (pp={pp}, vp={vp}, overlap_p2p_comm={overlap_p2p_comm})"


P2P_COMM = _requested_p2p_fits_schedule

MODEL_P2P_COMM = _model_p2p_fits_schedule
"""`facts.resolved` is set if no `comm_overlap` section will change these values."""

EXPOSED_P2P_COMM = _p2p_overlaps

RULES: tuple[Rule, ...] = (P2P_COMM, MODEL_P2P_COMM, EXPOSED_P2P_COMM)
"""Every rule of this file."""
