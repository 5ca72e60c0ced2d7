"""Everything that can be known before a process group or a model is built: rules and data files. No torch."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, cast

import mb_checkpoint.rules
import mb_config
import mb_data
import mb_data.rules
import mb_loop.rules
import mb_metrics.rules
import mb_models.rules
import mb_overlap.rules
import mb_resilience.rules
import mb_trainer.launch.rules
from mb_config import (
    Change,
    ConfigError,
    DistributedInitConfig,
    Problem,
    Provenance,
    RuleLike,
    mimo_runtime_config_update,
    runtime_config_update,
)
from mb_data import FinetuningDatasetConfig, GPTDatasetConfig, TextCorpusConfig
from mb_data.finetuning_files import sample_file
from mb_data.sources import verify_sources
from mb_models import MimoModelConfig
from mb_overlap import Conflict, OverlapConflictError
from mb_trainer.config import ConfigContainer
from mb_trainer.machine import gather_facts
from mb_trainer.rules import RULES as TRAINER_RULES
from mb_trainer.validation_rules import VALIDATION_RULES

RULES: tuple[RuleLike, ...] = (
    *mb_config.RULES,
    *mb_models.rules.RULES,
    *mb_data.rules.RULES,
    *mb_loop.rules.RULES,
    *mb_overlap.rules.RULES,
    *mb_checkpoint.rules.RULES,
    *mb_metrics.rules.RULES,
    *mb_resilience.rules.RULES,
    *mb_trainer.launch.rules.RULES,
    *TRAINER_RULES,
    *VALIDATION_RULES,
)
"""Every rule of every package."""

LESS = {
    "G02": ("P04",),
    "G10": ("P10",),
    "D74": ("V139",),
    "G26": ("D58",),
    "V129": ("CK22",),
    "V131": ("CK03",),
    "FS03": ("V120",),
}
"""Rules that are silent beside others, which say the same of the same fields or would refuse what the first advise."""


NO_ENGINE = "resolve: no Transformer Engine on this machine"
"""Origin of `model.transformer_impl` where a run would take other layers."""


def has_module_layouts(model: object) -> bool:
    """Say whether a model is one of several modules, with layouts of their own."""
    return isinstance(model, MimoModelConfig) and model.has_module_layouts


def as_rules_ask(model: Any, facts: Mapping[str, object]) -> Mapping[str, object]:
    """Return the facts, of modules with layouts of their own as of one replica: each takes its rows of a microbatch."""
    if not has_module_layouts(model):
        return facts
    one = model.tensor_model_parallel_size * model.pipeline_model_parallel_size * model.context_parallel_size
    return {**facts, "all_processes": facts["world_size"], "world_size": max(1, one)}


def as_taken(dist: DistributedInitConfig, facts: Mapping[str, object]) -> DistributedInitConfig:
    """Return the section with the backend that a run takes: gloo where there is no GPU."""
    if not facts.get("cpu"):
        return dist
    taken = copy(dist)
    taken.distributed_backend = "gloo"
    return taken


def find_problems(
    config: ConfigContainer, *, facts: Mapping[str, object], provenance: Provenance | None = None
) -> list[Problem]:
    """Apply every rule; the configuration is not changed."""
    asked = as_rules_ask(config.model, facts)
    sections = {**config.sections(), "dist": as_taken(config.dist, facts)}
    found = mb_config.check(sections, RULES, facts=asked, provenance=provenance)
    broken = {problem.id for problem in found}
    return [problem for problem in found if broken.isdisjoint(LESS.get(problem.id, ()))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What can be said about a configuration before anything runs."""

    problems: Sequence[Problem]
    """Every rule that is broken, errors and warnings."""
    changes: Sequence[Change]
    """Fields that resolving set, with reasons; none where wishes exclude each other."""

    @property
    def errors(self) -> list[Problem]:
        """What refuses the run."""
        return [problem for problem in self.problems if problem.severity == "error"]

    @property
    def warnings(self) -> list[Problem]:
        """What was asked for and will not be as asked."""
        return [problem for problem in self.problems if problem.severity == "warning"]


