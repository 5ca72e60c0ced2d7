"""What the launcher, the process that ranks are forked from and a rank say to each other."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mb_host.function_reference import FunctionReference


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpec:
    """What a process is told that becomes a rank; `imports` are modules to import before the first run."""

    rank: int
    world_size: int
    imports: tuple[str, ...]
    environment: Mapping[str, str]
    path: tuple[str, ...]
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFileDescriptors:
    """File descriptors of the launcher's that a rank takes over.

    It talks over `connection`, leaves its stacks in `dump`, and `lifeline` is closed when the launcher is dead.
    """

    connection: int
    lifeline: int
    dump: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTask:
    """One run: a function, its pickled arguments, and where the ranks meet."""

    function: FunctionReference
    arguments: bytes
    address: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReply:
    """What a rank says: ready for work, returned (`payload`: the pickled result), or raised.

    After raising, `summary` is the exception on one line and `detail` its traceback.
    """

    kind: Literal["ready", "returned", "raised"]
    payload: bytes = b""
    summary: str = ""
    detail: str = ""
