"""Checks before any process group or model is built: rules and data files. No torch."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import mb_checkpoint.rules
import mb_config
import mb_data
import mb_data.rules
import mb_launch.rules
import mb_loop.rules
import mb_metrics.rules
import mb_models.rules
import mb_overlap.rules
import mb_resilience.rules
from mb_config import (
    Change,
    ConfigError,
    DistributedInitConfig,
    Problem,
    Provenance,
    RuleLike,
    UnknownPrecisionError,
    mimo_runtime_config_update,
    runtime_config_update,
)
from mb_config.fallbacks import apply_fallbacks
from mb_config.message_text import MAX_MESSAGE_LENGTH, truncate
from mb_config.problem_merging import drop_implied, merge_problems
from mb_config.section_types import check_config
from mb_data import (
    FinetuningDatasetConfig,
    GPTDatasetConfig,
    TextCorpusConfig,
    TokenizerError,
    load_saved_tokenizer,
    load_tokenizer,
)
from mb_data.finetuning_files import sample_file
from mb_data.sources import verify_sources
from mb_data.tokenizer_rules import END_OF_DOCUMENT
from mb_models import MimoModelConfig
from mb_models.kernel_rules import FALLBACKS
from mb_models.vocab import model_vocab_size
from mb_overlap import Conflict, OverlapConflictError
from mb_trainer.config import ConfigContainer
from mb_trainer.machine import gather_facts
from mb_trainer.rules import RULES as TRAINER_RULES
from mb_trainer.validation_rules import VALIDATION_RULES
from mb_trainer.weights import kept_by_run

RULES: tuple[RuleLike, ...] = (
    *mb_config.RULES,
    *mb_models.rules.RULES,
    *mb_data.rules.RULES,
    *mb_loop.rules.RULES,
    *mb_overlap.rules.RULES,
    *mb_checkpoint.rules.RULES,
    *mb_metrics.rules.RULES,
    *mb_resilience.rules.RULES,
    *mb_launch.rules.RULES,
    *TRAINER_RULES,
    *VALIDATION_RULES,
)
"""Rules of all packages."""

LESS = {
    "G02": ("P04",),
    "G10": ("P10",),
    "D74": ("V139",),
    "G26": ("D58",),
    "V129": ("CK22",),
    "V131": ("CK03",),
    "FS03": ("V120",),
    "V244": ("CK41",),
    "CK43": ("CK41",),
    "O04b": ("O04",),
    "O03": ("O04b",),
}
"""Dropped problem -> rules whose problems imply it, or that would reject what it advises."""


OF_TOKENIZER = tuple(
    rule for rule in RULES if any(path.startswith("facts.tokenizer_") for path in rule.fields)
)
"""Rules that read the result of `tokenizer_facts`."""

NO_ENGINE = "resolve: no Transformer Engine on this machine"
"""Origin of `model.transformer_impl` where a run would select other layers."""


def has_module_layouts(model: object) -> bool:
    """Return whether a model consists of several modules with per-module parallelism."""
    return isinstance(model, MimoModelConfig) and model.has_module_layouts


def as_rules_ask(model: Any, facts: Mapping[str, object]) -> Mapping[str, object]:
    """Return the facts for rules; modules with per-module parallelism count as one replica.

    Each of these modules takes its rows of the same microbatch.
    """
    if not has_module_layouts(model):
        return facts
    sizes = (
        model.tensor_model_parallel_size,
        model.pipeline_model_parallel_size,
        model.context_parallel_size,
    )
    if not all(isinstance(size, int) for size in sizes):  # the check reports their types
        return facts
    one = prod(sizes)
    return {**facts, "all_processes": facts["world_size"], "world_size": max(1, one)}


def as_taken(dist: DistributedInitConfig, facts: Mapping[str, object]) -> DistributedInitConfig:
    """Return the section with the effective backend: gloo without a GPU."""
    if not facts.get("cpu") or not isinstance(dist, DistributedInitConfig):  # the check reports its type
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
    found = check_config(config, RULES, sections=sections, facts=asked, provenance=provenance)
    return drop_implied(found, LESS)


def find_tokenizer_problems(
    config: ConfigContainer,
    found: Sequence[Problem],
    *,
    facts: Mapping[str, object],
    provenance: Provenance | None,
) -> list[Problem]:
    """Read the tokenizer and apply the rules that use it; return nothing if other problems or facts prevent that.

    Args:
        config: The configuration, which is not changed.
        found: Its other problems. After an error in a section with the tokenizer's paths, the files are not read.
        facts: Without `same_machine` the files are on another machine.
        provenance: Origin of the values.
    """
    sections = {problem.fields[0].partition(".")[0] for problem in found if problem.severity == "error"}
    if not facts.get("same_machine") or sections & {"tokenizer", "dataset", "checkpoint"}:
        return []
    known = {**facts, **tokenizer_facts(config)}
    rules = [rule for rule in OF_TOKENIZER if not sections & {rule.fields[0].partition(".")[0]}]
    return mb_config.check(config.sections(), rules, facts=known, provenance=provenance)


def tokenizer_facts(config: ConfigContainer) -> dict[str, object]:
    """Return `tokenizer_entries`, the size of the tokenizer, or `tokenizer_error`, the reason why it cannot be read."""
    try:
        return {"tokenizer_entries": need_tokenizer_entries(config)}
    except (OSError, TokenizerError) as error:
        return {"tokenizer_error": truncate(str(error), MAX_MESSAGE_LENGTH)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Results of all checks of a configuration before a start."""

    problems: Sequence[Problem]
    """Problems of all violated rules, errors and warnings."""
    changes: Sequence[Change]
    """Fields that resolving set, with reasons; none if settings exclude each other."""
    fallbacks: Sequence[Change] = ()
    """Defaults and recipe values that this machine does not support, replaced before the rules were applied."""
    resolved: bool = True
    """Whether resolving succeeded; False: the configuration is only resolved in part."""

    @property
    def notable(self) -> list[Change]:
        """Changes to report to the user: replaced values, and environment variables that the run sets."""
        return [*self.fallbacks, *(change for change in self.changes if change.field.startswith("env_vars."))]

    @property
    def errors(self) -> list[Problem]:
        """Problems that prevent the run."""
        return [problem for problem in self.problems if problem.severity == "error"]

    @property
    def warnings(self) -> list[Problem]:
        """Problems that let the run start with other settings than requested."""
        return [problem for problem in self.problems if problem.severity == "warning"]


