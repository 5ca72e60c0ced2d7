"""Factories for the sinks, samplers and reductions of a `LoggerConfig`. Disabled back-ends are not imported."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

from mb_metrics.config import LoggerConfig
from mb_metrics.names import ITERATION_TIME, LOSS_SCALE, PERPLEXITY, WORLD_SIZE
from mb_metrics.recorder.energy import EnergySampler
from mb_metrics.recorder.memory_sampler import MemorySampler, memory_names
from mb_metrics.recorder.recorded_steps import Reduction, Sampler
from mb_metrics.sinks.background import BackgroundSink
from mb_metrics.sinks.console import ConsoleSink, TextStream
from mb_metrics.sinks.jsonl import JsonlSink
from mb_metrics.sinks.sink import FilterSink, Sink
from mb_metrics.sinks.terminal import StyledTerminal, TerminalSink
from mb_metrics.sinks.tracker_run import TrackerRunFile

CLOSE_SECONDS = 120.0
"""Seconds that queued uploads may take at the end of a run; without an outage they finish at once."""


def build_sinks(  # noqa: PLR0913 - settings, each by name
    config: LoggerConfig,
    *,
    jsonl: str | Path | None = None,
    folder: str | Path | None = None,
    resume_step: int | None = None,
    run_config: Mapping[str, object] | None = None,
    stream: TextStream | None = None,
    print_evaluations: bool = True,
    close_seconds: float = CLOSE_SECONDS,
    end_mark: bool = True,
) -> list[Sink]:
    """Return the sinks for the one rank that writes: console, JSONL and the configured back-ends.

    Empty with `skip_train_metrics_log`. Console and JSONL write synchronously; TensorBoard, W&B, MLflow and Comet
    write in the background. These four receive the groups that are enabled by the `log_..._to_tensorboard` fields,
    every `tensorboard_log_interval` steps; JSONL receives every metric.

    Args:
        config: The logging section.
        jsonl: The metrics file; None: no JSONL.
        folder: The run folder, where trackers store their run id ("wandb_run.json", ...) and local files; None: the
            folder of `jsonl`. Without either, run ids are not stored and a tracker's run cannot be continued.
        resume_step: The last step to keep: rows of later steps are dropped if the sink supports it, and the runs of
            trackers are continued. See `JsonlSink` and `TrackerRunFile`.
        run_config: The full configuration, shown by trackers; secrets are omitted.
        stream: Output stream of the console; None: standard output.
        print_evaluations: Print a console line per evaluation; False if the training loop prints them itself.
        close_seconds: Timeout of each background sink at the end of the run, in seconds. Records and files that are
            not written by then are lost and counted.
        end_mark: If True, the metrics file ends with a mark when it is closed; see `JsonlSink`.

    Raises:
        ModuleNotFoundError: a back-end is enabled and not installed.
    """
    if config.skip_train_metrics_log:
        return []
    if folder is None and jsonl is not None:
        folder = Path(jsonl).parent
    sinks = _console_sinks(config, stream, print_evaluations=print_evaluations)
    if jsonl is not None:
        sinks.append(JsonlSink(jsonl, resume_step=resume_step, end_mark=end_mark))
    run_folder = None if folder is None else Path(folder)
    filtered = partial(FilterSink, every=config.tensorboard_log_interval, keep=_wanted_groups(config))
    if config.tensorboard_dir is not None:
        tensorboard = import_module("mb_metrics.sinks.tensorboard")
        sink = tensorboard.TensorBoardSink(config.tensorboard_dir, resume_step=resume_step)
        steps = config.tensorboard_queue_size
        sinks.append(
            BackgroundSink(filtered(sink), capacity=steps, counts="records", close_seconds=close_seconds)
        )
    for sink in _trackers(config, folder=run_folder, resume_step=resume_step, config=run_config):
        sinks.append(BackgroundSink(filtered(sink), close_seconds=close_seconds))
    return sinks


@runtime_checkable
class RankOutput(StyledTerminal, Protocol):
    """Console of a rank with a log; a `RankConsole` is one."""

    @property
    def is_short(self) -> bool:
        """True if the console has lines for people, and Megatron's lines are in the log only."""

    @property
    def details(self) -> TextStream:
        """Stream to the log, and to the console unless `is_short`."""


