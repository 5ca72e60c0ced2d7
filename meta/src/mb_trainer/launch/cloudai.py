"""CloudAI's test definition for Megatron-Bridge, as far as this trainer uses it. The one file that imports pydantic."""

import os
from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol, Self

import tomllib
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from mb_trainer.launch import outcome
from mb_trainer.launch.command import Place, launcher_arguments
from mb_trainer.launch.constraints import Broken, SweepError, broken_constraints, read_request

OF_THE_SYSTEM = frozenset({"gpus_per_node", "time_limit"})
"""Arguments that a test may hold although they are the system's."""

MOUNT = "/opt/Megatron-Bridge"
"""Where the container holds the repository."""


class GitRepo(BaseModel):
    """A repository at one commit."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    url: str = Field(repr=False)
    """Address; it may hold a password, and is never shown."""
    commit: str
    """Commit, branch or tag."""
    init_submodules: bool = False
    """Check submodules out too."""
    mount_as: str | None = None
    """Folder of the container over which the clone is mounted; None: it is not."""


class DockerImage(BaseModel):
    """An image to install."""

    url: str
    """Address, or path."""


class PythonExecutable(BaseModel):
    """A Python environment made from a repository."""

    git_repo: GitRepo
    """The repository."""


Installable = DockerImage | PythonExecutable | GitRepo


class TestRun(Protocol):
    """One run of a test: the folder that it writes to."""

    @property
    def output_path(self) -> Path:
        """Folder of the run."""


class MegatronBridgeCmdArgs(BaseModel):
    """Arguments of the launcher. A list where one value belongs is a sweep: one launch for each."""

    model_config = ConfigDict(extra="allow", hide_input_in_errors=True)
    __pydantic_extra__: dict[str, object]

    gpu_type: str = "gb200"
    """Short name of the GPU, such as "h100"."""
    log_dir: str = ""
    """Folder for the launcher's logs."""
    container_image: str = ""
    """Container, an address or a path."""
    num_gpus: int = 8
    """GPUs in all."""
    enable_vboost: bool | None = False
    """Give more power to the tensor cores."""
    dryrun: bool | None = False
    """Print what would be submitted, and submit nothing."""
    enable_nsys: bool | None = False
    """Profile with Nsight Systems."""
    domain: str | None = None
    """Kind of the model: "llm", "vlm" or "qwen3vl"; None: the launcher's choice, "llm"."""
    hidden_size: int | None = None
    """Width of the model; None: the recipe's."""
    num_layers: int | None = None
    """Layers of the model; None: the recipe's, which constraints do not know."""
    pipeline_model_parallel_layout: str | None = None
    """Which layers each pipeline stage holds, as Megatron writes it; None: the recipe's."""
    first_k_dense_replace: int | None = None
    """First layers that are dense instead of experts."""
    model_family_name: str = ""
    """Family of the model, such as "llama"; not blank."""
    model_recipe_name: str = ""
    """Recipe of the model, such as "llama3_8b"; not blank."""
    use_recipes: bool | None = None
    """Take the library's recipes."""
    task: str = "pretrain"
    """"pretrain", "sft" or "lora"."""
    compute_dtype: str = "bf16"
    """Type of the GEMMs: "bf16", "fp8_cs", "fp8_mx", "fp8_sc" or "nvfp4"."""
    fp8_recipe: str | None = None
    """Accepted, and not handed over: the launcher has no flag for it."""
    hf_token: str = Field(default="", validate_default=True, repr=False)
    """Token of the Hugging Face hub; the environment variable HF_TOKEN where blank."""
    nemo_home: str | None = None
    """Folder where NeMo keeps models and checkpoints."""
    wandb_key: str | None = Field(default=None, repr=False)
    """Key of Weights & Biases."""
    wandb_project_name: str | None = None
    """Project there."""
    wandb_entity_name: str | None = None
    """Entity there."""
    wandb_experiment_name: str | None = None
    """Name of the run there."""
    wandb_save_dir: str | None = None
    """Folder that it writes to."""
    max_retries: int | None = 1
    """How often the launcher tries again."""
    use_tokendrop: bool | list[bool] | None = None
    """Drop tokens that exceed an expert's capacity."""
    use_megatron_fsdp: bool | list[bool] | None = None
    """Shard the parameters with Megatron-FSDP."""
    cuda_graph_impl: str | list[str] | None = None
    """How CUDA graphs are captured: "none", "local" or "transformer_engine"."""
    cuda_graph_scope: str | list[str] | None = None
    """Modules that are captured, with commas."""
    tp: int | list[int] | None = None
    """GPUs in a tensor-parallel group."""
    pp: int | list[int] | None = None
    """Pipeline stages."""
    cp: int | list[int] | None = None
    """GPUs in a context-parallel group."""
    vp: int | list[int] | None = None
    """Model chunks in a pipeline stage; 1 is handed over as None."""
    ep: int | list[int] | None = None
    """GPUs over which experts are spread."""
    et: int | list[int] | None = None
    """GPUs in an expert's tensor-parallel group."""
    mb: int | list[int] | None = None
    """Sequences in a microbatch."""
    gb: int | list[int] | None = None
    """Sequences in a global batch."""
    seq_length: int | list[int] | None = None
    """Tokens in a sequence."""
    lr: float | list[float] | None = None
    """Highest learning rate."""
    min_lr: float | list[float] | None = None
    """Lowest learning rate."""
    warmup_iters: int | list[int] | None = None
    """Steps of warm-up."""
    pretrained_checkpoint: str | None = None
    """Weights to start from."""
    save_dir: str | None = None
    """Folder for checkpoints."""
    load_dir: str | None = None
    """Folder of the checkpoint to go on from."""
    save_interval: int | None = None
    """Steps between checkpoints."""
    most_recent_k: int | None = None
    """Checkpoints to keep."""
    save_config_filepath: str | None = None
    """Where the run writes its configuration."""
    data: str | None = None
    """Kind of the data, such as "mock" or "squad"."""
    dataset_paths: str | list[str] | None = None
    """Token files; separate words on the command line."""
    dataset_root: str | None = None
    """Folder of fine-tuning data."""
    index_mapping_dir: str | None = None
    """Folder for the index cache."""
    dataset_name: str | None = None
    """Name of a data set."""
    packed_sequence: bool | None = None
    """Pack several sequences into one."""
    head_only: bool | None = None
    """Use the head of the data only."""
    tokenizer_type: str | None = None
    """Kind of the tokenizer."""
    tokenizer_model: str | None = None
    """Tokenizer: a file, or a name on the hub."""
    vocab_size: int | None = None
    """Entries of the vocabulary."""
    pytorch_profiler: bool | None = None
    """Profile with torch."""
    profiling_start_step: int | None = None
    """First step that is profiled."""
    profiling_stop_step: int | None = None
    """Last step that is profiled."""
    record_memory_history: bool | None = None
    """Trace the memory too."""
    profiling_gpu_metrics: bool | None = None
    """Record GPU metrics too."""
    profiling_ranks: int | str | list[int] | None = None
    """Ranks to profile: one, a list, or a text with commas."""
    nsys_trace: str | list[str] | None = None
    """Events that Nsight Systems traces."""
    nsys_extra_args: str | list[str] | None = None
    """More arguments for Nsight Systems."""
    nccl_ub: bool | list[bool] | None = None
    """Communicate through user buffers of NCCL."""
    moe_a2a_overlap: bool | list[bool] | None = None
    """Overlap the experts' all-to-all."""
    max_steps: int | None = 10
    """Steps of the run."""
    recompute_num_layers: int | list[int] | None = None
    """Layers to compute again in the backward pass."""
    activation_offload_layers: int | list[int] | None = None
    """Layers whose activations move to the host."""
    recompute_modules: str | list[str] | None = None
    """Modules to compute again in the backward pass."""
    num_distributed_optimizer_instances: int | None = None
    """Copies of the optimizer; for the constraints only."""
    config_variant: str | None = None
    """Variant of the recipe, such as "v1"."""
    list_config_variants: bool | None = None
    """List the variants instead."""

    @model_validator(mode="after")
    def refuse_unknown(self) -> Self:
        """Refuse an argument that would go nowhere."""
        unknown = sorted(set(self.__pydantic_extra__) - OF_THE_SYSTEM)
        if unknown:
            meant = ", ".join(_with_nearest(name, type(self).model_fields) for name in unknown)
            raise ValueError(
                f"cmd_args: {meant} would have no effect, because the launcher takes no such argument. "
                "Correct the name, or remove it."
            )
        return self

    @field_validator("hf_token", mode="after")
    @classmethod
    def validate_hf_token(cls, token: str) -> str:
        """Take the token of the environment where none is given; one must be there."""
        found = token.strip() or os.environ.get("HF_TOKEN", "").strip()
        if not found:
            raise ValueError(
                "cmd_args.hf_token: is blank, because neither it nor HF_TOKEN is set. Export HF_TOKEN with your token."
            )
        return found

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
    """A test: what is launched, from which repositories, and when it counts as done."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    name: str
    """Name of the test."""
    description: str = ""
    """What it is for."""
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
    """Repositories; Megatron-Bridge's must be among them."""
    nemo_run_repo: GitRepo = GitRepo(url="https://github.com/NVIDIA-NeMo/Run.git", commit="main")
    """Repository whose environment runs the launcher."""
    nsys: dict[str, Any] | None = None
    """Settings of Nsight Systems, for CloudAI."""
    predictor: dict[str, Any] | None = None
    """Settings of a predictor, for CloudAI."""
    agent: str = "grid_search"
    """How CloudAI searches a sweep."""
    agent_steps: int = 1
    """Steps of that search."""
    agent_metrics: list[str] = ["default"]
    """Metrics of that search."""
    agent_reward_function: str = "inverse"
    """What that search maximises."""
    agent_config: dict[str, Any] | None = None
    """Settings of that search."""

    @field_validator("git_repos", mode="after")
    @classmethod
    def validate_git_repos_has_megatron_bridge_repo(cls, repos: list[GitRepo]) -> list[GitRepo]:
        """Refuse a test without Megatron-Bridge's repository."""
        if _select(repos) is None:
            raise ValueError(
                f"git_repos: Megatron-Bridge is not among {len(repos)} repositories, because none has an address with "
                f"'Megatron-Bridge' in it or mount_as='{MOUNT}'. Add it as [[git_repos]] with url and commit."
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
        """The first repository that is Megatron-Bridge's."""
        repo = _select(self.git_repos)
        if repo is None:
            raise ValueError(
                "git_repos: Megatron-Bridge is not there any more, because the list was changed. Put it back."
            )
        return repo

    @property
    def installables(self) -> list[Installable]:
        """What must be installed before a launch: container (if any), environment, repository."""
        rest: list[Installable] = [self.python_executable, self.megatron_bridge_repo]
        return [self.docker_image, *rest] if self.cmd_args.container_image else rest

    def broken_constraints(self, *, additional: bool = False) -> list[Broken]:
        """Return every constraint that this launch breaks.

        Args:
            additional: Also what Megatron refuses and CloudAI accepts: C02 and C08, where the layers are known, C19 and
                C20.

        Raises:
            SweepError: an argument is a list; a sweep is expanded first.
        """
        return broken_constraints(read_request(self.cmd_args.model_dump()), additional=additional)

    def constraint_check(self, tr: object = None, system: object = None) -> bool:
        """Return CloudAI's verdict, C01 to C18; `broken_constraints` gives the reasons. Both arguments are unused."""
        return not self.broken_constraints()

    def launcher_arguments(self, place: Place) -> list[str]:
        """Return the words after `python setup_experiment.py`; see `mb_trainer.launch.command`.

        The variables, overrides and mounts of the test come after those of the place, and win.

        Raises:
            SweepError: a variable is a list; a sweep is expanded first.
        """
        given = self.cmd_args.model_fields_set | set(self.cmd_args.__pydantic_extra__)
        variables: dict[str, str] = {}
        for name, value in self.extra_env_vars.items():
            if isinstance(value, list):
                raise SweepError(
                    f"extra_env_vars.{name}: {value} is a list, because it stands for several launches. "
                    "Launch each by itself."
                )
            variables[name] = value
        merged = replace(
            place,
            mounts=(*place.mounts, *self.extra_container_mounts),
            env_vars={**place.env_vars, **variables},
            overrides={**place.overrides, **self.extra_cmd_args},
        )
        return launcher_arguments(self.cmd_args.model_dump(), given=given, place=merged)

    def was_run_successful(self, tr: TestRun) -> outcome.JobStatusResult:
        """Say whether the log of a run tells of a finished step."""
        return outcome.was_run_successful(tr)


def load_test_definition(path: str | Path) -> MegatronBridgeTestDefinition:
    """Read a test from a TOML file of CloudAI's form.

    Raises:
        FileNotFoundError: there is no such file.
        tomllib.TOMLDecodeError: it is not TOML.
        pydantic.ValidationError: fields are missing, unknown or wrong; names all of them, and shows no values.
    """
    return MegatronBridgeTestDefinition.model_validate(tomllib.loads(Path(path).read_text(encoding="utf-8")))


def _with_nearest(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"{name} (did you mean {near[0]}?)" if near else name


def _select(repos: list[GitRepo]) -> GitRepo | None:
    return next(
        (
            repo
            for repo in repos
            if "Megatron-Bridge" in repo.url or (repo.mount_as or "").rstrip("/") == MOUNT
        ),
        None,
    )
