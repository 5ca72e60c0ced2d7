"""What identifies the data that Megatron's sample indices were built from."""

import hashlib
from collections.abc import Sequence

from mb_data.indexed import pair_paths

_END_BYTES = 1 << 20


def data_fingerprint(prefixes: Sequence[str], *, settings: Sequence[object] = ()) -> str:
    """Hash `.bin`/`.idx` pairs by sizes, times of change, and the first and last megabyte of each index.

    Megatron names its cached sample indices by path and settings, not by content, so an index of data that have changed
    since would be taken for the right one. Reads at most two megabytes a pair. Object storage (`s3://`, `msc://`) is
    identified by its address alone.

    Args:
        prefixes: Paths without suffix.
        settings: Further values that the indices depend on.

    Raises:
        FileNotFoundError: A file is not there.
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
