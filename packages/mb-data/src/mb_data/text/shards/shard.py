"""One shard of a build: a function of the plan's folder and its number, which any process of any machine may call."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np

from mb_data.errors import ShardPlanError
from mb_data.text.build import ChunkEncoder, InputCounts, write_pair
from mb_data.text.documents import DocumentChunk, read_chunks
from mb_data.text.input_files import is_local, located_path
from mb_data.text.selection import DIGEST_BYTES, SelectionReport, text_digest
from mb_data.text.shards.files import WORK_PREFIX, move, read_array, write_array, write_text
from mb_data.text.shards.manifest import file_digest
from mb_data.text.shards.plan import ShardOptions, function_digests, read_inputs, read_options, state_of
from mb_data.tokenizers.loading import load_tokenizer

Step = Literal["hash", "build"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTask:
    """A step of a build, called with the number of a shard. Engines send it to their workers."""

    folder: str
    """Folder of the plan, by path or URL."""
    step: Step

    def __call__(self, number: int) -> int:
        """Run the step for a shard, unless it is done. Return the number.

        Raises:
            ShardPlanError: An input, function or the tokenizer changed since the plan was made.
            The errors of `build_pair`.
        """
        folder = located_path(self.folder)
        if not is_done(folder, number, self.step):
            (_hash if self.step == "hash" else _build)(folder, number)
        return number


Engine = Callable[[ShardTask, Sequence[int]], Iterator[int]]
"""Function that runs a task for each shard number and yields the numbers as they are done."""


def shard_name(number: int) -> str:
    """Return the name of the files of a shard, without suffix."""
    return f"shard-{number:05}"


def record_path(folder: Path, number: int) -> Path:
    """Return the record of a shard, which is written last."""
    return folder / f"{shard_name(number)}.json"


def array_path(folder: Path, number: int, name: Literal["hashes", "duplicates"]) -> Path:
    """Return an array of the selected documents of a shard: hashes, bytes [documents, 16], or marks of duplicates."""
    return folder / f"{shard_name(number)}.{name}.npy"


def remove_shard(folder: Path, number: int) -> None:
    """Remove the files of a shard, its record first."""
    for suffix in ("json", "hashes.npy", "duplicates.npy", "idx", "bin"):
        (folder / f"{shard_name(number)}.{suffix}").unlink(missing_ok=True)


def is_done(folder: Path, number: int, step: Step) -> bool:
    """Return whether a step was completed for a shard: its files exist, with the sizes of the record."""
    if step == "hash":
        return array_path(folder, number, "hashes").exists()
    if not record_path(folder, number).exists():
        return False
    sizes: dict[str, int] = read_record(folder, number)["files"]
    return all((folder / name).exists() and (folder / name).stat().st_size == sizes[name] for name in sizes)


def read_record(folder: Path, number: int) -> dict[str, Any]:
    """Return the record of a shard.

    Raises:
        ShardPlanError: It is damaged.
    """
    path = record_path(folder, number)
    try:
        record: dict[str, Any] = json.loads(path.read_bytes())
        return record
    except ValueError as error:
        raise ShardPlanError(
            f"{path}: is damaged ({error}). Remove it; the shard is then built again."
        ) from error


def sum_records(records: Iterable[Mapping[str, Any]]) -> tuple[SelectionReport, dict[str, InputCounts]]:
    """Return the documents of records by reason, and what each input file contributed."""
    counts, by_input = SelectionReport(), dict[str, InputCounts]()
    for record in records:
        counts.merge(SelectionReport(**record["selection"]))
        for path, values in record["inputs"].items():
            total = by_input.setdefault(path, InputCounts())
            total.documents += values["documents"]
            total.tokens += values["tokens"]
            total.text_bytes += values["text_bytes"]
    return counts, by_input


def _hash(folder: Path, number: int) -> None:
    options = read_options(folder)
    report = SelectionReport()
    digests = [
        text_digest(text)
        for chunk in read_shard_documents(folder, number, options)
        for text, _ in options.selection.select(chunk, report)
    ]
    array = np.frombuffer(b"".join(digests), np.uint8).reshape(len(digests), DIGEST_BYTES)
    write_array(array_path(folder, number, "hashes"), array)


def _build(folder: Path, number: int) -> None:
    """Build one shard in a temporary folder, and move its files; the record, which declares it complete, is last.

    Raises:
        ShardPlanError: The tokenizer has changed since the build began.
    """
    options = read_options(folder)
    tokenizer = load_tokenizer(options.tokenizer)
    if tokenizer.fingerprint != options.tokenizer_fingerprint:
        raise ShardPlanError(
            f"{options.tokenizer}: was changed since the build began; shards of two tokenizers are no data set. "
            "Restore it, or build everything again with --overwrite."
        )
    encoder = ChunkEncoder(tokenizer=tokenizer, selection=options.selection, append_eod=options.append_eod)
    with TemporaryDirectory(prefix=WORK_PREFIX, dir=folder if is_local(folder) else None) as work:
        report = write_pair(
            read_shard_documents(folder, number, options),
            encoder,
            Path(work, shard_name(number)),
            is_duplicate=_recorded_duplicates(folder, number) if options.selection.deduplicate else None,
        )
        files = [Path(work, f"{shard_name(number)}.{suffix}") for suffix in ("bin", "idx")]
        record = {
            **asdict(report),
            "files": {file.name: file.stat().st_size for file in files},
            "digests": {file.name: file_digest(file) for file in files},
        }
        for file in files:
            move(file, folder / file.name)
    write_text(record_path(folder, number), json.dumps(record, indent=1))


def read_shard_documents(folder: Path, number: int, options: ShardOptions) -> Iterator[DocumentChunk]:
    """Yield the documents of a shard, before any is selected.

    Raises:
        ShardPlanError: An input or the file of a function changed.
    """
    inputs = read_inputs(folder, number)
    if function_digests(options.selection) != options.function_digests:
        raise ShardPlanError(
            f"{', '.join(options.function_digests)}: the file was changed since the build began. Restore it, or build "
            "everything again with --overwrite."
        )
    for entry in inputs:
        if state_of(entry.path) != (entry.size, entry.version):
            raise ShardPlanError(
                f"{entry.path}: was changed since the build began (it had {entry.size} bytes). Restore it, or "
                "build everything again with --overwrite."
            )
    return read_chunks(inputs, columns=options.selection.columns)


def _recorded_duplicates(folder: Path, number: int) -> Callable[[str], bool]:
    marks = iter(read_array(array_path(folder, number, "duplicates")).tolist())
    return lambda text: bool(next(marks))