def inspect(config: ConfigContainer, *, facts: Mapping[str, object], provenance: Provenance) -> Findings:
    """Apply every rule, read the tokenizer, resolve in place, and apply every rule to the resolved configuration.

    Does not raise.

    Args:
        config: resolved in place, or partly resolved if settings exclude each other.
        facts: result of `mb_trainer.machine.gather_facts`.
        provenance: origin of the values; records each change.
    """
    fallbacks = apply_fallbacks(config, FALLBACKS, facts=facts, provenance=provenance)
    asked = find_problems(config, facts=facts, provenance=provenance)
    asked += find_tokenizer_problems(config, asked, facts=facts, provenance=provenance)
    try:
        if has_module_layouts(config.model):
            changes = mimo_runtime_config_update(config, provenance=provenance, facts=facts, rules=())
        else:
            world_size = cast(int, facts["world_size"])
            changes = runtime_config_update(
                config, world_size=world_size, provenance=provenance, facts=facts, rules=()
            )
    except UnknownPrecisionError:  # V011 reports it
        return Findings(problems=asked, changes=(), fallbacks=fallbacks, resolved=False)
    except ConfigError as error:
        problems = merge_problems(asked, error.problems)
        return Findings(problems=problems, changes=(), fallbacks=fallbacks, resolved=False)
    except OverlapConflictError as error:
        problems = merge_problems(asked, described(error.conflicts, provenance))
        return Findings(problems=problems, changes=(), fallbacks=fallbacks, resolved=False)
    resolved = find_problems(config, facts={**facts, "resolved": True}, provenance=provenance)
    errors = [problem for problem in resolved if problem.severity == "error"]
    return Findings(problems=merge_problems(asked, errors), changes=changes, fallbacks=fallbacks)


