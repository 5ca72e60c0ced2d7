"""Command line for data: `mb data build`, `index`, `show`, `verify`, `stats`."""

from pathlib import Path
from typing import Annotated

import typer

from mb_trainer.cli_options import ConfigFiles, Json, Recipe, WorldSize, command

data = typer.Typer(help="Build data, and look at them.", no_args_is_help=True)

Prefix = Annotated[
    str,
    typer.Argument(metavar="PREFIX", help="Path of a .bin and an .idx without suffix.", show_default=False),
]
ToRead = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer", metavar="FILE", help="The tokenizer that made the tokens.", show_default=False
    ),
]


@data.command(
    epilog="Example: mb data build --input books/ --input web.jsonl --tokenizer tokenizer.json --out data/mine"
)
def build(
    inputs: Annotated[
        list[Path], typer.Option("--input", metavar="PATH", help="Text files, folders or JSONL; repeatable.")
    ],
    tokenizer: Annotated[
        Path, typer.Option(metavar="FILE", help="A tokenizer.json or its folder, or a SentencePiece .model.")
    ],
    out: Annotated[Path, typer.Option(metavar="PREFIX", help="Writes PREFIX.bin and PREFIX.idx.")],
    workers: Annotated[int, typer.Option(min=1, help="Processes that tokenize.")] = 2,
    json_key: Annotated[str, typer.Option(help="Key of the text in a JSONL line.")] = "text",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that are there already.")
    ] = False,
    json: Json = False,
) -> None:
    """Turn text into the .bin and .idx files that Megatron reads, streaming, with bounded memory.

    The files are there when they are whole; a build that is stopped leaves nothing behind.
    """
    choices = {"tokenizer": tokenizer, "prefix": out, "workers": workers, "json_key": json_key}
    raise typer.Exit(command("data").build(inputs, **choices, overwrite=overwrite, as_json=json))


@data.command(epilog="Example: mb data index gpt_tiny train.train_iters=2000 --workers 8")
def index(
    recipe: Recipe = None,
    config: ConfigFiles = None,
    world_size: WorldSize = None,
    workers: Annotated[int, typer.Option(min=1, help="Threads, one for each part of a blend.")] = 2,
    json: Json = False,
) -> None:
    """Build on a CPU what a run needs before its first step: its corpus, and the order of its samples.

    The run then only maps files. Problems of the configuration that do not concern its data are left to mb check.
    """
    raise typer.Exit(
        command("data").index(
            list(recipe or []), files=config or [], world_size=world_size, workers=workers, as_json=json
        )
    )


@data.command(epilog="Example: mb data show data/mine 3 --tokenizer tokenizer.json")
def show(
    prefix: Prefix,
    number: Annotated[int, typer.Argument(metavar="N", help="Document, counted from 0.")] = 0,
    tokenizer: ToRead = None,
    json: Json = False,
) -> None:
    """Show a document: its token ids, and its text if there is a tokenizer."""
    raise typer.Exit(command("data").show(prefix, number, tokenizer=tokenizer, as_json=json))


@data.command(epilog="Example: mb data verify data/a data/b --tokenizer tokenizer.json")
def verify(
    prefixes: Annotated[
        list[str],
        typer.Argument(metavar="PREFIX", help="Paths of pairs without suffix.", show_default=False),
    ],
    tokenizer: ToRead = None,
    json: Json = False,
) -> None:
    """Read the whole index of each pair; with a tokenizer also every token. Exit code 1 if anything is wrong.

    With a tokenizer, tokens that it does not have are found, and documents without its end.
    """
    raise typer.Exit(command("data").verify(prefixes, tokenizer=tokenizer, as_json=json))


@data.command(
    epilog="Example: mb data stats 30 data/a 70 data/b --train-iters 1000 --global-batch-size 256 --seq-length 4096"
)
def stats(
    blend: Annotated[
        list[str],
        typer.Argument(metavar="[WEIGHT] PREFIX", help="One pair, or a blend.", show_default=False),
    ],
    train_iters: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Steps of a run.", show_default=False)
    ] = None,
    global_batch_size: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Sequences of a step.", show_default=False)
    ] = None,
    seq_length: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tokens of a sequence.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Count documents and tokens, and how long documents are; how often a run reads each part of a blend.

    Weights are those of dataset.data_path; without them each part is read as often as the others. The last takes all
    three of --train-iters, --global-batch-size and --seq-length.
    """
    sizes = (train_iters, global_batch_size, seq_length)
    if any(sizes) and not all(sizes):
        raise typer.BadParameter(
            "takes --train-iters, --global-batch-size and --seq-length together", param_hint="--train-iters"
        )
    tokens = (train_iters or 0) * (global_batch_size or 0) * (seq_length or 0)
    raise typer.Exit(command("data").stats(blend, read_tokens=tokens or None, as_json=json))
