"""Facts for rules about the target machine: this one, or one that the user describes. No torch."""

import os
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from mb_config import UnknownGpuError, gpu_short_name
from mb_config.rules.hardware import nvlink_gpus
from mb_launch.gpus import THIS_MACHINE, GpuFacts, GpuSources, read_gpus, visible_gpus
from mb_models.kernel_modules import KERNEL_MODULES, kernel_facts

OPTIONAL_PACKAGES = (
    "tensorboard",
    "wandb",
    "mlflow",
    "comet_ml",
    "nvdlfw_inspect",
    "nvidia_resiliency_ext",
)
"""Packages whose presence rules may query."""


def gather_facts(
    world_size: int,
    *,
    gpu: str | None = None,
    transformer_engine: str | None = None,
    apex: bool = False,
    local_world_size: int | None = None,
    env_vars: object = None,
    environment: Mapping[str, str] | None = None,
    sources: GpuSources = THIS_MACHINE,
) -> dict[str, object]:
    """Return the facts for rules. An unknown fact is None, and rules that need it are skipped.

    Args:
        world_size: processes of the run.
        gpu: short name of the target GPU ("h100"); None: the first of this machine, if any.
        transformer_engine: its version on the target machine; None: the version installed here, or unknown if `gpu`
            describes another machine.
        apex: whether Apex with its CUDA extensions is installed on the machine that `gpu` describes; on this machine
            the modules are searched.
        local_world_size: processes of the run on this machine; None: not known.
        env_vars: variables of the configuration; the shell's `environment` takes precedence.
        environment: the shell's variables; None: `os.environ`.
        sources: sources of the facts about this machine's GPUs. GPUs hidden by CUDA_VISIBLE_DEVICES are excluded.
    """
    environment = os.environ if environment is None else environment
    added = env_vars if isinstance(env_vars, Mapping) else {}  # the check reports another type
    variables = {**{str(name): str(value) for name, value in added.items()}, **environment}
    gpus = visible_gpus(read_gpus(sources=sources), variables) if gpu is None else ()
    on_cpu = gpu is None and not gpus
    # without a GPU CUDA calls run on the CPU, and an installed Transformer Engine is not used either
    here = None if on_cpu else installed_version("transformer_engine", "transformer-engine")
    elsewhere = gpu is not None and here is None
    engine = transformer_engine or here
    return {
        "world_size": world_size,
        "env": variables,
        "gpu": gpu or name_of_first(gpus),
        "transformer_engine": None if elsewhere and engine is None else engine is not None,
        "transformer_engine_version": engine,
        "torch_version": installed_version("torch", "torch"),
        "nvidia_resiliency_ext_version": installed_version("nvidia_resiliency_ext", "nvidia-resiliency-ext"),
        "einops_installed": None if elsewhere else find_spec("einops") is not None,
        **(dict.fromkeys(KERNEL_MODULES, apex) if elsewhere else kernel_facts()),
        "same_machine": True if gpu is None else None,
        "gpus_per_node": nvlink_gpus(gpu) if gpu is not None else len(gpus) or None,
        "local_world_size": local_world_size,
        "cpu": on_cpu,
        **{f"{name}_installed": find_spec(name) is not None for name in OPTIONAL_PACKAGES},
    }


def installed_version(module: str, distribution: str) -> str | None:
    """Return the version of an installed package without importing it; None if it is not installed."""
    if find_spec(module) is None:
        return None
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def first_gpu(environment: Mapping[str, str], *, sources: GpuSources = THIS_MACHINE) -> str | None:
    """Return the short name of the first GPU visible to CUDA; None without a GPU, or for an unknown model."""
    return name_of_first(visible_gpus(read_gpus(sources=sources), environment))


def name_of_first(gpus: Sequence[GpuFacts | None]) -> str | None:
    """Return the short name of the first of the visible GPUs; None without a GPU, or for an unknown model."""
    if not gpus or gpus[0] is None:
        return None
    try:
        return gpu_short_name(gpus[0].name)
    except UnknownGpuError:
        return None
