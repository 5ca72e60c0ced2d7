"""Options of the commands `build` and `at`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """Options of `build`."""

    inputs: Annotated[
        list[str],
        typer.Option(
            "--input",
            metavar="PATH",
            help="Text, JSONL, CSV, Parquet or Arrow file, or a folder, also by URL (s3://...); repeatable.",
        ),
    ]
    tokenizer: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="A tokenizer.json or its folder, a SentencePiece .model, or ByteTokenizer (bytes as tokens).",
        ),
    ]
    out: Annotated[str, typer.Option(metavar="PREFIX", help="Writes PREFIX.bin and PREFIX.idx.")]
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Processes that tokenize; with ray, shards at once; with slurm, jobs.",
            show_default="2; with ray all CPUs",
        ),
    ] = None
    json_key: Annotated[str, typer.Option(help="Key or column of the text.")] = "text"
    text_function: Annotated[
        str | None,
        typer.Option("--map", metavar="FILE.py:NAME", help="Function of a row that returns its text."),
    ] = None
    filter_function: Annotated[
        str | None,
        typer.Option("--filter", metavar="FILE.py:NAME", help="Function of a row: is it kept?"),
    ] = None
    min_characters: Annotated[int, typer.Option("--min-chars", min=0, help="Drop shorter texts.")] = 0
    max_characters: Annotated[
        int | None, typer.Option("--max-chars", min=1, help="Drop longer texts.", show_default=False)
    ] = None
    deduplicate: Annotated[
        bool, typer.Option("--deduplicate", help="Keep only the first of equal texts.")
    ] = False
    bad_lines: Annotated[
        str,
        typer.Option(metavar="stop|skip", help="What is done with lines and files that are no documents."),
    ] = "stop"
    shard_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Build shards of this much input (such as 1GiB) into PREFIX.shards, with which an "
            "interrupted build resumes.",
            show_default=False,
        ),
    ] = None
    engine: Annotated[
        str, typer.Option(metavar="local|ray|slurm", help="Where shards are built; ray and slurm imply them.")
    ] = "local"
    slurm_option: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="Option of sbatch, such as --partition=cpu; repeatable."),
    ] = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")] = False
    json: AsJson = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """Arguments and options of `at`."""

    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", show_default=False)]
    step: Annotated[int, typer.Option(min=1, metavar="N", help="Number of the step.")]
    rank: Annotated[
        int | None,
        typer.Option(min=0, metavar="R", help="Data-parallel rank; default: all.", show_default=False),
    ] = None
    full: Annotated[bool, typer.Option("--full", help="Print whole texts.")] = False
    origins: Annotated[
        bool,
        typer.Option(
            "--origins", help="Also the input file and line of each document of shards, which are read again."
        ),
    ] = False
    json: AsJson = False
