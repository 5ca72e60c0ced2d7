"""Command line of Megatron-Bridge's `setup_experiment.py`, from CloudAI's arguments. The standard library only."""

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from mb_launch.cloudai.constraints import list_items
from mb_launch.errors import LauncherError
from mb_schema.secrets import MASK, masked_argument

FLAGS: Mapping[str, str] = {
    "gpu_type": "-g", "log_dir": "-l", "container_image": "-i", "compute_dtype": "-c", "task": "--task",
    "hf_token": "-hf", "nemo_home": "-nh", "wandb_key": "-wdk", "wandb_project_name": "-wdp",
    "wandb_entity_name": "-wde", "wandb_experiment_name": "-wdj", "wandb_save_dir": "-wds",
    "max_retries": "--max_retries", "num_gpus": "-ng", "gpus_per_node": "-gn", "enable_vboost": "-vb",
    "model_family_name": "-m", "model_recipe_name": "-mr", "domain": "--domain", "hidden_size": "--hidden_size",
    "num_layers": "--num_layers", "pipeline_model_parallel_layout": "--pipeline_model_parallel_layout",
    "first_k_dense_replace": "--first_k_dense_replace", "use_tokendrop": "--use_tokendrop",
    "use_megatron_fsdp": "--use_megatron_fsdp", "nccl_ub": "--nccl_ub", "cuda_graph_impl": "--cuda_graph_impl",
    "cuda_graph_scope": "--cuda_graph_scope", "tp": "-tp", "pp": "-pp", "cp": "-cp", "vp": "-vp", "ep": "-ep",
    "et": "-et", "mb": "-mb", "gb": "-gb", "seq_length": "-sl", "lr": "--lr", "min_lr": "--min_lr",
    "warmup_iters": "--warmup_iters", "pretrained_checkpoint": "--pretrained_checkpoint",
    "save_dir": "--save_dir", "load_dir": "--load_dir", "save_interval": "--save_interval",
    "most_recent_k": "--most_recent_k", "save_config_filepath": "--save_config_filepath", "data": "--data",
    "dataset_paths": "--dataset_paths", "dataset_root": "--dataset_root",
    "index_mapping_dir": "--index_mapping_dir", "dataset_name": "--dataset_name",
    "tokenizer_type": "--tokenizer_type", "tokenizer_model": "--tokenizer_model", "vocab_size": "--vocab_size",
    "pytorch_profiler": "-pyp", "profiling_start_step": "--profiling_start_step",
    "profiling_stop_step": "--profiling_stop_step", "record_memory_history": "-mh",
    "profiling_ranks": "--profiling_ranks", "nsys_trace": "--nsys_trace", "nsys_extra_args": "--nsys_extra_args",
    "moe_a2a_overlap": "--moe_a2a_overlap", "max_steps": "-ms", "recompute_num_layers": "-rl",
    "activation_offload_layers": "-ol", "recompute_modules": "--recompute_modules", "config_variant": "-cv",
}  # fmt: skip
"""Argument -> flag, in the order of the command line."""

BARE: Mapping[str, str] = {
    "dryrun": "-d", "enable_nsys": "-en", "use_recipes": "--use_recipes", "packed_sequence": "--packed_sequence",
    "head_only": "--head_only", "profiling_gpu_metrics": "--profiling_gpu_metrics",
    "list_config_variants": "--list_config_variants",
}  # fmt: skip
"""Argument -> flag without a value."""

NEVER = frozenset({"fp8_recipe", "num_distributed_optimizer_instances"})
"""Arguments that the launcher has no flag for."""

ALWAYS = frozenset(
    {
        "model_family_name",
        "model_recipe_name",
        "num_gpus",
        "gpus_per_node",
        "hf_token",
        "save_config_filepath",
    }
)
"""Arguments that are passed even if the user left them at their default."""

SECRETS = frozenset({"-hf", "-wdk"})
"""Flags with a secret value."""

