"""CUDA_DEVICE_MAX_CONNECTIONS: how many hardware queues a device gives to the streams of a process."""

HOPPER = 9
"""Compute capability (major) of the last generation that overlaps best with one queue."""


def environment(
    *,
    major: int,
    tp: int = 1,
    cp: int = 1,
    dp: int = 1,
    pp: int = 1,
    fsdp: bool = False,
    moe_overlap: bool = False,
) -> str | None:
    """Return the value of CUDA_DEVICE_MAX_CONNECTIONS that lets this layout overlap; None is: leave it unset.

    Up to Hopper a single queue keeps the order of launches, so that a communication kernel starts before the
    GEMM that hides it; that is wanted as soon as tensor or context parallelism communicates, but it would
    serialise Megatron-FSDP's gathers and the experts' all-to-all, which need several queues. From Blackwell on,
    streams need many queues to run side by side at all. The device's own default is 8.

    Apply the value before CUDA starts, because it is read only then, and only where the user has not set the
    variable: a value in the environment always stands.

    Args:
        major: compute capability of the device: 9 is Hopper, 10 is Blackwell.
        tp: ranks in the tensor-parallel group.
        cp: ranks in the context-parallel group.
        dp: ranks in the data-parallel group.
        pp: pipeline stages.
        fsdp: whether Megatron-FSDP shards the parameters.
        moe_overlap: whether the experts' all-to-all is overlapped.
    """
    layer_communicates = tp > 1 or cp > 1
    if major > HOPPER:
        return "32" if layer_communicates and (dp > 1 or pp > 1) else None
    return "1" if layer_communicates and not (fsdp or moe_overlap) else None
