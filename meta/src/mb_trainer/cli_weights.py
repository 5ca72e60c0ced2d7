"""Command line for the import and export of weights: `mb import-hf`, `export-hf`."""

import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from mb_checkpoint.cli import Trust
from mb_trainer.cli_options import command, read_run_folder
from mb_trainer.errors import OutputExistsError

weights = typer.Typer()


def hugging_face(out: Path) -> Any:
    """Return the module that converts on the CPU, which imports megatron.

    Raises:
        OutputExistsError: the output folder has files, which would be mixed with the new ones.
    """
    if out.is_dir() and any(out.iterdir()):
        raise OutputExistsError(
            f"--out: {out} holds files, which would be mixed with the new ones. Name another."
        )
    import_module("mb_host").install(force=True)  # before megatron is imported
    return import_module("mb_trainer.hugging_face")


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
    """Turn a model in Hugging Face's form into a checkpoint that any layout can load.

    DIR receives checkpoints/, run_config.yaml (fine-tunes it: mb finetune DIR/run_config.yaml) and the tokenizer.
    Nothing is downloaded.
    """

    def work() -> int:
        parameters = hugging_face(out).import_folder(folder, out)
        print(f"{parameters / 1e6:.1f} M parameters in {out / 'checkpoints'}")
        print(f"fine-tune them: mb finetune {out / 'run_config.yaml'}")
        return 0

    raise typer.Exit(command("errors").reported(work))


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

    def work() -> int:
        log = partial(print, file=sys.stderr)
        step = hugging_face(out).export_run(run, out, adapters=adapters, log=log)
        print(f"{'adapters' if adapters else 'weights'} of step {step} in {out}")
        return 0

    raise typer.Exit(command("errors").reported(work))
