"""Reader and writer of safetensors files, one tensor at a time. The only module that imports safetensors."""

import json
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from mb_models.hf.errors import HuggingFaceError
from mb_models.hf.text_part import text_tensor

INDEX = "model.safetensors.index.json"


class TensorFolder:
    """Reader of all safetensors files of a folder. Files are memory-mapped, and a tensor is read on access.

    Of a model with an image encoder it reads the text part, under the names of a model of text alone.

    Attributes:
        left_out: number of tensors of the image encoder.

    Raises:
        HuggingFaceError: there is no such file, one cannot be read, or one that the index names is missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._files: dict[str, tuple[Any, str]] = {}
        self.left_out = 0
        index = folder / INDEX
        names = sorted(path.name for path in folder.glob("*.safetensors"))
        if index.is_file():
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        if not names:
            raise HuggingFaceError(
                f"{folder}: holds no *.safetensors, because the weights are in another format or elsewhere. Save the "
                "model with safe serialization."
            )
        try:
            for name in names:
                file = self._stack.enter_context(safe_open(folder / name, "pt"))
                self._add(file)
        except (OSError, SafetensorError) as error:
            self._stack.close()
            raise HuggingFaceError(
                f"{folder / name}: cannot be read ({error}). Download the file again."
            ) from error

    def _add(self, file: Any) -> None:
        for stored in file.keys():  # noqa: SIM118 (a file is no mapping)
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


class ShardWriter:
    """Writer of tensors into numbered files of bounded size, and of their index. Holds one file's tensors at a time."""

    def __init__(self, folder: Path, *, shard_bytes: int) -> None:
        self._folder, self._limit = folder, shard_bytes
        self._shards: list[list[str]] = []
        self._held: dict[str, torch.Tensor] = {}
        self._held_bytes = self._total = 0

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Add a tensor; writes a file when the held tensors reach the size limit."""
        size = tensor.numel() * tensor.element_size()
        if self._held and self._held_bytes + size > self._limit:
            self._flush()
        self._held[name] = tensor.detach().cpu().contiguous().clone()
        self._held_bytes += size
        self._total += size

    def finish(self) -> None:
        """Write the last file, rename all files to their final names, and write the index if there are several."""
        if self._held:
            self._flush()
        count = len(self._shards)
        where: dict[str, str] = {}
        for number, names in enumerate(self._shards, start=1):
            name = "model.safetensors" if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"
            self._part(number).replace(self._folder / name)
            where |= dict.fromkeys(names, name)
        if count > 1:
            index = {"metadata": {"total_size": self._total}, "weight_map": dict(sorted(where.items()))}
            (self._folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")

    def _flush(self) -> None:
        self._shards.append(sorted(self._held))
        save_file(self._held, self._part(len(self._shards)), metadata={"format": "pt"})
        self._held, self._held_bytes = {}, 0

    def _part(self, number: int) -> Path:
        return self._folder / f"part-{number:05d}.safetensors.tmp"
