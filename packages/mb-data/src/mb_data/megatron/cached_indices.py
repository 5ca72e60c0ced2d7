"""Validation of cached sample indices (`*.npy`) before Megatron Core reads them. Requires NumPy."""

from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mb_data.errors import IndexedFormatError

_MAGIC = b"\x93NUMPY"


def require_numeric_arrays(folder: Path) -> None:
    """Reject cached indices of a folder that are not arrays of numbers.

    Raises:
        IndexedFormatError: As for `require_numeric_array`.
    """
    for path in sorted(folder.glob("*.npy")):
        require_numeric_array(path)


def require_numeric_array(path: Path) -> None:
    """Reject a cached index that is not an array of numbers.

    Megatron Core loads the indices with pickles allowed, so an index that is a pickle could execute code. Only the
    header is read. A file that another process has started to write is accepted.

    Raises:
        IndexedFormatError: The file is a pickle, an archive, or an array of Python objects.
    """
    with path.open("rb") as stream:
        start = stream.read(len(_MAGIC))
        stream.seek(0)
        if not _MAGIC.startswith(start) or (start == _MAGIC and _holds_objects(stream)):
            raise IndexedFormatError(
                f"{path}: is not an array of numbers, as a cached sample index is. Reading it could execute code "
                "of its author. Remove the file; the index is built again."
            )


def _holds_objects(stream: BinaryIO) -> bool:
    try:
        return bool(read_npy_dtype(stream).hasobject)
    except ValueError:
        return False  # truncated, or of a version that Megatron Core cannot read either


def read_npy_dtype(stream: BinaryIO) -> np.dtype[Any]:
    """Read the header of an `.npy` file, without its content, and return the type of the array.

    Raises:
        ValueError: The header is damaged, or has another version.
    """
    version = np.lib.format.read_magic(stream)
    read_header = (
        np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    )
    _, _, dtype = read_header(stream)
    return dtype