def take_layers_of_this_machine(
    config: ConfigContainer, *, facts: Mapping[str, object], provenance: Provenance
) -> bool:
    """Select the layers of a run without a GPU; return whether that changed the configuration.

    A check then applies the rules of the layers that would be built. With a GPU a fallback selects them.
    """
    model = config.model
    if not facts["cpu"] or facts["transformer_engine"] or model.transformer_impl == "local":
        return False
    model.transformer_impl = "local"
    provenance.note("model.transformer_impl", NO_ENGINE)
    return True


def described(conflicts: Sequence[Conflict], provenance: Provenance) -> list[Problem]:
    """Return overlap conflicts as problems, with the origin of their values."""
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


def settle(
    config: ConfigContainer,
    *,
    world_size: int,
    provenance: Provenance,
    local_world_size: int | None = None,
) -> Findings:
    """Inspect a configuration for this machine, and reject it if it has errors.

    Args:
        config: resolved in place.
        world_size: processes of the run.
        provenance: origin of the values.
        local_world_size: processes of the run on this machine; None: not known.

    Raises:
        ConfigError: rules are violated; holds every error.
    """
    known = gather_facts(world_size, env_vars=config.env_vars, local_world_size=local_world_size)
    take_layers_of_this_machine(config, facts=known, provenance=provenance)
    findings = inspect(config, facts=known, provenance=provenance)
    if findings.errors or not findings.resolved:
        raise ConfigError(findings.errors or findings.problems)
    return findings


def verify_data(config: ConfigContainer) -> None:
    """Finalize the dataset section and check every file that it names, before anything is built.

    Raises:
        DataPathError: a path does not exist, or one of a `.bin`/`.idx` pair is missing.
        IndexedFormatError: a file does not have the format of its name, or is truncated.
        CorpusError: sources have no text, or too few files with text.
        TokenizerError: the tokenizer cannot be read.
        VocabularyError: the model's embedding has no row for some of its tokens.
    """
    dataset = config.dataset
    dataset.finalize()
    verify_tokenizer(config)
    if isinstance(dataset, FinetuningDatasetConfig):
        verify_samples(dataset, evaluated=bool(config.validation.eval_iters))
    if not isinstance(dataset, GPTDatasetConfig):
        return
    blends = [dataset.blend, *(dataset.blend_per_split or [])]
    for prefixes, _ in filter(None, blends):
        for prefix in prefixes:
            mb_data.verify_prefix(prefix)  # imports numpy, which checks without data files do not need
    if isinstance(dataset, TextCorpusConfig):
        verify_sources(dataset)


def verify_tokenizer(config: ConfigContainer) -> None:
    """Load the configured tokenizer and compare its size with the rows of the embedding.

    Reads the tokenizer's files and imports the library for them, neither torch nor Megatron.

    Raises:
        DataPathError: a file does not exist.
        TokenizerError: it cannot be read, or its library is not installed.
        VocabularyError: the model's embedding has no row for some of its tokens.
    """
    entries, model = need_tokenizer_entries(config), config.model
    if model.vocab_size is not None:
        model_vocab_size(
            model.vocab_size,
            tokenizer_vocab_size=entries,
            divisible_by=model.make_vocab_size_divisible_by,
            tensor_parallel_size=model.tensor_model_parallel_size,
        )


def need_tokenizer_entries(config: ConfigContainer) -> int:
    """Return the vocabulary size of the tokenizer, or of the text corpus that builds its own.

    Raises:
        DataPathError: a file does not exist.
        TokenizerError: it cannot be read, or its library is not installed.
    """
    section = config.tokenizer
    if section.tokenizer_type is None and isinstance(config.dataset, TextCorpusConfig):
        added = {*(section.special_tokens or ())} - {END_OF_DOCUMENT}
        return config.dataset.vocab_size + len(added) + section.vocab_extra_ids
    kept = kept_by_run(config)
    tokenizer = load_tokenizer(section) if kept is None else load_saved_tokenizer(kept, section)
    return int(tokenizer.vocab_size)


def verify_samples(dataset: FinetuningDatasetConfig, *, evaluated: bool) -> None:
    """Check that the files of fine-tuning data exist; those of validation and test only if something is evaluated.

    Raises:
        DataPathError: a file does not exist.
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
