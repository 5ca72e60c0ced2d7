"""Configuration that a command line requests: recipe or file with overrides, and its check. No torch."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mb_config import ConfigError, ConfigReadError, smallest_world
from mb_config.trainer_api import (
    SECTION_FACTORIES,
    CommandInput,
    ConfigRequest,
    Examination,
    PreflightChecks,
    RecipeReader,
    TargetMachine,
    examine,
    machine_of_perf,
    select_local_layers,
)
from mb_metrics.trainer_api import RunFolder
from mb_models.trainer_api import known_vocab_size, section_by_name
from mb_trainer.config import ConfigContainer
from mb_trainer.registry import REGISTRY
from mb_trainer.run.completion import complete
from mb_trainer.run.data_checks import DATASET, read_tokenizer_facts
from mb_trainer.run.preflight import all_checks, target_facts

ALL_SECTION_FACTORIES = {**SECTION_FACTORIES, "peft": section_by_name}
"""Section path to the function that makes the section from a name, as in `peft=lora`."""

READER = RecipeReader(
    container=ConfigContainer,
    recipes=REGISTRY.recipes,
    targets=REGISTRY.classes,
    recipe_of_file=REGISTRY.recipe_of_file,
    imported_classes={"checkpoint.custom_manager_class": REGISTRY.accepts},
    default="gpt_tiny",
    section_factories=ALL_SECTION_FACTORIES,
    list_command="mb recipes",
)
"""Reader for all commands. The recipe gpt_tiny is read if a command line names none."""

read_request = READER.read
"""Read `[RECIPE | FILE] [KEY=VALUE ...]` and overlay files; the configuration is not resolved."""


def examine_request(
    given: CommandInput,
    *,
    target: TargetMachine,
    as_built: bool = False,
    unread: list[ConfigReadError] | None = None,
) -> Examination:
    """Read a request, complete it in its run folder as its run does, and check it for the target machines.

    Args:
        given: Recipe or file, and overrides.
        target: Machines that the run is intended for. If this machine has no GPU and `perf` names one, machines with
            that GPU.
        as_built: Select the layers that a run on the target would build.
        unread: Receives the errors of settings that cannot be read. Problems of these fields are left out.

    Raises:
        ConfigReadError: Settings cannot be read, and `unread` is None.
    """
    request = read_request(given.arguments, files=given.files, unread=unread)
    place_in_run_folder(request, given)
    config = request.config
    facts = target_facts(target, config.env_vars)
    named = machine_of_perf(config, target, facts=facts)
    if named != target:
        target, facts = named, target_facts(named, config.env_vars)
    if as_built:
        select_local_layers(config, facts=facts, provenance=request.provenance)
    return examine(request, command_checks(), facts=facts, target=target, unread=unread or ())


def examine_sections(
    given: CommandInput, *, sections: Sequence[str], world_size: int | None = None
) -> ConfigRequest:
    """Read and check a request for a command that uses some sections only, such as one that prepares data.

    Problems of which a field belongs to another section are ignored.

    Args:
        given: Recipe or file, and overrides.
        sections: Names of the used sections.
        world_size: Number of processes; None: the smallest number that holds the model.

    Raises:
        ConfigError: The used sections violate rules.
        ConfigReadError: Settings cannot be read.
    """
    world = world_size or smallest_world_of(given)
    examined = examine_request(given, target=TargetMachine(world_size=world))
    used = tuple(f"{section}." for section in sections)
    problems = [
        problem for problem in examined.result.errors if all(path.startswith(used) for path in problem.fields)
    ]
    if problems:
        raise ConfigError(problems)
    return examined.request


def smallest_world_of(given: CommandInput) -> int:
    """Return the smallest number of processes that holds the model of a request.

    Raises:
        ConfigReadError: Settings cannot be read.
    """
    config = read_request(given.arguments, files=given.files).config
    return smallest_world(config.model, follows_megatron_bridge=config.follows_megatron_bridge)


def place_in_run_folder(request: ConfigRequest, given: CommandInput) -> None:
    """Complete a configuration as its run does."""
    complete(request.config, RunFolder.named(given.out, name=request.name), request.provenance)


def command_checks() -> PreflightChecks:
    """Return the checks of commands: those of a run, with the rules of the user, and of the dataset's files.

    A run reads its data itself, with the exit code of a file that cannot be read. A recipe in a file can add rules:
    call it after the configuration is read.
    """
    checks = all_checks()
    return replace(checks, data=(*checks.data, DATASET))


def embedding_rows(config: ConfigContainer) -> int | None:
    """Return the padded rows of the embedding, from the model or the tokenizer; None if neither is known."""
    model = config.model
    entries: Any = (
        None if model.vocab_size is not None else read_tokenizer_facts(config).get("tokenizer_entries")
    )
    return known_vocab_size(
        model.vocab_size,
        tokenizer_vocab_size=entries,
        divisible_by=model.make_vocab_size_divisible_by,
        tensor_parallel_size=model.tensor_model_parallel_size,
    )