OVERRIDES: Mapping[str, str] = {
    "logger.tensorboard_dir": "/nemo_run/tb_logs",
    "logger.log_timers_to_tensorboard": "true",
    "logger.log_throughput_to_tensorboard": "true",
    "logger.log_memory_to_tensorboard": "true",
}
"""Overrides of the configuration that are appended; those of the user take precedence."""


class IncompleteLaunchError(LauncherError, ValueError):
    """A launch lacks an argument that the launcher requires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSettings:
    """Settings of the system that a launch runs on, independent of the user's test."""

    account: str = ""
    """Slurm account."""
    partition: str = ""
    """Slurm partition."""
    time_limit: str = ""
    """Time limit, HH:MM:SS."""
    gpus_per_node: int | None = None
    """GPUs in a node."""
    mounts: tuple[str, ...] = ()
    """Mounts into the container, host:container."""
    env_vars: Mapping[str, str] = field(default_factory=dict)
    """Variables to export before the job."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Overrides of the configuration; one without a value is passed as its name alone (`~model.foo`)."""


def launcher_arguments(
    arguments: Mapping[str, object], *, given: Collection[str], system: SystemSettings
) -> list[str]:
    """Return the arguments of `setup_experiment.py`. They include secrets: print them with `masked_command_line`.

    Args:
        arguments: All arguments under CloudAI's names, defaults included.
        given: Names of the arguments that the user set; the launcher chooses the others.
        system: Settings of the system.

    Raises:
        IncompleteLaunchError: The family or the recipe of the model is blank.
    """
    for name in ("model_family_name", "model_recipe_name"):
        if not str(arguments.get(name) or "").strip():
            raise IncompleteLaunchError(
                f"cmd_args.{name}: is blank, because nothing was given. Name the model, such as llama and llama3_8b."
            )
    slurm = {
        "-a": system.account,
        "-p": system.partition,
        "-t": str(arguments.get("time_limit") or system.time_limit),
    }
    parts = [part for flag, value in slurm.items() if value for part in (flag, value)]
    passed = {**arguments, "gpus_per_node": arguments.get("gpus_per_node") or system.gpus_per_node}
    selected = set(given) | ALWAYS
    for name, flag in FLAGS.items():
        if name in selected:
            parts += _flag(name, flag, passed.get(name))
    parts += [flag for name, flag in BARE.items() if name in given and arguments.get(name)]
    if system.mounts:
        parts += ["-cm", ",".join(system.mounts)]
    for name, value in system.env_vars.items():
        parts += ["-cb", f"export {name}={shlex.quote(value)}"]
    overrides = {**OVERRIDES, **system.overrides}
    return [
        *parts,
        "--detach",
        "false",
        *(f"{name}={value}" if value else name for name, value in overrides.items()),
    ]


def _flag(name: str, flag: str, value: object) -> list[str]:
    if name == "vp" and value == 1:
        return [flag, "None"]
    if name == "dataset_paths" and isinstance(value, list):
        return [flag, *map(str, value)] if value else []
    text = _text(name, value)
    return [flag, text] if text else []


def _text(name: str, value: object) -> str:
    if value is None:
        return ""
    if name in ("recompute_modules", "cuda_graph_scope"):
        return ",".join(list_items(value))
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def shell_line(parts: Sequence[str]) -> str:
    """Return arguments as one line for a shell, with the list of recomputed modules in double quotes."""
    quoted = [shlex.quote(part) for part in parts]
    for position, part in enumerate(parts[:-1]):
        if part == "--recompute_modules":
            text = re.sub(
                r'([\\"$`])', r"\\\1", parts[position + 1]
            )  # these keep their meaning in double quotes
            quoted[position + 1] = f'"{text}"'
    return " ".join(quoted)


def masked_command_line(parts: Sequence[str]) -> str:
    """Return arguments as one line for a log, with the values of secrets masked."""
    previous = ["", *parts[:-1]]
    return shell_line([_masked(flag, part) for flag, part in zip(previous, parts, strict=True)])


def _masked(flag: str, part: str) -> str:
    return MASK if flag in SECRETS else masked_argument(part)
