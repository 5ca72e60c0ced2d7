"""Command `build`: text to a `.bin`/`.idx` pair, or to shards."""

import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from mb_data.cli.options import BuildOptions
from mb_data.cli.progress import print_result, progress_bar
from mb_data.errors import BuildOptionError, DataPathError, PairExistsError
from mb_data.text.build import PairReport, build_pair
from mb_data.text.indexed import pair_paths
from mb_data.text.input_files import located_path
from mb_data.text.selection import BAD, KEPT, Selection
from mb_data.text.shards.build import SHARD_BYTES, ShardedReport, build_shards, remove_folder
from mb_data.text.shards.engines import WORKERS, select_engine
from mb_data.text.shards.manifest import manifest_path
from mb_data.tokenizers.loading import is_byte_tokenizer, load_tokenizer

_SHOWN_BAD_LINES = 3

_NEXT = """Train on it with `mb pretrain --config FILE`, where FILE holds:

dataset:
  _target_: mb_data.config.GPTDatasetConfig
  seq_length: 256
  data_path: {prefix}
  split: "90,5,5"
  reset_position_ids: false
  reset_attention_mask: false
  eod_mask_loss: false
tokenizer: {tokenizer}"""

_UNITS = {
    "": 1,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
}


def build(options: BuildOptions) -> int:
    """Write a pair or shards, with a progress bar on a terminal. Return the exit code.

    Raises:
        BuildOptionError: An option is not one of its values.
        DataPathError: The prefix is a folder or has the suffix of a file of a pair.
        PairExistsError: A file of the pair exists, and `overwrite` is False.
        The errors of `load_tokenizer`, `build_pair` and `build_shards`.
    """
    is_sharded = options.shard_size is not None or options.engine != "local"
    _check_prefix(options.out, overwrite=options.overwrite, is_sharded=is_sharded)
    selection = _selection(options)
    with progress_bar("tokenizing") as progress:
        if is_sharded:
            shard_bytes = SHARD_BYTES if options.shard_size is None else parse_size(options.shard_size)
            engine = select_engine(
                options.engine, workers=options.workers, slurm_options=options.slurm_option or []
            )
            if options.overwrite:
                _remove(options.out)
            report: PairReport = build_shards(
                options.inputs,
                tokenizer=options.tokenizer,
                prefix=options.out,
                engine=engine,
                selection=selection,
                shard_bytes=shard_bytes,
                progress=progress,
            )
        else:
            report = build_pair(
                options.inputs,
                tokenizer=load_tokenizer(options.tokenizer),
                prefix=options.out,
                workers=options.workers or WORKERS,
                selection=selection,
                progress=progress,
            )
            if options.overwrite:
                remove_folder(located_path(f"{options.out}.shards"))  # a pair comes first when both exist
    lines = [*_lines(options.out, report)]
    if "://" in options.out:
        lines.append(f"Copy {options.out}.idx and {options.out}.shards/ to a disk that the run reads.")
    if options.out.startswith("s3://"):
        lines.append(
            "Or set dataset.object_storage_cache_path, dataset.path_to_cache and mmap_bin_files: false."
        )
    lines.append(_NEXT.format(prefix=options.out, tokenizer=_section(options.tokenizer)))
    result = {"prefix": options.out, **asdict(report.summary), **asdict(report)}
    del result["summary"]
    print_result(result, as_json=options.json, lines=lines)
    return 0


def parse_size(text: str) -> int:
    """Return a size in bytes: a number with a unit such as `MiB`, `GiB`, `GB`, or without.

    Raises:
        BuildOptionError: It is none, or below one byte.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]|[KMGT]i)?B?", text.strip())
    size = int(float(match[1]) * _UNITS[match[2] or ""]) if match else 0
    if size < 1:
        raise BuildOptionError(
            f"--shard-size: {text!r} is no size. Write it as 1GiB, 512MiB or a number of bytes."
        )
    return size


def _selection(options: BuildOptions) -> Selection:
    if options.bad_lines not in ("stop", "skip"):
        raise BuildOptionError(
            f"--bad-lines: {options.bad_lines!r} is neither stop nor skip. Use one of them."
        )
    return Selection(
        json_key=options.json_key,
        text_function=options.text_function,
        filter_function=options.filter_function,
        min_characters=options.min_characters,
        max_characters=options.max_characters,
        deduplicate=options.deduplicate,
        bad_lines="skip" if options.bad_lines == "skip" else "stop",
    )


def _lines(prefix: str, report: PairReport) -> Iterator[str]:
    summary, counts = report.summary, report.selection
    yield f"{prefix}: {summary.documents:,} documents, {summary.tokens:,} tokens ({summary.dtype})"
    if isinstance(report, ShardedReport):
        kept = report.shards - report.built
        yield f"  {report.shards} shards" + (f", of which {kept} were there" if kept else "")
    for reason, number in counts.documents.items():
        if reason != KEPT:
            yield f"  dropped {number:,}: {reason}"
            yield from (f"    {' '.join(text.split())[:100]}" for text in counts.samples.get(reason, [])[:1])
        if reason == BAD:
            yield from (f"    {line}" for line in counts.bad_lines[:_SHOWN_BAD_LINES])


def _check_prefix(prefix: str, *, overwrite: bool, is_sharded: bool) -> None:
    path = Path(prefix)
    if prefix.endswith("/"):
        raise DataPathError(
            f"--out: {prefix} is a folder, but a pair needs a name. Use, for example, {path / 'mine'}."
        )
    if path.suffix in (".bin", ".idx"):
        raise DataPathError(f"--out: {prefix} has a suffix, which is added. Use {path.with_suffix('')}.")
    if "://" in prefix:
        if not is_sharded:
            raise BuildOptionError(
                f"--out: {prefix} is in object storage, to which only shards are written. Add --shard-size 1GiB."
            )
        return
    existing = [file for file in pair_paths(prefix) if file.exists()]
    if is_sharded and manifest_path(prefix).parent.exists():
        existing = [file for file in existing if file.suffix == ".bin"]
    if existing and not overwrite:
        raise PairExistsError(f"{existing[0]}: exists already. Choose another --out, or pass --overwrite.")


def _remove(prefix: str) -> None:
    """Remove what is at a prefix, so that all shards are built again."""
    for suffix in (".idx", ".bin"):
        located_path(f"{prefix}{suffix}").unlink(missing_ok=True)
    remove_folder(located_path(f"{prefix}.shards"))


def _section(path: Path) -> str:
    """Return the tokenizer section of a run, as YAML."""
    if is_byte_tokenizer(path):
        return "{tokenizer_type: ByteTokenizer}"
    kind = "SentencePieceTokenizer" if path.suffix == ".model" else "HuggingFaceTokenizer"
    return f"{{tokenizer_type: {kind}, tokenizer_model: {path}}}"
