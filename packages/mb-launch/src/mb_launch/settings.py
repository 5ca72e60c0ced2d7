"""Settings that process groups and seeds read, as Protocols, and records with defaults. The standard library only.

Megatron Core's `TransformerConfig` fits `ParallelSizes`. The records are for scripts without a configuration.
"""

from dataclasses import dataclass
from typing import Literal, Protocol


class ParallelSizes(Protocol):
    """Degrees of model parallelism, under the names of Megatron's `ModelParallelConfig`."""

    @property
    def tensor_model_parallel_size(self) -> int:
        """Ranks that share each layer."""

    @property
    def pipeline_model_parallel_size(self) -> int:
        """Pipeline stages."""

    @property
    def virtual_pipeline_model_parallel_size(self) -> int | None:
        """Model chunks of each stage; None: one."""

    @property
    def context_parallel_size(self) -> int:
        """Ranks that share each sequence."""

    @property
    def hierarchical_context_parallel_sizes(self) -> list[int] | None:
        """Degrees of each level of context parallelism; None: one level."""

    @property
    def expert_model_parallel_size(self) -> int:
        """Ranks over which the experts are distributed."""

    @property
    def expert_tensor_parallel_size(self) -> int | None:
        """Ranks that share each expert; None: as many as share each layer."""


class GroupSettings(Protocol):
    """Settings of Megatron's process groups."""

    @property
    def distributed_timeout_minutes(self) -> int:
        """Minutes after which a collective counts as hung."""

    @property
    def use_tp_pp_dp_mapping(self) -> bool:
        """Order ranks tp-cp-ep-pp-dp instead of tp-cp-ep-dp-pp."""

    @property
    def use_gloo_process_groups(self) -> bool:
        """Open gloo groups in addition to those of the backend."""

    @property
    def use_sharp(self) -> bool:
        """Reduce in the network (SHARP)."""

    @property
    def sharp_enabled_group(self) -> Literal["dp", "dp_replica"] | None:
        """Group that SHARP applies to."""

    @property
    def high_priority_stream_groups(self) -> list[str] | None:
        """Groups whose communication runs on high-priority streams."""

    @property
    def nccl_communicator_config_path(self) -> str | None:
        """YAML file with settings of the NCCL communicators."""

    @property
    def use_decentralized_pg(self) -> bool:
        """Pass process groups explicitly; Megatron's global `parallel_state` remains empty."""


class SeedSettings(Protocol):
    """Settings of random number generators."""

    @property
    def seed(self) -> int:
        """Base seed, above 0."""

    @property
    def te_rng_tracker(self) -> bool:
        """Keep random states in Transformer Engine's tracker."""

    @property
    def inference_rng_tracker(self) -> bool:
        """Keep random states in the tracker for inference."""

    @property
    def data_parallel_random_init(self) -> bool:
        """Use different seeds in data-parallel replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelDegrees:
    """Degrees of model parallelism; the remaining ranks are data-parallel replicas."""

    tensor_model_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    virtual_pipeline_model_parallel_size: int | None = None
    context_parallel_size: int = 1
    hierarchical_context_parallel_sizes: list[int] | None = None
    expert_model_parallel_size: int = 1
    expert_tensor_parallel_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """Options of Megatron's process groups; see `GroupSettings`."""

    distributed_timeout_minutes: int = 10
    use_tp_pp_dp_mapping: bool = False
    use_gloo_process_groups: bool = False
    use_sharp: bool = False
    sharp_enabled_group: Literal["dp", "dp_replica"] | None = None
    high_priority_stream_groups: list[str] | None = None
    nccl_communicator_config_path: str | None = None
    use_decentralized_pg: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedOptions:
    """Seed and options of random number generators; see `SeedSettings`."""

    seed: int = 1234
    te_rng_tracker: bool = False
    inference_rng_tracker: bool = False
    data_parallel_random_init: bool = False
