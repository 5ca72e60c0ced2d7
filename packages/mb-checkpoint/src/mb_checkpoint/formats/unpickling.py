"""Reading of checkpoint files without executing their contents.

A pickle names classes and functions, and plain unpickling imports and calls them. Two kinds of data in a checkpoint are
pickles: `.metadata`, the index of the tensors, and the objects (entries that are not tensors) in `*.distcp` and `*.pt`.

* The index is read by `read_metadata`, which accepts only the classes of torch.distributed.checkpoint's own metadata.
* Objects are read with torch's `weights_only=True`: tensors, builtins and the classes that torch and Megatron Core
  registered as safe. `weights_only` also enforces this in calls of `torch.load(..., weights_only=False)` by torch or
  Megatron Core.

A checkpoint of another program may need more. `trust.trusted` lifts both restrictions for folders that the caller
names.
"""

import io
import os
import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import lru_cache
from importlib import import_module
from pathlib import Path, PosixPath, PurePosixPath
from typing import Any, BinaryIO

import torch
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, StorageMeta
from torch.distributed.checkpoint.planner import WriteItemType

from mb_checkpoint.errors import DamagedCheckpointError, UnsafeCheckpointError
from mb_checkpoint.formats.layout import TENSOR_INDEX
from mb_checkpoint.formats.trust import is_trusted
from mb_schema.declared_sizes import check_pickle, check_saved
from mb_schema.file_names import checked_name, path_inside

_LARGEST = 2**63
_FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
"""Environment variable that torch.load reads at each call; it overrides the argument `weights_only=False`."""

_METADATA = "torch.distributed.checkpoint.metadata"
_PLANNER = "torch.distributed.checkpoint.planner"
_FILES = "torch.distributed.checkpoint.filesystem"
_RECORDS = frozenset(
    {
        *((_METADATA, name) for name in ("Metadata", "MetadataIndex", "StorageMeta", "ChunkStorageMetadata")),
        *(
            (_METADATA, name)
            for name in ("TensorStorageMetadata", "BytesStorageMetadata", "TensorProperties")
        ),
        # Megatron Core keeps the plans of all ranks in the index, to reuse them in the next save
        *((_PLANNER, name) for name in ("SavePlan", "WriteItem", "TensorWriteData", "BytesIOWriteData")),
        *((_FILES, name) for name in ("_StoragePrefix", "_StorageInfo", "StorageTransformExtension")),
    }
)
"""(module, name) of the dataclasses that an index may hold."""
_VALUES: Mapping[tuple[str, str], Callable[..., Any]] = {
    (_METADATA, "_MEM_FORMAT_ENCODING"): metadata._MEM_FORMAT_ENCODING,
    (_PLANNER, "WriteItemType"): WriteItemType,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    ("torch", "Size"): torch.Size,
    ("torch", "device"): torch.device,
    ("collections", "OrderedDict"): OrderedDict,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "slice"): slice,
    ("builtins", "complex"): complex,
    ("pathlib", "PosixPath"): PosixPath,
    ("pathlib", "PurePosixPath"): PurePosixPath,
    ("pathlib._local", "PosixPath"): PosixPath,
    ("pathlib._local", "PurePosixPath"): PurePosixPath,
}
"""(module, name) of the other globals that an index may name, apart from torch's dtypes. None allocates by a number."""


class SafeFileSystemReader(FileSystemReader):
    """torch's reader of checkpoint folders, with the index read by `read_metadata`."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the index; see `read_metadata`."""
        metadata = read_metadata(Path(self.path))
        metadata.storage_meta.load_id = self.load_id  # type: ignore[union-attr]  # there since `read_metadata`
        return metadata


def read_metadata(directory: Path) -> Metadata:
    """Return the index of a checkpoint's tensors, `.metadata`.

    Raises:
        UnsafeCheckpointError: It names a class or function that no index needs.
        OSError: It cannot be read.
        Exception: Unpickling of a damaged file failed, see `select.DAMAGED`.
    """
    path = directory / TENSOR_INDEX
    if path in _shared:
        return _shared[path]
    with path.open("rb") as stream:
        identity = _identity(os.fstat(stream.fileno()))
        metadata = _decoded(stream, path)
    if not is_trusted(path):
        _checked[path] = identity
    return metadata


_shared: dict[Path, Metadata] = {}
"""Index -> its content, for the block of `shared_index`."""


@contextmanager
def shared_index(directory: Path, content: bytes) -> Iterator[None]:
    """Use the content of an index, which one rank has read for all, in place of its file within the block.

    Raises:
        Exception: See `read_metadata`.
    """
    path = directory / TENSOR_INDEX
    _shared[path] = _decoded(io.BytesIO(content), path)
    try:
        yield
    finally:
        del _shared[path]


