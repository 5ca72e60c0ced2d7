"""`mb --version`."""

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
"""What else is told, in this order; read from what is installed, without importing it."""


def version() -> int:
    """Print one line per distribution, the trainer's first."""
    for name in (TRAINER, *PACKAGES):
        print(f"{name} {version_of(name)}")
    return 0


def version_of(distribution: str) -> str:
    """Return the version of an installed distribution, or that it is not there."""
    try:
        return installed(distribution)
    except PackageNotFoundError:
        return "not installed"
