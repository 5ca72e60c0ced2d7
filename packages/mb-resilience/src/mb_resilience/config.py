"""Configuration sections of fault handling. Plain data, standard library only."""

from dataclasses import dataclass
from typing import Literal

from mb_resilience.rule_kinds import check_section
from mb_resilience.stragglers.nvrx_straggler_rules import invalid_detector_settings
from mb_schema.sections import StrictFields


@dataclass(kw_only=True)
class FaultToleranceConfig(StrictFields):
    """Section `ft`: fault-tolerance launcher of nvidia-resiliency-ext (NVRx)."""

    enable_ft_package: bool = False
    """Report the current section of the run to the launcher's monitor."""

    calc_ft_timeouts: bool = False
    """Calculate the timeout of each section from observed durations."""

    simulate_fault: bool = False
    """Kill or stop one rank at each start of the run, to test recovery."""

    simulated_fault_type: Literal["rank_hung", "rank_killed", "random"] = "random"
    """Kind of the simulated fault."""

    simulated_fault_rank: int | None = None
    """Rank of the simulated fault; None selects a random rank."""

    simulated_fault_base_delay: float = 0
    """Seconds until the fault; up to 20 % are added at random."""


@dataclass(kw_only=True)
class StragglerDetectionConfig(StrictFields):
    """Section `straggler`: speed report per rank, with Megatron Core's fields."""

    enable_straggler_on_startup: bool = True
    """Start with the timer on."""

    log_straggler: bool = False
    """Measure the speed of each rank and report it at the log interval."""

    straggler_ctrlr_port: int = 65535
    """TCP port on rank 0 that switches the timer on and off, if `straggler_ctrlr` is set; 0: any free port."""

    straggler_minmax_count: int = 1
    """Number of slowest and fastest ranks in a report."""

    disable_straggler_on_startup: bool = False
    """Start with the timer paused."""

    straggler_ctrlr: bool = False
    """Open the port on rank 0. A request needs the token in `straggler_token` of the run folder."""

    straggler_ctrlr_host: str = "127.0.0.1"
    """Address on which rank 0 listens; by default only the machine of rank 0 can reach it."""


@dataclass(kw_only=True)
class NVRxStragglerDetectionConfig(StrictFields):
    """Section `nvrx_straggler`: straggler detection of NVRx."""

    enabled: bool = False
    """Detect slow ranks."""

    report_time_interval: float = 300.0
    """Seconds between reports."""

    calc_relative_gpu_perf: bool = True
    """Calculate the score of each GPU relative to the other GPUs."""

    calc_individual_gpu_perf: bool = True
    """Calculate the score of each GPU relative to its own best performance."""

    num_gpu_perf_scores_to_print: int = 5
    """Number of best and worst scores to print; 0 prints only stragglers."""

    gpu_relative_perf_threshold: float = 0.7
    """A GPU with a lower relative score (0 to 1) is a straggler."""

    gpu_individual_perf_threshold: float = 0.7
    """A GPU with a lower individual score (0 to 1) is a straggler."""

    stop_if_detected: bool = False
    """Save and stop training when a straggler is found."""

    enable_logging: bool = True
    """Log the minimum, median and maximum of the scores."""

    profiling_interval: int = 1
    """Interval of measured calls: every n-th call is measured."""

    logger_name: str = "megatron.bridge.NVRxStragglerDetection"
    """Name of the logger for reports."""

    def finalize(self) -> None:
        """Validate this section by itself. Does not modify it.

        Raises:
            SectionError: the section is enabled with invalid settings (V071).
        """
        check_section(self, section="nvrx_straggler", rules=[invalid_detector_settings])


@dataclass(kw_only=True)
class InProcessRestartConfig(StrictFields):
    """Section `inprocess_restart`: in-process restart of the training function by NVRx. Times in seconds."""

    enabled: bool = False
    """Restart the training function after a fault, without a new process."""

    max_iterations: int | None = None
    """Maximum number of restarts; None for no limit."""

    monitor_thread_interval: float = 1.0
    """Polling interval of the monitoring thread."""

    monitor_process_interval: float = 1.0
    """Polling interval of the monitoring process."""

    progress_watchdog_interval: float = 1.0
    """Interval of automatic progress reports."""

    heartbeat_interval: float = 30.0
    """Interval at which the monitoring process of each rank sends a heartbeat, and checks those of the next rank."""

    soft_timeout: float = 60.0
    """Time without progress after which a rank is interrupted."""

    hard_timeout: float = 90.0
    """Time without progress after which a rank is killed."""

    heartbeat_timeout: float = 60.0
    """Time without a heartbeat after which a rank is terminated as unresponsive."""

    barrier_timeout: float = 120.0
    """Timeout of the barriers of a restart."""

    completion_timeout: float = 120.0
    """Timeout of the barrier at the end."""

    last_call_wait: float = 1.0
    """Time after the first fault during which further faults are collected."""

    termination_grace_time: float = 1.0
    """Time between SIGTERM and SIGKILL."""

    granularity: Literal["node", "rank"] = "node"
    """Unit that is excluded after a fault: the complete node, or the rank."""

    active_world_size: int | None = None
    """Number of active ranks, the others are spares; None for all ranks."""

    empty_cuda_cache: bool = True
    """Release cached device memory at a restart."""

    max_rank_faults: int | None = None
    """Maximum number of attempts of one process that may end with an exception of the training function; with one more,
    the process leaves the run. Hangs do not count. None for no limit."""

    monitor_process_logdir: str | None = None
    """Directory of the logs of the monitoring processes; None for no logs."""


@dataclass(kw_only=True)
class RerunStateMachineConfig(StrictFields):
    """Section `rerun_state_machine`: Megatron Core's state machine that reruns a suspicious step."""

    rerun_mode: Literal["disabled", "validate_results", "report_determinism_stats"] = "disabled"
    """Never rerun a step; rerun it to attribute an invalid result to hardware or software; or measure differences
    between runs."""

    spiky_loss_factor: float = 10.0
    """A loss is suspicious at this multiple of the largest one at the start of training."""

    error_injection_rate: int = 0
    """Inject one false result per this number of checks, to test the state machine; 0 injects none."""

    error_injection_type: Literal["correct_result", "transient_error", "persistent_error"] = "transient_error"
    """Kind of fault that the injected result simulates."""

    check_for_nan_in_loss: bool = True
    """Treat a NaN or infinite loss as an error. The driver of the state machine reads the loss; nothing in this package
    does. Without reruns it reads a flag of the device one step later, and before each checkpoint, at no cost."""

    check_loss_immediately: bool = False
    """Read the loss of each microbatch at once, so that a NaN or infinite one changes no weights, at the cost of one
    device synchronization per microbatch. Reruns and `check_for_spiky_loss` always read it at once."""

    check_for_spiky_loss: bool = False
    """Report a suspiciously high loss."""
