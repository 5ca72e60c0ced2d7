"""Shards in S3 that a run reads: the index is copied to a folder of this machine, tokens are read by their range.

Megatron Core's reader of S3 holds a client and a block of 256 MiB for each file, which does not suit many shards and
shuffled samples. Here each process has one client, and reads what it needs and nothing else. Requires the extra
`storage`.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mb_data.build_cache import load_or_build
from mb_data.errors import IndexedFormatError
from mb_data.libraries import import_library
from mb_data.text.indexed import index_summary
from mb_data.text.shards.manifest import MANIFEST, ShardFile, parse_manifest
from mb_data.text.shards.tokens import ShardedTokens

SCHEME = "s3://"
_INDEX = "shards.idx"

_clients: dict[int, Any] = {}
"""Client of each process: connections are not shared with the workers of a loader, which are forked."""


def read_s3_manifest(prefix: str) -> bytes | None:
    """Return the manifest of shards in S3; None if there is none at the URL.

    Raises:
        FormatLibraryError: boto3 is not installed.
        The exceptions of botocore: the storage cannot be read.
    """
    client = _client()
    bucket, key = _bucket_and_key(f"{prefix}.shards/{MANIFEST}")
    try:
        content: bytes = client.get_object(Bucket=bucket, Key=key)["Body"].read()
    except client.exceptions.NoSuchKey:
        return None
    return content


def find_s3_shards(prefix: str, *, index_cache: str) -> tuple[Path, list[ShardFile]] | None:
    """Return a copy of the index of shards in S3, and their files; None if there are none at the URL.

    The index is copied once for each state of the data set, by one process of a machine.

    Args:
        prefix: URL without suffix.
        index_cache: Folder for copies of indices.

    Raises:
        IndexedFormatError: The manifest or the index is damaged, or the index belongs to other shards.
        The exceptions of botocore: the storage cannot be read.
    """
    manifest = read_s3_manifest(prefix)
    if manifest is None:
        return None
    location = prefix.removeprefix(SCHEME)
    files = parse_manifest(manifest, Path(f"{location}.shards"))
    bucket, key = _bucket_and_key(f"{prefix}.idx")

    def load(folder: Path, *, reused: bool) -> Path | None:
        return folder / _INDEX if (folder / _INDEX).exists() else None

    def build(folder: Path) -> None:
        _client().download_file(bucket, key, str(folder / _INDEX))
        summary = index_summary(folder / _INDEX)
        totals = summary.documents, summary.tokens * np.dtype(summary.dtype).itemsize
        expected = sum(file.documents for file in files), sum(file.bytes for file in files)
        if totals != expected:
            raise IndexedFormatError(
                f"{prefix}.idx: has {totals[0]} documents in {totals[1]} bytes, but the shards of its manifest have "
                f"{expected[0]} in {expected[1]}; they are of two builds. Build the data again; complete shards are "
                "kept."
            )

    state = hashlib.sha256(manifest).hexdigest()[:16]
    return load_or_build(Path(index_cache, f"{location}.{state}"), load=load, build=build), files


class S3Tokens(ShardedTokens):
    """Tokens of shards in S3, each piece of which is read by a request."""

    def piece(self, shard: int, begin: int, end: int) -> NDArray[Any]:
        """Return tokens of a shard, by their positions in it.

        Raises:
            IndexedFormatError: The shard is shorter than in its manifest, or is not there.
            The exceptions of botocore: the storage cannot be read.
        """
        url = f"{SCHEME}{self.files[shard].path.as_posix()}"
        bucket, key = _bucket_and_key(url)
        wanted = f"bytes={begin * self.itemsize}-{end * self.itemsize - 1}"
        content = _read_range(bucket, key, wanted)
        if len(content) != (end - begin) * self.itemsize:
            raise IndexedFormatError(
                f"{url}: has {len(content)} bytes at {wanted}; it was removed, cut short or replaced. "
                "Build the data again; complete shards are kept."
            )
        return np.frombuffer(content, self.dtype)


def _read_range(bucket: str, key: str, wanted: str) -> bytes:
    """Return bytes of an object; fewer if it ends before, and none if it is not there."""
    client = _client()
    try:
        content: bytes = client.get_object(Bucket=bucket, Key=key, Range=wanted)["Body"].read()
    except client.exceptions.ClientError as error:
        if error.response["Error"]["Code"] not in ("InvalidRange", "NoSuchKey"):
            raise
        return b""
    return content


def _client() -> Any:
    process = os.getpid()
    if process not in _clients:
        library = import_library("boto3", where="dataset.data_path", purpose="reads S3", extra="storage")
        _clients[process] = library.client("s3")
    return _clients[process]


def _bucket_and_key(url: str) -> Sequence[str]:
    bucket, _, key = url.removeprefix(SCHEME).partition("/")
    return bucket, key
