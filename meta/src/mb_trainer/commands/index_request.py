"""Settings of a run on which its sample indices depend, for `mb data index`."""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import typer

import mb_host
from mb_config import ConfigError, smallest_world
from mb_config.facts import TargetMachine
from mb_config.program import examine
from mb_data import IndexRequest
from mb_trainer.commands.errors import reported
from mb_trainer.config_program import PROGRAM
from mb_trainer.data_checks import verify_data
from mb_trainer.request_reader import read_request
from mb_trainer.tokenizer_assets import kept_by_run

OF_DATA = ("dataset.", "tokenizer.", "train.", "validation.")
"""Prefixes of the fields that sample indices depend on."""


def read_index_request(
    settings: Sequence[str], *, files: Sequence[Path], world_size: int | None
) -> IndexRequest:
    """Read and check a configuration; problems that do not concern its data are ignored.

    Raises:
        typer.Exit: the configuration is rejected or cannot be read; the reason is printed.
    """
    found: list[IndexRequest] = []

    def work() -> int:
        world = world_size or smallest_world(read_request(settings, files=files).config.model)
        examined = examine(PROGRAM, settings, files=files, target=TargetMachine(world_size=world))
        problems = [
            one for one in examined.result.errors if all(path.startswith(OF_DATA) for path in one.fields)
        ]
        if problems:
            raise ConfigError(problems)
        request, config = examined.request, examined.request.config
        verify_data(config)
        if "megatron.core" not in sys.modules:
            mb_host.install()  # suppresses the notices that megatron prints at import; datasets need no other patch
        sections = import_module("mb_trainer.data")  # imports torch, which takes seconds: after all checks
        found.append(
            IndexRequest(
                name=request.name,
                section=config.dataset,
                tokenizer=config.tokenizer,
                counts=sections.sample_counts(config),
                validation=sections.validation_sets(config.validation),
                tokenizer_folder=kept_by_run(config),
            )
        )
        return 0

    code = reported(work)
    if code:
        raise typer.Exit(code)
    return found[0]
