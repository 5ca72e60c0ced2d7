"""Extra state of modules (`_extra_state`) that a checkpoint does not hold.

Modules of Transformer Engine have one such entry each, which is empty except for 8-bit scales. Megatron's own layers
and torch's norms have fewer or none, so that checkpoints written by them, or imported ones, lack entries that the
layers on a GPU request.

The scales of delayed scaling are a pickle inside a tensor of bytes. Transformer Engine unpickles it without
restrictions, and since 2.20 only if an environment variable of the process permits it. Here a pickle that names
nothing but tensors and recipes is permitted while weights are loaded, and any other one only below a trusted folder.
"""

import io
import os
import pickle
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from megatron.core.safe_globals import SafeUnpickler, safe_load_from_bytes

from mb_checkpoint import mcore
from mb_checkpoint.formats.trust import is_trusted
from mb_checkpoint.formats.unpickling import check_object, unsafe_names
from mb_schema.declared_sizes import check_pickle

_PERMIT = "NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE"
"""Environment variable that Transformer Engine reads at each load of a module's extra state."""

NAME = re.compile(r"(.+\.)?_extra_state\d*")
"""Names of extra-state entries: torch's name, with a number for the second and later of grouped experts."""


def missing_entries(
    sections: Mapping[str, Any], contents: mcore.CheckpointContents
) -> dict[str, dict[str, Any]]:
    """Return, by section and name, the extra state of this rank that a checkpoint lacks, with its current values.

    Args:
        sections: Sharded weights of this rank.
        contents: Contents of the checkpoint.
    """
    stored = mcore.entries_in_checkpoint(sections, contents)
    return {
        section: {
            name: entry.data
            for name, entry in entries.items()
            if NAME.fullmatch(name) and name not in stored[section]
        }
        for section, entries in sections.items()
    }


def without_entries(sections: Mapping[str, Any], missing: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sections without the entries of `missing`."""
    return {
        section: {name: entry for name, entry in entries.items() if name not in missing[section]}
        for section, entries in sections.items()
    }


def count_nonempty(missing: Mapping[str, Mapping[str, Any]]) -> int:
    """Count the entries with a value, such as 8-bit scales, that the checkpoint lacks."""
    values = [value for entries in missing.values() for value in entries.values()]
    return sum(value is not None and value.numel() > 0 for value in values)


def _load_from_bytes(content: bytes) -> Any:
    check_object(io.BytesIO(content))
    return safe_load_from_bytes(content)


class _ScalesUnpickler(SafeUnpickler):  # type: ignore[misc]  # Megatron Core has no types
    """Megatron Core's unpickler of 8-bit scales, and of the storage of a tensor, which is a pickle in the pickle."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what a pickle names, if it is in Megatron Core's list."""
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return _load_from_bytes
        return super().find_class(module, name)


def reject_code(
    sections: Mapping[str, Mapping[str, Any]], path: Path
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return loaded weights without scales that would execute code, and the reason for each that was left out.

    Args:
        sections: Loaded weights, by section and name.
        path: Folder of the checkpoint; below a trusted folder everything is kept.
    """
    without_code: dict[str, dict[str, Any]] = {}
    reasons = []
    for section, entries in sections.items():
        without_code[section] = {}
        for name, value in entries.items():
            reason = None if not NAME.fullmatch(name) or is_trusted(path) else _code_in(value)
            if reason is not None:
                reasons.append(reason)
                value = torch.empty(0, dtype=torch.uint8)  # how a module without scales saves none
            without_code[section][name] = value
    return without_code, reasons


def _code_in(value: Any) -> str | None:
    """Return why extra state cannot be read without executing code; None if it can."""
    if isinstance(value, io.BytesIO):  # Transformer Engine 1: a file of torch.save
        try:
            check_object(value)
        except pickle.UnpicklingError as error:
            return str(error)
        names = unsafe_names(value)
        value.seek(0)
        return f"names {names[0]}" if names else None
    if not isinstance(value, torch.Tensor) or value.dtype != torch.uint8 or not value.numel():
        return None
    try:
        content = value.numpy(force=True).tobytes()
        check_pickle(content)
        _ScalesUnpickler(io.BytesIO(content)).load()
    except Exception as error:  # noqa: BLE001  # damaged bytes raise anything
        return str(error).strip() or type(error).__name__
    return None


@contextmanager
def permitted() -> Iterator[None]:
    """Let Transformer Engine unpickle extra state within this block, after `reject_code`."""
    previous = os.environ.get(_PERMIT)
    os.environ[_PERMIT] = "1"
    try:
        yield
    finally:
        if previous is None:
            del os.environ[_PERMIT]
        else:
            os.environ[_PERMIT] = previous
