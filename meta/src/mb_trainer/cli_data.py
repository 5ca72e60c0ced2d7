"""The part of the command line that builds data: `mb data build`."""

from pathlib import Path
from typing import Annotated

import typer

from mb_trainer.cli_options import command

data = typer.Typer(help="Build data.", no_args_is_help=True)


@data.command(
    epilog="Example: mb data build --input books/ --input web.jsonl --tokenizer tokenizer.json --out data/mine"
)
def build(
    inputs: Annotated[
        list[Path], typer.Option("--input", metavar="PATH", help="Text files, folders or JSONL; repeatable.")
    ],
    tokenizer: Annotated[Path, typer.Option(metavar="FILE", help="A tokenizer.json, or its folder.")],
    out: Annotated[Path, typer.Option(metavar="PREFIX", help="Writes PREFIX.bin and PREFIX.idx.")],
    workers: Annotated[int, typer.Option(min=1, help="Processes that tokenize.")] = 2,
    json_key: Annotated[str, typer.Option(help="Key of the text in a JSONL line.")] = "text",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that are there already.")
    ] = False,
) -> None:
    """Turn text into the .bin and .idx files that Megatron reads, streaming, with bounded memory."""
    choices = {"tokenizer": tokenizer, "prefix": out, "workers": workers, "json_key": json_key}
    raise typer.Exit(command("data").build(inputs, **choices, overwrite=overwrite))
