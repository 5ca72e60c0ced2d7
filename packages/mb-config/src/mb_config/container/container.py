"""Container of all sections of a configuration."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from mb_config.cli.message_text import truncate_repr
from mb_config.container.codec import NO_TARGETS, ConfigReader, consents, from_dict, to_dict
from mb_config.container.non_defaults import non_default_values
from mb_config.container.section import Section
from mb_config.container.section_types import check_config
from mb_config.container.yaml_file import dump_yaml, read_yaml
from mb_config.errors import ConfigReadError, raise_errors
from mb_config.overrides.provenance import Provenance, paths_of_run
from mb_config.preflight.facts import collect_facts
from mb_config.preflight.problems import ConfigError
from mb_config.rules import RULES
from mb_config.rules.parallelism import SIZES, data_parallel_size
from mb_config.sections.ddp import DistributedDataParallelConfig
from mb_config.sections.optimizer import OptimizerConfig
from mb_config.sections.optimizer_overrides import OptimizerConfigOverrideProvider
from mb_config.sections.precision import MixedPrecisionConfig
from mb_config.sections.scheduler import SchedulerConfig
from mb_config.sections.startup import DistributedInitConfig, RNGConfig
from mb_config.sections.training import TrainingConfig, ValidationConfig
from mb_schema.files import write_atomically
from mb_schema.rules import NOTHING, Problem, Rule, value_at

T = TypeVar("T", bound="ConfigContainer")


WORLD_SIZES = ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
"""Environment variables with the number of processes, in the order in which they are read."""
_IN_STEP = {"SLURM_PROCID", "SLURM_STEP_ID"}
"""Variables that srun sets for each process; a batch script has the number of tasks, too, and is one process."""


def world_size_of_environment(environment: Mapping[str, str] | None = None) -> int:
    """Return the number of processes: WORLD_SIZE, as torchrun sets it, or that of the step of srun, or 1.

    Raises:
        ConfigReadError: If it is not a positive integer.
    """
    known = os.environ if environment is None else environment
    name = next((name for name in WORLD_SIZES if name in known), None)
    if name is None or (name != "WORLD_SIZE" and not known.keys() >= _IN_STEP):
        return 1
    text = known[name]
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ConfigReadError(f"{name}: {truncate_repr(text)} is not a number of processes. Pass world_size.")
    return int(text)


MEGATRON_SECTIONS: Mapping[str, type[Section]] = {
    "DistributedDataParallelConfig": DistributedDataParallelConfig,
    "OptimizerConfig": OptimizerConfig,
}
"""Class of Megatron Core, or one that derives from it -> the section with its fields."""


def own_section(value: Any) -> Any:
    """Return the section with the values of a dataclass of Megatron Core; any other value unchanged.

    Raises:
        UnknownFieldError: A field that is not at its default is none of the section.
    """
    bases = (base for base in type(value).__mro__ if base.__module__.startswith("megatron.core."))
    kind = next(
        (MEGATRON_SECTIONS[base.__name__] for base in bases if base.__name__ in MEGATRON_SECTIONS), None
    )
    if kind is None:
        return value
    default = type(value)()
    changed = {item.name: getattr(value, item.name) for item in fields(value) if item.init}
    return kind(**{name: one for name, one in changed.items() if one != getattr(default, name)})


@dataclass(kw_only=True)
class ConfigContainer(Section):
    """All sections of a configuration. A subclass adds the types of the sections of other packages.

    For example `@dataclass(kw_only=True) class Config(ConfigContainer): model: GPTModelConfig`.

    A section that is an object of Megatron Core's class becomes a section of this package with its values. A section of
    type Any accepts any value. Read from a file, it is a plain mapping unless `_target_` names its class.
    """

    follows_megatron_bridge: ClassVar[bool] = False
    """Whether resolving computes what Megatron-Bridge computes; False: different values and contradictions are errors.

    One of two fields for one setting, such as `use_distributed_optimizer` of ddp and of optimizer, turns the other on;
    sequence parallelism is off without tensor parallelism; experts that are divided by expert parallelism are not
    divided by tensor parallelism, too, unless `expert_tensor_parallel_size` is set; layers with norms after them are
    local ones.
    """

    rng: RNGConfig = field(default_factory=RNGConfig)
    """Random numbers."""

    rerun_state_machine: Any = None
    """Validation of results by re-running a step; None: off."""

    train: TrainingConfig
    """Training length, batch sizes, exit conditions."""

    model: Any
    """The model."""

    optimizer: OptimizerConfig
    """The optimizer."""

    optimizer_config_override_provider: OptimizerConfigOverrideProvider = field(
        default_factory=OptimizerConfigOverrideProvider
    )
    """Learning rates and weight decays of individual parameters."""

    ddp: DistributedDataParallelConfig = field(default_factory=DistributedDataParallelConfig)
    """The data-parallel wrapper."""

    validation: ValidationConfig = field(default_factory=ValidationConfig)
    """Evaluation."""

    scheduler: SchedulerConfig
    """Schedule of the learning rate and the weight decay."""

    dataset: Any
    """The data."""

    logger: Any
    """Logging: metrics, intervals and destinations."""

    tokenizer: Any
    """The tokenizer."""

    checkpoint: Any
    """Saving and loading of checkpoints."""

    dist: DistributedInitConfig = field(default_factory=DistributedInitConfig)
    """Process groups."""

    ft: Any = None
    """Fault tolerance; None: off."""

    straggler: Any = None
    """Megatron's straggler timer; None: off."""

    nvrx_straggler: Any = None
    """NVRx's straggler detection; None: off."""

    profiling: Any = None
    """Profilers; None: off."""

    peft: Any = None
    """Adapters; None: all parameters are trained."""

    comm_overlap: Any = None
    """Overlap of communication with computation; None: Megatron's defaults."""

    mixed_precision: MixedPrecisionConfig | str | None = None
    """A precision recipe or its name; None: the dtypes of model and optimizer are used."""

    perf: str | None = None
    """Fast settings for a GPU, such as "h100", with a precision ("h100_fp8"), or for the GPU of the machine ("auto").
    None: the settings of the recipe. `mb_config.perf.settings` lists them."""

    tensor_inspect: Any = None
    """Inspection of tensors; None: off."""

    inprocess_restart: Any = None
    """Restart within the same process; None: off."""

    env_vars: dict[str, str | int | float | bool] = field(default_factory=dict)
    """Environment variables to set at startup unless the shell sets them."""

    data_parallel_size: int | None = field(default=None, init=False, compare=False)
    """Number of model replicas, computed when the configuration is resolved."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, own_section(value))

    def to_dict(self, *, secrets: bool = False, defaults: bool = True) -> dict[str, Any]:
        """Convert to plain data, as `mb_config.to_dict` does."""
        return to_dict(self, secrets=secrets, defaults=defaults)

    @classmethod
    def from_dict(cls: type[T], data: Mapping[str, Any], targets: Mapping[str, type] = NO_TARGETS) -> T:
        """Build a container from the output of `to_dict`. `targets` are the classes that `_target_` may name.

        Raises:
            ConfigReadError: If data could not be read; contains every error.
        """
        return from_dict(cls, data, targets=targets)

    def to_yaml(self, path: str | Path | None = None, *, defaults: bool = True) -> str:
        """Return the configuration as YAML text with masked secrets, and write it to `path` if one is given.

        Parent directories are created, and the file is replaced at once. A masked secret counts as not set when the
        file is read: set the environment variable of its service (COMET_API_KEY, WANDB_API_KEY, HF_TOKEN). Every other
        value in the file counts as set by the user. Paths that a run has set to its own folder, and consents such as
        `checkpoint.trust`, are left out. Pass `defaults=False` to write a configuration that is to be resolved later.
        """
        data = self.to_dict(defaults=defaults)
        for name, written in paths_of_run(self).items():
            section, _, key = name.rpartition(".")
            data.get(section, {}).pop(key, None)
            if written is not None:
                data[section][key] = written
        for section, key in consents(self):
            data.get(section, {}).pop(key, None)
        text = dump_yaml(data)
        if path is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(Path(path), text)
        return text

    @classmethod
    def from_yaml(
        cls: type[T],
        path: str | Path,
        targets: Mapping[str, type] = NO_TARGETS,
        *,
        provenance: Provenance | None = None,
    ) -> T:
        """Build a container from a YAML file. `provenance` receives the line of each field.

        Raises:
            ConfigReadError: If data could not be read; contains every error with file and line.
        """
        file = read_yaml(path)
        reader = ConfigReader(root=cls, targets=targets, locate=file.locate, is_file=True)
        config = reader.build(cls, file.data, path="")
        raise_errors(reader.errors)
        if provenance is not None:
            for field_path in file.lines.keys() - reader.hidden:
                provenance.note(field_path, file.locate(field_path))
        return config

    def log_non_default_values(self) -> None:
        """Log the values that differ from Megatron Core's defaults, and the other sections, at level INFO.

        Call this on one rank. `non_default_values` returns the same text.
        """
        logging.getLogger(__name__).info("\n%s", non_default_values(self))

    def sections(self) -> dict[str, Any]:
        """Return section name to section, for `check`. Sections that are None are omitted."""
        every = {item.name: getattr(self, item.name) for item in fields(self) if item.init}
        return {name: section for name, section in every.items() if section is not None}

    def check(
        self,
        rules: Iterable[Rule] | None = None,
        *,
        world_size: int | None = None,
        env: Mapping[str, str] = NOTHING,
        versions: Mapping[str, str | None] = NOTHING,
        gpu: str | None = None,
        provenance: Provenance | None = None,
    ) -> list[Problem]:
        """Return every problem, including values of a wrong type. Does not modify anything or query this machine.

        Args:
            rules: Rules to apply; None: `installed_rules()`.
            world_size: Number of processes. Rules that read it are skipped if it is None; likewise for the facts below.
            versions: Versions of `transformer_engine` and `torch`; None for a package that is not installed.
            gpu: Short name of the GPUs, such as "h100".
            env: Environment variables of the shell, which take precedence over the section `env_vars`.
            provenance: Origins of the values.
        """
        facts = collect_facts(
            world_size=world_size, env=env, env_vars=self.env_vars, versions=versions, gpu=gpu
        )
        applied = self.installed_rules() if rules is None else rules
        return check_config(self, applied, sections=self.sections(), facts=facts, provenance=provenance)

    def validate(
        self,
        rules: Iterable[Rule] | None = None,
        *,
        world_size: int | None = None,
        env: Mapping[str, str] = NOTHING,
        versions: Mapping[str, str | None] = NOTHING,
        gpu: str | None = None,
        provenance: Provenance | None = None,
    ) -> list[Problem]:
        """Raise if the configuration violates a rule, and return the warnings. The arguments are those of `check`.

        Raises:
            ConfigError: If there is an error; contains every problem, including warnings.
        """
        problems = self.check(
            rules, world_size=world_size, env=env, versions=versions, gpu=gpu, provenance=provenance
        )
        if any(problem.severity == "error" for problem in problems):
            raise ConfigError(problems)
        return problems

    def get_data_parallel_size(self, world_size: int) -> int:
        """Return the number of model replicas on `world_size` processes: world / (tp x pp x cp).

        Raises:
            ConfigError: If the parallel sizes do not divide the world size (V030).
        """
        tp, pp, cp = (value_at(path, {"model": self.model}) for path in SIZES)
        size = data_parallel_size(world_size, tp, pp, cp)  # type: ignore[arg-type]  # V030 and P01 report wrong values
        if size is None:
            rules = [rule for rule in self.installed_rules() if rule.id in ("V030", "P01")]
            raise ConfigError(self.check(rules, world_size=world_size))
        return size

    def installed_rules(self) -> Iterable[Rule]:
        """Return the rules that `check`, `validate` and `runtime_config_update` apply.

        A subclass adds those of other packages.
        """
        return RULES

    def planned_facts(self, facts: Mapping[str, object], *, saves: bool = True) -> Mapping[str, Any]:
        """Return facts about the memory and the checkpoints of a resolved run on GPUs; empty if it is not planned.

        A subclass plans it, and returns the bytes of the fullest rank, `memory_of_tensors` and with the overhead
        `memory_of_run`, and `memory_of_gpu` (None: not known); if the time of a step is predicted, `best_save_interval`
        in steps and `save_interval_reason`.

        Args:
            facts: Number of processes and GPU.
            saves: Also return the facts about checkpoints, for which the time of a step is predicted.
        """
        return NOTHING

    def set_data_parallel_size(self, world_size: int | None = None) -> None:
        """Set `data_parallel_size`, and that of `comm_overlap` if it has one.

        Args:
            world_size: Number of processes; None: `world_size_of_environment()`.

        Raises:
            ConfigError: If the parallel sizes do not divide the world size (V030).
        """
        processes = world_size_of_environment() if world_size is None else world_size
        self.data_parallel_size = self.get_data_parallel_size(processes)
        if hasattr(self.comm_overlap, "data_parallel_size"):
            self.comm_overlap.data_parallel_size = self.data_parallel_size
