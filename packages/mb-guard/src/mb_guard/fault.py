"""`Fault` and `Patch`: the record of one known fault, and of one function that corrects it; settings for conditions."""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal


class Settings(Mapping[str, Any]):
    """Settings of a run by Megatron's field name; a name that is not set is None.

    >>> settings = Settings({"num_moe_experts": 4})
    >>> settings.num_moe_experts, settings.mtp_num_layers
    (4, None)
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._values.get(name)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


TESTED_MEGATRON: Mapping[str, str] = {"megatron-core": ">=0.19.0,<=0.19.2"}
"""Releases of Megatron Core with which all records were tried; a fault that a later one corrects has its own bounds."""

Function = Callable[..., Any]
Effect = Literal["wrong number", "lost run", "crash", "slow"]
Action = Literal["put right", "refuse", "warn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """Replacement of `target`, a dotted path inside `module`, by `wrap(original)`.

    It is made right after Megatron's module is imported, or at once if it is imported already. A function whose source
    is not one of `sources` is left as it is, and reported.
    """

    wrap: Callable[[Any], Any]
    """Returns the replacement of the original. torch is imported inside, so that records load without it."""
    module: str
    target: str
    sources: tuple[str, ...]
    """`mb_guard.sources.source_hash` of each known version of the original; empty where it is not a function."""
    needed: Callable[[ModuleType], bool] | None = None
    """Whether this environment has the fault, evaluated after `module` is imported; None: every one has."""


def around(call: Function) -> Callable[[Function], Function]:
    """Return the `wrap` of a patch from a function that takes the original, and then the arguments of a call."""

    @functools.wraps(call)
    def wrap(original: Function) -> Function:
        @functools.wraps(original)
        def patched(*args: Any, **kwargs: Any) -> Any:
            return call(original, *args, **kwargs)

        return patched

    return wrap


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One known fault of another library, and what is done about it."""

    id: str
    effect: Effect
    summary: str
    """The fault in one sentence, with the name of the setting or function."""
    shows: str
    """How a user sees it, with the measured numbers; or that it is silent."""
    action: Action
    test: str
    """Test that fails without the guard, and reports when the fault is corrected upstream: `path::function`."""
    versions: Mapping[str, str] = field(default_factory=lambda: TESTED_MEGATRON)
    """Tested bounds by distribution, such as `{"megatron-core": ">=0.19.0,<=0.19.2"}`."""
    report: str | None = None
    """Address of the public report."""
    patches: tuple[Patch, ...] = field(default=(), repr=False)
    """Corrections of a fault that is put right; all are applied or none."""
    met: Callable[[Settings], bool] | None = None
    """Whether settings meet the fault; None if every run meets it, or if settings do not decide it."""
    advice: str = ""
    """Settings to change where the fault is refused or reported."""
