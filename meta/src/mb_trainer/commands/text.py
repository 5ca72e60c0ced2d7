"""`mb sample` and `mb eval`: text, and perplexity on held-out data, from a trained model."""

import json
import os
import sys
from collections import deque
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mb_host
from mb_launch import read_world

if TYPE_CHECKING:
    from mb_models.trainer_api import Perplexity


def prints() -> bool:
    """Return whether this process prints results: under a launcher, the first does."""
    return read_world(os.environ).rank == 0


def log(line: str) -> None:
    """Print a line on stderr, where results are printed."""
    if prints():
        print(line, file=sys.stderr)


def with_megatron(module: str) -> Any:
    """Return a module of the trainer that imports megatron."""
    mb_host.install()  # before megatron is imported; with a GPU it only corrects Megatron
    return import_module(f"mb_trainer.{module}")


def sample(run: Path, *, as_json: bool, **options: Any) -> int:
    """Print a text for each prompt and return the exit code. Under a launcher, every rank calls it.

    `options` are those of `sample_run`.
    """
    pieces = with_megatron("sampling").sample_run(run, **options, log=log)
    if not prints():
        deque(pieces, maxlen=0)
    elif as_json:
        print(json.dumps(rows_of(pieces), ensure_ascii=False))
    else:
        print_pieces(pieces)
    return 0


def evaluate(run: Path, *, complete: bool, as_json: bool) -> int:
    """Print the perplexity on each validation set and return the exit code. Under a launcher, every rank calls it."""
    step, sets = with_megatron("sampling").evaluate_run(run, complete=complete, log=log)
    if not prints():
        return 0
    if as_json:
        print(json.dumps({"step": step, "sets": [each.as_dict() for each in sets]}))
    else:
        print("\n".join([f"step {step}", *perplexity_lines(sets)]))
    return 0


def rows_of(pieces: Iterable[tuple[int, str]]) -> list[dict[str, str]]:
    """Return prompt and text of each prompt of `sample_run`."""
    texts: list[list[str]] = []
    for number, piece in pieces:
        if number == len(texts):
            texts.append([])
        texts[-1].append(piece)
    return [{"prompt": prompt, "text": "".join(rest)} for prompt, *rest in texts]


def print_pieces(pieces: Iterable[tuple[int, str]]) -> None:
    """Print the pieces as they come, with an empty line between the prompts."""
    previous = 0
    for number, piece in pieces:
        print("\n\n" if number > previous else "", piece, sep="", end="", flush=True)
        previous = number
    print()


def perplexity_lines(sets: "list[Perplexity]") -> list[str]:
    """Return a table of sets and their buckets. A set without a token in the loss has neither loss nor perplexity."""
    rows: list[tuple[str, ...]] = [("set", "tokens", "loss", "perplexity")]
    for each in sets:
        for indent, part in [("", each), *(("  documents of ", bucket) for bucket in each.buckets)]:
            rows.append(
                (
                    f"{indent}{part.name or 'validation'}",
                    f"{part.tokens:,}",
                    f"{part.loss:.6f}" if part.tokens else "no token in the loss",
                    f"{part.value:.4f}" if part.tokens else "-",
                )
            )
    return table_lines(rows, left=1)


def table_lines(rows: list[tuple[str, ...]], *, left: int) -> list[str]:
    """Return aligned rows; the first `left` columns are aligned on the left."""
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:<{width}}" if column < left else f"{cell:>{width}}"
            for column, (cell, width) in enumerate(zip(row, wide, strict=True))
        ).rstrip()
        for row in rows
    ]
