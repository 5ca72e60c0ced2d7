"""Environment variables that control overlap and must be set before CUDA is initialized."""

from collections.abc import Mapping
from typing import Protocol

from mb_schema.gpu_capabilities import CAPABILITIES
from mb_schema.gpu_names import find_short_name, short_name

MAX_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
MARGINS = ("NVTE_FWD_LAYERNORM_SM_MARGIN", "NVTE_BWD_LAYERNORM_SM_MARGIN")

HOPPER = 9
"""Compute capability (major) of the last generation that overlaps best with one queue."""

GENERATIONS: Mapping[str, int] = {name: major for name, (major, _) in CAPABILITIES.items()}
"""Short name of a GPU to the major number of its compute capability."""


def generation(gpu: str | int | None) -> int | None:
    """Return the major compute capability of a GPU, given by name or by that number; None if unknown."""
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
    """Return the environment variables to set for good overlap with this parallel layout, except those already set.

    Set them before CUDA is initialized, because they are read only then. CUDA_DEVICE_MAX_CONNECTIONS is the number of
    hardware queues. Up to Hopper, a single queue preserves the launch order, so that a communication kernel starts
    before the GEMM that hides it. This is required with tensor or context parallelism, but it serializes
    Megatron-FSDP's all-gathers and the expert-parallel all-to-all, which need several queues. From Blackwell on,
    streams need many queues to run concurrently at all. The default of the device is 8.

    The two SM margins keep multiprocessors free of Transformer Engine's persistent norm kernels; without them such a
    kernel waits until concurrent communication has ended. 16 leaves room for data-parallel and pipeline communication,
    20 for the kernels of the experts.

    Args:
        gpu: name ("h100", or as printed by nvidia-smi) or major compute capability (9); None returns nothing.
        tp: number of ranks in the tensor-parallel group.
        cp: number of ranks in the context-parallel group.
        dp: number of ranks in the data-parallel group; None if unknown, which sets the margins as for several ranks.
        pp: number of pipeline stages.
        fsdp: whether Megatron-FSDP shards the parameters.
        moe_overlap: whether expert-parallel communication runs concurrently with computation: the all-to-all is
            overlapped, or performed by DeepEP or HybridEP.
        env: variables that are already set; their values are never replaced.

    Raises:
        UnknownGpuError: `gpu` is an unknown name.
    """
    major = GENERATIONS[short_name(gpu, GENERATIONS)] if isinstance(gpu, str) else gpu
    if major is None:
        return {}
    concurrent = dp is None or dp > 1 or pp > 1
    connections = _connections(
        major, ordered=tp > 1 or cp > 1, concurrent=concurrent, fsdp=fsdp, experts=moe_overlap
    )
    margin = "20" if moe_overlap else "16" if concurrent else None
    recommended = {MAX_CONNECTIONS: connections, **dict.fromkeys(MARGINS, margin)}
    already_set = () if env is None else env
    return {
        name: value for name, value in recommended.items() if value is not None and name not in already_set
    }


def _connections(major: int, *, ordered: bool, concurrent: bool, fsdp: bool, experts: bool) -> str | None:
    if experts or (major > HOPPER and ordered and concurrent):
        return "32"
    return "1" if ordered and major <= HOPPER and not fsdp else None


class ParallelModel(Protocol):
    """Parallel sizes of a model section, and its expert communication."""

    @property
    def tensor_model_parallel_size(self) -> int: ...  # noqa: D102

    @property
    def context_parallel_size(self) -> int: ...  # noqa: D102

    @property
    def pipeline_model_parallel_size(self) -> int: ...  # noqa: D102

    @property
    def overlap_moe_expert_parallel_comm(self) -> bool: ...  # noqa: D102

    @property
    def moe_token_dispatcher_type(self) -> str: ...  # noqa: D102


def model_env_vars(
    model: ParallelModel,
    *,
    world_size: int,
    gpu: str | int | None,
    fsdp: bool = False,
    env: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return `recommended_env_vars` for a model section.

    Args:
        model: parallel sizes.
        world_size: number of ranks of the run.
        gpu: as in `recommended_env_vars`.
        fsdp: whether Megatron-FSDP shards the parameters.
        env: variables that are already set.

    Raises:
        UnknownGpuError: `gpu` is an unknown name.
    """
    tp, cp, pp = (
        model.tensor_model_parallel_size,
        model.context_parallel_size,
        model.pipeline_model_parallel_size,
    )
    return recommended_env_vars(
        gpu=gpu,
        tp=tp,
        cp=cp,
        pp=pp,
        dp=world_size // (tp * cp * pp),
        fsdp=fsdp,
        moe_overlap=model.overlap_moe_expert_parallel_comm or model.moe_token_dispatcher_type == "flex",
        env=env,
    )
