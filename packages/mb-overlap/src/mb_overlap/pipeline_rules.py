"""Rules on how pipeline stages send to each other."""

from mb_overlap.pipeline import choose_sending, sending_problem
from mb_overlap.rule import Rule

_WAY = "each pipeline schedule of Megatron Core is written for certain ways of sending"
_MODEL = (
    "model.overlap_p2p_comm",
    "model.batch_p2p_comm",
    "model.pipeline_model_parallel_size",
    "model.virtual_pipeline_model_parallel_size",
    "facts.resolved",
)
_WISH = ("comm_overlap.overlap_p2p_comm", "comm_overlap.batch_p2p_comm", *_MODEL[2:4])


def _wish_fits_the_schedule(
    overlap_p2p_comm: bool | None, batch_p2p_comm: bool | None, pp: int | None, vp: int | None
) -> str | None:
    return sending_problem(pp, vp, *choose_sending(pp, vp, overlap_p2p_comm, batch_p2p_comm))


def _model_fits_the_schedule(
    overlap_p2p_comm: bool | None, batch_p2p_comm: bool | None, pp: int | None, vp: int | None, resolved: bool
) -> str | None:
    return sending_problem(pp, vp, bool(overlap_p2p_comm), bool(batch_p2p_comm)) if resolved else None


def _sends_are_hidden(
    overlap_p2p_comm: bool | None, batch_p2p_comm: bool | None, pp: int | None, vp: int | None, resolved: bool
) -> str | None:
    if not resolved or overlap_p2p_comm or (pp or 1) < 2 or (vp or 1) < 2:
        return None
    if sending_problem(pp, vp, False, bool(batch_p2p_comm)):
        return None
    return f"interleaved stages send without overlap (pp={pp}, vp={vp}, overlap_p2p_comm={overlap_p2p_comm})"


SENDING = Rule(
    id="O05",
    fields=_WISH,
    test=_wish_fits_the_schedule,
    why=_WAY,
    fix="Leave comm_overlap.overlap_p2p_comm and comm_overlap.batch_p2p_comm unset.",
    fails=dict(zip(_WISH, (None, True, 2, 2), strict=True)),
    passes=dict(zip(_WISH, (None, None, 2, 2), strict=True)),
)

MODEL_SENDING = Rule(
    id="O05M",
    fields=_MODEL,
    test=_model_fits_the_schedule,
    why=_WAY,
    fix="Add a comm_overlap section, or set model.overlap_p2p_comm=true and model.batch_p2p_comm=false with "
    "virtual pipeline stages, the other way round without.",
    fails=dict(zip(_MODEL, (False, True, 2, 2, True), strict=True)),
    passes=dict(zip(_MODEL, (True, False, 2, 2, True), strict=True)),
)
"""`facts.resolved`: no section `comm_overlap` is going to change these values any more."""

EXPOSED_SENDS = Rule(
    id="O05W",
    fields=_MODEL,
    test=_sends_are_hidden,
    why="more chunks mean more messages, and each of them is waited for",
    fix="Set model.overlap_p2p_comm=true and model.batch_p2p_comm=false, or give up the virtual stages.",
    severity="warning",
    fails=dict(zip(_MODEL, (False, True, 4, 2, True), strict=True)),
    passes=dict(zip(_MODEL, (True, False, 4, 2, True), strict=True)),
)

RULES: tuple[Rule, ...] = (SENDING, MODEL_SENDING, EXPOSED_SENDS)
"""Every rule of this file."""
