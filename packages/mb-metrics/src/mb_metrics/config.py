"""Logging section of the configuration, with the field names of Megatron trainers."""

from dataclasses import dataclass, field
from typing import Literal

from mb_metrics.rules import RULES
from mb_metrics.section_check import reject_violations
from mb_schema.sections import StrictFields


@dataclass(kw_only=True)
class LoggerConfig(StrictFields):
    """Configuration of training metrics and their destinations.

    `build_sinks`, `build_samplers`, `build_reductions` and `configure_logging` apply it. `mb_metrics.rules` rejects
    options that are not implemented instead of ignoring them. TensorBoard, Weights & Biases, MLflow and Comet receive
    the same metrics: a field that names TensorBoard applies to all four.
    """

    skip_train_metrics_log: bool = False
    """Log no training metrics at all, neither on the console nor in files."""
    console: Literal["auto", "short", "megatron"] = "auto"
    """Lines on the console: "short" prints one aligned line per log interval that fits into the terminal, and writes
    Megatron's lines to log.txt only; "megatron" prints Megatron's lines, which other programs parse. "auto" is "short"
    on a terminal and "megatron" elsewhere."""
    log_interval: int = 100
    """Steps between console lines; a step's metrics are written to files then, too."""
    log_throughput: bool = False
    """Show TFLOP/s per GPU on the iteration line of the console."""
    throughput_window_size: int = 100
    """Steps over which throughput is averaged."""
    log_progress: bool = False
    """Append the start of the job and each checkpoint, with throughput, to progress.txt in the checkpoint folder."""
    save_config_filepath: str | None = None
    """Path of an additional copy of the full configuration as YAML, written at the start; None: run folder only."""

    tensorboard_dir: str | None = None
    """Folder of the TensorBoard event files; None: no TensorBoard."""
    tensorboard_log_interval: int = 1
    """Steps between points in TensorBoard. Metrics that are measured only at the end of a log interval (throughput,
    memory, times, norms) are written if that step is due: set one of the two intervals to a multiple of the other."""
    tensorboard_queue_size: int = 1000
    """Number of steps that may wait for TensorBoard's files while the disk is full; the oldest beyond it are lost."""
    log_throughput_to_tensorboard: bool = False
    """Write throughput, TFLOP/s and MFU to TensorBoard."""
    log_timers_to_tensorboard: bool = False
    """Write the time of a step to TensorBoard, in seconds."""
    log_loss_scale_to_tensorboard: bool = True
    """Write the loss scale to TensorBoard."""
    log_validation_ppl_to_tensorboard: bool = False
    """Write validation perplexity, in addition to the validation loss, to TensorBoard."""
    log_world_size_to_tensorboard: bool = False
    """Write the number of processes to TensorBoard."""
    log_memory_to_tensorboard: bool = False
    """Write device memory statistics, the largest over pipeline stages, to TensorBoard."""
    log_l2_norm_grad_to_tensorboard: bool = False
    """Write the gradient norm of each parameter to TensorBoard."""
    log_runtime_to_tensorboard: bool = False
    """Write time spent and time left to TensorBoard."""
    runtime_time_unit: str = "hours"
    """Unit of those times: seconds, minutes, hours or days."""

    log_params_norm: bool = False
    """Compute and log the L2 norm of all parameters."""
    tensor_norms_steps: list[int] | None = None
    """Steps of which tensor_norms.jsonl in the run folder has the norms of every weight, gradient and module output;
    None: no step."""
    log_num_zeros_in_grad: bool = False
    """Count zero gradients. Set `optimizer.log_num_zeros_in_grad` instead."""
    log_max_attention_logit: bool = False
    """Log the largest attention logit. Set `model.log_max_attention_logit` instead."""
    log_energy: bool = False
    """Measure GPU energy and log joules per step and watts."""
    memory_keys: dict[str, str] | None = None
    """Reported entries of torch.cuda.memory_stats(), mapped to metric names; None: a built-in table."""
    log_memory_interval: int | None = None
    """Steps between memory reports, a multiple of log_interval; None: each log interval."""
    log_device_memory_used: bool = False
    """Report device memory in use as reported by the driver."""

    timing_log_level: Literal[-1, 0, 1, 2] = 0
    """Detail of timers: -1 none, 0 the step, 1 operations once per step, 2 all. Steps are timed at every level."""
    timing_log_option: Literal["max", "minmax", "all"] = "minmax"
    """Summary of timers over ranks."""
    barrier_with_L1_time: bool = True
    """Barrier before timers of level 1. Set `optimizer.barrier_with_L1_time` instead."""

    logging_level: int | None = None
    """Level of Python's logging; None: the environment's MEGATRON_LOGGING_LEVEL, else INFO."""
    filter_warnings: bool = True
    """Drop log records of level WARNING, except those of the trainer."""
    modules_to_filter: list[str] | None = None
    """Logger names whose records, and those of loggers below them, are dropped."""
    set_level_for_all_loggers: bool = False
    """Set the level on every logger, not only on the root logger."""

    wandb_project: str | None = None
    """Weights & Biases project; None: no Weights & Biases."""
    wandb_exp_name: str | None = None
    """Weights & Biases run name."""
    wandb_save_dir: str | None = None
    """Folder of Weights & Biases' local files; None: wandb/ in the run folder."""
    wandb_entity: str | None = None
    """Weights & Biases team or user."""

    mlflow_experiment: str | None = None
    """MLflow experiment; None: no MLflow."""
    mlflow_run_name: str | None = None
    """MLflow run name, required with an experiment."""
    mlflow_tracking_uri: str | None = None
    """Address of the MLflow server."""
    mlflow_tags: dict[str, str] | None = None
    """Tags of the MLflow run."""
    mlflow_description: str | None = None
    """Free text on the MLflow run."""
    mlflow_log_artifacts: bool = True
    """Upload the settings to MLflow, and each persistent checkpoint when it is complete, as
    "checkpoints/iter_0000010". Uploads run concurrently with training and have 120 s at its end; unfinished uploads
    are reported."""

    comet_project: str | None = None
    """Comet project; None: no Comet."""
    comet_experiment_name: str | None = None
    """Comet experiment name, required with a project."""
    comet_workspace: str | None = None
    """Comet workspace; None: the account's default."""
    comet_api_key: str | None = field(default=None, repr=False)
    """Comet API key; None: the environment variable COMET_API_KEY, which is preferred."""
    comet_tags: list[str] | None = None
    """Tags of the Comet experiment."""

    moe_routing_trace_path: str | None = None
    """Folder of traces of mixture-of-experts routing."""
    moe_routing_trace_max_training_iters: int | None = None
    """Steps to trace."""
    moe_routing_trace_capture_logits: bool = False
    """Trace the router's logits."""
    moe_routing_trace_capture_hidden_states: bool = False
    """Trace the router's inputs."""
    moe_routing_trace_dump_weights: bool = False
    """Store the router's weights with the trace."""

    def finalize(self) -> None:
        """Check the section in isolation, without modifying it.

        Raises:
            SectionError: settings exclude each other or are not implemented (V052, V054 and others).
            MissingPackageError: a back-end is enabled whose package is not installed (V053, V055).
        """
        reject_violations(self, section="logger", rules=RULES)