def _decoded(stream: BinaryIO, path: Path) -> Metadata:
    metadata = _unpickled(stream, path)
    if not isinstance(metadata, Metadata):
        raise pickle.UnpicklingError(f"holds a {type(metadata).__name__} instead of an index")
    _check_pieces(metadata, path.parent)
    if metadata.storage_meta is None:
        metadata.storage_meta = StorageMeta()
    return metadata


def read_piece(directory: Path, piece: Any) -> bytes:
    """Return the bytes of an entry, from the position that an index has for it.

    Raises:
        pickle.UnpicklingError: The file is shorter.
        OSError: It cannot be read.
    """
    with path_inside(directory, piece.relative_path).open("rb") as stream:
        if piece.offset + piece.length > os.fstat(stream.fileno()).st_size:
            raise pickle.UnpicklingError(f"has an entry beyond the end of {piece.relative_path}")
        stream.seek(piece.offset)
        return stream.read(piece.length)


def _check_pieces(index: Metadata, directory: Path) -> None:
    """Check the files and positions that an index names: torch and Megatron open them as they are.

    Raises:
        pickle.UnpicklingError: It holds something else in their place.
        FileNameError: A file is not in the folder of the checkpoint.
    """
    if not isinstance(index.state_dict_metadata, dict) or not isinstance(index.storage_data, dict | None):
        raise pickle.UnpicklingError("has no list of entries")
    pieces = (index.storage_data or {}).values()
    for piece in pieces:
        numbers = (getattr(piece, "offset", None), getattr(piece, "length", None))
        if not all(type(value) is int and 0 <= value < _LARGEST for value in numbers):
            raise pickle.UnpicklingError("has an entry without a position")
    names = dict.fromkeys(checked_name(getattr(piece, "relative_path", None)) for piece in pieces)
    for name in names:
        path_inside(directory, name)


def _unpickled(stream: BinaryIO, path: Path) -> Any:
    """Unpickle builtins and the classes of an index; anything below a trusted folder.

    Raises:
        UnsafeCheckpointError: The pickle names something else.
    """
    if is_trusted(path):
        return pickle.load(stream)
    is_checked = not isinstance(stream, io.BytesIO) and _checked.get(path) == _identity(
        os.fstat(stream.fileno())
    )
    content = stream.read()
    if not is_checked:
        check_pickle(content)
    return _Restricted(content, path).load()


