"""Fields of Megatron's TransformerConfig, read from its source: importing it would import torch. No torch."""

import ast
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

SOURCES = (
    ("model_parallel_config.py", "ModelParallelConfig"),
    ("transformer/transformer_config.py", "TransformerConfig"),
    ("transformer/transformer_config.py", "MLATransformerConfig"),
)
"""File below `megatron/core` and class in it; the default of a name is that of the first class that declares it."""

RENAMED: Mapping[str, str] = MappingProxyType({"cuda_graph_scope": "cuda_graph_modules"})
"""Former name of a field -> its name."""


@cache
def megatron_fields() -> Mapping[str, object]:
    """Return the fields of the installed TransformerConfig with their defaults; empty without Megatron Core.

    A default that is no literal is `...`, which is the default of no field.
    """
    spec = find_spec("megatron")
    folders = [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]
    core = next((folder / "core" for folder in folders if (folder / "core" / SOURCES[0][0]).is_file()), None)
    found: dict[str, object] = {}
    for path in SOURCES:
        for name, value in () if core is None else _declared(core, *path):
            found.setdefault(name, value)
    return found


def _declared(core: Path, file: str, class_name: str) -> Iterator[tuple[str, object]]:
    """Yield the annotated names of a class, with their defaults."""
    for node in ast.parse((core / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    yield item.target.id, _default(item.value)


def _default(value: ast.expr | None) -> object:
    if isinstance(value, ast.Call):  # of dataclasses.field
        options = {keyword.arg: keyword.value for keyword in value.keywords}
        factory = options.get("default_factory")
        value = (
            ast.List([]) if isinstance(factory, ast.Name) and factory.id == "list" else options.get("default")
        )
    try:
        return ... if value is None else ast.literal_eval(value)
    except ValueError:
        return ...


def named(value: object) -> object:
    """Return the name of an activation function or of a member of an enumeration; any other value unchanged."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, list):
        return [item.name if isinstance(item, Enum) else item for item in value]
    if callable(value) and not isinstance(value, type) and hasattr(value, "__name__"):
        return value.__name__
    return value
