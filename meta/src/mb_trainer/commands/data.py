"""Implementation of `mb data build|index|show|verify|stats`."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import mb_host
from mb_config import ConfigError, Problem, smallest_world
from mb_data import (
    IndexedReader,
    blend_from_path,
    blend_stats,
    build_indexed,
    examine_prefix,
    load_tokenizer,
)
from mb_data.stats import PrefixStats
from mb_trainer.commands.answers import answer
from mb_trainer.commands.errors import LaunchError, OutputExistsError, reported
from mb_trainer.commands.preflight import Target, examine
from mb_trainer.console import Voice
from mb_trainer.preflight import verify_data
from mb_trainer.reading import read_request

NEXT = """Train on it with `mb pretrain --config FILE`, where FILE holds:

dataset:
  _target_: mb_data.config.GPTDatasetConfig
  seq_length: 256
  data_path: {prefix}
  split: "90,5,5"
  reset_position_ids: false
  reset_attention_mask: false
  eod_mask_loss: false
tokenizer: {{tokenizer_type: {kind}, tokenizer_model: {tokenizer}}}"""

SHOWN = 64
"""Maximum number of token ids of a document that are printed; `--json` prints all."""

WIDTH = 40
"""Length of the longest bar of a histogram, in characters."""

OF_DATA = ("dataset.", "tokenizer.", "train.", "validation.")
"""Prefixes of the fields that sample indices depend on."""


def build(
    inputs: Sequence[Path],
    *,
    tokenizer: Path,
    prefix: Path,
    workers: int,
    json_key: str,
    overwrite: bool,
    as_json: bool,
) -> int:
    """Write PREFIX.bin and PREFIX.idx, with a progress bar on a terminal. Return the exit code."""

    def work() -> int:
        if not overwrite and prefix.with_name(f"{prefix.name}.bin").exists():
            raise OutputExistsError(
                f"{prefix}.bin: is there already. Choose another --out, or give --overwrite."
            )
        with Voice(stream=sys.stderr).progress("tokenizing", 1) as bar:
            summary = build_indexed(
                inputs,
                tokenizer=load_tokenizer(tokenizer),
                prefix=prefix,
                workers=workers,
                json_key=json_key,
                progress=lambda stage, done, total: bar.update(done, total=total, label=stage),
            )
        kind = "SentencePieceTokenizer" if tokenizer.suffix == ".model" else "HuggingFaceTokenizer"
        lines = [f"{prefix}: {summary.documents:,} documents, {summary.tokens:,} tokens ({summary.dtype})"]
        lines.append(NEXT.format(prefix=prefix, tokenizer=tokenizer, kind=kind))
        answer({"prefix": str(prefix), **asdict(summary)}, as_json, lines)
        return 0

    return reported(work)


def index(
    words: Sequence[str], *, files: Sequence[Path], world_size: int | None, workers: int, as_json: bool
) -> int:
    """Build the corpus and the sample indices that a run needs before its first step. Return the exit code."""

    def work() -> int:
        target = Target(
            world_size=world_size or smallest_world(read_request(words, files=files).config.model)
        )
        request, findings = examine(words, files=files, out=None, target=target)
        wrong = [problem for problem in findings.errors if of_data(problem)]
        if wrong:
            raise ConfigError(wrong)
        verify_data(request.config)
        if "megatron.core" not in sys.modules:
            mb_host.install()  # suppresses the notices that megatron prints at import; datasets need no other patch
        # torch and megatron take seconds to import: load them after all checks
        indexing = import_module("mb_trainer.indexing")
        with Voice(stream=sys.stderr).progress("index", 1) as bar:
            found = indexing.build_indices(
                request.config,
                workers=workers,
                progress=lambda stage, done, total: bar.update(done, total=total, label=stage),
            )
        sizes = indexing.as_dict(found)
        lines = [f"{request.name}: {', '.join(f'{split} {size:,} samples' for split, size in sizes.items())}"]
        lines.append("A run with the same data, steps and batch sizes finds all of it.")
        answer({"samples": sizes}, as_json, lines)
        return 0

    return reported(work)


def of_data(problem: Problem) -> bool:
    """Return whether all fields of a problem are settings of the data."""
    return all(path.startswith(OF_DATA) for path in problem.fields)


def show(prefix: str, number: int, *, tokenizer: Path | None, as_json: bool) -> int:
    """Print one document, with its text if a tokenizer is given. Return the exit code."""

    def work() -> int:
        reader = IndexedReader(prefix)
        ids: list[int] = reader.document(number).tolist()
        text = None if tokenizer is None else load_tokenizer(tokenizer).decode(ids)
        more = f" ... {len(ids) - SHOWN} more; --json has all" if len(ids) > SHOWN else ""
        lines = [
            f"{prefix}: document {number} of {len(reader)}, {len(ids)} tokens",
            " ".join(map(str, ids[:SHOWN])) + more,
        ]
        found = {"prefix": prefix, "document": number, "documents": len(reader), "ids": ids, "text": text}
        answer(found, as_json, lines if text is None else [*lines, text])
        return 0

    return reported(work)


def verify(prefixes: Sequence[str], *, tokenizer: Path | None, as_json: bool) -> int:
    """Read each pair in full. Return 0 if all are intact, otherwise 1."""

    def work() -> int:
        known = None if tokenizer is None else load_tokenizer(tokenizer)
        found = {}
        with Voice(stream=sys.stderr).progress("verifying", 1) as bar:
            for prefix in prefixes:
                found[prefix] = examine_prefix(
                    prefix,
                    vocab_size=None if known is None else known.vocab_size,
                    eod=None if known is None else known.eod,
                    progress=lambda stage, done, total: bar.update(done, total=total, label=stage),
                )
        answer(
            found, as_json, [f"{prefix}: {'; '.join(wrong) or 'whole'}" for prefix, wrong in found.items()]
        )
        return 1 if any(found.values()) else 0

    return reported(work)


def stats(blend: Sequence[str], *, read_tokens: int | None, as_json: bool) -> int:
    """Print the statistics of each part of a blend. Return the exit code."""

    def work() -> int:
        try:
            parts = blend_from_path(list(blend))
        except ValueError as error:
            raise LaunchError(str(error)) from error
        found = blend_stats(parts, read_tokens=read_tokens)
        answer([asdict(each) for each in found], as_json, [line for each in found for line in lines_of(each)])
        return 0

    return reported(work)


def lines_of(part: PrefixStats) -> list[str]:
    """Return the statistics of a part of a blend as lines, with a histogram of its document lengths."""
    head = f"{part.prefix}: {part.documents:,} documents, {part.tokens:,} tokens ({part.dtype})"
    share = f"  share of the blend {part.share:.1%}"
    if part.epochs is not None:
        share += f", read {part.epochs:.3g} times"
    lengths = f"  tokens of a document: {part.shortest:,} to {part.longest:,}, mean {part.mean:,.1f}, "
    most = max((number for _, number in part.histogram), default=1)
    bars: list[Any] = [
        f"  below {power:>12,} {number:>12,} {'#' * max(1, round(WIDTH * number / most))}"
        for power, number in part.histogram
    ]
    return [head, share, f"{lengths}median {part.median:,.1f}", *bars]
