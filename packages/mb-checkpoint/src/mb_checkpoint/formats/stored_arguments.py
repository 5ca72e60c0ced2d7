"""Arguments and counters in a checkpoint of Megatron-LM, read without Megatron and without executing what it names.

The entry is a pickle that also names classes of Megatron. Here each of them is replaced by a class without behaviour,
so that numbers and texts are read and nothing is imported or called.
"""

import io
import pickle
from argparse import Namespace
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

from mb_checkpoint.formats.layout import COMMON_FILE, COMMON_STATE, LEGACY_FILE, TENSOR_INDEX, legacy_ranks
from mb_checkpoint.formats.megatron_lm import ARGUMENTS
from mb_checkpoint.formats.unpickling import FrozenCall, read_metadata, read_piece, reject_change
from mb_schema.declared_sizes import pickle_in_archive


def read_common_state(directory: Path) -> dict[str, Any]:
    """Return the state that is identical on all ranks; empty if the checkpoint has none in a form of Megatron Core.

    Values that are not numbers, texts or containers of them, such as tensors, are replaced by None.

    Raises:
        OSError: A file cannot be read.
        UnsafeCheckpointError: The index names code.
        Exception: A damaged file, see `select.DAMAGED`.
    """
    with _content(directory) as stream:
        state = {} if stream is None else _plain(_inert(stream), {})
    state = state[0] if isinstance(state, list) and state else state
    return state if isinstance(state, dict) else {}


def read_arguments(directory: Path) -> Mapping[str, Any] | None:
    """Return the arguments of Megatron-LM in a checkpoint, without those that are None; None if it holds none.

    Raises: see `read_common_state`.
    """
    arguments = read_common_state(directory).get(ARGUMENTS)
    return (
        {name: value for name, value in vars(arguments).items() if value is not None} if arguments else None
    )


def _inert(stream: BinaryIO) -> Any:
    """Return the objects in a file of torch.save without its tensors."""
    return _InertUnpickler(io.BytesIO(pickle_in_archive(stream))).load()


def _content(directory: Path) -> AbstractContextManager[BinaryIO | None]:
    """Open the file of the entry, or its bytes; None if there is none."""
    file = directory / COMMON_FILE
    if file.is_file():
        return file.open("rb")
    if ranks := legacy_ranks(directory):
        return (ranks[0] / LEGACY_FILE).open("rb")
    if not (directory / TENSOR_INDEX).is_file():
        return nullcontext()
    for entry, piece in (read_metadata(directory).storage_data or {}).items():
        if entry.fqn == COMMON_STATE:
            return io.BytesIO(read_piece(directory, piece))
    return nullcontext()


def read_legacy_tensors(directory: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape and dtype of each weight in the legacy layout, with several ranks under `<folder>/<name>`.

    Raises:
        OSError: A file cannot be read.
        Exception: A damaged file, see `select.DAMAGED`.
    """
    ranks, tensors = legacy_ranks(directory), {}
    for rank in ranks:
        with (rank / LEGACY_FILE).open("rb") as stream:
            state = _inert(stream)
        prefix = f"{rank.name}/" if len(ranks) > 1 else ""
        for section in (
            value for key, value in state.items() if key.startswith("model") and isinstance(value, dict)
        ):
            for key, value in section.items():
                if isinstance(value, _InertTensor):
                    tensors[prefix + key] = (value.shape, value.dtype)
    return tensors


class _Inert:
    """Substitute for a class or function that a pickle names: takes everything and does nothing."""

    def __new__(cls, *_args: Any, **_fields: Any) -> "_Inert":
        return super().__new__(cls)

    def __init__(self, *_args: Any, **_fields: Any) -> None:
        pass

    def __setstate__(self, _state: Any) -> None:
        pass

    def __setitem__(self, _key: Any, _value: Any) -> None:
        pass

    def append(self, _value: Any) -> None:
        pass


class _NewNamespace:
    """Class whose instances are arguments."""

    def __new__(cls) -> Namespace:  # type: ignore[misc]  # an unpickler calls nothing else
        return Namespace()

    __setstate__ = reject_change


class _InertTensor(_Inert):
    """Substitute for a tensor."""

    def __init__(self, storage: Any, _offset: int, size: Any, *_rest: Any) -> None:
        self.shape = tuple(size)
        self.dtype = str(storage)


class _PlainDict(dict[Any, Any]):
    """Substitute for an ordered dictionary with attributes, such as the metadata of a module's state."""


_DTYPES = {
    "FloatStorage": "float32",
    "BFloat16Storage": "bfloat16",
    "HalfStorage": "float16",
    "DoubleStorage": "float64",
}


class _InertUnpickler(pickle.Unpickler):
    """Unpickler that imports nothing."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = {
            ("argparse", "Namespace"): _NewNamespace,
            ("collections", "OrderedDict"): FrozenCall(_PlainDict),
            ("torch._utils", "_rebuild_tensor_v2"): FrozenCall(_InertTensor),
        }
        storage = module == "torch" and name.endswith("Storage")
        return _DTYPES.get(name, name) if storage else allowed.get((module, name), _Inert)

    def persistent_load(self, identifier: Any) -> Any:
        return identifier[1]  # the type of the storage


def _plain(value: Any, converted: dict[int, Any]) -> Any:
    """Return a value with None in place of every substitute; what occurs repeatedly in it is converted once."""
    if isinstance(value, _Inert) or value is _Inert:
        return None
    if not isinstance(value, Namespace | dict | list | tuple):
        return value
    if id(value) not in converted:
        if isinstance(value, Namespace):
            plain: Any = Namespace(**{name: _plain(item, converted) for name, item in vars(value).items()})
        elif isinstance(value, dict):
            plain = {key: _plain(item, converted) for key, item in value.items()}
        else:
            plain = type(value)(_plain(item, converted) for item in value)
        converted[id(value)] = plain
    return converted[id(value)]
