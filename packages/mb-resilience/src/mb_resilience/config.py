"""Configuration of fault handling. Plain data: the standard library only."""

from dataclasses import dataclass
from typing import Literal

from mb_resilience.strict_fields import StrictFields


@dataclass(kw_only=True)
class FaultToleranceConfig(StrictFields):
    """The fault-tolerance launcher of nvidia-resiliency-ext (NVRx): section `ft`."""

    enable_ft_package: bool = False
    """Report to the launcher which section of the run each rank is in."""

    calc_ft_timeouts: bool = False
    """Derive the time-out of each section from the times seen."""

    simulate_fault: bool = False
    """Break one rank on purpose, at each start of the run, to test recovery."""

    simulated_fault_type: Literal["rank_hung", "rank_killed", "random"] = "random"
    """What happens to it."""

    simulated_fault_rank: int | None = None
    """Which rank breaks; None: one at random."""

    simulated_fault_base_delay: int = 0
    """Seconds until it breaks; up to 20 % more are added at random."""


@dataclass(kw_only=True)
class StragglerDetectionConfig(StrictFields):
    """Megatron Core's own speed report per rank: section `straggler`."""

    enable_straggler_on_startup: bool = True
    """Begin with the detector running."""

    log_straggler: bool = False
    """Measure each rank's speed and report it at the log interval."""

    straggler_ctrlr_port: int = 65535
    """TCP port on rank 0 that switches the detector on and off, if `straggler_ctrlr` is set."""

    straggler_minmax_count: int = 1
    """How many of the slowest and of the fastest ranks are named."""

    disable_straggler_on_startup: bool = False
    """Begin with the detector paused."""

    straggler_ctrlr: bool = False
    """Open the port on rank 0. A request needs the token in `straggler_token` of the run folder."""

    straggler_ctrlr_host: str = "127.0.0.1"
    """Address on which rank 0 listens; by default only the machine of rank 0 can reach it."""


@dataclass(kw_only=True)
class NVRxStragglerDetectionConfig(StrictFields):
    """NVRx's straggler detection: section `nvrx_straggler`."""

    enabled: bool = False
    """Look for slow ranks."""

    report_time_interval: float = 300.0
    """Seconds between reports."""

    calc_relative_gpu_perf: bool = True
    """Score each GPU against the others."""

    calc_individual_gpu_perf: bool = True
    """Score each GPU against its own past."""

    num_gpu_perf_scores_to_print: int = 5
    """How many of the best and of the worst scores are printed; 0: only when a straggler is found."""

    gpu_relative_perf_threshold: float = 0.7
    """A GPU whose score against the others, between 0 and 1, is below this is a straggler."""

    gpu_individual_perf_threshold: float = 0.7
    """A GPU whose score against its own past, between 0 and 1, is below this is a straggler."""

    stop_if_detected: bool = False
    """Save and end training when a straggler is found."""

    enable_logging: bool = True
    """Log the lowest, middle and highest score."""

    profiling_interval: int = 1
    """Every how many calls one is measured."""

    logger_name: str = "megatron.bridge.NVRxStragglerDetection"
    """Name of the logger that reports go to."""

    def finalize(self) -> None:
        """Check the section alone. Changes nothing.

        Raises:
            SectionError: it is on with settings that cannot work (V071), or is not available.
        """
        from mb_resilience.rules import refuse  # noqa: PLC0415 (rules reads the defaults of the sections here)

        refuse(self, section="nvrx_straggler")


@dataclass(kw_only=True)
class InProcessRestartConfig(StrictFields):
    """NVRx's restart of the training function within the process: section `inprocess_restart`. Times in seconds."""

    enabled: bool = False
    """Start the training function again after a fault, without a new process."""

    max_iterations: int | None = None
    """How often at most; None: no limit."""

    monitor_thread_interval: float = 1.0
    """Time between looks of the monitoring thread."""

    monitor_process_interval: float = 1.0
    """Time between looks of the monitoring process."""

    progress_watchdog_interval: float = 1.0
    """Time between automatic signs of progress."""

    heartbeat_interval: float = 30.0
    """Time between checks that a rank is alive."""

    soft_timeout: float = 60.0
    """Without progress for so long, a rank is interrupted."""

    hard_timeout: float = 90.0
    """Without progress for so long, a rank is killed."""

    heartbeat_timeout: float = 60.0
    """Without a heartbeat for so long, a rank counts as dead."""

    barrier_timeout: float = 120.0
    """Longest wait at the barriers of a restart."""

    completion_timeout: float = 120.0
    """Longest wait at the barrier at the end."""

    last_call_wait: float = 1.0
    """How long other ranks may add their faults to the first one."""

    termination_grace_time: float = 1.0
    """Time between SIGTERM and SIGKILL."""

    granularity: Literal["node", "rank"] = "node"
    """What is left out after a fault: the whole node, or the rank."""

    active_world_size: int | None = None
    """Ranks that work, the others stand by; None: all."""

    empty_cuda_cache: bool = True
    """Free the cached device memory at a restart."""

    max_rank_faults: int | None = None
    """Give up after so many faults; None: never."""

    monitor_process_logdir: str | None = None
    """Directory of the monitoring processes' logs; None: no logs."""


@dataclass(kw_only=True)
class RerunStateMachineConfig(StrictFields):
    """Megatron Core's machine that runs a suspicious step again: section `rerun_state_machine`."""

    rerun_mode: Literal["disabled", "validate_results", "report_determinism_stats"] = "disabled"
    """Never run a step again; run it again to find out whether a bad result was the machine's; or measure how far
    results differ between runs."""

    spiky_loss_factor: float = 10.0
    """A loss is suspicious at this multiple of the largest one seen at the beginning."""

    error_injection_rate: int = 0
    """One false result per so many checks, to test the machine; 0: none."""

    error_injection_type: Literal["correct_result", "transient_error", "persistent_error"] = "transient_error"
    """What kind of fault the false result stands for."""

    check_for_nan_in_loss: bool = True
    """A loss that is NaN or infinite is an error, at the cost of one wait for the device per microbatch. Whoever
    drives the machine looks: nothing in this package does."""

    check_for_spiky_loss: bool = False
    """A suspiciously high loss is reported."""
