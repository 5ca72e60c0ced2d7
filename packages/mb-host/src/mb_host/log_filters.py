"""Filters for third-party warnings and log messages that users cannot act on."""

import logging
import re
import warnings
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFilter:
    """Filter for one warning or log message.

    `source` is, for a warning, a regular expression for the start of the module name; for a log record, the name of the
    logger. `pattern` is a regular expression for the start of the text. `why` is the reason for the filter.
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
        why="both need CUDA; torch's norms and optimizers are the intended ones here",
    ),
    LogFilter(
        kind="warning",
        source=r".*megatron.core.inference",  # a path: the warning comes from compiling the file
        pattern=r"invalid escape sequence",
        why="a docstring of Megatron, reported once, when its file is compiled",
    ),
    LogFilter(
        kind="warning",
        source=r"megatron\.core\.hyper_comm_grid",
        pattern=r"absl\.logging is not installed",
        why="the standard library's logging is used instead",
    ),
    LogFilter(
        kind="warning",
        source=r"megatron\.core\.transformer\.transformer_config",
        pattern=r"full scope is deprecated",
        why="concerns CUDA graphs, and a value that Megatron itself sets",
    ),
    LogFilter(
        kind="warning",
        source=r"megatron\.core\.models\.mimo",
        pattern=r"MimoModelConfig is experimental",
        why="issued when the class is defined, even if it is not used",
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
        why="Megatron's call, which is correct for both orders",
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
        why="expected: no extension is built",
    ),
    LogFilter(
        kind="log",
        source="megatron.core.tensor_parallel.random",
        pattern=r"CPU RNG state changed",
        why="host and device share one generator, so a fork of the device state changes the host state",
    ),
    LogFilter(
        kind="log",
        source="megatron.core.models.gpt.gpt_model",
        pattern=r"GPTModel IS DEPRECATED",
        why="a choice of the trainer, repeated for each model chunk",
    ),
    LogFilter(
        kind="log",
        source="megatron.core.distributed.distributed_data_parallel",
        pattern=r"DistributedDataParallel: full_param_layout not provided",
        why="the same layout is computed there",
    ),
    LogFilter(
        kind="log",
        source="megatron.core.dist_checkpointing.strategies.torch",
        pattern=r"MCore's async save is deprecated",
        why="also logged for synchronous saves",
    ),
)


class _DropMessages(logging.Filter):
    """Logging filter that drops records whose text matches `pattern` at its start."""

    def __init__(self, pattern: str) -> None:
        super().__init__()
        self.pattern = pattern

    def filter(self, record: logging.LogRecord) -> bool:
        return re.match(self.pattern, record.getMessage()) is None


def quiet() -> None:
    """Install all filters in `LOG_FILTERS`. A second call has no effect.

    Warnings use Python's filters, so a `warnings.catch_warnings` block, or pytest, overrides them.
    """
    for log_filter in LOG_FILTERS:
        if log_filter.kind == "warning":
            warnings.filterwarnings("ignore", message=log_filter.pattern, module=log_filter.source)
        else:
            _add_filter(log_filter.pattern, logger=logging.getLogger(log_filter.source))


def _add_filter(pattern: str, *, logger: logging.Logger) -> None:
    if not any(isinstance(known, _DropMessages) and known.pattern == pattern for known in logger.filters):
        logger.addFilter(_DropMessages(pattern))
