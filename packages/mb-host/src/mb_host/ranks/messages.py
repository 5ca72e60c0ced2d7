"""Messages between launcher, rank server and ranks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mb_host.ranks.function_reference import FunctionReference


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpec:
    """Start parameters of a rank."""

    rank: int
    world_size: int
    imports: tuple[str, ...]
    """Modules to import before the first run."""
    environment: Mapping[str, str]
    """All variables of the process."""
    path: tuple[str, ...]
    """`sys.path` of the launcher."""
    folder: str
    """Working directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFileDescriptors:
    """File descriptors that the launcher passes to a rank.

    `connection` carries messages, `dump` receives stacks, and `lifeline` is closed when the launcher dies.
    """

    connection: int
    lifeline: int
    dump: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTask:
    """One run: a function, its pickled arguments, and the rendezvous address."""

    function: FunctionReference
    arguments: bytes
    address: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReply:
    """Reply of a rank: ready, returned (`payload`: the pickled result), or raised.

    For "raised", `summary` is the exception on one line and `detail` its traceback.
    """

    kind: Literal["ready", "returned", "raised"]
    payload: bytes = b""
    summary: str = ""
    detail: str = ""
