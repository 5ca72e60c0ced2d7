"""Fingerprint of the data from which Megatron's sample indices are built."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mb_data.text.shards.manifest import is_sharded, manifest_path, read_manifest
from mb_data.text.shards.s3 import SCHEME, read_s3_manifest

_END_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class PairState:
    """Sizes in bytes and modification times in nanoseconds of a pair, the `.bin` file first."""

    sizes: tuple[int, int]
    modified: tuple[int, int]


def pair_state(prefix: str) -> PairState:
    """Return the sizes and modification times of a pair; of shards the size of all, and the time of their manifest.

    Raises:
        FileNotFoundError: A file does not exist.
    """
    index = Path(f"{prefix}.idx").stat()
    if is_sharded(prefix):
        size, manifest = sum(file.bytes for file in read_manifest(prefix)), manifest_path(prefix).stat()
        return PairState((size, index.st_size), (manifest.st_mtime_ns, index.st_mtime_ns))
    tokens = Path(f"{prefix}.bin").stat()
    return PairState((tokens.st_size, index.st_size), (tokens.st_mtime_ns, index.st_mtime_ns))


def pair_states(prefixes: Sequence[str]) -> dict[str, PairState]:
    """Return the state of each pair by its prefix. Object storage (`s3://`, `msc://`) has none.

    Raises:
        FileNotFoundError: A file does not exist.
    """
    return {prefix: pair_state(prefix) for prefix in prefixes if "://" not in prefix}


def data_fingerprint(
    prefixes: Sequence[str],
    *,
    settings: Sequence[object] = (),
    states: Mapping[str, PairState] | None = None,
    content: str | None = None,
) -> str:
    """Return a hash of the sizes, modification times, and first and last megabyte of the index of each pair.

    Megatron names its cached sample indices by path and settings, not by content. Without this fingerprint, an index of
    data that changed since would be reused. Reads at most two megabytes per pair. A pair in object storage (`s3://`,
    `msc://`) is identified by its address only, shards in S3 also by their manifest.

    Args:
        prefixes: Paths of `.bin`/`.idx` pairs, without suffix.
        settings: Additional values that the indices depend on.
        states: State of each pair, if it is known.
        content: `content_digest`, if it is known.

    Raises:
        FileNotFoundError: A file does not exist.
    """
    states = pair_states(prefixes) if states is None else states
    modified = [states[prefix].modified for prefix in prefixes if prefix in states]
    described = [list(settings), list(prefixes), modified]
    content = content or content_digest(prefixes, states)
    return hashlib.sha256(f"{described!r} {content}".encode()).hexdigest()[:24]


def content_digest(prefixes: Sequence[str], states: Mapping[str, PairState]) -> str:
    """Return a hash of the sizes and the first and last megabyte of the index of each pair, without paths and times."""
    digest = hashlib.sha256()
    for prefix in prefixes:
        if prefix.startswith(SCHEME):
            digest.update(read_s3_manifest(prefix) or b"")
        if "://" in prefix:
            continue
        digest.update(f"{states[prefix].sizes}\0".encode())
        with Path(f"{prefix}.idx").open("rb") as stream:
            start = stream.read(_END_BYTES)
            digest.update(start)
            if len(start) == _END_BYTES:
                stream.seek(max(0, stream.seek(0, 2) - _END_BYTES))
                start = stream.read(_END_BYTES)
            digest.update(start)  # of a smaller index, the first megabyte is also the last one
    return digest.hexdigest()
