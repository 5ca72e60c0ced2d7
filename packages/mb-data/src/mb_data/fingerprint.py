"""Fingerprint of the data from which Megatron's sample indices are built."""

import hashlib
from collections.abc import Sequence

from mb_data.indexed import pair_paths

_END_BYTES = 1 << 20


def data_fingerprint(prefixes: Sequence[str], *, settings: Sequence[object] = ()) -> str:
    """Return a hash of the sizes, modification times, and first and last megabyte of the index of each pair.

    Megatron names its cached sample indices by path and settings, not by content. Without this fingerprint, an index of
    data that changed since would be reused. Reads at most two megabytes per pair. Object storage (`s3://`, `msc://`) is
    identified by its address only.

    Args:
        prefixes: Paths of `.bin`/`.idx` pairs, without suffix.
        settings: Additional values that the indices depend on.

    Raises:
        FileNotFoundError: A file does not exist.
    """
    digest = hashlib.sha256(repr(list(settings)).encode())
    for prefix in prefixes:
        digest.update(prefix.encode() + b"\0")
        if "://" in prefix:
            continue
        for path in pair_paths(prefix):
            status = path.stat()
            digest.update(f"{status.st_size} {status.st_mtime_ns}\0".encode())
        with pair_paths(prefix)[1].open("rb") as stream:
            digest.update(stream.read(_END_BYTES))
            stream.seek(max(0, stream.seek(0, 2) - _END_BYTES))
            digest.update(stream.read())
    return digest.hexdigest()[:24]
