"""Plan of a sharded build, as `plan.jsonl` in the folder of the shards: its options, and the inputs of each shard.

The inputs are cut into shards of about the same size, each of which is read alone.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, cast

from mb_data.errors import ShardPlanError
from mb_data.text.compressed import compression
from mb_data.text.document_rows import arrow_library
from mb_data.text.documents import is_json
from mb_data.text.input_files import InputRange, is_local, is_parquet, located_path
from mb_data.text.selection import Selection
from mb_data.text.shards.files import write_text

_NAME = "plan.jsonl"
_ADVICE = "Pass the options of the first call, or --overwrite to build everything again."


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardInput(InputRange):
    """Range of a file, and the state of the file when the plan was made."""

    size: int
    """Size of the whole file, in bytes."""
    version: str | float
    """ETag of an object, commit of a file of the Hugging Face hub, or the time of the last modification."""


Shard = tuple[ShardInput, ...]


def cut_files(files: Iterable[Path], *, shard_bytes: int) -> Iterator[Shard]:
    """Yield shards of about `shard_bytes` of input, in the order of the files.

    A larger file of JSON lines is cut at line ends, and Parquet between row groups; any other file is read whole, so
    that its shard may be larger. The cut depends on nothing but names, sizes and row groups. The state of each file is
    read once: of one in object storage by a request.

    Raises:
        BadDocumentError: A Parquet file cannot be read.
        FormatLibraryError: The library that reads Parquet is not installed.
    """
    shard: list[ShardInput] = []
    shard_size = 0
    for file in files:
        size, version = state_of(file)
        for part, part_bytes in _parts(file, size, shard_bytes):
            if shard and shard_size + part_bytes > shard_bytes:
                yield tuple(shard)
                shard, shard_size = [], 0
            shard.append(ShardInput(path=file, start=part.start, end=part.end, size=size, version=version))
            shard_size += part_bytes
    if shard:
        yield tuple(shard)


def state_of(path: Path) -> tuple[int, str | float]:
    """Return the size and the version of a file; the version is 0 where the storage has none."""
    state = path.stat()
    values = {} if is_local(path) else cast(Any, state).as_info()
    tag = values.get("ETag") or values.get("etag") or values.get("blob_id")
    return state.st_size, str(tag) if tag else float(state.st_mtime or 0.0)


def _parts(file: Path, size: int, shard_bytes: int) -> Iterator[tuple[InputRange, int]]:
    """Yield the ranges of a file that are at most as large as a shard, if it can be cut, each with its size."""
    if size <= shard_bytes or not (is_parquet(file) or (is_json(file) and compression(file) is None)):
        yield InputRange(path=file), size
    elif is_parquet(file):
        yield from _row_group_parts(file, shard_bytes)
    else:
        number = -(-size // shard_bytes)
        edges = [size * part // number for part in range(number)]
        for start, end in zip(edges, [*edges[1:], None], strict=True):
            yield InputRange(path=file, start=start, end=end), (size if end is None else end) - start


def _row_group_parts(file: Path, shard_bytes: int) -> Iterator[tuple[InputRange, int]]:
    start = part_bytes = 0
    sizes = arrow_library(file).row_group_bytes(file)
    for number, size in enumerate(sizes):
        if number > start and part_bytes + size > shard_bytes:
            yield InputRange(path=file, start=start, end=number), part_bytes
            start, part_bytes = number, 0
        part_bytes += size
    yield InputRange(path=file, start=start, end=len(sizes)), part_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOptions:
    """What the content of the shards depends on, but for the inputs."""

    tokenizer: str
    """File, folder or name for `load_tokenizer`, which every machine of the build reads."""
    tokenizer_fingerprint: str
    selection: Selection
    function_digests: dict[str, str]
    """Hash of the file of each function of the selection."""
    append_eod: bool
    shard_bytes: int


def function_digests(selection: Selection) -> dict[str, str]:
    """Return the hash of the file of each function of a selection, by reference."""
    references = filter(None, (selection.text_function, selection.filter_function))
    return {
        name: hashlib.sha256(Path(name.rpartition(":")[0]).read_bytes()).hexdigest() for name in references
    }


def write_plan(
    folder: Path, options: ShardOptions, shards: Iterable[Shard], *, forget: Callable[[int], None]
) -> int:
    """Write the plan of a build; one that resumes keeps the shards whose inputs are unchanged. Return their number.

    Args:
        folder: Folder of the shards.
        options: Options of the build.
        shards: Inputs of each shard.
        forget: Called, before the plan is replaced, with each shard of an earlier plan in the folder that has other
            inputs now, or is no part of the new one, because files were added, removed or changed. Removes its files.

    Raises:
        ShardPlanError: The build in the folder has other options. Bad lines may be skipped from now on, because the
            complete shards have none.
    """
    lines = [json.dumps(asdict(options))]
    lines += [json.dumps([{**asdict(entry), "path": str(entry.path)} for entry in shard]) for shard in shards]
    path = folder / _NAME
    before = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    if before:
        _require_same_options(path, json.loads(before[0]), json.loads(lines[0]))
    for number, (there, here) in enumerate(zip_longest(before[1:], lines[1:])):
        if there is not None and there != here:
            forget(number)
    if before != lines:
        write_text(path, "\n".join(lines) + "\n")
    return len(lines) - 1


def read_options(folder: Path) -> ShardOptions:
    """Return the options of a plan."""
    with (folder / _NAME).open(encoding="utf-8") as stream:
        values = json.loads(next(stream))
    return ShardOptions(**{**values, "selection": Selection(**values["selection"])})


def read_inputs(folder: Path, number: int) -> list[ShardInput]:
    """Return the inputs of a shard."""
    with (folder / _NAME).open(encoding="utf-8") as stream:
        entries = json.loads(next(islice(stream, 1 + number, None)))
    return [ShardInput(**{**entry, "path": located_path(entry["path"])}) for entry in entries]


def _require_same_options(path: Path, there: dict[str, Any], here: dict[str, Any]) -> None:
    if here["selection"]["bad_lines"] == "skip" and isinstance(there.get("selection"), dict):
        there["selection"]["bad_lines"] = "skip"
    names = [field.name for field in fields(ShardOptions) if there.get(field.name) != here[field.name]]
    if names:
        listed = "; ".join(f"{name} was {there.get(name)!r} and is {here[name]!r}" for name in names)
        raise ShardPlanError(f"{path}: the build to resume has other options: {listed}. {_ADVICE}")
