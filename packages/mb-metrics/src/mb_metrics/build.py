"""From a `LoggerConfig` to the sinks that it asks for."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from mb_metrics.config import LoggerConfig
from mb_metrics.names import ITERATION_TIME, LOSS_SCALE, PERPLEXITY, WORLD_SIZE
from mb_metrics.sink import Sink
from mb_metrics.sinks.console import ConsoleSink, TextStream
from mb_metrics.sinks.jsonl import JsonlSink


def build_sinks(
    config: LoggerConfig,
    *,
    jsonl: str | Path | None = None,
    resume_step: int | None = None,
    stream: TextStream | None = None,
) -> list[Sink]:
    """Return the sinks for the one rank that writes: console, JSONL if `jsonl` names a file, TensorBoard if asked.

    Empty with `skip_train_metrics_log`. TensorBoard gets the groups that the `log_..._to_tensorboard` fields ask
    for; JSONL gets everything. With `resume_step`, rows of later steps are dropped from JSONL and TensorBoard.

    Raises:
        ModuleNotFoundError: `tensorboard_dir` is set and tensorboard is not installed.
    """
    if config.skip_train_metrics_log:
        return []
    sinks: list[Sink] = [ConsoleSink(stream, throughput=config.log_throughput)]
    if jsonl is not None:
        sinks.append(JsonlSink(jsonl, resume_step=resume_step))
    if config.tensorboard_dir is not None:
        door = import_module("mb_metrics.sinks.tensorboard")
        sinks.append(
            door.TensorBoardSink(
                config.tensorboard_dir,
                resume_step=resume_step,
                every=config.tensorboard_log_interval,
                keep=_tensorboard_filter(config),
                queue_size=config.tensorboard_queue_size,
            )
        )
    return sinks


def _tensorboard_filter(config: LoggerConfig) -> Callable[[str], bool]:
    groups: list[tuple[bool, Callable[[str], bool]]] = [
        (config.log_throughput_to_tensorboard, lambda name: name.startswith("throughput/")),
        (config.log_timers_to_tensorboard, lambda name: name == ITERATION_TIME),
        (config.log_loss_scale_to_tensorboard, lambda name: name == LOSS_SCALE),
        (config.log_world_size_to_tensorboard, lambda name: name == WORLD_SIZE),
        (config.log_validation_ppl_to_tensorboard, lambda name: name.endswith(PERPLEXITY)),
    ]
    return lambda name: all(wanted or not belongs(name) for wanted, belongs in groups)
