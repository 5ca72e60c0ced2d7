"""Rules on point-to-point communication between pipeline stages.

`facts.resolved` is set if no `comm_overlap` section will change the model's values.
"""

from functools import partial

from mb_schema.rule_kinds import model_rule, section_rule
from mb_schema.rules import Rule, rules_in


def choose_p2p_comm(
    pp: int | None, vp: int | None, overlap_p2p_comm: bool | None, batch_p2p_comm: bool | None
) -> tuple[bool, bool]:
    """Return (overlap_p2p_comm, batch_p2p_comm) for a schedule. A requested value that is not None is kept.

    The interleaved schedule overlaps its sends and receives (unless batching is requested), the plain schedule batches
    them, and a single stage does neither.

    Args:
        pp: number of pipeline stages; None counts as 1.
        vp: number of model chunks in a stage; None counts as 1.
        overlap_p2p_comm: requested value, or None.
        batch_p2p_comm: requested value, or None.
    """
    pipelined = (pp or 1) > 1
    interleaved = pipelined and (vp or 1) > 1
    overlap = interleaved and not batch_p2p_comm if overlap_p2p_comm is None else overlap_p2p_comm
    batch = pipelined and not interleaved if batch_p2p_comm is None else batch_p2p_comm
    return overlap, batch


def p2p_comm_problem(
    pp: int | None, vp: int | None, overlap_p2p_comm: bool, batch_p2p_comm: bool
) -> str | None:
    """Return the problem of a point-to-point mode with a schedule, or None.

    Megatron Core rejects the first two cases in the first step. It does not detect the third: with two interleaved
    stages, the batched messages of both directions go to the same rank and are confused with each other, and training
    continues with wrong values. Batching is correct with three or more stages. Neither overlapping nor batching is
    correct with any number of stages.
    """
    chosen = f"pp={pp}, vp={vp}, overlap_p2p_comm={overlap_p2p_comm}, batch_p2p_comm={batch_p2p_comm}"
    if (pp or 1) < 2:
        return None
    if (vp or 1) < 2:
        return f"the plain pipeline schedule cannot overlap ({chosen})" if overlap_p2p_comm else None
    if overlap_p2p_comm and batch_p2p_comm:
        return f"sends cannot be both overlapped and batched ({chosen})"
    if pp == 2 and batch_p2p_comm:
        return f"two interleaved stages with batched sends train incorrectly ({chosen})"
    return None


comm_overlap_rule = partial(section_rule, "comm_overlap")

_WAY = "each pipeline schedule of Megatron Core supports certain point-to-point modes only"


@comm_overlap_rule(
    "O05",
    why=_WAY,
    fix="Leave comm_overlap.overlap_p2p_comm and comm_overlap.batch_p2p_comm unset.",
    fails={"overlap_p2p_comm": None, "batch_p2p_comm": True, "pp": 2, "vp": 2},
    passes={"batch_p2p_comm": None},
)
def requested_p2p_breaks_schedule(overlap_p2p_comm, batch_p2p_comm, pp, vp):
    """Reject a requested mode that the pipeline schedule does not support."""
    return p2p_comm_problem(pp, vp, *choose_p2p_comm(pp, vp, overlap_p2p_comm, batch_p2p_comm))


@model_rule(
    "O05M",
    why=_WAY,
    fix="Add a comm_overlap section, or set model.overlap_p2p_comm=true and model.batch_p2p_comm=false with "
    "virtual pipeline stages, and the opposite values without.",
    fails={"overlap_p2p_comm": False, "batch_p2p_comm": True, "pp": 2, "vp": 2, "resolved": True},
    passes={"overlap_p2p_comm": True, "batch_p2p_comm": False},
)
def _model_p2p_breaks_schedule(overlap_p2p_comm, batch_p2p_comm, pp, vp, *, resolved):
    return p2p_comm_problem(pp, vp, bool(overlap_p2p_comm), bool(batch_p2p_comm)) if resolved else None


@model_rule(
    "O05W",
    why="more chunks mean more messages, and each of them blocks the stage",
    fix="Set model.overlap_p2p_comm=true and model.batch_p2p_comm=false, or disable the virtual stages.",
    fails={"overlap_p2p_comm": False, "pp": 4, "vp": 2, "resolved": True},
    passes={"overlap_p2p_comm": True, "batch_p2p_comm": False},
    severity="warning",
)
def _p2p_without_overlap(overlap_p2p_comm, batch_p2p_comm, pp, vp, *, resolved):
    if not resolved or overlap_p2p_comm or (pp or 1) < 2 or (vp or 1) < 2:
        return None
    if p2p_comm_problem(pp, vp, False, bool(batch_p2p_comm)):
        return None
    return f"interleaved stages send without overlap (pp={pp}, vp={vp}, overlap_p2p_comm={overlap_p2p_comm})"


RULES: tuple[Rule, ...] = rules_in(globals())
"""Every rule of this file."""
