"""Settings of a run on which its sample indices depend, for `mb data index`."""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import mb_guard
import mb_host
from mb_config.trainer_api import CommandInput
from mb_data import IndexRequest
from mb_trainer.requests import examine_sections
from mb_trainer.run.data_checks import kept_by_run, verify_data

SECTIONS = ("dataset", "tokenizer", "train", "validation")
"""Sections that sample indices depend on."""


def read_index_request(
    settings: Sequence[str], *, files: Sequence[Path] = (), world_size: int | None = None
) -> IndexRequest:
    """Read and check a configuration; problems that do not concern its data are ignored.

    Raises:
        ConfigError: Its data, or what is read with it, is rejected.
        ConfigReadError: A file or an override cannot be read.
    """
    given = CommandInput(arguments=settings, files=files)
    request = examine_sections(given, sections=SECTIONS, world_size=world_size)
    config = request.config
    config.dataset.finalize()
    verify_data(config)
    if "megatron.core" not in sys.modules:
        mb_host.install()  # suppresses the notices that megatron prints at import; datasets need no other patch
        mb_guard.install(quiet=True)
    # imports torch, which takes seconds: after all checks
    sections = import_module("mb_trainer.run.data")
    return IndexRequest(
        name=request.name,
        section=config.dataset,
        tokenizer=config.tokenizer,
        counts=sections.sample_counts(config),
        validation=sections.validation_set_options(config.validation),
        tokenizer_folder=kept_by_run(config),
    )
