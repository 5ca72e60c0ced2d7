"""What a recipe is: a complete configuration with a name."""

from collections.abc import Callable
from dataclasses import dataclass

from mb_trainer.config import ConfigContainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A configuration by name."""

    summary: str
    """One line for the list."""
    build: Callable[[], ConfigContainer]
    """Makes a new configuration, which the caller may change."""
    processes: int = 1
    """Smallest number of processes for which its layout is meant; multiples of it will do, too."""
