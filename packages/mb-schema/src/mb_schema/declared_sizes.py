"""Sizes that a file declares, compared with its length before a reader allocates them.

A pickle of 14 bytes can make its reader allocate gigabytes, as can an archive whose entries are compressed. One of
200 kB can nest tuples so deeply that their hash overflows the stack of the process.
"""

import io
import pickle
import pickletools
import re
import zipfile
from typing import Any, BinaryIO

_BYTES_OF_LENGTH = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_OPCODES = {ord(each.code): each for each in pickletools.opcodes}
_ARGUMENTS = {code: 0 if each.arg is None else each.arg.n for code, each in _OPCODES.items()}
"""Opcode -> bytes of its argument; negative for those whose length is in the file."""
_DEEPEST = 100
"""Levels of an object in others. A stack of 8 MiB is enough for the hash of some 100,000, and an object that holds
itself repeats its levels some hundreds of times, until Python stops at its recursion limit."""
_DIGITS = 20
_PICKLES_BEFORE_ARCHIVES = 5
"""Magic number, version, system, object, names of the storages, which follow."""
_TOO_MANY = "has more numbered objects than bytes"
_TOO_DEEP = f"has objects in each other in more than {_DEEPEST} levels"
_TWO_LINES = frozenset(b"ci")
_MARK, _POP, _DUP, _MEMOIZE, _GET, _LONG_GET, _TEXT_GET, _STOP = b"(02\x94hjg."
_PUT, _LONG_PUT, _TEXT_PUT, _POP_MARK, _INSTANCE = b"qrp1i"
_WITHOUT_OBJECT = b"\x80\x95"
_PAIRS = frozenset(b"R\x81\x86")
"""The most frequent of the opcodes that make an object of others: a call, an instance, a tuple."""
_CHANGES = b"aesu\x90b"
_UNCHANGEABLE = (
    *(pickletools.pyint, pickletools.pyinteger_or_bool, pickletools.pybool, pickletools.pyfloat),
    *(pickletools.pynone, pickletools.pytuple),
)
_NUMBER = re.compile(rb"K.|M..|J.{4}|G.{8}|[N\x88\x89]", re.DOTALL).findall
_NUMBERS = re.compile(rb"(?:K.|M..|J.{4}|G.{8}|[N\x88\x89]){1,1000}", re.DOTALL).match
_LEAF = [0]
_LEAVES = [0] * 256
"""Opcode -> its bytes, if it makes an object that holds no other and never will; else 0."""
_WIDTHS = [_BYTES_OF_LENGTH.get(_ARGUMENTS.get(_code, 0), 0) for _code in range(256)]
"""Opcode of a text, bytes or a large number -> bytes of its length; else 0."""
_TAKEN: list[tuple[bool, int, bool] | None] = [None] * 256
"""Opcode without an argument that makes or changes an object -> whether it takes what is above the last mark of the
stack, how many further objects it takes, and whether it puts the others into the first of them."""
for _code, _each in _OPCODES.items():
    _before, _after = _each.stack_before, _each.stack_after
    if not _before and _after and _after[0] in _UNCHANGEABLE:
        _LEAVES[_code] = max(0, 1 + _ARGUMENTS[_code])
    elif _ARGUMENTS[_code] == 0 and len(_after) == 1 and _code not in (_MARK, _MEMOIZE):
        _marked = pickletools.markobject in _before
        _count = _before.index(pickletools.markobject) if _marked else len(_before)
        _TAKEN[_code] = (_marked, _count, _code in _CHANGES)


def check_pickle(  # noqa: C901, PLR0912, PLR0915 - calls for frequent opcodes would double its time
    content: bytes, position: int = 0
) -> int:
    """Check the opcodes of a pickle, without reading it: the memory of its reader is in proportion to its length.

    Follows the stack of the reader, with the levels of each object in place of the object. Returns the position of the
    end; what follows it is not checked.

    Raises:
        pickle.UnpicklingError: It is cut short, has an opcode whose argument is larger than the pickle, or has objects
            in each other in more levels than any checkpoint.
    """
    # lists of one number: an object is on the stack, and again in the memo, while others are put into it
    stack: list[list[int]] = []
    memo: dict[int, list[int]] = {}
    marks: list[int] = []
    leaves, takes, widths, push, pop = _LEAVES, _TAKEN, _WIDTHS, stack.append, stack.pop
    number_in = int.from_bytes
    end = len(content)
    try:
        while True:
            code = content[position]
            position += 1
            if code == _MEMOIZE:
                memo[len(memo)] = stack[-1]
            elif code == _LONG_GET:
                push(memo[number_in(content[position : position + 4], "little")])
                position += 4
            elif code == _GET:
                push(memo[content[position]])
                position += 1
            elif size := leaves[code]:
                push(_LEAF)
                position += size - 1
            elif code in _PAIRS:
                second, first = pop()[0], pop()[0]
                if len(stack) < (marks[-1] if marks else 0):
                    raise IndexError(code)
                push([1 + (first if first > second else second)])
                if stack[-1][0] > _DEEPEST:
                    raise pickle.UnpicklingError(_TOO_DEEP)
            elif taken := takes[code]:
                to_mark, count, changes = taken
                start = (marks.pop() if to_mark else len(stack)) - count
                if start < (marks[-1] if marks else 0):
                    raise IndexError(code)
                inner = stack[start:]
                del stack[start:]
                outer = inner.pop(0) if changes else [0]
                if inner and (level := 1 + max(inner)[0]) > outer[0] and outer is not _LEAF:
                    if level > _DEEPEST:
                        raise pickle.UnpicklingError(_TOO_DEEP)
                    outer[0] = level
                push(outer)
            elif width := widths[code]:
                push(_LEAF)
                position += width + number_in(content[position : position + width], "little")
            elif code == _MARK:
                marks.append(len(stack))
                if numbers := _NUMBERS(content, position):  # of a list, which a data set has by the million
                    stack += [_LEAF] * len(_NUMBER(numbers[0]))
                    position = numbers.end()
            elif code == _STOP:
                return position
            else:
                size = _size(content, position, code)
                _apply(code, content[position : position + size], stack, memo, marks)
                position += size
    except (IndexError, KeyError, ValueError) as error:
        problem = "is cut short" if position >= end else "takes an object that it does not have"
        raise pickle.UnpicklingError(problem) from error


