"""Type of the functions that receive the progress of a long operation. Standard library only."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Function of the stage, the finished amount and the total."""
