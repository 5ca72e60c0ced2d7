"""How pipeline stages send to each other: which of Megatron Core's two ways suits which schedule."""


def choose_p2p_comm(
    pp: int | None, vp: int | None, overlap_p2p_comm: bool | None, batch_p2p_comm: bool | None
) -> tuple[bool, bool]:
    """Return (overlap_p2p_comm, batch_p2p_comm) for a schedule; a wish that is not None stands.

    The interleaved schedule overlaps its sends and receives (unless they are to be batched), the plain one
    batches them, and a single stage does neither.

    Args:
        pp: pipeline stages; None counts as 1.
        vp: model chunks in a stage; None counts as 1.
        overlap_p2p_comm: the user's wish, or None.
        batch_p2p_comm: the user's wish, or None.
    """
    pipelined = (pp or 1) > 1
    interleaved = pipelined and (vp or 1) > 1
    overlap = interleaved and not batch_p2p_comm if overlap_p2p_comm is None else overlap_p2p_comm
    batch = pipelined and not interleaved if batch_p2p_comm is None else batch_p2p_comm
    return overlap, batch


def p2p_comm_problem(
    pp: int | None, vp: int | None, overlap_p2p_comm: bool, batch_p2p_comm: bool
) -> str | None:
    """Say what is wrong with a way of sending under a schedule, or return None.

    Megatron Core refuses the first two cases when the first step runs. It does not see the third one: with two
    interleaved stages, the batched messages of both directions go to the same rank and are taken for each
    other, and the model trains on, wrongly. With three stages or more the batched way is right, and so is, with
    any number, neither to overlap nor to batch.
    """
    chosen = f"pp={pp}, vp={vp}, overlap_p2p_comm={overlap_p2p_comm}, batch_p2p_comm={batch_p2p_comm}"
    if (pp or 1) < 2:
        return None
    if (vp or 1) < 2:
        return f"the plain pipeline schedule cannot overlap ({chosen})" if overlap_p2p_comm else None
    if overlap_p2p_comm and batch_p2p_comm:
        return f"sends cannot be overlapped and batched at once ({chosen})"
    if pp == 2 and batch_p2p_comm:
        return f"two interleaved stages that batch their sends train wrongly ({chosen})"
    return None