def inspect(config: ConfigContainer, *, facts: Mapping[str, object], provenance: Provenance) -> Findings:
    """Apply every rule, resolve in place, and apply every rule to the resolved configuration; raise nothing.

    Args:
        config: is resolved, or partly resolved where wishes exclude each other.
        facts: as `mb_trainer.machine.gather_facts` returns them.
        provenance: where values came from; is told of each change.
    """
    asked = find_problems(config, facts=facts, provenance=provenance)
    try:
        if has_module_layouts(config.model):
            changes = mimo_runtime_config_update(config, provenance=provenance)
        else:
            world_size = cast(int, facts["world_size"])
            changes = runtime_config_update(config, world_size=world_size, provenance=provenance)
    except ConfigError as error:
        return Findings(problems=merge(asked, error.problems), changes=())
    except OverlapConflictError as error:
        return Findings(problems=merge(asked, described(error.conflicts, provenance)), changes=())
    resolved = find_problems(config, facts={**facts, "resolved": True}, provenance=provenance)
    errors = [problem for problem in resolved if problem.severity == "error"]
    return Findings(problems=merge(asked, errors), changes=changes)


def take_layers_of_this_machine(
    config: ConfigContainer, *, facts: Mapping[str, object], provenance: Provenance
) -> bool:
    """Choose local layers where Transformer Engine is known to be missing, as a run would; say whether that changed it.

    A check then applies the rules of the layers that would be built.
    """
    model = config.model
    if facts["transformer_engine"] is not False or model.transformer_impl == "local":
        return False
    model.transformer_impl = "local"
    provenance.note("model.transformer_impl", NO_ENGINE)
    return True


def described(conflicts: Sequence[Conflict], provenance: Provenance) -> list[Problem]:
    """Return conflicts of overlap as problems, with the origin of their values."""
    return [
        Problem(
            id=conflict.id,
            severity=conflict.severity,
            fields=conflict.fields,
            message=conflict.message,
            why=conflict.why,
            fix=conflict.fix,
            values=dict(conflict.values),
            origin={
                path: provenance.origin(path) for path in conflict.fields if not path.startswith("facts.")
            },
        )
        for conflict in conflicts
    ]


def merge(asked: Sequence[Problem], resolved: Sequence[Problem]) -> list[Problem]:
    """Return each rule once, without what only follows from a value that is refused already."""
    seen = {problem.id for problem in asked}
    refused = any(problem.severity == "error" for problem in asked)
    return [
        *asked,
        *(later for later in resolved if later.id not in seen and not (refused and follows(later))),
    ]


def follows(problem: Problem) -> bool:
    """Say whether resolving computed the value that is to blame."""
    return problem.origin.get(problem.fields[0], "").startswith("resolve")


def settle(config: ConfigContainer, *, world_size: int, provenance: Provenance) -> Findings:
    """Inspect for this machine, and refuse a configuration with errors.

    Raises:
        ConfigError: rules are broken; holds every error.
    """
    known = gather_facts(world_size, env_vars=config.env_vars)
    take_layers_of_this_machine(config, facts=known, provenance=provenance)
    findings = inspect(config, facts=known, provenance=provenance)
    if findings.errors:
        raise ConfigError(findings.errors)
    return findings


def verify_data(config: ConfigContainer) -> None:
    """Finalize the dataset's section, and look at every file that it names, before anything is built.

    Raises:
        DataPathError: a path does not exist, or one of a `.bin`/`.idx` pair is missing.
        IndexedFormatError: a file is not what its name says, or is cut short.
        CorpusError: sources have no text, or too few files with any.
    """
    dataset = config.dataset
    dataset.finalize()
    if isinstance(dataset, FinetuningDatasetConfig):
        verify_samples(dataset, evaluated=bool(config.validation.eval_iters))
    if not isinstance(dataset, GPTDatasetConfig):
        return
    blends = [dataset.blend, *(dataset.blend_per_split or [])]
    for prefixes, _ in filter(None, blends):
        for prefix in prefixes:
            mb_data.verify_prefix(prefix)  # brings numpy, which checks without data files do without
    if isinstance(dataset, TextCorpusConfig):
        verify_sources(dataset)


def verify_samples(dataset: FinetuningDatasetConfig, *, evaluated: bool) -> None:
    """Look for the files of fine-tuning data, those of validation and test only where something is evaluated.

    Raises:
        DataPathError: one is not there.
    """
    if dataset.made_up and not dataset.dataset_root:
        return
    wanted = {
        "training": True,
        "validation": dataset.do_validation and evaluated,
        "test": dataset.do_test and evaluated,
    }
    for split in (name for name, asked in wanted.items() if asked):
        sample_file(dataset, split)
