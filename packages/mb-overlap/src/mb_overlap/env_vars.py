"""Variables that must stand before CUDA starts, and what they decide for overlap."""

from collections.abc import Mapping

from mb_overlap._gpu_names import find_short_name, short_name

MAX_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
MARGINS = ("NVTE_FWD_LAYERNORM_SM_MARGIN", "NVTE_BWD_LAYERNORM_SM_MARGIN")

HOPPER = 9
"""Compute capability (major) of the last generation that overlaps best with one queue."""

GENERATIONS: Mapping[str, int] = {
    "v100": 7,
    "t4": 7,
    "a100": 8,
    "a800": 8,
    "a30": 8,
    "a10": 8,
    "a40": 8,
    "l4": 8,
    "l40": 8,
    "l40s": 8,
    "h20": 9,
    "h100": 9,
    "h200": 9,
    "h800": 9,
    "gh200": 9,
    "b200": 10,
    "gb200": 10,
    "b300": 10,
    "gb300": 10,
}
"""Short name of a GPU to the major number of its compute capability."""


def generation(gpu: str | int | None) -> int | None:
    """Return the major compute capability of a GPU, given by its name or by that number; None: not known."""
    return GENERATIONS.get(find_short_name(gpu, GENERATIONS) or "") if isinstance(gpu, str) else gpu


def recommended_env_vars(
    *,
    gpu: str | int | None,
    tp: int = 1,
    cp: int = 1,
    dp: int | None = None,
    pp: int = 1,
    fsdp: bool = False,
    moe_overlap: bool = False,
    env: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the variables to set so that this layout overlaps well, without those that the user has set.

    Set them before CUDA starts: they are read only then. CUDA_DEVICE_MAX_CONNECTIONS is the number of hardware
    queues. Up to Hopper a single queue keeps the order of launches, so that a communication kernel starts before the
    GEMM that hides it; that is wanted as soon as tensor or context parallelism communicates, but it would serialise
    Megatron-FSDP's gathers and the experts' all-to-all, which need several queues. From Blackwell on, streams need
    many queues to run side by side at all. The device's own default is 8.

    The two margins keep multiprocessors free of Transformer Engine's persistent norm kernels: without them such a
    kernel waits until the communication that runs beside it has ended. 16 leaves room for data-parallel and pipeline
    communication, 20 for the experts' kernels.

    Args:
        gpu: name ("h100", or as nvidia-smi prints it) or major compute capability (9); None is no advice.
        tp: ranks in the tensor-parallel group.
        cp: ranks in the context-parallel group.
        dp: ranks in the data-parallel group; None: not known, and the margins are set as with several.
        pp: pipeline stages.
        fsdp: whether Megatron-FSDP shards the parameters.
        moe_overlap: whether the experts' exchange runs beside computation: their all-to-all is overlapped, or
            DeepEP or HybridEP carries it.
        env: variables that are already set; such a value is never replaced.

    Raises:
        UnknownGpuError: `gpu` is an unknown name.
    """
    major = GENERATIONS[short_name(gpu, GENERATIONS)] if isinstance(gpu, str) else gpu
    if major is None:
        return {}
    beside = dp is None or dp > 1 or pp > 1
    connections = _connections(major, ordered=tp > 1 or cp > 1, beside=beside, fsdp=fsdp, experts=moe_overlap)
    margin = "20" if moe_overlap else "16" if beside else None
    advice = {MAX_CONNECTIONS: connections, **dict.fromkeys(MARGINS, margin)}
    return {
        name: value
        for name, value in advice.items()
        if value is not None and (env is None or name not in env)
    }


def _connections(major: int, *, ordered: bool, beside: bool, fsdp: bool, experts: bool) -> str | None:
    if experts or (major > HOPPER and ordered and beside):
        return "32"
    return "1" if ordered and major <= HOPPER and not fsdp else None
