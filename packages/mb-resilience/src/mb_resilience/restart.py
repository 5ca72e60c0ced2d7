"""What a restart inside the process needs, from its settings. The standard library only; see `restart_nvrx`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from mb_resilience.config import InProcessRestartConfig
from mb_resilience.rules import refuse

ABORT_ENVIRONMENT: Mapping[str, str] = {
    "TORCH_CPP_LOG_LEVEL": "error",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "NCCL_NVLS_ENABLE": "0",
}
"""Environment in which communication can be aborted and begun again: no warnings of stores that ranks left, no CUDA
errors raised where nobody can catch them, no NVLink SHARP, whose memory an abort does not give back."""

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
"""Fields that NVRx's wrapper takes under the same names."""


class RestartSetupError(RuntimeError):
    """A restart inside the process cannot be set up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartAttempt:
    """One call of the training function, on a rank that takes part."""

    number: int
    """0 for the first, one more after each restart."""
    rank: int
    """Among those that take part; as in RANK."""
    world_size: int
    """Ranks that take part; as in WORLD_SIZE."""
    store: Any
    """A `torch.distributed.Store` of this attempt alone, to open a process group with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Where the processes of all attempts meet, and which one of them this is."""

    host: str
    store_port: int
    """Of the store that attempts take: MASTER_PORT + 1."""
    wrapper_port: int
    """Of the wrapper's own: MASTER_PORT + 2."""
    rank: int
    """Of this process at the start; an attempt may have another."""
    world_size: int
    """Processes at the start."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "Rendezvous":
        """Read it from MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE of the environment; None: `os.environ`.

        Raises:
            RestartSetupError: one of them is missing, or no number where one is needed.
        """
        environment = os.environ if environment is None else environment
        host, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT", "")
        if not host or not port.isdecimal():
            raise RestartSetupError(
                f"inprocess_restart: MASTER_ADDR={host!r} and MASTER_PORT={port!r} do not say where the processes "
                "meet. Set both, as torchrun does; the two ports after MASTER_PORT must be free, too."
            )
        rank, world_size = environment.get("RANK", ""), environment.get("WORLD_SIZE", "")
        if not (rank.isdecimal() and world_size.isdecimal()):
            raise RestartSetupError(
                f"inprocess_restart: RANK={rank!r} and WORLD_SIZE={world_size!r} do not say which process this is, "
                "and of how many. Set both for each process, as torchrun does."
            )
        return cls(
            host=host,
            store_port=int(port) + 1,
            wrapper_port=int(port) + 2,
            rank=int(rank),
            world_size=int(world_size),
        )


def check_restart(section: InProcessRestartConfig, *, group_initialized: bool) -> None:
    """Refuse what cannot work, before anything is started.

    Raises:
        SectionError: the section breaks its rules.
        RestartSetupError: a process group is open already (V245).
    """
    refuse(section, section="inprocess_restart")
    if group_initialized:
        raise RestartSetupError(
            "inprocess_restart: a process group is open already, which no attempt after the first could open again "
            "[V245]. Open it in the function that is restarted, with the store of its attempt."
        )


def wrapper_times(section: InProcessRestartConfig) -> dict[str, timedelta]:
    """Return every time of the section, by the names of NVRx's wrapper."""
    return {name: timedelta(seconds=getattr(section, name)) for name in WRAPPER_TIMES}


def max_attempts(section: InProcessRestartConfig) -> int | None:
    """Return how many attempts there may be: the first, and as many restarts as the section says; None: no limit."""
    return None if section.max_iterations is None else section.max_iterations + 1


def monitor_log_path(section: InProcessRestartConfig) -> str | None:
    """Return the log of the monitoring process of each rank, which fills in the word in braces; None: no log."""
    folder = section.monitor_process_logdir
    return None if folder is None else str(Path(folder).absolute() / "monitor_{rank}.log")
