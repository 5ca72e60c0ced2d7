"""The part of the command line that reads runs: `mb sample`, `eval`, `report`, `watch`, `import-hf` and `export-hf`."""

import os
from importlib import import_module
from typing import Any

import typer

import mb_metrics.cli.app
from mb_checkpoint.cli.app import Trust
from mb_config.cli.options import common_options
from mb_launch import read_world
from mb_models.evaluation.text_commands import add_text_commands
from mb_models.hf.commands import add_weight_commands
from mb_trainer.cli_options import command, read_run_folder

runs = typer.Typer()


def reader(module: str) -> Any:
    """Return a module that samples or evaluates, which imports megatron."""
    import_module("mb_host").install()  # before megatron is imported; with a GPU it only corrects Megatron
    return import_module(f"mb_trainer.{module}")


add_text_commands(
    runs,
    runs=lambda: reader("sampling"),
    open_lm=lambda: reader("lm_eval").open_lm,
    prints=lambda: read_world(os.environ).rank == 0,
    reported=lambda work: command("errors").reported(work),
    trust=Trust,
    with_fields=common_options,
)

runs.add_typer(mb_metrics.cli.app.app)


def weight_converter() -> Any:
    """Return the module that converts weights on the CPU, which imports megatron."""
    import_module("mb_host").install(force=True)  # before megatron is imported
    return import_module("mb_trainer.hugging_face")


add_weight_commands(
    runs,
    converter=weight_converter,
    reported=lambda work: command("errors").reported(work),
    read_folder=read_run_folder,
    trust=Trust,
)
