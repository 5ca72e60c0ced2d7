"""CloudAI's test definition for Megatron-Bridge, and what CloudAI installs before a test. Imports pydantic."""

import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from typing_extensions import Self

from mb_launch.cloudai import outcome
from mb_launch.cloudai.command import SystemSettings, launcher_arguments
from mb_launch.cloudai.constraints import (
    ConstraintViolation,
    SweepError,
    read_launch_request,
    violated_constraints,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MOUNT = "/opt/Megatron-Bridge"
"""Path of the repository in the container."""


class GitRepo(BaseModel):
    """A repository at one commit."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    url: str = Field(repr=False)
    """Address. Not printed, because it may include a password."""
    commit: str
    """Commit, branch or tag."""
    init_submodules: bool = False
    """Check out submodules, too."""
    mount_as: str | None = None
    """Folder of the container over which the clone is mounted; None: not mounted."""


class DockerImage(BaseModel):
    """An image to install."""

    url: str
    """Address or path."""


class PythonExecutable(BaseModel):
    """A Python environment made from a repository."""

    git_repo: GitRepo
    """The repository."""


Installable = DockerImage | PythonExecutable | GitRepo


def select_bridge_repo(repos: list[GitRepo]) -> GitRepo | None:
    """Return the repository of Megatron-Bridge; None if a test has none."""
    return next(
        (
            repo
            for repo in repos
            if "Megatron-Bridge" in repo.url or (repo.mount_as or "").rstrip("/") == MOUNT
        ),
        None,
    )


SYSTEM_ARGUMENTS = frozenset({"gpus_per_node", "time_limit"})
"""Arguments of the system that a test may set, too."""


class MegatronBridgeCmdArgs(BaseModel):
    """Arguments of the launcher. A list of values for a scalar argument is a sweep: one launch for each value."""

    model_config = ConfigDict(extra="allow", hide_input_in_errors=True)
    __pydantic_extra__: dict[str, object]

    gpu_type: str = "gb200"
    """Short name of the GPU, such as "h100"."""
    log_dir: str = ""
    """Folder for the launcher's logs."""
    container_image: str = ""
    """Container, an address or a path."""
    num_gpus: int = 8
    """Total number of GPUs."""
    enable_vboost: bool | None = False
    """Raise the power limit of the tensor cores."""
    dryrun: bool | None = False
    """Print the submission without submitting it."""
    enable_nsys: bool | None = False
    """Profile with Nsight Systems."""
    domain: str | None = None
    """Kind of model: "llm", "vlm" or "qwen3vl"; None: the launcher's default, "llm"."""
    hidden_size: int | None = None
    """Width of the model; None: the recipe's."""
    num_layers: int | None = None
    """Layers of the model; None: the recipe's number, which is unknown to constraints."""
    pipeline_model_parallel_layout: str | None = None
    """Layers of each pipeline stage, in Megatron's notation; None: the recipe's."""
    first_k_dense_replace: int | None = None
    """Number of first layers that are dense instead of experts."""
    model_family_name: str = ""
    """Family of the model, such as "llama"; not blank."""
    model_recipe_name: str = ""
    """Recipe of the model, such as "llama3_8b"; not blank."""
    use_recipes: bool | None = None
    """Use the recipes of the library."""
    task: str = "pretrain"
    """"pretrain", "sft" or "lora"."""
    compute_dtype: str = "bf16"
    """Data type of the GEMMs: "bf16", "fp8_cs", "fp8_mx", "fp8_sc" or "nvfp4"."""
    fp8_recipe: str | None = None
    """Accepted but not passed: the launcher has no flag for it."""
    hf_token: str = Field(default="", validate_default=True, repr=False)
    """Token of the Hugging Face hub; if blank, the environment variable HF_TOKEN."""
    nemo_home: str | None = None
    """Folder for models and checkpoints of NeMo."""
    wandb_key: str | None = Field(default=None, repr=False)
    """Key of Weights & Biases."""
    wandb_project_name: str | None = None
    """Project of Weights & Biases."""
    wandb_entity_name: str | None = None
    """Entity of Weights & Biases."""
    wandb_experiment_name: str | None = None
    """Run name in Weights & Biases."""
    wandb_save_dir: str | None = None
    """Output folder of Weights & Biases."""
    max_retries: int | None = 1
    """Number of retries of the launcher."""
    use_tokendrop: bool | list[bool] | None = None
    """Drop tokens that exceed the capacity of an expert."""
    use_megatron_fsdp: bool | list[bool] | None = None
    """Shard the parameters with Megatron-FSDP."""
    cuda_graph_impl: str | list[str] | None = None
    """Implementation of CUDA graphs: "none", "local" or "transformer_engine"."""
    cuda_graph_scope: str | list[str] | None = None
    """Captured modules, comma-separated."""
    tp: int | list[int] | None = None
    """GPUs in a tensor-parallel group."""
    pp: int | list[int] | None = None
    """Pipeline stages."""
    cp: int | list[int] | None = None
    """GPUs in a context-parallel group."""
    vp: int | list[int] | None = None
    """Model chunks in a pipeline stage; 1 is passed as None."""
    ep: int | list[int] | None = None
    """GPUs over which experts are distributed."""
    et: int | list[int] | None = None
    """GPUs in the tensor-parallel group of an expert."""
    mb: int | list[int] | None = None
    """Sequences in a microbatch."""
    gb: int | list[int] | None = None
    """Sequences in a global batch."""
    seq_length: int | list[int] | None = None
    """Tokens in a sequence."""
    lr: float | list[float] | None = None
    """Maximum learning rate."""
    min_lr: float | list[float] | None = None
    """Minimum learning rate."""
    warmup_iters: int | list[int] | None = None
    """Warm-up steps."""
    pretrained_checkpoint: str | None = None
    """Checkpoint with the initial weights."""
    save_dir: str | None = None
    """Folder for checkpoints."""
    load_dir: str | None = None
    """Folder of the checkpoint to resume from."""
    save_interval: int | None = None
    """Steps between checkpoints."""
    most_recent_k: int | None = None
    """Number of checkpoints to keep."""
    save_config_filepath: str | None = None
    """File to which the run writes its configuration."""
    data: str | None = None
    """Kind of data, such as "mock" or "squad"."""
    dataset_paths: str | list[str] | None = None
    """Token files; separate arguments on the command line."""
    dataset_root: str | None = None
    """Folder of fine-tuning data."""
    index_mapping_dir: str | None = None
    """Folder for the index cache."""
    dataset_name: str | None = None
    """Name of a data set."""
    packed_sequence: bool | None = None
    """Pack multiple sequences into one."""
    head_only: bool | None = None
    """Use only the head of the data."""
    tokenizer_type: str | None = None
    """Kind of tokenizer."""
    tokenizer_model: str | None = None
    """File of the tokenizer, or name on the hub."""
    vocab_size: int | None = None
    """Vocabulary size."""
    pytorch_profiler: bool | None = None
    """Profile with the torch profiler."""
    profiling_start_step: int | None = None
    """First profiled step."""
    profiling_stop_step: int | None = None
    """Last profiled step."""
    record_memory_history: bool | None = None
    """Record the memory history, too."""
    profiling_gpu_metrics: bool | None = None
    """Record GPU metrics, too."""
    profiling_ranks: int | str | list[int] | None = None
    """Ranks to profile: a number, a list, or comma-separated text."""
    nsys_trace: str | list[str] | None = None
    """Events to trace with Nsight Systems."""
    nsys_extra_args: str | list[str] | None = None
    """Additional arguments of Nsight Systems."""
    nccl_ub: bool | list[bool] | None = None
    """Use NCCL user buffers."""
    moe_a2a_overlap: bool | list[bool] | None = None
    """Overlap the all-to-all of the experts."""
    max_steps: int | None = 10
    """Training steps."""
    recompute_num_layers: int | list[int] | None = None
    """Layers to recompute in the backward pass."""
    activation_offload_layers: int | list[int] | None = None
    """Layers with activations offloaded to the host."""
    recompute_modules: str | list[str] | None = None
    """Modules to recompute in the backward pass."""
    num_distributed_optimizer_instances: int | None = None
    """Instances of the distributed optimizer; read by constraints only."""
    config_variant: str | None = None
    """Variant of the recipe, such as "v1"."""
    list_config_variants: bool | None = None
    """List the variants instead of launching."""

    @model_validator(mode="after")
    def reject_unknown(self) -> Self:
        """Reject arguments that the launcher does not have."""
        unknown = sorted(set(self.__pydantic_extra__) - SYSTEM_ARGUMENTS)
        if unknown:
            names = ", ".join(_with_nearest(name, type(self).model_fields) for name in unknown)
            raise ValueError(
                f"cmd_args: {names} would have no effect, because the launcher takes no such argument. "
                "Correct the name, or remove it."
            )
        return self

    @field_validator("hf_token", mode="after")
    @classmethod
    def validate_hf_token(cls, token: str) -> str:
        """Take the token of the environment if none is given; one is required."""
        token_or_variable = token.strip() or os.environ.get("HF_TOKEN", "").strip()
        if not token_or_variable:
            raise ValueError(
                "cmd_args.hf_token: is blank, because neither it nor HF_TOKEN is set. Export HF_TOKEN with your token."
            )
        return token_or_variable

    @field_validator("model_family_name", "model_recipe_name", mode="after")
    @classmethod
    def validate_model_fields(cls, text: str, info: ValidationInfo) -> str:
        """Strip the name; it must not be blank."""
        if not text.strip():
            raise ValueError(
                f"cmd_args.{info.field_name}: is blank, because only blanks were given. Name the model, such as llama."
            )
        return text.strip()


class MegatronBridgeTestDefinition(BaseModel):
    """A test: its launch, and the repositories that it is launched from."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    name: str
    """Name of the test."""
    description: str = ""
    """Purpose of the test."""
    test_template_name: str = "MegatronBridge"
    """Kind of the test."""
    cmd_args: MegatronBridgeCmdArgs
    """The launcher's arguments."""
    extra_env_vars: dict[str, str | list[str]] = {}
    """Variables to export before the job."""
    extra_cmd_args: dict[str, str] = {}
    """Overrides of the configuration."""
    extra_container_mounts: list[str] = []
    """Mounts into the container, host:container."""
    git_repos: list[GitRepo] = Field(default=[], validate_default=True)
    """Repositories, one of which is Megatron-Bridge."""
    nemo_run_repo: GitRepo = GitRepo(url="https://github.com/NVIDIA-NeMo/Run.git", commit="main")
    """Repository of the environment that runs the launcher."""
    nsys: dict[str, Any] | None = None
    """Settings of Nsight Systems, for CloudAI."""
    predictor: dict[str, Any] | None = None
    """Settings of a predictor, for CloudAI."""
    agent: str = "grid_search"
    """Search algorithm for sweeps."""
    agent_steps: int = 1
    """Steps of the search."""
    agent_metrics: list[str] = ["default"]
    """Metrics of the search."""
    agent_reward_function: str = "inverse"
    """Objective of the search."""
    agent_config: dict[str, Any] | None = None
    """Settings of the search."""

    @field_validator("git_repos", mode="after")
    @classmethod
    def validate_git_repos_has_megatron_bridge_repo(cls, repos: list[GitRepo]) -> list[GitRepo]:
        """Reject a test without the repository of Megatron-Bridge."""
        if select_bridge_repo(repos) is None:
            raise ValueError(
                f"git_repos: Megatron-Bridge is not among {len(repos)} repositories, because no address contains "
                f"'Megatron-Bridge', and none has mount_as='{MOUNT}'. Add it as [[git_repos]] with url and commit."
            )
        return repos

    @property
    def docker_image(self) -> DockerImage:
        """The container."""
        return DockerImage(url=self.cmd_args.container_image)

    @property
    def python_executable(self) -> PythonExecutable:
        """The environment that runs the launcher."""
        return PythonExecutable(git_repo=self.nemo_run_repo)

    @property
    def megatron_bridge_repo(self) -> GitRepo:
        """The first repository of Megatron-Bridge."""
        repo = select_bridge_repo(self.git_repos)
        if repo is None:
            raise ValueError(
                "git_repos: Megatron-Bridge is missing, because the list was changed after validation. Add it again."
            )
        return repo

    @property
    def installables(self) -> list[Installable]:
        """Requirements of a launch: container (if any), environment, repository."""
        rest: list[Installable] = [self.python_executable, self.megatron_bridge_repo]
        return [self.docker_image, *rest] if self.cmd_args.container_image else rest

    def violated_constraints(self, *, additional: bool = False) -> list[ConstraintViolation]:
        """Return all constraints that this launch violates.

        Args:
            additional: Include those that Megatron rejects and CloudAI accepts: C02 and C08, if the number of layers is
                known, C19 and C20.

        Raises:
            SweepError: An argument is a list; expand the sweep first.
        """
        return violated_constraints(read_launch_request(self.cmd_args.model_dump()), additional=additional)

    def constraint_check(self, tr: object = None, system: object = None) -> bool:
        """Return CloudAI's verdict, C01 to C18; `violated_constraints` gives reasons. Both arguments are unused."""
        return not self.violated_constraints()

    def launcher_arguments(self, system: SystemSettings) -> list[str]:
        """Return the arguments of `setup_experiment.py`; see `mb_launch.cloudai.command`.

        Variables, overrides and mounts of the test are added to those of the system and take precedence.

        Raises:
            SweepError: A variable is a list; expand the sweep first.
        """
        given = self.cmd_args.model_fields_set | set(self.cmd_args.__pydantic_extra__)
        variables: dict[str, str] = {}
        for name, value in self.extra_env_vars.items():
            if isinstance(value, list):
                raise SweepError(
                    f"extra_env_vars.{name}: {value} is a list, because it describes several launches. "
                    "Launch each separately."
                )
            variables[name] = value
        merged = replace(
            system,
            mounts=(*system.mounts, *self.extra_container_mounts),
            env_vars={**system.env_vars, **variables},
            overrides={**system.overrides, **self.extra_cmd_args},
        )
        return launcher_arguments(self.cmd_args.model_dump(), given=given, system=merged)

    def was_run_successful(self, tr: outcome.TestRun) -> outcome.JobStatusResult:
        """Return whether the log of a run has a finished step."""
        return outcome.was_run_successful(tr)


def load_test_definition(path: str | Path) -> MegatronBridgeTestDefinition:
    """Read a test from a TOML file in CloudAI's format.

    Raises:
        FileNotFoundError: There is no such file.
        tomllib.TOMLDecodeError: The file is not TOML.
        pydantic.ValidationError: Fields are missing, unknown or invalid; the error names all of them without values.
    """
    return MegatronBridgeTestDefinition.model_validate(tomllib.loads(Path(path).read_text(encoding="utf-8")))


def _with_nearest(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"{name} (did you mean {near[0]}?)" if near else name
