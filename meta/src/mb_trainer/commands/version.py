"""Implementation of `mb --version`."""

import re
from importlib.metadata import PackageNotFoundError, requires
from importlib.metadata import version as installed

TRAINER = "mb-trainer"
FRAMEWORKS = ("torch", "megatron-core", "transformer-engine")


def packages() -> tuple[str, ...]:
    """Return the distributions to list after the trainer: the packages it requires, and the frameworks."""
    required = (re.match(r"mb-\w+", text) for text in requires(TRAINER) or () if "extra ==" not in text)
    return (*(found[0] for found in required if found), *FRAMEWORKS)


def version() -> int:
    """Print one line per distribution, the trainer first. Reads metadata; no package is imported."""
    for name in (TRAINER, *packages()):
        print(f"{name} {version_of(name)}")
    return 0


def version_of(distribution: str) -> str:
    """Return the version of a distribution, or "not installed"."""
    try:
        return installed(distribution)
    except PackageNotFoundError:
        return "not installed"
