"""Manifest of a sharded data set: the files that hold the tokens of one index. Standard library only.

`PREFIX.idx` is the index of all shards, as of one pair, and `PREFIX.shards/manifest.json` names the files that are its
`.bin` in order. Each shard is a pair of its own as well, which other programs read.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mb_data.errors import IndexedFormatError
from mb_data.text.input_files import read_blocks

MANIFEST = "manifest.json"
"""Name of the manifest in the folder of the shards."""

_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFile:
    """Tokens of one shard."""

    path: Path
    """Path of the `.bin` file."""
    bytes: int
    documents: int
    digest: str
    """BLAKE2b hash of the `.bin` file, of 16 bytes, in hexadecimal."""


def manifest_path(prefix: str | Path) -> Path:
    """Return the path of the manifest of a prefix, whose existence makes it a sharded data set."""
    return Path(f"{prefix}.shards", MANIFEST)


def is_sharded(prefix: str | Path) -> bool:
    """Return whether the tokens of a prefix are in shards. A `.bin` file of this name comes first."""
    return manifest_path(prefix).is_file() and not Path(f"{prefix}.bin").exists()


def encode_manifest(files: list[ShardFile]) -> str:
    """Return the content of the manifest of files in its folder."""
    entries = [{**asdict(file), "path": file.path.name} for file in files]
    return json.dumps({"version": _VERSION, "shards": entries}, indent=1)


def read_manifest(prefix: str | Path) -> list[ShardFile]:
    """Return the files of a sharded data set, in the order of its tokens. Their sizes are not compared.

    Raises:
        IndexedFormatError: The manifest is damaged, or names files outside of its folder.
    """
    path = manifest_path(prefix)
    return parse_manifest(path.read_bytes(), path.parent)


def parse_manifest(encoded: bytes, folder: Path) -> list[ShardFile]:
    """Return the files of the manifest of a folder.

    Raises:
        IndexedFormatError: The manifest is damaged, or names files outside of its folder.
    """
    try:
        content: Any = json.loads(encoded)
        if content["version"] != _VERSION:
            raise ValueError(f"version {content['version']} instead of {_VERSION}")
        return [_shard_file(folder, entry) for entry in content["shards"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise IndexedFormatError(
            f"{folder / MANIFEST}: is not the manifest of shards ({type(error).__name__}: {error}). Build the data "
            "again; complete shards are kept."
        ) from error


def count_files(prefix: str | Path) -> int:
    """Return the number of files that hold the index and the tokens of a prefix: two of a pair."""
    return 1 + (len(read_manifest(prefix)) if is_sharded(prefix) else 1)


def file_digest(path: Path) -> str:
    """Return the hash of a file."""
    digest = hashlib.blake2b(digest_size=16)
    for block in read_blocks(path):
        digest.update(block)
    return digest.hexdigest()


def _shard_file(folder: Path, entry: Any) -> ShardFile:
    name, size, documents, digest = (entry[key] for key in ("path", "bytes", "documents", "digest"))
    if not isinstance(name, str) or Path(name).name != name or name.startswith("."):
        raise ValueError(f"{name!r} is not the name of a file in its folder")
    if not (type(size) is int and type(documents) is int and size >= 0 and documents >= 0):
        raise ValueError(f"{name}: {size!r} bytes and {documents!r} documents")
    return ShardFile(path=folder / name, bytes=size, documents=documents, digest=str(digest))
