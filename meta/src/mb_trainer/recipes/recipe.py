"""Type of a recipe: a named, complete configuration."""

from collections.abc import Callable
from dataclasses import dataclass

from mb_trainer.config import ConfigContainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Entry of the recipe table."""

    summary: str
    """One line for `mb recipes`."""
    build: Callable[[], ConfigContainer]
    """Builds a new configuration, which the caller may modify."""
    processes: int = 1
    """Smallest number of processes that its parallel layout is intended for; multiples of it work, too."""
