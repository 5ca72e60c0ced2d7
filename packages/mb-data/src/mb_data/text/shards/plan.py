"""Plan of a sharded build: its options and the inputs of each shard, as `plan.jsonl` in the folder of the shards."""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from mb_data.errors import ShardPlanError
from mb_data.text.input_files import InputRange, located_path
from mb_data.text.selection import Selection
from mb_data.text.shards.cut import Shard, ShardInput
from mb_data.text.shards.files import write_text

_NAME = "plan.jsonl"
_ADVICE = "Pass the options of the first call, or --overwrite to build everything again."


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
            shards that are whole have none.
    """
    lines = [json.dumps(asdict(options))]
    lines += [json.dumps([_as_data(entry) for entry in shard]) for shard in shards]
    path = folder / _NAME
    before = path.read_text().splitlines() if path.exists() else []
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
    with (folder / _NAME).open() as stream:
        values = json.loads(next(stream))
    return ShardOptions(**{**values, "selection": Selection(**values["selection"])})


def read_inputs(folder: Path, number: int) -> list[ShardInput]:
    """Return the inputs of a shard."""
    with (folder / _NAME).open() as stream:
        entries = json.loads(next(islice(stream, 1 + number, None)))
    return [
        ShardInput(
            part=InputRange(path=located_path(entry["path"]), start=entry["start"], end=entry["end"]),
            size=entry["size"],
            version=entry["version"],
        )
        for entry in entries
    ]


def _as_data(entry: ShardInput) -> dict[str, Any]:
    part = entry.part
    return {
        "path": str(part.path),
        "start": part.start,
        "end": part.end,
        "size": entry.size,
        "version": entry.version,
    }


def _require_same_options(path: Path, there: dict[str, Any], here: dict[str, Any]) -> None:
    if here["selection"]["bad_lines"] == "skip" and isinstance(there.get("selection"), dict):
        there["selection"]["bad_lines"] = "skip"
    names = [field.name for field in fields(ShardOptions) if there.get(field.name) != here[field.name]]
    if names:
        listed = "; ".join(f"{name} was {there.get(name)!r} and is {here[name]!r}" for name in names)
        raise ShardPlanError(f"{path}: the build to resume has other options: {listed}. {_ADVICE}")
