"""Third-party notices that the user of a host can do nothing about, silenced at their source, by name."""

import logging
import re
import warnings
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFilter:
    """One notice to keep quiet.

    `source` is the module that it is said to come from: for a warning a regular expression for the start of the
    module's name, for a log record the name of the logger. `pattern` matches the start of the text.
    """

    kind: Literal["warning", "log"]
    source: str
    pattern: str
    why: str


LOG_FILTERS: tuple[LogFilter, ...] = (
    LogFilter(
        kind="warning",
        source=r"megatron\.core",
        pattern=r"(Transformer Engine and )?Apex (are|is) not installed",
        why="both need CUDA; torch's own norms and optimizers are the right ones here",
    ),
    LogFilter(
        kind="warning",
        source=r".*megatron.core.inference",  # a path: Python is only compiling the file
        pattern=r"invalid escape sequence",
        why="a docstring of Megatron's, seen once, when its file is compiled",
    ),
    LogFilter(
        kind="warning",
        source=r"megatron\.core\.hyper_comm_grid",
        pattern=r"absl\.logging is not installed",
        why="the standard library's logging takes its place",
    ),
    LogFilter(
        kind="warning",
        source=r"megatron\.core\.transformer\.transformer_config",
        pattern=r"full scope is deprecated",
        why="about CUDA graphs, and about a value that Megatron itself has set",
    ),
    LogFilter(
        kind="warning",
        source=r"megatron\.core\.models\.mimo",
        pattern=r"MimoModelConfig is experimental",
        why="said when the class is defined, whether or not anybody uses it",
    ),
    LogFilter(
        kind="warning",
        source=r"megatron\.core\.tensor_parallel\.layers",
        pattern=r"When using .* it is recommended to set .* CUDA_DEVICE_MAX_CONNECTIONS",
        why="there are no CUDA connections",
    ),
    LogFilter(
        kind="warning",
        source=r"megatron\.core\.optimizer\.optimizer",
        pattern=r"The \.grad attribute of a Tensor that is not a leaf Tensor is being accessed",
        why="the distributed optimizer looks at gradients of its own views, which is harmless",
    ),
    LogFilter(
        kind="warning",
        source=r"torch\.distributed\.checkpoint",
        pattern=r"torch\.distributed is disabled, unavailable or uninitialized",
        why="Megatron reads checkpoint metadata in each process by itself",
    ),
    LogFilter(
        kind="warning",
        source=r"torch\.distributed\.checkpoint",
        pattern=r"The argument order of load has been changed",
        why="Megatron's call, which is right for both orders",
    ),
    LogFilter(
        kind="warning",
        source=r"torch\.distributed\.checkpoint",
        pattern=r"Please use DTensor instead and we are deprecating ShardedTensor",
        why="Megatron's format of checkpoints",
    ),
    LogFilter(
        kind="log",
        source="torch.utils.cpp_extension",
        pattern=r"No CUDA runtime is found",
        why="there is none, and nothing is built",
    ),
    LogFilter(
        kind="log",
        source="megatron.core.tensor_parallel.random",
        pattern=r"CPU RNG state changed",
        why="host and device share one generator, so a fork of the device's state moves the host's",
    ),
    LogFilter(
        kind="log",
        source="megatron.core.models.gpt.gpt_model",
        pattern=r"GPTModel IS DEPRECATED",
        why="a choice of whoever wrote the trainer, repeated for each model chunk",
    ),
    LogFilter(
        kind="log",
        source="megatron.core.distributed.distributed_data_parallel",
        pattern=r"DistributedDataParallel: full_param_layout not provided",
        why="the same layout is then computed there",
    ),
    LogFilter(
        kind="log",
        source="megatron.core.dist_checkpointing.strategies.torch",
        pattern=r"MCore's async save is deprecated",
        why="said for synchronous saves too",
    ),
)


class _DropMessages(logging.Filter):
    """A logging filter that drops the records whose text starts with `pattern`."""

    def __init__(self, pattern: str) -> None:
        super().__init__()
        self.pattern = pattern

    def filter(self, record: logging.LogRecord) -> bool:
        return re.match(self.pattern, record.getMessage()) is None


def quiet() -> None:
    """Silence every notice of `LOG_FILTERS`, and nothing else; calling it again changes nothing.

    Warning filters are Python's, so a `warnings.catch_warnings` block, or pytest, sets them aside.
    """
    for log_filter in LOG_FILTERS:
        if log_filter.kind == "warning":
            warnings.filterwarnings("ignore", message=log_filter.pattern, module=log_filter.source)
        else:
            _add_filter(log_filter.pattern, logger=logging.getLogger(log_filter.source))


def _add_filter(pattern: str, *, logger: logging.Logger) -> None:
    if not any(isinstance(known, _DropMessages) and known.pattern == pattern for known in logger.filters):
        logger.addFilter(_DropMessages(pattern))
