"""Facts: inputs of rules that no section contains, such as the number of processes and the kind of GPU.

`machine_facts` detects them on this machine, or assumes those of a `TargetMachine`. `collect_facts` only arranges
values that the caller already knows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import mb_schema.versions
from mb_config.rules.hardware import gpu_short_name, nvlink_gpus
from mb_schema.gpu_names import UnknownGpuError
from mb_schema.rules import NOTHING

OPTIONAL_PACKAGES = (
    "tensorboard",
    "wandb",
    "mlflow",
    "comet_ml",
    "nvdlfw_inspect",
    "nvidia_resiliency_ext",
    "einops",
    "emerging_optimizers",
)
"""Modules whose presence rules read as `facts.<name>_installed`."""

ALLOW_OOM = "MB_ALLOW_OOM"
"""Environment variable with which a run starts although the plan states that it does not fit the GPU, if it is 1."""

VisibleGpus = Callable[[Mapping[str, str]], Sequence[str | None]]
"""Function of the environment variables that returns the names of the visible GPUs; None for an unknown name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetMachine:
    """Machine that a run is checked for: this one, or another one with GPUs of a given kind."""

    world_size: int | None = None
    """Number of processes; None: unknown."""

    gpu: str | None = None
    """Short name of the GPUs of another machine, such as "h100"; None: this machine."""

    transformer_engine: str | None = None
    """Version of Transformer Engine on the target; None: the version installed here, and unknown for another machine if
    none is installed here."""

    apex: bool = False
    """Whether Apex with its CUDA extensions is installed on another machine. On this machine it is detected."""

    local_world_size: int | None = None
    """Number of processes on one machine; None: unknown."""


def collect_facts(
    *,
    world_size: int | None = None,
    env: Mapping[str, str] = NOTHING,
    env_vars: object = None,
    versions: Mapping[str, str | None] = NOTHING,
    gpu: str | None = None,
) -> dict[str, object]:
    """Return the facts for `check` from known values; nothing is detected.

    A fact that is not known is omitted, and rules that read it are skipped.

    Args:
        world_size: Number of processes.
        env: Environment variables of the shell.
        env_vars: The section of that name, which adds variables that the shell does not set.
        versions: Versions of `transformer_engine` and `torch` on the target machine; None: not installed.
        gpu: Short name of the GPUs of the target machine, such as "h100".
    """
    facts: dict[str, object] = {"env": environment_variables(env_vars, env)}
    facts |= {f"{name}_version": version for name, version in versions.items() if version is not None}
    if "transformer_engine" in versions:
        facts["transformer_engine"] = versions["transformer_engine"] is not None
    if world_size is not None:
        facts["world_size"] = world_size
    if gpu is not None:
        facts |= {"gpu": gpu, "cpu": False}
        if (connected := nvlink_gpus(gpu)) is not None:
            facts["gpus_per_node"] = connected
    return facts


def machine_facts(
    target: TargetMachine,
    *,
    gpus: VisibleGpus,
    kernels: Mapping[str, bool] = NOTHING,
    env_vars: object = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """Return the facts for `check` about this machine, or about another one with GPUs of a given kind.

    An unknown fact is None, and rules that read it are skipped. For another machine, a Transformer Engine that is
    installed here means that the target has the environment of this process. If none is installed here, the other
    packages of the target (`process_packages`) are not known either.
    `same_machine` is True for this machine and None for another one, which may or may not be equal to it.

    Args:
        target: The machine.
        gpus: Returns the names of the GPUs of this machine that CUDA sees with the given environment variables.
        kernels: Name of a fact to whether this process can import the extension modules of Apex for it.
        env_vars: Section of that name, which adds variables that the shell does not set.
        environment: Variables of the shell; None: `os.environ`.
    """
    gpu = target.gpu
    variables = environment_variables(env_vars, os.environ if environment is None else environment)
    visible = gpus(variables) if gpu is None else ()
    on_cpu = gpu is None and not visible
    # without a GPU training runs on the CPU, where Transformer Engine cannot be used even if it is installed
    installed = None if on_cpu else installed_version("transformer_engine", "transformer-engine")
    other_environment = gpu is not None and installed is None
    packages = process_packages()
    engine = target.transformer_engine or installed
    return {
        "world_size": target.world_size,
        "env": variables,
        "gpu": gpu or short_name_of_first(visible),
        "transformer_engine": None if other_environment and engine is None else engine is not None,
        "transformer_engine_version": engine,
        **(dict.fromkeys(packages) if other_environment else packages),
        **{
            name: (found and not other_environment) or (gpu is not None and target.apex)
            for name, found in kernels.items()
        },
        "same_machine": True if gpu is None else None,
        "gpus_per_node": nvlink_gpus(gpu) if gpu is not None else len(visible) or None,
        "local_world_size": target.local_world_size,
        "cpu": on_cpu,
        "allow_oom": variables.get(ALLOW_OOM) == "1",
    }


def process_packages() -> dict[str, object]:
    """Return the facts that describe the packages of this process but Transformer Engine; none is imported."""
    return {
        "torch_version": installed_version("torch", "torch"),
        "nvidia_resiliency_ext_version": installed_version("nvidia_resiliency_ext", "nvidia-resiliency-ext"),
        **{f"{name}_installed": find_spec(name) is not None for name in OPTIONAL_PACKAGES},
    }


def environment_variables(env_vars: object, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the section `env_vars` and of the shell, which takes precedence."""
    added = env_vars if isinstance(env_vars, Mapping) else {}  # the check reports another type
    return {**{str(name): str(value) for name, value in added.items()}, **environment}


def installed_version(module: str, distribution: str) -> str | None:
    """Return the version of an installed package without importing it; None if it is not installed."""
    return None if find_spec(module) is None else mb_schema.versions.installed_version(distribution)


def short_name_of_first(names: Sequence[str | None]) -> str | None:
    """Return the short name of the first of the GPUs; None without a GPU, or for an unknown one."""
    if not names or names[0] is None:
        return None
    try:
        return gpu_short_name(names[0])
    except UnknownGpuError:
        return None
