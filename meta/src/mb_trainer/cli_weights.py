"""Command line for the import and export of weights: `mb import-hf`, `export-hf`."""

from pathlib import Path
from typing import Annotated

import typer

from mb_checkpoint.cli import Trust
from mb_trainer.cli_options import command, read_run_folder

weights = typer.Typer()


@weights.command("import-hf", epilog="Example: mb import-hf ~/models/Llama-3.2-1B --out imported/llama")
def import_hf(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="A folder with config.json and *.safetensors.", show_default=False
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="DIR", parser=read_run_folder, help="Receives checkpoint and configuration."
        ),
    ],
) -> None:
    """Turn a Llama, Qwen2, Qwen3 or Mixtral in Hugging Face's form into a checkpoint that any layout can load.

    DIR receives checkpoints/, run_config.yaml (fine-tunes it: mb finetune DIR/run_config.yaml) and the tokenizer.
    Nothing is downloaded.
    """
    raise typer.Exit(command("hf").import_hf(folder, out=out))


@weights.command("export-hf", epilog="Example: mb export-hf runs/gpt_tiny --out exported/gpt_tiny")
def export_hf(
    run: Annotated[Path, typer.Argument(help="A run folder, or its checkpoints.", show_default=False)],
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="DIR", parser=read_run_folder, help="Receives config.json and *.safetensors."
        ),
    ],
    adapters: Annotated[
        bool, typer.Option("--adapters", help="Only the adapters, as Hugging Face's peft loads them.")
    ] = False,
    trust: Trust = None,
) -> None:
    """Write the newest checkpoint of a run in Hugging Face's form, whatever layout trained it."""
    raise typer.Exit(command("hf").export_hf(run, out=out, adapters=adapters))
