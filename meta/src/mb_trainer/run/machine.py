"""Facts for rules about the target machine: this one, or one that the user describes. No torch."""

from collections.abc import Mapping
from functools import partial

from mb_config.trainer_api import TargetMachine, machine_facts, short_name_of_first
from mb_launch import GpuSources
from mb_launch.trainer_api import THIS_MACHINE, visible_gpu_names
from mb_models.trainer_api import kernel_facts


def target_facts(
    target: TargetMachine,
    env_vars: object = None,
    *,
    environment: Mapping[str, str] | None = None,
    sources: GpuSources = THIS_MACHINE,
) -> dict[str, object]:
    """Return the facts for rules; `sources` describe the GPUs of this machine."""
    gpus = partial(visible_gpu_names, sources=sources)
    kernels = kernel_facts()
    return machine_facts(target, gpus=gpus, kernels=kernels, env_vars=env_vars, environment=environment)


def first_gpu(environment: Mapping[str, str], *, sources: GpuSources = THIS_MACHINE) -> str | None:
    """Return the short name of the first GPU visible to CUDA; None without a GPU, or for an unknown model."""
    return short_name_of_first(visible_gpu_names(environment, sources=sources))
