"""Arguments and checks of in-process restarts. Standard library only; see `restart_nvrx`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from mb_resilience.config import InProcessRestartConfig
from mb_resilience.errors import RestartSetupError
from mb_resilience.rules import RULES
from mb_resilience.section_check import check_section

ABORT_ENVIRONMENT: Mapping[str, str] = {
    "TORCH_CPP_LOG_LEVEL": "error",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "NCCL_NVLS_ENABLE": "0",
}
"""Environment variables for aborting and restarting communication: no warnings about stores of ranks that have exited,
no CUDA errors raised in threads where they cannot be caught, and no NVLink SHARP, whose memory an abort does not
release."""

WRAPPER_TIMES = (
    "monitor_thread_interval",
    "monitor_process_interval",
    "progress_watchdog_interval",
    "heartbeat_interval",
    "soft_timeout",
    "hard_timeout",
    "heartbeat_timeout",
    "barrier_timeout",
    "completion_timeout",
    "last_call_wait",
    "termination_grace_time",
)
"""Fields that NVRx's wrapper accepts under the same names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartAttempt:
    """One call of the training function on an active rank."""

    number: int
    """0 for the first attempt, incremented by each restart."""
    rank: int
    """Rank among the active ranks; equal to RANK."""
    world_size: int
    """Number of active ranks; equal to WORLD_SIZE."""
    store: Any
    """`torch.distributed.Store` of this attempt, for initializing the process group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Address at which the processes of all attempts meet, and the rank of this process."""

    host: str
    store_port: int
    """Port of the store for attempts: MASTER_PORT + 1."""
    wrapper_port: int
    """Port of NVRx's store: MASTER_PORT + 2."""
    rank: int
    """Initial rank of this process; it may have another rank in an attempt."""
    world_size: int
    """Initial number of processes."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "Rendezvous":
        """Read MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE from the environment; None for `os.environ`.

        Raises:
            RestartSetupError: a variable is missing, or is not a number.
        """
        environment = os.environ if environment is None else environment
        host, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT", "")
        if not host or not port.isdecimal():
            raise RestartSetupError(
                f"inprocess_restart: MASTER_ADDR={host!r} and MASTER_PORT={port!r} are not the address of a "
                "rendezvous. Set both, as torchrun does; the two ports after MASTER_PORT must also be free."
            )
        rank, world_size = environment.get("RANK", ""), environment.get("WORLD_SIZE", "")
        if not (rank.isdecimal() and world_size.isdecimal()):
            raise RestartSetupError(
                f"inprocess_restart: RANK={rank!r} and WORLD_SIZE={world_size!r} do not identify this process. "
                "Set both for each process, as torchrun does."
            )
        return cls(
            host=host,
            store_port=int(port) + 1,
            wrapper_port=int(port) + 2,
            rank=int(rank),
            world_size=int(world_size),
        )


def check_restart(section: InProcessRestartConfig, *, group_initialized: bool) -> None:
    """Validate the settings before anything is started.

    Raises:
        SectionError: the section violates its rules.
        RestartSetupError: a process group is already initialized (V245).
    """
    check_section(section, section="inprocess_restart", rules=RULES)
    if group_initialized:
        raise RestartSetupError(
            "inprocess_restart: a process group is already initialized, which later attempts could not initialize "
            "again [V245]. Initialize it in the restarted function, with the store of its attempt."
        )


def wrapper_times(section: InProcessRestartConfig) -> dict[str, timedelta]:
    """Return the time settings under the parameter names of NVRx's wrapper."""
    return {name: timedelta(seconds=getattr(section, name)) for name in WRAPPER_TIMES}


def max_attempts(section: InProcessRestartConfig) -> int | None:
    """Return the maximum number of attempts: the first one and the restarts of the section; None for no limit."""
    return None if section.max_iterations is None else section.max_iterations + 1


def monitor_log_path(section: InProcessRestartConfig) -> str | None:
    """Return the log path of the monitoring processes, in which NVRx replaces `{rank}`; None for no log."""
    folder = section.monitor_process_logdir
    return None if folder is None else str(Path(folder).absolute() / "monitor_{rank}.log")
