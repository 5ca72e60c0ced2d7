"""What torch's flight recorder reads from the environment: which collectives ran, and which one hangs. No torch.

The recorder keeps the last collectives of each rank in a ring, NCCL's and, in newer versions of torch, gloo's. When
one runs into its time-out, NCCL's watchdog writes the ring of each rank to a file; `torchfrtrace` compares the files.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

DUMP_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Variables that name the files: the newer one, and the one that older versions of torch read."""

BUFFER_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""The same for the size of the ring. The second is read by every version."""


class FlightRecorderSettings(Protocol):
    """What is to be recorded; mb-config's DistributedInitConfig and Megatron's fit."""

    @property
    def flight_recorder_dump_path(self) -> str | None:
        """Files of the ranks: a folder, or a prefix to which the rank is added. None: no recorder."""

    @property
    def flight_recorder_trace_buffer_size(self) -> int:
        """Collectives that the ring holds."""

    @property
    def flight_recorder_dump_on_timeout(self) -> bool:
        """Whether a time-out writes the files."""

    @property
    def flight_recorder_include_stack_trace(self) -> bool:
        """Whether the files say where in the program each collective was called."""

    @property
    def flight_recorder_include_only_active(self) -> bool:
        """Whether they leave out collectives that are done."""

    @property
    def flight_recorder_extra_dump_on_exec(self) -> bool:
        """Whether an exception of a collective writes them, too."""


def flight_recorder_environment(
    settings: FlightRecorderSettings, *, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the variables to set before the first process group is opened; torch reads them once.

    Values that are set already are kept. Where only the environment names the files, the rest is filled in as well.

    Args:
        settings: of the run.
        environment: variables that are set already; None: `os.environ`.

    Returns:
        Names and values to add to the environment; nothing where nobody names the files.
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
    """Return the variables that are set already and differ from what the settings say: a person should know."""
    environment = os.environ if environment is None else environment
    requested = flight_recorder_environment(settings, environment={})
    if requested:  # whichever name of the size is set stands in for the other one
        requested |= dict.fromkeys(BUFFER_SIZES, str(settings.flight_recorder_trace_buffer_size))
    return {
        name: environment[name] for name, value in requested.items() if environment.get(name, value) != value
    }


def _prefix(path: str) -> str:
    """Return what the rank is added to: in a folder, `_dump_`, as readers of these files expect."""
    return str(Path(path) / "_dump_") if path.endswith("/") or Path(path).is_dir() else path


def _flag(requested: bool) -> str:
    return str(int(requested))
