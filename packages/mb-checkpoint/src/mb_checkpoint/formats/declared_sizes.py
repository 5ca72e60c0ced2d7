"""Sizes that a file declares, compared with its length before a reader allocates them. No torch.

A pickle of 14 bytes can make its reader allocate gigabytes, as can an archive whose entries are compressed. One of
200 kB can nest tuples so deeply that their hash overflows the stack of the process.
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
_DEEPEST = 100
"""Levels of an object in others. A stack of 8 MiB is enough for the hash of some 100,000, and an object that holds
itself repeats its levels some hundreds of times, until Python stops at its recursion limit."""
_DIGITS = 20
_TOO_MANY = "has more numbered objects than bytes"
_TWO_LINES = frozenset(b"ci")
_MARKED = pickletools.markobject
_TAKEN = {
    ord(each.code): (
        _MARKED in each.stack_before,
        each.stack_before.index(_MARKED) if _MARKED in each.stack_before else len(each.stack_before),
    )
    for each in pickletools.opcodes
}
"""Opcode -> whether it takes what is above the last mark of the stack, and how many further objects it takes."""
_CHANGES = frozenset(b"aesu\x90b")
"""Opcodes that put objects into one that is there; the others make a new one."""
_MARK, _POP, _POP_MARK, _DUP, _MEMOIZE = b"(012\x94"
_PUTS, _GETS = frozenset(b"pqr"), frozenset(b"ghj")
_NUMBERED, _IN_TEXT = _PUTS | _GETS, frozenset(b"pg")
_WITHOUT_OBJECT = frozenset(b"\x80\x95.")
_ALONE = frozenset(code for code, taken in _TAKEN.items() if taken == (False, 0)) - {
    *(_MARK, _DUP, _MEMOIZE),
    *(_NUMBERED | _WITHOUT_OBJECT),
}
"""Opcodes of an object that takes no other."""
_PUT, _LONG_PUT, _STOP = ord("p"), ord("r"), ord(".")


def check_pickle(content: bytes) -> None:
    """Check the opcodes of a pickle, without reading it: the memory of its reader is in proportion to its length.

    Raises:
        pickle.UnpicklingError: It is cut short, has an opcode whose argument is larger than the pickle, or has objects
            in each other in more levels than any checkpoint.
    """
    position, end, levels = 0, len(content), _Levels()
    while position < end:
        code = content[position]
        size = _ARGUMENTS.get(code)
        if size is None:
            raise pickle.UnpicklingError(f"has an unknown opcode {code}")
        position += 1
        if size < 0:
            size = _length(content, position, code, size)
        if code == _LONG_PUT and int.from_bytes(content[position : position + 4], "little") > end:
            raise pickle.UnpicklingError(_TOO_MANY)
        levels.apply(code, content[position : position + size] if code in _NUMBERED else b"")
        position += size
        if code == _STOP:
            return
    raise pickle.UnpicklingError("is cut short")


class _Levels:
    """The stack of a pickle's reader, with the levels of each object in place of the object."""

    def __init__(self) -> None:
        # of one element each: an object is on the stack, and again in the memo, while others are put into it
        self._stack: list[list[int]] = []
        self._memo: dict[int, list[int]] = {}
        self._marks: list[int] = []

    def apply(self, code: int, argument: bytes) -> None:
        """Do to the stack what the reader does at an opcode.

        Raises:
            pickle.UnpicklingError: The pickle takes what it does not have, or an object has too many levels.
        """
        stack = self._stack
        try:
            if code in _WITHOUT_OBJECT:
                return
            if code in _ALONE:
                stack.append([0])
            elif code == _MEMOIZE:
                self._memo[len(self._memo)] = stack[-1]
            elif code in _NUMBERED:
                number = int(argument) if code in _IN_TEXT else int.from_bytes(argument, "little")
                if code in _PUTS:
                    self._memo[number] = stack[-1]
                else:
                    stack.append(self._memo[number])
            elif code == _DUP:
                stack.append(stack[-1])
            elif code == _MARK:
                self._marks.append(len(stack))
            elif code == _POP and self._marks and self._marks[-1] == len(stack):
                self._marks.pop()
            else:
                self._combine(code)
        except (IndexError, KeyError, ValueError) as error:
            raise pickle.UnpicklingError("takes an object that it does not have") from error

    def _combine(self, code: int) -> None:
        stack, (to_mark, count) = self._stack, _TAKEN[code]
        start = (self._marks.pop() if to_mark else len(stack)) - count
        if start < (self._marks[-1] if self._marks else 0):
            raise IndexError(code)
        taken = stack[start:]
        del stack[start:]
        if code in (_POP, _POP_MARK):
            return
        result = taken.pop(0) if code in _CHANGES else [0]
        if taken:
            result[0] = max(result[0], 1 + max(each[0] for each in taken))
            if result[0] > _DEEPEST:
                raise pickle.UnpicklingError(f"has objects in each other in more than {_DEEPEST} levels")
        stack.append(result)


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
        raise pickle.UnpicklingError(f"is not an archive of torch.save ({type(error).__name__})") from error
    check_pickle(found)
    return found
