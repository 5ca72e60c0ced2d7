"""Conditions of rules. Standard library only."""


def unless(passes: object, message: str) -> str | None:
    """Return the message if the condition is false, otherwise None."""
    return None if passes else message
