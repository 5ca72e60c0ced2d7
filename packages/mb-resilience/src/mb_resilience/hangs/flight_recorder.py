"""Environment variables of torch's flight recorder, which records the last collectives of each rank. No torch.

The recorder keeps collectives in a ring buffer: those of NCCL and, in newer versions of torch, of gloo. When a
collective times out, NCCL's watchdog dumps the ring buffer of each rank to a file; `torchfrtrace` compares the files.
"""

import os
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Protocol

DUMP_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Variables for the path of the files: the current one, and the one of older versions of torch."""

BUFFER_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""Variables for the size of the ring buffer. Every version of torch reads the second one."""


class FlightRecorderSettings(Protocol):
    """Settings of the flight recorder, such as mb-config's or Megatron's DistributedInitConfig."""

    @property
    def flight_recorder_dump_path(self) -> str | None:
        """Path of the files: a folder, or a prefix to which the rank is appended. None disables the recorder."""

    @property
    def flight_recorder_trace_buffer_size(self) -> int:
        """Number of collectives in the ring buffer."""

    @property
    def flight_recorder_dump_on_timeout(self) -> bool:
        """Whether a timeout writes the files."""

    @property
    def flight_recorder_include_stack_trace(self) -> bool:
        """Whether the files include the stack trace of each collective."""

    @property
    def flight_recorder_include_only_active(self) -> bool:
        """Whether the files omit completed collectives."""

    @property
    def flight_recorder_extra_dump_on_exec(self) -> bool:
        """Whether an exception of a collective also writes the files."""


def flight_recorder_environment(
    settings: FlightRecorderSettings, *, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the variables to set before the first process group is initialized, when torch reads them.

    Variables that are already set are kept. If only the environment has the path of the files, the other variables are
    returned as well.

    Args:
        settings: settings of the run.
        environment: variables that are already set; None for `os.environ`.

    Returns:
        Names and values to add to the environment; empty if neither the settings nor the environment have a path.
    """
    environment = os.environ if environment is None else environment
    named_paths = [environment[name] for name in DUMP_FILES if environment.get(name)]
    path = named_paths[0] if named_paths else settings.flight_recorder_dump_path
    if path is None:
        return {}
    requested = {
        **dict.fromkeys(DUMP_FILES, _prefix(path)),
        "TORCH_NCCL_TRACE_BUFFER_SIZE": str(settings.flight_recorder_trace_buffer_size),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": _flag(settings.flight_recorder_dump_on_timeout),
        "TORCH_INCLUDE_STACK_TRACE": _flag(settings.flight_recorder_include_stack_trace),
        "TORCH_INCLUDE_ONLY_ACTIVE": _flag(settings.flight_recorder_include_only_active),
        "TORCH_NCCL_EXTRA_DUMP_ON_EXEC": _flag(settings.flight_recorder_extra_dump_on_exec),
    }
    if any(name in environment for name in BUFFER_SIZES):
        del requested["TORCH_NCCL_TRACE_BUFFER_SIZE"]
    return {name: value for name, value in requested.items() if name not in environment}


def conflicting_variables(
    settings: FlightRecorderSettings, *, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the variables that are already set and differ from the settings, for a warning to the user."""
    environment = os.environ if environment is None else environment
    requested = flight_recorder_environment(settings, environment={})
    if requested:  # either name of the size replaces the other one
        requested |= dict.fromkeys(BUFFER_SIZES, str(settings.flight_recorder_trace_buffer_size))
    return {
        name: environment[name] for name, value in requested.items() if environment.get(name, value) != value
    }


def _prefix(path: str) -> str:
    """Return the prefix to which the rank is appended: `_dump_` in a folder, as readers of these files expect."""
    return str(Path(path) / "_dump_") if path.endswith("/") or Path(path).is_dir() else path


def _flag(requested: bool) -> str:
    return str(int(requested))


def start_flight_recorder(
    settings: FlightRecorderSettings,
    *,
    log: Callable[[str], object],
    environment: MutableMapping[str, str] | None = None,
) -> None:
    """Set the variables of the flight recorder, and create the folder of its files.

    Args:
        settings: settings of the run.
        log: receives one line per variable of the shell that takes precedence.
        environment: variables to change; None: `os.environ`.

    Raises:
        OSError: the folder cannot be created.
    """
    environment = os.environ if environment is None else environment
    for name, value in conflicting_variables(settings, environment=environment).items():
        log(f"dist.flight_recorder_dump_path: the shell's {name}={value} is kept")
    environment.update(flight_recorder_environment(settings, environment=environment))
    for name in DUMP_FILES:
        if name in environment:
            Path(environment[name]).parent.mkdir(parents=True, exist_ok=True)
