"""A CloudAI test as a job of mb-launch: the command of each rank, and the options of the Slurm job. Imports pydantic.

The arguments keep their meaning; the names on the right are those of Megatron-Bridge's configuration.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mb_launch.cloudai.constraints import list_items
from mb_launch.cloudai.definition import (
    MegatronBridgeCmdArgs,
    MegatronBridgeTestDefinition,
    load_test_definition,
)
from mb_launch.errors import LauncherError
from mb_schema.hydra_text import to_hydra_text

FIELDS: Mapping[str, tuple[str, ...]] = {
    "tp": ("model.tensor_model_parallel_size",),
    "pp": ("model.pipeline_model_parallel_size",),
    "cp": ("model.context_parallel_size",),
    "vp": ("model.virtual_pipeline_model_parallel_size",),
    "ep": ("model.expert_model_parallel_size",),
    "et": ("model.expert_tensor_parallel_size",),
    "hidden_size": ("model.hidden_size",),
    "num_layers": ("model.num_layers",),
    "pipeline_model_parallel_layout": ("model.pipeline_model_parallel_layout",),
    "seq_length": ("model.seq_length", "dataset.seq_length"),
    "mb": ("train.micro_batch_size",),
    "gb": ("train.global_batch_size",),
    "max_steps": ("train.train_iters",),
    "lr": ("optimizer.lr",),
    "min_lr": ("optimizer.min_lr",),
    "warmup_iters": ("scheduler.lr_warmup_iters",),
    "cuda_graph_impl": ("model.cuda_graph_impl",),
    "cuda_graph_scope": ("model.cuda_graph_modules",),
    "recompute_num_layers": ("model.recompute_num_layers",),
    "recompute_modules": ("model.recompute_modules",),
    "use_megatron_fsdp": ("ddp.use_megatron_fsdp",),
    "nccl_ub": ("ddp.nccl_ub",),
    "num_distributed_optimizer_instances": ("ddp.num_distributed_optimizer_instances",),
    "moe_a2a_overlap": ("comm_overlap.overlap_moe_expert_parallel_comm",),
    "pretrained_checkpoint": ("checkpoint.pretrained_checkpoint",),
    "save_dir": ("checkpoint.save",),
    "load_dir": ("checkpoint.load",),
    "save_interval": ("checkpoint.save_interval",),
    "most_recent_k": ("checkpoint.most_recent_k",),
    "save_config_filepath": ("logger.save_config_filepath",),
    "dataset_root": ("dataset.dataset_root",),
    "index_mapping_dir": ("dataset.path_to_cache",),
    "tokenizer_type": ("tokenizer.tokenizer_type",),
    "tokenizer_model": ("tokenizer.tokenizer_model",),
    "vocab_size": ("tokenizer.vocab_size",),
    "wandb_project_name": ("logger.wandb_project",),
    "wandb_entity_name": ("logger.wandb_entity",),
    "wandb_experiment_name": ("logger.wandb_exp_name",),
    "wandb_save_dir": ("logger.wandb_save_dir",),
    "enable_nsys": ("profiling.use_nsys_profiler",),
    "pytorch_profiler": ("profiling.use_pytorch_profiler",),
    "profiling_start_step": ("profiling.profile_step_start",),
    "profiling_stop_step": ("profiling.profile_step_end",),
    "profiling_ranks": ("profiling.profile_ranks",),
    "record_memory_history": ("profiling.record_memory_history",),
}
"""Argument -> fields of the configuration."""

PRECISIONS: Mapping[str, str] = {
    "bf16": "bf16_mixed",
    "fp8_cs": "bf16_with_fp8_current_scaling_mixed",
    "fp8_mx": "bf16_with_mxfp8_mixed",
    "fp8_sc": "bf16_with_fp8_subchannel_scaling_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
"""`compute_dtype` -> section `mixed_precision`."""

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "pretrain": ("pretrain",),
    "sft": ("finetune",),
    "lora": ("finetune", "peft=lora"),
}
"""`task` -> command of the trainer, and its arguments."""

OF_JOB = frozenset(
    {
        "gpu_type", "num_gpus", "gpus_per_node", "time_limit", "container_image", "hf_token", "wandb_key",
        "model_family_name", "model_recipe_name", "task", "compute_dtype",
    }
)  # fmt: skip
"""Arguments of the job, and those that choose command, recipe and precision."""

_LISTS = ("cuda_graph_scope", "recompute_modules", "profiling_ranks")

SECRETS = {"hf_token": "HF_TOKEN", "wandb_key": "WANDB_API_KEY"}
"""Argument -> variable that is passed by name."""


class CloudaiTestError(LauncherError, ValueError):
    """The file of a test cannot be read, or fields are missing, unknown or invalid."""

    bad_input = True


def read_test(file: Path) -> MegatronBridgeTestDefinition:
    """Read the file of a test.

    Raises:
        CloudaiTestError: It cannot be read, or is not a test definition; the message names all wrong fields.
    """
    try:
        return load_test_definition(file)
    except (OSError, UnicodeDecodeError, ValueError) as error:  # pydantic's and TOML's errors are ValueErrors
        raise CloudaiTestError(f"{file}: is not a test definition of CloudAI ({error}).") from error


def trainer_arguments(test: MegatronBridgeTestDefinition) -> list[str]:
    """Return the command, the recipe and the overrides of a test, in the order of `FIELDS`, then its own overrides.

    The precision is always given, other arguments if the test gives them. Overrides of the test come last and win.

    Raises:
        CloudaiTestError: The recipe is blank, an argument has no counterpart, or a value is unknown.
    """
    arguments = test.cmd_args
    if not arguments.model_recipe_name.strip():
        raise CloudaiTestError("cmd_args.model_recipe_name: is blank. Name a recipe, such as llama31_8b.")
    _reject_without_counterpart(arguments)
    command, *further = _choice("task", COMMANDS, arguments.task)
    precision = _choice("compute_dtype", PRECISIONS, arguments.compute_dtype)
    words = [command, arguments.model_recipe_name, *further, f"mixed_precision={precision}"]
    for name in FIELDS:
        if name in arguments.model_fields_set:
            words += _overrides(name, getattr(arguments, name))
    return [*words, *(f"{name}={text}" if text else name for name, text in test.extra_cmd_args.items())]


def job_settings(test: MegatronBridgeTestDefinition) -> dict[str, Any]:
    """Return the fields of `SlurmJob` that a test determines.

    Raises:
        CloudaiTestError: The GPUs are no multiple of those of a node, or a variable has several values.
    """
    arguments = test.cmd_args
    extra = arguments.__pydantic_extra__
    per_node = extra.get("gpus_per_node") or min(arguments.num_gpus, 8)
    if not isinstance(per_node, int) or per_node < 1 or arguments.num_gpus % per_node:
        raise CloudaiTestError(
            f"cmd_args.num_gpus: {arguments.num_gpus} is not a multiple of gpus_per_node ({per_node}). "
            "Set gpus_per_node."
        )
    settings: dict[str, Any] = {
        "nodes": arguments.num_gpus // per_node,
        "gpus_per_node": per_node,
        "gpu": arguments.gpu_type,
        "job_name": test.name,
        "time": extra.get("time_limit"),
        "container_image": arguments.container_image or None,
        "container_mounts": ",".join(test.extra_container_mounts) or None,
        "env": [
            *_variables(test),
            *(SECRETS[name] for name in SECRETS if name in arguments.model_fields_set),
        ],
    }
    return {name: value for name, value in settings.items() if value not in (None, [])}


def _variables(test: MegatronBridgeTestDefinition) -> Iterator[str]:
    for name, value in test.extra_env_vars.items():
        if isinstance(value, list):
            raise CloudaiTestError(
                f"extra_env_vars.{name}: {value} is a list, because it describes several launches. Write one value."
            )
        yield f"{name}={value}"


def _reject_without_counterpart(arguments: MegatronBridgeCmdArgs) -> None:
    for name in sorted(arguments.model_fields_set):
        if name in FIELDS or name in OF_JOB or not getattr(arguments, name):
            continue
        if (name, getattr(arguments, name)) == ("domain", "llm"):
            continue
        raise CloudaiTestError(
            f"cmd_args.{name}: has no counterpart in the trainer, because it belongs to Megatron-Bridge's launcher. "
            "Remove it, or give the trainer's own setting in extra_cmd_args."
        )


def _choice(name: str, choices: Mapping[str, Any], value: str) -> Any:
    if value not in choices:
        raise CloudaiTestError(f"cmd_args.{name}: {value!r} is unknown. Known: {', '.join(choices)}.")
    return choices[value]


def _overrides(name: str, value: object) -> Iterator[str]:
    """Yield the overrides of this project for one argument of CloudAI.

    Raises:
        CloudaiTestError: The value is a list, which describes several launches.
    """
    if name in _LISTS:
        value = [int(item) if item.isdecimal() else item for item in list_items(value)]
        if name == "recompute_modules" and value:
            yield "model.recompute_granularity=selective"
    elif isinstance(value, list):
        raise CloudaiTestError(
            f"cmd_args.{name}: {value} is a list, because it describes several launches. Launch each separately."
        )
    elif name == "recompute_num_layers" and value:
        yield from ["model.recompute_granularity=full", "model.recompute_method=block"]
    elif name == "vp" and value == 1:
        value = None
    for field in FIELDS[name]:
        yield f"{field}={to_hydra_text(value)}"
