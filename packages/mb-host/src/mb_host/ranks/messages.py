"""Messages between the launcher and ranks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mb_host.ranks.function_reference import FunctionReference

ADDRESS = "127.0.0.1"
"""Address of the rendezvous."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpec:
    """Start parameters of a rank."""

    rank: int
    world_size: int
    imports: tuple[str, ...]
    """Modules to import before the first run."""
    environment: Mapping[str, str]
    """All variables of the process."""
    folder: str
    """Working directory."""
    start_method: Literal["forkserver", "spawn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTask:
    """One run: a function, its pickled arguments, and the port of the rendezvous."""

    function: FunctionReference
    arguments: bytes
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOutcome:
    """Outcome of one rank."""

    rank: int
    state: Literal["returned", "raised", "died", "running"]
    """The function returned or raised, or the process died, or the function was still running and was aborted."""
    summary: str
    """One line that completes "rank 1 ..."."""
    detail: str = ""
    """Traceback of a function that raised, or stacks of all threads of one that was running; otherwise empty."""
    result: bytes = b""
    """Pickled return value of a function that returned; otherwise empty."""
