"""Fields and defaults of Megatron's configuration classes as data.

`python -m mb_config.mcore_defaults` writes the file from the installed version; `--check` prints the differences.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from importlib.resources import files
from typing import Any

from mb_config.errors import ConfigurationError

CLASSES: Mapping[str, str] = {
    "OptimizerConfig": "megatron.core.optimizer.optimizer_config",
    "DistributedDataParallelConfig": "megatron.core.distributed.distributed_data_parallel_config",
    "TransformerConfig": "megatron.core.transformer.transformer_config",
    "MLATransformerConfig": "megatron.core.transformer.transformer_config",
    "TrainingConfig": "megatron.training.config.training_config",
    "ValidationConfig": "megatron.training.config.training_config",
    "SchedulerConfig": "megatron.training.config.training_config",
    "LoggerConfig": "megatron.training.config.training_config",
    "CheckpointConfig": "megatron.training.config.training_config",
    "TokenizerConfig": "megatron.training.config.training_config",
    "RNGConfig": "megatron.training.config.common_config",
    "ProfilingConfig": "megatron.training.config.common_config",
    "DistributedInitConfig": "megatron.training.config.common_config",
    "RerunStateMachineConfig": "megatron.training.config.resilience_config",
    "StragglerDetectionConfig": "megatron.training.config.resilience_config",
}
"""Class in the data files to its module in Megatron."""


FILE = "fields.json"
"""Data file in this package."""


class UnknownMegatronError(ConfigurationError, LookupError):
    """There is no data for the class of Megatron Core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronField:
    """One field of one of Megatron's classes."""

    default: Any
    """The default as plain data: dtypes, enum members and functions are text."""

    kinds: frozenset[str]
    """Kinds of values: any of int, float, bool, str, null, list, dict, or any."""

    def accepts(self, value: object) -> bool:
        """Return True unless the type of the field excludes the value. An int is accepted for a float.

        The default is always accepted, because some of Megatron's annotations omit None.
        """
        if value == self.default and type(value) is type(self.default):
            return True
        kind = "null" if value is None else type(value).__name__
        return "any" in self.kinds or kind in self.kinds or (kind == "int" and "float" in self.kinds)


def megatron_version() -> str:
    """Return the version of Megatron Core that the data is of."""
    return str(_read()["megatron_core"])


@cache
def megatron_classes() -> dict[str, dict[str, MegatronField]]:
    """Return the fields of each class, in Megatron's order."""
    return parse(_read())


def megatron_fields(name: str) -> Mapping[str, MegatronField]:
    """Return the fields of a class such as `TransformerConfig`, in Megatron's order.

    Raises:
        UnknownMegatronError: If there is no such class; lists the known ones.
    """
    classes = megatron_classes()
    if name not in classes:
        raise UnknownMegatronError(f"{name}: there is no data for this class. Use {', '.join(classes)}.")
    return classes[name]


def megatron_defaults(name: str) -> dict[str, Any]:
    """Return field name to default as plain data; see `megatron_fields`."""
    return {key: item.default for key, item in megatron_fields(name).items()}


def plain_value(value: Any) -> Any:
    """Return a value as in the data files: dtypes, enum members, paths, functions as text, dataclasses as mappings."""
    if value is None or isinstance(value, bool | int | float | str):
        return value.name if isinstance(value, Enum) else value
    if isinstance(value, list | tuple | set | frozenset):
        items = [plain_value(item) for item in value]
        return items if isinstance(value, list | tuple) else sorted(items)
    if is_dataclass(value) and not isinstance(value, type):
        value = {item.name: getattr(value, item.name) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    return _word(value)


def _word(value: Any) -> str:
    if isinstance(value, Enum):
        return value.name
    name = getattr(value, "__name__", None) if callable(value) else None
    return str(value).removeprefix("torch.") if name is None else str(name)


def parse(data: Mapping[str, Any]) -> dict[str, dict[str, MegatronField]]:
    """Return the classes in the content of a data file."""
    return {
        name: {
            key: MegatronField(default=default, kinds=frozenset(kinds.split("|")))
            for key, (default, kinds) in rows.items()
        }
        for name, rows in data["classes"].items()
    }


@cache
def _read() -> Mapping[str, Any]:
    data: Mapping[str, Any] = json.loads((files(__name__) / FILE).read_text(encoding="utf-8"))
    return data
