"""Commands `show`, `verify` and `stats`: documents, integrity and statistics of `.bin`/`.idx` pairs."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path

from mb_data.cli.progress import print_result, progress_bar
from mb_data.errors import DataPathError
from mb_data.megatron.blend import blend_from_path
from mb_data.text.reader import IndexedReader, examine_prefix
from mb_data.text.shards.origin import document_origins
from mb_data.text.stats import PrefixStats, blend_stats
from mb_data.tokenizers.loading import load_tokenizer
from mb_schema.exit_codes import BAD_INPUT, FAILURE

_MAX_SHOWN = 64
"""Maximum number of token ids of a document that are printed; `--json` prints all."""

_MAX_SOURCES = 20
"""Maximum number of input files whose share is printed."""

_WIDTH = 40
"""Length of the longest bar of a histogram, in characters."""


def show(prefix: str, number: int, *, tokenizer: Path | None, as_json: bool) -> int:
    """Print one document, with its text if a tokenizer is given. Return the exit code."""
    reader = IndexedReader(prefix)
    ids: list[int] = reader.document(number).tolist()
    text = None if tokenizer is None else load_tokenizer(tokenizer).decode(ids)
    more = f" ... {len(ids) - _MAX_SHOWN} more; --json has all" if len(ids) > _MAX_SHOWN else ""
    origin = document_origins(prefix, [number]).get(number)
    lines = [
        f"{prefix}: document {number} of {len(reader)}, {len(ids)} tokens"
        + (f", from {origin}" if origin else ""),
        " ".join(map(str, ids[:_MAX_SHOWN])) + more,
    ]
    result = {
        "prefix": prefix,
        "document": number,
        "documents": len(reader),
        "ids": ids,
        "text": text,
        "origin": origin,
    }
    print_result(result, as_json=as_json, lines=lines if text is None else [*lines, text])
    return 0


def verify(prefixes: Sequence[str], *, tokenizer: Path | None, as_json: bool) -> int:
    """Examine every pair, also after one that cannot be read. Return 0 if all are valid, 2 if one is missing, or 1."""
    loaded = None if tokenizer is None else load_tokenizer(tokenizer)
    limits = {} if loaded is None else {"vocab_size": loaded.vocab_size, "eod": loaded.eod}
    code, problems = 0, {}
    with progress_bar("verifying") as report:
        for prefix in prefixes:
            try:
                problems[prefix] = examine_prefix(prefix, **limits, progress=report)
                code = max(code, FAILURE if problems[prefix] else 0)
            except DataPathError as error:
                problems[prefix], code = [str(error)], BAD_INPUT
    valid = "the index is valid; --tokenizer also reads the tokens" if loaded is None else "valid"
    lines = [line for prefix, of_pair in problems.items() for line in of_pair or [f"{prefix}: {valid}"]]
    print_result(problems, as_json=as_json, lines=lines)
    return code


def stats(blend: Sequence[str], *, read_tokens: int | None, as_json: bool) -> int:
    """Print the statistics of each part of a blend. Return the exit code."""
    parts = blend_stats(blend_from_path(list(blend)), read_tokens=read_tokens)
    lines = [line for part in parts for line in _lines(part)]
    print_result([asdict(part) for part in parts], as_json=as_json, lines=lines)
    return 0


def _lines(part: PrefixStats) -> list[str]:
    """Return the statistics of a part of a blend as lines, with a histogram of its document lengths."""
    head = f"{part.prefix}: {part.documents:,} documents, {part.tokens:,} tokens ({part.dtype})"
    share = f"  share of the blend {part.share:.1%}"
    if part.epochs is not None:
        share += f", read {part.epochs:.3g} times"
    lengths = f"  tokens of a document: {part.shortest:,} to {part.longest:,}, mean {part.mean:,.1f}, "
    largest_count = max((number for _, number in part.histogram), default=1)
    bars = [
        f"  below {power:>12,} {number:>12,} {'#' * max(1, round(_WIDTH * number / largest_count))}"
        for power, number in part.histogram
    ]
    if part.bytes_per_token is not None:
        share += f", {part.bytes_per_token:.2f} bytes of text per token"
    sources = [
        f"  {fraction:7.2%} {'#' * max(1, round(_WIDTH * fraction))} {path}"
        for path, fraction in islice(part.sources.items(), _MAX_SOURCES)
    ]
    if len(part.sources) > _MAX_SOURCES:
        rest = sum(islice(part.sources.values(), _MAX_SOURCES, None))
        sources.append(f"  {rest:7.2%} of {len(part.sources) - _MAX_SOURCES} other files; --json has all")
    return [head, share, f"{lengths}median {part.median:,.1f}", *bars, *sources]
