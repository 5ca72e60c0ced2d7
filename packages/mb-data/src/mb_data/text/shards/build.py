"""Sharded builds: plan, shards by an engine, then one index over all."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from mb_data.errors import PairExistsError
from mb_data.progress import Progress
from mb_data.text.build import PairReport, require_documents
from mb_data.text.indexed import IndexedSummary, read_lengths, write_index
from mb_data.text.input_files import input_files, is_local, located_path, storage_errors
from mb_data.text.selection import Selection
from mb_data.text.shards.files import WORK_PREFIX, move, read_array, write_array, write_text
from mb_data.text.shards.manifest import MANIFEST, ShardFile, encode_manifest
from mb_data.text.shards.plan import ShardOptions, cut_files, function_digests, write_plan
from mb_data.text.shards.shard import (
    Engine,
    ShardTask,
    Step,
    array_path,
    is_done,
    read_record,
    record_path,
    remove_shard,
    shard_name,
    sum_records,
)
from mb_data.tokenizers.loading import load_tokenizer

SHARD_BYTES = 1 << 30
"""Input of a shard by default, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedReport(PairReport):
    """Sizes of a sharded data set, and where its documents come from."""

    shards: int
    built: int
    """Shards that this call built; the others were there."""


def build_shards(
    inputs: Sequence[str | Path],
    *,
    tokenizer: str | Path,
    prefix: str,
    engine: Engine,
    selection: Selection | None = None,
    append_eod: bool = True,
    shard_bytes: int = SHARD_BYTES,
    progress: Progress | None = None,
) -> ShardedReport:
    """Tokenize files into shards, and resume where an earlier call with the same arguments was interrupted.

    Writes `prefix.shards/`, with a pair and a record for each shard and the manifest, and `prefix.idx`, the index of
    all. The tokens are those of `build_pair` with the same arguments, whatever the size of a shard and the engine.
    `prefix` is then a data path like that of a pair.

    Args:
        inputs: Files and folders, as of `build_pair`.
        tokenizer: File, folder or name for `load_tokenizer`, which every worker loads.
        prefix: Output path without suffix, or its URL.
        engine: Runs the shards; see `select_engine`.
        selection: Which documents are kept; None: all, with their text at `text`. To compare texts, all inputs are read
            twice, and memory holds some 50 bytes for each document.
        append_eod: Append the tokenizer's `eod` to each document.
        shard_bytes: Input of a shard. A file that cannot be cut makes a larger one.
        progress: Called with the step, the finished shards and their number.

    Raises:
        PairExistsError: A pair has this prefix.
        ShardPlanError: The build to resume has other options or inputs.
        EngineError: The engine failed.
        The errors of `build_pair`.
    """
    folder, tokens = located_path(f"{prefix}.shards"), located_path(f"{prefix}.bin")
    with storage_errors(folder):
        if tokens.exists():
            raise PairExistsError(f"{tokens}: exists already. Choose another --out, or pass --overwrite.")
    selection = selection or Selection()
    files = input_files(inputs)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    options = ShardOptions(
        tokenizer=str(tokenizer),
        tokenizer_fingerprint=load_tokenizer(tokenizer).fingerprint,
        selection=selection,
        function_digests=function_digests(selection),
        append_eod=append_eod,
        shard_bytes=shard_bytes,
    )
    shards = list(cut_files(files, shard_bytes=shard_bytes))
    number = write_plan(folder, options, shards, forget=lambda shard: _forget(folder, shard))
    if selection.deduplicate:
        _run(folder, "hash", number, engine, progress)
        _mark_duplicates(folder, number)
    built = _run(folder, "build", number, engine, progress)
    records = [read_record(folder, shard) for shard in range(number)]
    counts, by_input = sum_records(records)
    sizes = {entry.path: entry.size for shard in shards for entry in shard}
    require_documents(counts, inputs, files=len(sizes), size=sum(sizes.values()))
    summary = _finish(prefix, folder, records)
    return ShardedReport(summary=summary, selection=counts, inputs=by_input, shards=number, built=built)


def remove_folder(folder: Path) -> None:
    """Remove the folder of the shards of a prefix, if it exists, its manifest first."""
    (folder / MANIFEST).unlink(missing_ok=True)
    if is_local(folder):
        shutil.rmtree(folder, ignore_errors=True)
        return
    for file in list(folder.iterdir()) if folder.exists() else []:
        file.unlink()


def _forget(folder: Path, shard: int) -> None:
    """Remove a shard, and the manifest that names it, first."""
    (folder / MANIFEST).unlink(missing_ok=True)
    remove_shard(folder, shard)


def _run(folder: Path, step: Step, number: int, engine: Engine, progress: Progress | None) -> int:
    """Run a step for the shards that lack it. Return their number."""
    missing = [shard for shard in range(number) if not is_done(folder, shard, step)]
    done = number - len(missing)
    if missing and step == "build":
        # no data set until all are there: a new shard of equal size would be read under the old index
        (folder / MANIFEST).unlink(missing_ok=True)
    for _ in engine(ShardTask(folder=str(folder), step=step), missing):
        done += 1
        if progress is not None:
            progress({"hash": "hash", "build": "tokenize"}[step], done, number)
    return len(missing)


def _mark_duplicates(folder: Path, number: int) -> None:
    """Write which documents of each shard have the text of an earlier one. A shard that had others is built again."""
    hashes = [read_array(array_path(folder, shard, "hashes")) for shard in range(number)]
    texts = np.ascontiguousarray(np.concatenate(hashes)).view(f"V{hashes[0].shape[1]}").ravel()
    _, first = np.unique(texts, return_index=True)  # of equal texts the first one
    is_duplicate = np.ones(len(texts), bool)
    is_duplicate[first] = False
    for shard, marks in enumerate(np.split(is_duplicate, np.cumsum([len(part) for part in hashes])[:-1])):
        path = array_path(folder, shard, "duplicates")
        if path.exists() and not np.array_equal(read_array(path), marks):
            record_path(folder, shard).unlink(missing_ok=True)
        write_array(path, marks)


def _finish(prefix: str, folder: Path, records: Sequence[dict[str, Any]]) -> IndexedSummary:
    """Write the index and the manifest of all shards, and remove what interrupted workers left."""
    files = [
        ShardFile(
            path=folder / f"{shard_name(shard)}.bin",
            bytes=record["files"][f"{shard_name(shard)}.bin"],
            documents=record["summary"]["documents"],
            digest=record["digests"][f"{shard_name(shard)}.bin"],
        )
        for shard, record in enumerate(records)
    ]
    lengths = np.concatenate(
        [read_lengths(folder / f"{shard_name(shard)}.idx") for shard in range(len(files))]
    )
    index, dtype = located_path(f"{prefix}.idx"), np.dtype(records[0]["summary"]["dtype"])
    with TemporaryDirectory(
        prefix=WORK_PREFIX, dir=folder if is_local(folder) else None, ignore_cleanup_errors=True
    ) as work:
        write_index(Path(work, index.name), lengths, dtype=dtype)
        size = Path(work, index.name).stat().st_size
        move(Path(work, index.name), index)
    write_text(folder / MANIFEST, encode_manifest(files))  # last: with it, shards are a data set
    if is_local(folder):
        for left in folder.glob(f"{WORK_PREFIX}*"):
            shutil.rmtree(left, ignore_errors=True)
    tokens = int(lengths.sum(dtype=np.int64))
    return IndexedSummary(
        documents=lengths.size,
        sequences=lengths.size,
        tokens=tokens,
        dtype=dtype.name,
        bytes=size + tokens * dtype.itemsize,
    )
