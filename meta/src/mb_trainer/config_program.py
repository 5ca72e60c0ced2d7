"""The trainer as the commands of mb-config use it: recipes, rules, facts, and run folders. No torch."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from mb_config.cli.message_text import MAX_MESSAGE_LENGTH, truncate
from mb_config.cli.program import ConfigProgram
from mb_config.overrides.request import ConfigRequest
from mb_config.preflight.problems import explain_equivalent
from mb_data.errors import DataError
from mb_launch import describe_gpus, read_gpus
from mb_launch.cloudai.coverage import explain_coverage
from mb_metrics.run.folder import RunFolder
from mb_models.training.vocab import VocabularyError, known_vocab_size
from mb_trainer.config import ConfigContainer
from mb_trainer.request_reader import READER
from mb_trainer.run.completion import complete
from mb_trainer.run.data_checks import DATASET, read_tokenizer_facts, verify_data
from mb_trainer.run.machine import target_facts
from mb_trainer.run.preflight import RULES, all_checks, all_rules


def place_in_run_folder(request: ConfigRequest, out: Path | None) -> None:
    """Complete a configuration as its run does."""
    complete(request.config, RunFolder.named(out, name=request.name), request.provenance)


def data_problem(config: ConfigContainer) -> str | None:
    """Return why the data or the tokenizer of a configuration cannot be used on this machine; None if they can."""
    try:
        verify_data(config)
    except (OSError, DataError, VocabularyError) as error:
        return truncate(str(error), MAX_MESSAGE_LENGTH)
    return None


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


def gpu_lines() -> Iterator[str]:
    """Yield a line about the GPUs of this machine, if it has any."""
    if gpus := read_gpus(details=True):
        yield f"this machine: {describe_gpus(gpus)}"


def program() -> ConfigProgram:
    """Return the trainer as the commands use it, with the recipes, classes and rules of the user."""
    return ConfigProgram(
        name="mb",
        reader=READER,
        # a run reads its data itself, with the exit code of a file that cannot be read
        checks=replace(all_checks(), data=(*all_checks().data, DATASET)),
        current_rules=lambda: all_checks().rules,
        rules_by_package=all_rules(),
        gather_facts=target_facts,
        world_size=1,
        place=place_in_run_folder,
        embedding_rows=embedding_rows,
        verify_data=data_problem,
        machine_notes=lambda: tuple(gpu_lines()),
        explain_other=lambda name: explain_equivalent(explain_coverage(name), RULES),
    )