def _console_sinks(config: LoggerConfig, stream: TextStream | None, *, print_evaluations: bool) -> list[Sink]:
    throughput, output = config.log_throughput, cast("object", stream)
    if isinstance(output, RankOutput) and output.is_short:
        return [
            TerminalSink(output, throughput=throughput),
            ConsoleSink(output.details, format="megatron", throughput=throughput),
        ]
    short = config.console == "short" and not isinstance(output, RankOutput)
    return [
        ConsoleSink(
            stream,
            format="short" if short else "megatron",
            throughput=throughput,
            evaluations=print_evaluations,
        )
    ]


def build_samplers(config: LoggerConfig, *, start_step: int = 0) -> list[Sampler]:
    """Return the `samplers` of `Metrics` that measure memory and energy, for every rank.

    `start_step` is the step of the checkpoint that the job resumed from, 0 without one. Call it after the GPU of this
    process is selected. Energy that cannot be measured is reported as 0, with a warning.
    """
    samplers: list[Sampler] = []
    if config.skip_train_metrics_log:
        return samplers
    if config.log_memory_to_tensorboard or config.log_device_memory_used:
        samplers.append(
            MemorySampler(
                allocator=config.log_memory_to_tensorboard,
                keys=config.memory_keys,
                device=config.log_device_memory_used,
                every=config.log_memory_interval,
            )
        )
    if config.log_energy:
        read = import_module("mb_metrics.recorder.current_gpu").current_gpu_energy()
        samplers.append(EnergySampler(read, start_step=start_step))
    return samplers


def build_reductions(config: LoggerConfig) -> dict[str, Reduction]:
    """Return the `reduce` argument of `Metrics` that reports memory as the maximum over the ranks of the group."""
    if config.skip_train_metrics_log or not (
        config.log_memory_to_tensorboard or config.log_device_memory_used
    ):
        return {}
    return dict.fromkeys(memory_names(config.memory_keys, device=config.log_device_memory_used), "max")


def _trackers(
    section: LoggerConfig, *, folder: Path | None, resume_step: int | None, **settings: object
) -> Iterator[Sink]:
    """Yield the sinks of the enabled trackers, whose adapters are imported only then, with the settings of all."""
    wandb = {"name": section.wandb_exp_name, "entity": section.wandb_entity}
    mlflow = {
        "run_name": section.mlflow_run_name,
        "tracking_uri": section.mlflow_tracking_uri,
        "tags": section.mlflow_tags,
        "description": section.mlflow_description,
        "files": section.mlflow_log_artifacts,
    }
    comet = {
        "name": section.comet_experiment_name,
        "workspace": section.comet_workspace,
        "api_key": section.comet_api_key,
        "tags": section.comet_tags,
    }
    trackers: tuple[tuple[str, str, str | None, Mapping[str, object]], ...] = (
        ("wandb", "WandbSink", section.wandb_project, {**wandb, "folder": section.wandb_save_dir or folder}),
        ("mlflow", "MlflowSink", section.mlflow_experiment, mlflow),
        ("comet", "CometSink", section.comet_project, comet),
    )
    for tracker, sink, project, own in trackers:
        if project:
            run_file = None if folder is None else folder / f"{tracker}_run.json"
            stored = TrackerRunFile(run_file, resume_step=resume_step)
            stored.warn_of_missing_steps(sink, every=section.tensorboard_log_interval)
            sink_type = getattr(import_module(f"mb_metrics.sinks.{tracker}"), sink)
            yield sink_type(project, run_file=run_file, resume_step=resume_step, **settings, **own)


def _wanted_groups(config: LoggerConfig) -> Callable[[str], bool]:
    groups: list[tuple[bool, Callable[[str], bool]]] = [
        (config.log_throughput_to_tensorboard, lambda name: name.startswith("throughput/")),
        (config.log_timers_to_tensorboard, lambda name: name == ITERATION_TIME),
        (config.log_loss_scale_to_tensorboard, lambda name: name == LOSS_SCALE),
        (config.log_world_size_to_tensorboard, lambda name: name == WORLD_SIZE),
        (config.log_validation_ppl_to_tensorboard, lambda name: name.endswith(PERPLEXITY)),
        (config.log_runtime_to_tensorboard, lambda name: name.startswith("time/")),
        (config.log_l2_norm_grad_to_tensorboard, lambda name: name.startswith("l2_norm/")),
    ]
    return lambda name: all(wanted or not belongs(name) for wanted, belongs in groups)
