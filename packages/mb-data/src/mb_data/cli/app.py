"""Command line `mb-data`: build and inspect training data. Requires the extra `cli`.

Each command imports its implementation when it is called, so that `--help` is fast.
"""

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from mb_data.cli.options import AsJson, BuildOptions, StepOptions
from mb_schema.commands import CommandWithExample, common_options, exit_codes

Prefix = Annotated[
    str,
    typer.Argument(metavar="PREFIX", help="Path of a .bin and an .idx without suffix.", show_default=False),
]
TokenizerFile = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer", metavar="FILE", help="Tokenizer of the pair, as passed to build.", show_default=False
    ),
]

documents = typer.Typer()
"""Commands `build`, `show`, `verify` and `stats`, which a trainer adds to its own."""

app = typer.Typer(
    help="Build and inspect training data in Megatron's .bin/.idx format.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.add_typer(documents)


def _run(command: str, *arguments: Any, **options: Any) -> None:
    """Run a command, "module:function", which returns the exit code."""
    module, _, function = command.partition(":")
    with exit_codes():
        raise typer.Exit(getattr(import_module(f"mb_data.cli.{module}"), function)(*arguments, **options))


@documents.command(
    cls=CommandWithExample,
    epilog="--input books/ --input web.jsonl --tokenizer tokenizer.json --out data/mine",
)
@common_options
def build(options: BuildOptions) -> None:
    """Tokenize text into the .bin and .idx files that Megatron reads.

    A text file is one document, and so is each line of a .jsonl or .json file. An interrupted build leaves no files;
    with --shard-size it leaves the complete shards, and the same command resumes with the others.
    """
    _run("build:build", options)


Workers = Annotated[int, typer.Option(min=1, help="Threads, one for each part of a blend.")]


@app.command(cls=CommandWithExample, epilog="run.yaml --workers 8")
def index(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE",
            help="YAML files of settings; later files override earlier ones.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        list[Path] | None,
        typer.Option("--config", metavar="FILE", help="A further file; repeatable."),
    ] = None,
    workers: Workers = 2,
    json: AsJson = False,
) -> None:
    """Build on a CPU what a run needs before its first step: the text corpus and the order of the samples.

    The run then finds these files. Problems of the configuration that do not concern the data are ignored.
    """
    with exit_codes():
        implementation = import_module("mb_data.cli.index")
        request = implementation.read_request([*(files or []), *(config or [])])
        implementation.index(request, workers=workers, as_json=json)


@app.command(cls=CommandWithExample, epilog="runs/gpt_tiny --step 120")
@common_options
def at(options: StepOptions) -> None:
    """Print what a run was trained on in one step: documents, offsets and text of each sequence, and the losses.

    The position in the data is that of metrics.jsonl, and the data that of run_config.yaml.
    """
    with exit_codes():
        position = import_module("mb_data.loading.step_batch").find_step(options.run, options.step)
        request = import_module("mb_data.cli.index").read_request([options.run / "run_config.yaml"])
        import_module("mb_data.cli.at").print_step(options, position, request)


@documents.command(cls=CommandWithExample, epilog="data/mine 3 --tokenizer tokenizer.json")
def show(
    prefix: Prefix,
    number: Annotated[int, typer.Argument(metavar="N", help="Number of the document, counted from 0.")] = 0,
    tokenizer: TokenizerFile = None,
    json: AsJson = False,
) -> None:
    """Print a document: its token ids, and with --tokenizer its text."""
    _run("inspect:show", prefix, number, tokenizer=tokenizer, as_json=json)


@documents.command(cls=CommandWithExample, epilog="data/a data/b --tokenizer tokenizer.json")
def verify(
    prefixes: Annotated[
        list[str],
        typer.Argument(metavar="PREFIX", help="Paths of pairs without suffix.", show_default=False),
    ],
    tokenizer: TokenizerFile = None,
    json: AsJson = False,
) -> None:
    """Check the complete index of each pair, and with --tokenizer every token. Exit code 1 if a pair is damaged.

    With --tokenizer, ids outside its vocabulary and documents without its end-of-document token are reported.
    """
    _run("inspect:verify", prefixes, tokenizer=tokenizer, as_json=json)


@documents.command(
    cls=CommandWithExample,
    epilog="30 data/a 70 data/b --train-iters 1000 --global-batch-size 256 --seq-length 4096",
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
    json: AsJson = False,
) -> None:
    """Print numbers and lengths of documents, and the share of each part of a blend.

    Weights are those of dataset.data_path; without weights, shares are in proportion to the numbers of tokens. With
    --train-iters, --global-batch-size and --seq-length, also print how many times a run reads each part if it trains on
    all documents; with dataset.split=90,10,0 divide by 0.9.
    """
    sizes = (train_iters, global_batch_size, seq_length)
    if any(sizes) and not all(sizes):
        raise typer.BadParameter(
            "--train-iters, --global-batch-size and --seq-length are only accepted together",
            param_hint="--train-iters",
        )
    tokens = (train_iters or 0) * (global_batch_size or 0) * (seq_length or 0)
    _run("inspect:stats", blend, read_tokens=tokens or None, as_json=json)