def _apply(
    code: int, argument: bytes, stack: list[list[int]], memo: dict[int, list[int]], marks: list[int]
) -> None:
    """Do to the stack what the reader does at an opcode that is not frequent, or has an argument."""
    if code in (_PUT, _LONG_PUT, _TEXT_PUT):
        memo[int(argument) if code == _TEXT_PUT else int.from_bytes(argument, "little")] = stack[-1]
    elif code == _TEXT_GET:
        stack.append(memo[int(argument)])
    elif code == _DUP:
        stack.append(stack[-1])
    elif code in (_POP_MARK, _INSTANCE):
        level = max(stack[marks[-1] :], default=_LEAF)[0]
        del stack[marks.pop() :]
        if level >= _DEEPEST:
            raise pickle.UnpicklingError(_TOO_DEEP)
        stack += [[1 + level]] if code == _INSTANCE else []
    elif code != _POP:
        stack += [] if code in _WITHOUT_OBJECT else [[0]]
    elif marks and marks[-1] == len(stack):
        marks.pop()
    else:
        stack.pop()


def _size(content: bytes, position: int, code: int) -> int:
    """Return the bytes of the argument of an opcode."""
    size = _ARGUMENTS.get(code)
    if size is None:
        raise pickle.UnpicklingError(f"has an unknown opcode {code}")
    if code == _LONG_PUT and int.from_bytes(content[position : position + 4], "little") > len(content):
        raise pickle.UnpicklingError(_TOO_MANY)
    return size if size >= 0 else _line(content, position, code)


def _line(content: bytes, position: int, code: int) -> int:
    """Return the bytes of an argument that ends with its line."""
    stop = content.find(b"\n", position) + 1
    number = content[position:stop].strip()
    if code == _TEXT_PUT and not (number.isdigit() and len(number) < _DIGITS and int(number) <= len(content)):
        raise pickle.UnpicklingError(_TOO_MANY)
    stop = content.find(b"\n", stop) + 1 if stop and code in _TWO_LINES else stop
    if not stop:
        raise pickle.UnpicklingError("is cut short")
    return stop - position


def check_saved(stream: BinaryIO) -> bytes:
    """Check the sizes in a file of torch.save: an archive, or the pickles of torch before 1.6. Return its pickles.

    The position of the stream is unchanged.

    Raises:
        pickle.UnpicklingError: It is no such file, or declares sizes that it does not have.
    """
    if _is_archive(stream):
        return pickle_in_archive(stream)
    start, position = stream.tell(), 0
    content = stream.read()
    stream.seek(start)
    for _ in range(_PICKLES_BEFORE_ARCHIVES):
        position = check_pickle(content, position)
    return content[:position]


def pickle_in_archive(stream: BinaryIO) -> bytes:
    """Return the pickle in an archive of torch.save: its entries are stored as they are, and fit into the file.

    The position of the stream is unchanged.

    Raises:
        pickle.UnpicklingError: It is no such archive, or declares sizes that it does not have.
    """
    if not _is_archive(stream):
        raise pickle.UnpicklingError("is not an archive of torch.save")
    start = stream.tell()
    stream.seek(0, io.SEEK_END)
    length = stream.tell() - start
    try:
        with io.BufferedReader(_View(stream, start, length)) as view, zipfile.ZipFile(view) as archive:
            entries = archive.infolist()
            if any(each.compress_type != zipfile.ZIP_STORED for each in entries):
                raise pickle.UnpicklingError("has compressed entries, which torch.save does not write")
            if sum(each.file_size for each in entries) > length:
                raise pickle.UnpicklingError("has entries that are larger than the file")
            # torch takes one of them, whatever the case of its name
            pickles = [each for each in entries if each.filename.lower().endswith("data.pkl")]
            if len(pickles) != 1:
                raise pickle.UnpicklingError(
                    f"is not an archive of torch.save (it has {len(pickles)} pickles)"
                )
            found = archive.read(pickles[0])
    except (zipfile.BadZipFile, ValueError, RuntimeError, EOFError) as error:
        raise pickle.UnpicklingError(f"has no readable directory ({error})") from error
    finally:
        stream.seek(start)
    check_pickle(found)
    return found


def _is_archive(stream: BinaryIO) -> bool:
    """Return whether torch reads a file as an archive, by its first bytes."""
    start = stream.tell()
    found = stream.read(4) == b"PK\x03\x04"
    stream.seek(start)
    return found


class _View(io.RawIOBase):
    """A part of a stream. That of torch.distributed.checkpoint cannot seek to a position before its end."""

    def __init__(self, stream: BinaryIO, start: int, length: int) -> None:
        self._stream, self._start, self._length, self._position = stream, start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._position = offset + {io.SEEK_CUR: self._position, io.SEEK_END: self._length}.get(whence, 0)
        if self._position < 0:
            raise ValueError(f"position {self._position}")
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        self._stream.seek(self._start + self._position)
        content = self._stream.read(max(0, min(len(buffer), self._length - self._position)))
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)
