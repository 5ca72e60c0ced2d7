"""Implementation of `mb --version`."""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

TRAINER = "mb-trainer"
PACKAGES = (
    "mb-config",
    "mb-data",
    "mb-loop",
    "mb-overlap",
    "mb-checkpoint",
    "mb-metrics",
    "mb-resilience",
    "mb-models",
    "mb-launch",
    "mb-host",
    "torch",
    "megatron-core",
    "transformer-engine",
)
"""Distributions listed after the trainer, in this order. Their metadata are read; no package is imported."""


def version() -> int:
    """Print one line per distribution, the trainer first. Return the exit code."""
    for name in (TRAINER, *PACKAGES):
        print(f"{name} {version_of(name)}")
    return 0


def version_of(distribution: str) -> str:
    """Return the version of a distribution, or "not installed"."""
    try:
        return installed(distribution)
    except PackageNotFoundError:
        return "not installed"