def load_object(stream: BinaryIO, *, path: Path) -> Any:
    """Return an object that torch.save wrote, with tensors on the CPU.

    Raises:
        UnsafeCheckpointError: It holds more than tensors, builtins and classes registered with torch as safe.
    """
    if is_trusted(path):
        return torch.load(stream, map_location="cpu", weights_only=False)
    start = stream.tell()
    try:
        check_object(stream)
        return torch.load(stream, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        stream.seek(start)
        if names := unsafe_names(stream):
            raise _unsafe(path, names[0]) from error
        raise


def check_object(stream: BinaryIO) -> None:
    """Check the sizes that a file of torch.save declares, before torch reads it with `weights_only=True`.

    Raises:
        pickle.UnpicklingError: It declares sizes that it does not have.
    """
    pickles = check_saved(stream)
    if any(b"%s\nbytearray\n" % module in pickles for module in (b"builtins", b"__builtin__")):
        raise pickle.UnpicklingError("makes a bytearray, whose size may be any number")


@contextmanager
def weights_only(path: Path, *, classes: Sequence[type] = ()) -> Iterator[None]:
    """Make every torch.load of this process reject code within the block, even with `weights_only=False`.

    It checks the sizes that a file declares, too. The index in the folder `path` is checked first, and torch's reader
    takes it from `read_metadata`. All threads of this process are affected: torch reads an environment variable, and
    libraries find `torch.load` in its module.

    Args:
        path: Folder of the checkpoint.
        classes: Additional classes that are allowed in objects.

    Raises:
        UnsafeCheckpointError: The index, or an object that the block reads, names something that is not allowed.
        DamagedCheckpointError: torch cannot read what the index names.
    """
    if is_trusted(path):
        with _reported_as_damage(path):
            yield
        return
    _check_index(path)
    previous, load, read_index = os.environ.get(_FORCE), torch.load, FileSystemReader.read_metadata
    os.environ[_FORCE] = "1"
    torch.load = _checked_load
    FileSystemReader.read_metadata = SafeFileSystemReader.read_metadata  # type: ignore[method-assign, assignment]
    try:
        with torch.serialization.safe_globals(list(classes)):
            try:
                with _reported_as_damage(path):
                    yield
            except Exception as error:
                # torch and Megatron wrap the error; the files identify the cause better than the exception.
                if name := _unsafe_in(path):
                    raise _unsafe(path, name) from error
                raise
    finally:
        torch.load = load
        FileSystemReader.read_metadata = read_index  # type: ignore[method-assign]
        if previous is None:
            del os.environ[_FORCE]
        else:
            os.environ[_FORCE] = previous


@contextmanager
def _reported_as_damage(path: Path) -> Iterator[None]:
    """Raise torch's `CheckpointException` as an `Exception`, which it is not, so that other ranks learn of it."""
    try:
        yield
    except CheckpointException as error:
        reason = next((str(failure[0]) for failure in error.failures.values()), str(error))
        raise DamagedCheckpointError(
            f"{path}: cannot be read ({reason:.200}). Find the damaged files with verify_checkpoint."
        ) from error


_load = torch.load


def _checked_load(f: Any, *args: Any, **kwargs: Any) -> Any:
    with Path(f).open("rb") if isinstance(f, str | os.PathLike) else nullcontext(f) as stream:
        check_object(stream)
    return _load(f, *args, **kwargs)


_checked: dict[Path, tuple[int, ...]] = {}
"""Index -> size, modification time and inode of the file that was last found safe; large ones take long to read."""


def _check_index(directory: Path) -> None:
    path = directory / TENSOR_INDEX
    if path not in _shared and path.is_file() and _checked.get(path) != _identity(path.stat()):
        read_metadata(directory)


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


class _Restricted(pickle.Unpickler):
    def __init__(self, content: bytes, path: Path) -> None:
        super().__init__(io.BytesIO(content))
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _RECORDS:
            return _record(module, name)
        if (module, name) in _VALUES:
            return FrozenCall(_VALUES[module, name])
        if module == "torch" and isinstance(dtype := vars(torch).get(name), torch.dtype):
            return dtype
        raise _unsafe(self._path, f"{module}.{name}")


def reject_change(_self: object, _state: object = None) -> None:
    """Reject the opcode BUILD; the method `__setstate__` of substitutes of a class."""
    raise pickle.UnpicklingError("would change a class of this process")


@lru_cache
def _record(module: str, name: str) -> type:
    """Return a class whose instances are those of a dataclass of torch.

    A pickle never holds the class itself: the opcode BUILD sets attributes of whatever object it is applied to.
    """
    stored = getattr(import_module(module), name)
    created = {"__new__": lambda _cls: object.__new__(stored), "__setstate__": reject_change}
    return type(name, (), created)


class FrozenCall:
    """Call of a function or class, in place of itself, for the same reason as `_record`."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        """Return the result of the call."""
        return self._call(*arguments)

    __setstate__ = reject_change


def _unsafe(path: Path, name: str) -> UnsafeCheckpointError:
    return UnsafeCheckpointError(
        f"{path}: names {name}, which reading it would execute. This version and Megatron Core write no such file. If "
        "you trust its author, pass --trust with its folder, or set checkpoint.trust=true."
    )


def reject_code(path: Path) -> None:
    """Check a file of torch.save without reading its tensors.

    Raises:
        UnsafeCheckpointError: It names something that `weights_only=True` rejects.
    """
    with path.open("rb") as stream:
        if names := unsafe_names(stream):
            raise _unsafe(path, names[0])


def unsafe_names(stream: BinaryIO) -> list[str]:
    """Return the classes and functions in a file of torch.save that `weights_only=True` rejects."""
    with suppress(Exception):  # damaged files have no readable names
        check_saved(stream)
        return list(torch.serialization.get_unsafe_globals_in_checkpoint(stream))
    return []


def _unsafe_in(directory: Path) -> str | None:
    """Return the first such name in the objects of a checkpoint; None if there is none."""
    for content in _objects(directory):
        if names := unsafe_names(io.BytesIO(content)):
            return names[0]
    return None


def _objects(directory: Path) -> Iterator[bytes]:
    """Yield the bytes of each object in a checkpoint."""
    for path in sorted(directory.glob("*.pt")):
        yield path.read_bytes()
    if not (directory / TENSOR_INDEX).is_file():
        return
    index = read_metadata(directory)
    for entry, piece in (index.storage_data or {}).items():
        if isinstance(index.state_dict_metadata.get(entry.fqn), BytesStorageMetadata):
            yield read_piece(directory, piece)
