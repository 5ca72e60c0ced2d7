"""Point-to-point communication between pipeline stages: the mode of Megatron Core that each schedule supports."""


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
