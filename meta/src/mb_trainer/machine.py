"""Facts for rules about the target machine: this one, or one that the user describes. No torch."""

from collections.abc import Mapping

from mb_config.facts import TargetMachine, machine_facts, short_name_of_first
from mb_launch.gpus import THIS_MACHINE, GpuSources, read_gpus, visible_gpus
from mb_models.kernel_modules import kernel_facts


def target_facts(
    target: TargetMachine,
    env_vars: object = None,
    *,
    environment: Mapping[str, str] | None = None,
    sources: GpuSources = THIS_MACHINE,
) -> dict[str, object]:
    """Return the facts for rules; `sources` describe the GPUs of this machine. See `mb_config.facts.machine_facts`."""
    return machine_facts(
        target,
        gpus=lambda variables: names_of_visible(variables, sources=sources),
        kernels=kernel_facts(),
        env_vars=env_vars,
        environment=environment,
    )


def first_gpu(environment: Mapping[str, str], *, sources: GpuSources = THIS_MACHINE) -> str | None:
    """Return the short name of the first GPU visible to CUDA; None without a GPU, or for an unknown model."""
    return short_name_of_first(names_of_visible(environment, sources=sources))


def names_of_visible(environment: Mapping[str, str], *, sources: GpuSources) -> list[str | None]:
    """Return the names of the GPUs visible to CUDA; None for one of which only the number is known."""
    visible = visible_gpus(read_gpus(sources=sources), environment)
    return [None if gpu is None else gpu.name for gpu in visible]
