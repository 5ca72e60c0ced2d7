"""Reader and writer of safetensors files, one tensor at a time. The only module that imports safetensors."""

import json
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from mb_models.errors import HuggingFaceError
from mb_models.hf.text_part import text_tensor
from mb_schema.file_names import FileNameError, checked_name
from mb_schema.files import replaced

INDEX = "model.safetensors.index.json"


def _named_files(index: Path) -> list[str]:
    """Return the files that an index names, which are in its folder.

    Raises:
        HuggingFaceError: it is not an index, or names other files.
    """
    try:
        names = json.loads(index.read_bytes())["weight_map"].values()
        return sorted({checked_name(name) for name in names})
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        reason = (
            str(error) if isinstance(error, FileNameError) else f"is not an index ({type(error).__name__})"
        )
        raise HuggingFaceError(f"{index}: {reason}. Download the file again.") from error


class TensorFolder:
    """Reader of all safetensors files of a folder. Files are memory-mapped, and a tensor is read on access.

    Of a model with further parts it reads the text part, under the names of a model of text alone.

    Attributes:
        total_bytes: size of the files.
        left_out: number of tensors of the image encoder, and of layers for further tokens.

    Raises:
        HuggingFaceError: there is no such file, one cannot be read, or one that the index names is missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._files: dict[str, tuple[Any, str]] = {}
        self.left_out, self.total_bytes = 0, 0
        index = folder / INDEX
        names = sorted(path.name for path in folder.glob("*.safetensors"))
        if index.is_file():
            names = _named_files(index)
        if not names:
            raise HuggingFaceError(
                f"{folder}: holds no *.safetensors, because the weights are in another format or elsewhere. Save the "
                "model with safe serialization."
            )
        try:
            for name in names:
                file = self._stack.enter_context(safe_open(folder / name, "pt"))
                self._add(file)
                self.total_bytes += (folder / name).stat().st_size
        except (OSError, SafetensorError) as error:
            self._stack.close()
            raise HuggingFaceError(
                f"{folder / name}: cannot be read ({error}). Download the file again."
            ) from error

    def _add(self, file: Any) -> None:
        for stored in file.keys():  # noqa: SIM118 (a file is not a mapping)
            name = text_tensor(stored)
            if name is None:
                self.left_out += 1
            else:
                self._files[name] = file, stored

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def names(self) -> set[str]:
        """Return the names of all tensors."""
        return set(self._files)

    def dtype(self) -> torch.dtype:
        """Return the data type of the first tensor by name."""
        name = min(self._files)
        return self.part(name, split=0, start=0, stop=1).dtype

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor; reads only the header."""
        return tuple(self._slice(name).get_shape())

    def part(self, name: str, *, split: int | None, start: int, stop: int) -> torch.Tensor:
        """Read `start` to `stop` along the dimension `split`, or the complete tensor if that is None."""
        stored = self._slice(name)
        if split is None:
            part: torch.Tensor = stored[:]
        else:
            part = stored[start:stop] if split == 0 else stored[:, start:stop]
        return part

    def _slice(self, name: str) -> Any:
        if name not in self._files:
            raise HuggingFaceError(
                f"{self._folder}: has no tensor {name}, which config.json requires. Download the folder again."
            )
        file, stored = self._files[name]
        return file.get_slice(stored)


def write_tensors(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write a file, which has its name when it is complete and on the disk."""
    created = path.with_name(f".{path.name}.mode")
    created.touch()
    with replaced(path, durable=True) as part:
        save_file(dict(tensors), part, metadata={"format": "pt"})
        shutil.copymode(created, part)  # safetensors creates files that only the user may read
    created.unlink()
