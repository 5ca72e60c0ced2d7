"""Commands that convert weights: `mb import-hf` and `mb export-hf`."""

from pathlib import Path
from typing import Annotated

import typer

from mb_checkpoint.trainer_api import Trust
from mb_models.trainer_api import ARCHITECTURES, SHARD_BYTES, ExportPart
from mb_trainer.cli.options import command, exit_with, read_run_folder

weights = typer.Typer()

OutFolder = Annotated[
    Path, typer.Option("--out", metavar="DIR", parser=read_run_folder, help="Receives what is written.")
]


def part_of_text(text: str) -> ExportPart:
    """Return the part that `I/N` names.

    Raises:
        typer.BadParameter: the text has another form, or there is no such part.
    """
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal()):
        raise typer.BadParameter(f"{text!r} is not of the form I/N, such as 0/4")
    try:
        return ExportPart(index=int(index), count=int(count))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


@weights.command("import-hf", epilog="Example: mb import-hf ~/models/Llama-3.2-1B --out imported/llama")
def import_hf(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="A folder with config.json and *.safetensors.", show_default=False
        ),
    ],
    out: OutFolder,
) -> None:
    """Turn a model in Hugging Face's form into a checkpoint that any layout can load.

    DIR receives checkpoints/, run_config.yaml (fine-tunes it: mb finetune DIR/run_config.yaml) and the tokenizer.
    Nothing is downloaded. Not needed before checkpoint.pretrained_checkpoint=DIR, which converts by itself.
    """
    exit_with(lambda: command("weights").import_hf(folder, out))


@weights.command("export-hf", epilog="Example: mb export-hf runs/gpt_tiny --out exported/gpt_tiny")
def export_hf(
    run: Annotated[Path, typer.Argument(help="A run folder, or its checkpoints.", show_default=False)],
    out: OutFolder,
    merge: Annotated[
        bool,
        typer.Option(
            "--merge", help="The model with merged adapters, as by default; a run without is an error."
        ),
    ] = False,
    adapters: Annotated[
        bool, typer.Option("--adapters", help="Only the adapters, as Hugging Face's peft loads them.")
    ] = False,
    model_type: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Family of the output. Default: that of the imported model, else the first that computes the same "
            f"of {', '.join(ARCHITECTURES)}.",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A Hugging Face folder of the same architecture: special tokens, context length, "
            "generation_config.json, and the tokenizer of a run without one are its own. Default: the imported model.",
            show_default=False,
        ),
    ] = None,
    shard_gib: Annotated[
        float,
        typer.Option(metavar="GIB", min=0, help="Maximum size of a file, unless a tensor is larger."),
    ] = SHARD_BYTES / 2**30,
    part: Annotated[
        ExportPart,
        typer.Option(
            metavar="I/N",
            parser=part_of_text,
            help="Write only every N-th file, from file I. N processes, on any machines, write a folder together; "
            "it is complete when the last has ended.",
            show_default=False,
        ),
    ] = "0/1",  # type: ignore[assignment]  # parsed by typer
    _trust: Trust = None,
) -> None:
    """Write the newest checkpoint of a run in Hugging Face's form, whatever layout trained it."""
    if merge and adapters:
        raise typer.BadParameter(
            "excludes --adapters: either the model with merged adapters is written, or the adapters alone",
            param_hint="--merge",
        )

    if adapters and part.count > 1:
        raise typer.BadParameter("excludes --adapters: they are one file", param_hint="--part")

    exit_with(
        lambda: command("weights").export_hf(
            run,
            out,
            adapters=adapters,
            merge=merge,
            model_type=model_type,
            source=source,
            part=part,
            shard_bytes=int(shard_gib * 2**30),
        )
    )
