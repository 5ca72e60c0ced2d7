"""Facts: inputs of rules that no section contains."""

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
    """Return the facts for `check`. A fact that is not known is omitted, and rules that read it are skipped.

    Args:
        world_size: Number of processes.
        env: Environment variables of the shell.
        env_vars: The section of that name, which adds variables that the shell does not set.
        versions: Versions of `transformer_engine` and `torch` on the target machine; None: not installed.
        gpu: Short name of the GPUs of the target machine, such as "h100".
        gpus_per_node: GPUs that NVLink connects there; None: those of the common system of `gpu`, if known.
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
