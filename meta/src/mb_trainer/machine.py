"""What rules may ask about the machine that a run is meant for: this one, or one that a user describes. No torch."""

import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

OPTIONAL_PACKAGES = (
    "tensorboard",
    "wandb",
    "mlflow",
    "comet_ml",
    "nvdlfw_inspect",
    "nvidia_resiliency_ext",
)
"""Packages whose presence rules may ask about."""

DRIVER = Path("/proc/driver/nvidia/gpus")
"""Where NVIDIA's driver describes the devices, a folder each."""

GENERATIONS = ("gb300", "gb200", "b300", "b200", "h200", "h100", "h800", "a100", "l40s")
"""Short names of GPUs, longer ones before those that they contain."""


def gather_facts(
    world_size: int,
    *,
    gpu: str | None = None,
    transformer_engine: str | None = None,
    env_vars: Mapping[str, object] | None = None,
    environment: Mapping[str, str] = os.environ,
    driver: Path = DRIVER,
) -> dict[str, object]:
    """Return what rules may ask. A fact that is not known is None, and rules that need it are left out.

    Args:
        world_size: processes of the run.
        gpu: short name of the GPU ("h100") that the run is meant for; None: the first of this machine, if any.
        transformer_engine: its version there; None: what is installed here, or unknown where `gpu` speaks of
            another machine.
        env_vars: the configuration's, which the shell's `environment` wins over.
        environment: the shell's variables.
        driver: where the driver describes the devices of this machine.
    """
    here = installed_version("transformer_engine", "transformer-engine")
    elsewhere = gpu is not None and here is None
    engine = transformer_engine or here
    return {
        "world_size": world_size,
        "env": {**{name: str(value) for name, value in (env_vars or {}).items()}, **environment},
        "gpu": gpu or first_gpu(driver),
        "transformer_engine": None if elsewhere and engine is None else engine is not None,
        "transformer_engine_version": engine,
        "torch_version": installed_version("torch", "torch"),
        "einops_installed": None if elsewhere else find_spec("einops") is not None,
        "cpu": gpu is None and not any(driver.glob("*")),
        **{f"{name}_installed": find_spec(name) is not None for name in OPTIONAL_PACKAGES},
    }


def installed_version(module: str, distribution: str) -> str | None:
    """Return the version of an installed package without importing it; None where it is not installed."""
    if find_spec(module) is None:
        return None
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def first_gpu(driver: Path) -> str | None:
    """Return the short name of the first GPU as the driver tells it, None without a driver or for another model."""
    for description in sorted(driver.glob("*/information")):
        model = description.read_text().lower().replace(" ", "")
        return next((name for name in GENERATIONS if name in model), None)
    return None
