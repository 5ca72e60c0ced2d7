"""Checks of the arguments of `Metrics`."""

from collections.abc import Mapping
from numbers import Integral, Real
from operator import index
from typing import Any

from mb_metrics.names import BRIDGE_ALIASES
from mb_metrics.recorder.interval import SECONDS


def checked_time_unit(unit: str | None) -> str | None:
    """Return a unit of time.

    Raises:
        ValueError: it is unknown.
    """
    if unit is not None and unit not in SECONDS:
        raise ValueError(
            f"metrics.time_unit: unknown unit {unit!r}. Supported units are {', '.join(SECONDS)}. Choose one, or None "
            "to omit times."
        )
    return unit


def resolve_aliases(aliases: str | Mapping[str, str] | None) -> Mapping[str, str]:
    """Return additional names of metrics, given as a mapping or as the name of a predefined one.

    Raises:
        ValueError: there is no predefined mapping of this name.
    """
    if aliases is None or isinstance(aliases, Mapping):
        return aliases or {}
    if aliases != "bridge":
        raise ValueError(
            f"metrics.aliases: unknown set of names {aliases!r}. The only predefined set is 'bridge'. Choose it, or "
            "pass a mapping from name to additional name."
        )
    return BRIDGE_ALIASES


_INTEGERS = ("log_interval", "throughput_window")


def require_positive(**numbers: Any) -> None:
    """Reject numbers that are not positive; None means "not set".

    Raises:
        TypeError: an object is not a number, or a count is not an integer.
        ValueError: a number is zero or negative.
    """
    for name, number in numbers.items():
        if number is not None and not isinstance(number, Real):
            raise TypeError(
                f"metrics.{name}: is a {type(number).__name__} ({name}={number!r}). Pass a number."
            )
        if name in _INTEGERS and not isinstance(number, Integral | None):
            raise TypeError(f"metrics.{name}: must be an integer ({name}={number}). It is a count. Round it.")
        if number is not None and number <= 0:
            raise ValueError(
                f"metrics.{name}: must be positive ({name}={number}). It is a count or a divisor. Set it higher"
                f"{'' if name in ('log_interval', 'world_size') else ', or to None if it is not known'}."
            )


def checked_step(step: Any) -> int:
    """Return the number of a step as an int; integers of other libraries, such as numpy's, are converted.

    Raises:
        TypeError: the step is not an integer.
    """
    try:
        return index(step)
    except TypeError:
        raise TypeError(
            f"metrics: step={step!r:.50} is a {type(step).__name__}. It is the number of completed steps. Pass an int."
        ) from None


def require_count(name: str, number: Any) -> None:
    """Reject what cannot be a number of samples or tokens; None means "not given".

    Raises:
        TypeError: the object is not a number that the host knows.
        ValueError: the number is negative.
    """
    if number is not None and not isinstance(number, Real):
        raise TypeError(
            f"metrics: {name}={number!r:.50} is a {type(number).__name__}. It is counted on the host. Pass an int."
        )
    if number is not None and number < 0:
        raise ValueError(f"metrics: {name}={number} is negative. It is the number of {name} of this step.")
