"""Sizes that a file declares, compared with its length before a reader allocates them. No torch.

A pickle of 14 bytes can make its reader allocate gigabytes, as can an archive whose entries are compressed.
"""

import io
import pickle
import pickletools
import zipfile
from typing import BinaryIO

_LINE, _BYTE = pickletools.UP_TO_NEWLINE, pickletools.TAKEN_FROM_ARGUMENT1
_BYTES_OF_LENGTH = {
    _BYTE: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_ARGUMENTS = {ord(each.code): 0 if each.arg is None else each.arg.n for each in pickletools.opcodes}
"""Opcode -> bytes of its argument; negative for those whose length is in the file."""
_TUPLES, _DEEPEST = frozenset(b"\x85\x86\x87t"), 1000
_DIGITS = 20
_TOO_MANY = "has more numbered objects than bytes"
_TWO_LINES = frozenset(b"ci")
_PUT, _LONG_PUT, _STOP = ord("p"), ord("r"), ord(".")


def check_pickle(content: bytes) -> None:
    """Check the opcodes of a pickle, without reading it: the memory of its reader is in proportion to its length.

    Raises:
        pickle.UnpicklingError: It is cut short, or has an opcode whose argument is larger than the pickle.
    """
    position, end, depth = 0, len(content), 0
    while position < end:
        code = content[position]
        depth = depth + 1 if code in _TUPLES else 0
        if depth > _DEEPEST:  # a hash of it would overflow the stack of the process
            raise pickle.UnpicklingError(f"has tuples of more than {_DEEPEST} levels")
        size = _ARGUMENTS.get(code)
        if size is None:
            raise pickle.UnpicklingError(f"has an unknown opcode {code}")
        position += 1
        if size < 0:
            size = _length(content, position, code, size)
        if code == _LONG_PUT and int.from_bytes(content[position : position + 4], "little") > end:
            raise pickle.UnpicklingError(_TOO_MANY)
        position += size
        if code == _STOP:
            return
    raise pickle.UnpicklingError("is cut short")


def _length(content: bytes, position: int, code: int, kind: int) -> int:
    """Return the length of an argument, with the bytes that hold its length."""
    if kind == _LINE:
        stop = content.find(b"\n", position) + 1
        number = content[position:stop].strip()
        if code == _PUT and not (number.isdigit() and len(number) < _DIGITS and int(number) <= len(content)):
            raise pickle.UnpicklingError(_TOO_MANY)
        stop = content.find(b"\n", stop) + 1 if stop and code in _TWO_LINES else stop
        length = stop - position
    else:
        width = _BYTES_OF_LENGTH[kind]
        length = width + int.from_bytes(content[position : position + width], "little")
    if not 0 < length <= len(content) - position:
        raise pickle.UnpicklingError("is cut short")
    return length


def check_archive(stream: BinaryIO) -> None:
    """Check the directory of a file of torch.save: its entries are stored as they are, and are no larger than the file.

    The position of the stream is unchanged. A file of another kind passes.

    Raises:
        pickle.UnpicklingError: An entry is compressed, or the entries are larger than the file.
    """
    start = stream.tell()
    try:
        length = stream.seek(0, io.SEEK_END) - start
        stream.seek(start)
        if stream.read(2) != b"PK":
            return
        with zipfile.ZipFile(stream) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, ValueError, RuntimeError) as error:
        raise pickle.UnpicklingError(f"has no readable directory ({error})") from error
    finally:
        stream.seek(start)
    if any(each.compress_type != zipfile.ZIP_STORED for each in entries):
        raise pickle.UnpicklingError("has compressed entries, which torch.save does not write")
    if sum(each.file_size for each in entries) > length:
        raise pickle.UnpicklingError("has entries that are larger than the file")


def pickle_in_archive(stream: BinaryIO) -> bytes:
    """Return the pickle in a file of torch.save, whose sizes were checked.

    Raises:
        pickle.UnpicklingError: It is no such file, or declares sizes that it does not have.
    """
    check_archive(stream)
    try:
        with zipfile.ZipFile(stream) as archive:
            name = next(each for each in archive.namelist() if each.endswith("data.pkl"))
            found = archive.read(name)
    except (zipfile.BadZipFile, ValueError, RuntimeError, EOFError, StopIteration) as error:
        raise pickle.UnpicklingError(f"is no archive of torch.save ({type(error).__name__})") from error
    check_pickle(found)
    return found
