"""What is set up before the first step: process groups and random numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mb_config.section import Section


@dataclass(kw_only=True)
class RNGConfig(Section):
    """Random numbers."""

    seed: int = 1234
    """Base seed, above 0. Pipeline stages and, if asked, replicas derive theirs from it."""

    te_rng_tracker: bool = False
    """Keep random states in Transformer Engine's tracker (CUDA graphs need it)."""

    inference_rng_tracker: bool = False
    """Keep random states in the tracker for inference."""

    data_parallel_random_init: bool = False
    """Give each data-parallel replica initial weights of its own."""


@dataclass(kw_only=True)
class DistributedInitConfig(Section):
    """How processes find each other. Building this reads no environment variable."""

    distributed_backend: Literal["nccl", "gloo"] = "nccl"
    """Backend that the run is meant for. The trainer takes the one that the device needs."""

    distributed_timeout_minutes: int = 10
    """Minutes until a collective of the start-up counts as hung, at least 1."""

    align_grad_reduce: bool = True
    """Start the gradient reduction of all pipeline stages at the same time."""

    local_rank: int = 0
    """Index of the device on this machine; the launcher's, set by the trainer at start."""

    lazy_mpu_init: bool = False
    """Leave the process groups to the caller; weights are then initialised on the CPU."""

    use_megatron_fsdp: bool = False
    """Shard parameters with Megatron-FSDP."""

    use_torch_fsdp2: bool = False
    """Shard parameters with torch's FSDP2; not together with Megatron-FSDP."""

    nccl_communicator_config_path: str | None = None
    """YAML file with settings of the NCCL communicators."""

    use_tp_pp_dp_mapping: bool = False
    """Order ranks tp-cp-ep-pp-dp instead of tp-cp-ep-dp-pp."""

    use_gloo_process_groups: bool = True
    """Make gloo groups beside the backend's own."""

    use_sharp: bool = False
    """Reduce in the network (SHARP) in data-parallel groups."""

    sharp_enabled_group: Literal["dp", "dp_replica"] | None = None
    """Which group gets SHARP."""

    high_priority_stream_groups: list[str] | None = field(default_factory=list)
    """Groups whose communication runs on streams of high priority."""

    distributed_timeout_seconds_after_init: int | None = None
    """Seconds of time-out for all groups after the first step, at least 1; None: unchanged."""

    flight_recorder_dump_path: str | None = None
    """Prefix of the dump files of NCCL's flight recorder; None: off."""

    flight_recorder_trace_buffer_size: int = 2000
    """Entries that the recorder keeps."""

    flight_recorder_dump_on_timeout: bool = True
    """Dump when a collective times out."""

    flight_recorder_include_stack_trace: bool = False
    """Put Python stacks into the dump."""

    flight_recorder_include_only_active: bool = True
    """Dump only what has not finished."""

    flight_recorder_extra_dump_on_exec: bool = True
    """Dump on an exception too."""

    disable_jit_fuser: bool = False
    """Do not fuse operations with torch's compiler."""

    external_gpu_device_mapping: bool = False
    """The launcher shows each process one GPU: always use device 0."""

    enable_megatron_core_experimental: bool = False
    """Switch Megatron Core's experimental features on."""

    use_decentralized_pg: bool = False
    """Hand process groups over explicitly instead of through Megatron's globals; needs gloo groups off."""

    eval_context_parallel_size: int | None = None
    """Context-parallel degree of the evaluation alone; needs `use_decentralized_pg`."""

    @property
    def lazy_init(self) -> bool:
        """Another name of `lazy_mpu_init`."""
        return self.lazy_mpu_init

    @lazy_init.setter
    def lazy_init(self, value: bool) -> None:
        self.lazy_mpu_init = value
