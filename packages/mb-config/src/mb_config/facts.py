"""What rules may ask that no section holds."""

from __future__ import annotations

from collections.abc import Mapping

from mb_config.problems import NOTHING
from mb_config.rules.hardware import nvlink_gpus


def collect_facts(
    *,
    world_size: int | None = None,
    env: Mapping[str, str] = NOTHING,
    env_vars: object = None,
    versions: Mapping[str, str | None] = NOTHING,
    gpu: str | None = None,
    gpus_per_node: int | None = None,
) -> dict[str, object]:
    """Facts for `check`; one that is not known is left out, and with it the rules that ask for it.

    Args:
        world_size: Number of processes.
        env: The shell's environment variables.
        env_vars: The section of that name, which adds variables that the shell does not set.
        versions: Versions of `transformer_engine` and `torch` where the run is meant to start; None: not installed.
        gpu: Short name of its GPUs, such as "h100".
        gpus_per_node: GPUs that NVLink connects there; None: those of the common system of `gpu`, where it is known.
    """
    added = env_vars if isinstance(env_vars, Mapping) else {}
    facts: dict[str, object] = {"env": {**{str(name): str(value) for name, value in added.items()}, **env}}
    facts |= {f"{name}_version": version for name, version in versions.items() if version is not None}
    if "transformer_engine" in versions:
        facts["transformer_engine"] = versions["transformer_engine"] is not None
    if world_size is not None:
        facts["world_size"] = world_size
    if gpu is not None:
        facts |= {"gpu": gpu, "cpu": False}
        gpus_per_node = gpus_per_node or nvlink_gpus(gpu)
    if gpus_per_node is not None:
        facts["gpus_per_node"] = gpus_per_node
    return facts
