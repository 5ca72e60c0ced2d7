"""Arguments of in-process restarts: environment, rendezvous, an attempt, and the checks of the section. No torch."""

import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from mb_resilience.config import InProcessRestartConfig
from mb_resilience.errors import RestartSetupError
from mb_resilience.restarts.rank_faults import RankFault
from mb_resilience.rule_kinds import check_section
from mb_resilience.rules import RULES

ABORT_ENVIRONMENT: Mapping[str, str] = {
    "TORCH_CPP_LOG_LEVEL": "error",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "NCCL_NVLS_ENABLE": "0",
}
"""Environment variables for aborting and restarting communication: no warnings about stores of ranks that have exited,
no CUDA errors raised in threads where they cannot be caught, and no NVLink SHARP, whose memory an abort does not
release."""


def prepare_environment(
    section: InProcessRestartConfig | None, environment: MutableMapping[str, str] | None = None
) -> None:
    """Set the variables for restarts that are unset, if the section enables them. Call it before torch is imported.

    Args:
        section: settings of restarts; None: they are disabled.
        environment: variables to change; None: `os.environ`.
    """
    environment = os.environ if environment is None else environment
    if section is not None and section.enabled:
        for name, value in ABORT_ENVIRONMENT.items():
            environment.setdefault(name, value)


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
    faults: tuple[RankFault, ...] = ()
    """Reasons why the previous attempt ended, the first cause first, at most 64; empty in the first attempt."""

    @property
    def variables(self) -> dict[str, str]:
        """Rank and world size as environment variables."""
        return {"RANK": str(self.rank), "WORLD_SIZE": str(self.world_size)}


def restart_fields(attempt: RestartAttempt | None) -> dict[str, object]:
    """Return the fields of the event with which an attempt resumes a run; empty for the first attempt, and for None."""
    if attempt is None or attempt.number == 0:
        return {}
    return {"in_process_restart": attempt.number, "faults": [str(fault) for fault in attempt.faults]}


StoreOwner = Literal["launcher", "keeper", "rank 0"]
"""Process that serves the store: torch elastic's agent, the keeper of rank 0 (`keep_run_alive`), or rank 0 itself."""

ADDRESS_AND_RANK = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
"""Variables that a launcher sets for each process."""

KEEPER = "MB_RESTART_KEEPER"
"""Environment variable that a keeper sets for its rank: the keeper of rank 0 serves the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Address of the store that the processes of all attempts share, and the rank of this process."""

    host: str
    port: int
    """Port of the store; 0 takes a free one, for a single process."""
    rank: int
    """Initial rank of this process; it may have another rank in an attempt."""
    world_size: int
    """Initial number of processes."""
    owner: StoreOwner = "rank 0"
    prefix: str = "mb_resilience/restart"
    """Prefix of all keys, which differs between the starts of a launcher that keeps its store."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "Rendezvous":
        """Read MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE from the environment; a single process needs none of them.

        Args:
            environment: variables; None for `os.environ`.

        Raises:
            RestartSetupError: a variable is missing, or is not a number.
        """
        environment = os.environ if environment is None else environment
        if not any(name in environment for name in ADDRESS_AND_RANK):
            return cls(host="127.0.0.1", port=0, rank=0, world_size=1)
        host, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
        if not host or not port.isdecimal():
            raise RestartSetupError(
                f"inprocess_restart: MASTER_ADDR={host!r} and MASTER_PORT={port!r} are not the address of a "
                "rendezvous. Set both, as torchrun does."
            )
        rank, world_size = environment.get("RANK", ""), environment.get("WORLD_SIZE", "")
        if not (rank.isdecimal() and world_size.isdecimal()):
            raise RestartSetupError(
                f"inprocess_restart: RANK={rank!r} and WORLD_SIZE={world_size!r} do not identify this process. "
                "Set both for each process, as torchrun does."
            )
        start = f"{environment.get('TORCHELASTIC_RUN_ID', '')}/{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        return cls(
            host=host,
            port=int(port),
            rank=int(rank),
            world_size=int(world_size),
            owner=store_owner(environment),
            prefix=f"mb_resilience/restart/{start}",
        )


def store_owner(environment: Mapping[str, str]) -> StoreOwner:
    """Return which process serves the store at the rendezvous address."""
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return "launcher"
    return "keeper" if KEEPER in environment else "rank 0"


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


def ranks_per_node(
    section: InProcessRestartConfig, meeting: Rendezvous, environment: Mapping[str, str] | None = None
) -> int | None:
    """Return the number of ranks of a node, which are excluded together; None if ranks are excluded one by one.

    Raises:
        RestartSetupError: nodes are excluded, and LOCAL_WORLD_SIZE does not hold their number of ranks.
    """
    if section.granularity == "rank":
        return None
    if meeting.world_size == 1:
        return 1
    text = (os.environ if environment is None else environment).get("LOCAL_WORLD_SIZE", "")
    if not text.isdecimal() or int(text) < 1:
        raise RestartSetupError(
            f"inprocess_restart.granularity: node, with LOCAL_WORLD_SIZE={text!r}, does not define how many ranks a "
            "node has. Set LOCAL_WORLD_SIZE to that number, as torchrun does, or granularity=rank."
        )
    return int(text)


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
