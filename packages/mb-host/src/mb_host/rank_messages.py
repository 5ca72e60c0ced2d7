"""What the launcher and a rank say to each other."""

from dataclasses import dataclass
from typing import Literal

from mb_host.function_reference import FunctionReference


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One run: a function, its pickled arguments, and where the ranks meet."""

    function: FunctionReference
    arguments: bytes
    address: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a rank says: ready for work, returned (`payload`: the pickled result), or raised.

    After raising, `summary` is the exception on one line and `detail` its traceback.
    """

    kind: Literal["ready", "returned", "raised"]
    payload: bytes = b""
    summary: str = ""
    detail: str = ""
