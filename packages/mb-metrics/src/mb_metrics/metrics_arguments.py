"""Checks of the arguments of `Metrics`."""

from collections.abc import Mapping

from mb_metrics.names import BRIDGE_ALIASES
from mb_metrics.run_progress import SECONDS


def known_unit(unit: str | None) -> str | None:
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


def known_aliases(aliases: str | Mapping[str, str] | None) -> Mapping[str, str]:
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


def require_positive(**numbers: float | None) -> None:
    """Reject numbers that are not positive; None means "not set".

    Raises:
        ValueError: a number is zero or negative.
    """
    for name, number in numbers.items():
        if number is not None and number <= 0:
            raise ValueError(
                f"metrics.{name}: must be positive ({name}={number}). It is a count or a divisor. Set it higher"
                f"{'' if name in ('log_interval', 'world_size') else ', or to None if it is not known'}."
            )
