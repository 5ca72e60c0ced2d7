"""Sections of initialization: process groups and random numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mb_config.container.section import Section


@dataclass(kw_only=True)
class RNGConfig(Section):
    """Settings of random numbers."""

    seed: int = 1234
    """Base seed, above 0. The seeds of pipeline stages and, optionally, of replicas are derived from it."""

    te_rng_tracker: bool = False
    """Use Transformer Engine's RNG tracker, which CUDA graphs require."""

    inference_rng_tracker: bool = False
    """Use the RNG tracker for inference."""

    data_parallel_random_init: bool = False
    """Derive a separate seed for each data-parallel replica, so that dropout draws different masks in each; the weights
    of the first replica are copied to the others. False: all replicas draw the same masks, as in Megatron-LM."""


@dataclass(kw_only=True)
class DistributedInitConfig(Section):
    """Settings of torch.distributed and the process groups. The constructor reads no environment variables."""

    distributed_backend: Literal["nccl", "gloo"] = "nccl"
    """Backend of the target machine. The trainer uses the one that the device requires."""

    distributed_timeout_minutes: int = 10
    """Timeout of collectives during initialization in minutes, at least 1."""

    align_grad_reduce: bool = True
    """Start the gradient reduction of all pipeline stages at the same time."""

    local_rank: int = 0
    """Index of the device on this machine, as the launcher sets it; assigned by the trainer at startup."""

    lazy_mpu_init: bool = False
    """Let the caller create the process groups. Weights are then initialized on the CPU."""

    use_megatron_fsdp: bool = False
    """Shard parameters with Megatron-FSDP."""

    use_torch_fsdp2: bool = False
    """Shard parameters with torch's FSDP2. Cannot be combined with Megatron-FSDP."""

    nccl_communicator_config_path: str | None = None
    """YAML file with settings of the NCCL communicators."""

    use_tp_pp_dp_mapping: bool = False
    """Order ranks tp-cp-ep-pp-dp instead of tp-cp-ep-dp-pp."""

    use_gloo_process_groups: bool = True
    """Create gloo groups in addition to those of the backend."""

    use_sharp: bool = False
    """Use in-network reduction (SHARP) in data-parallel groups."""

    sharp_enabled_group: Literal["dp", "dp_replica"] | None = None
    """Group that uses SHARP."""

    high_priority_stream_groups: list[str] | None = field(default_factory=list)
    """Groups whose communication runs on high-priority streams."""

    distributed_timeout_seconds_after_init: int | None = None
    """Timeout of all groups after the first step in seconds, at least 1; None: unchanged."""

    flight_recorder_dump_path: str | None = None
    """Prefix of the dump files of NCCL's flight recorder; None: off."""

    flight_recorder_trace_buffer_size: int = 2000
    """Number of entries in the buffer of the flight recorder."""

    flight_recorder_dump_on_timeout: bool = True
    """Write a dump when a collective times out."""

    flight_recorder_include_stack_trace: bool = False
    """Include Python stack traces in the dump."""

    flight_recorder_include_only_active: bool = True
    """Include only collectives that have not finished."""

    flight_recorder_extra_dump_on_exec: bool = True
    """Also write a dump on an exception."""

    disable_jit_fuser: bool = False
    """Do not fuse operations with torch's compiler."""

    external_gpu_device_mapping: bool = False
    """The launcher makes one GPU visible to each process: always use device 0."""

    enable_megatron_core_experimental: bool = False
    """Enable Megatron Core's experimental features."""

    use_decentralized_pg: bool = False
    """Pass process groups explicitly instead of through Megatron's global state. Requires gloo groups to be off."""

    eval_context_parallel_size: int | None = None
    """Context-parallel size of the evaluation. Requires `use_decentralized_pg`."""

    @property
    def lazy_init(self) -> bool:
        """Alias of `lazy_mpu_init`."""
        return self.lazy_mpu_init

    @lazy_init.setter
    def lazy_init(self, value: bool) -> None:
        self.lazy_mpu_init = value
