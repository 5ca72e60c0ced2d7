"""Checksums of files, which detect damage. No torch."""

import hashlib
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Literal

Checksum = Literal["xxh3_128", "sha256"]
"""Algorithm: XXH3 with 128 bits, at about the speed of memory, or SHA-256, which `sha256sum` computes as well.

Both detect damage by disks, networks and interrupted copies. Neither proves who wrote a file.
"""

HASHES: Mapping[str, Callable[[], Any]] = {
    "xxh3_128": lambda: import_module(
        "xxhash"
    ).xxh3_128(),  # not at the top: the rules need only the standard library
    "sha256": hashlib.sha256,
}
"""Algorithm -> function that returns an empty hash, with the methods of those of hashlib."""
