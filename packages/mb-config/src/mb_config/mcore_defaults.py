"""Record the fields of the configuration classes of the installed Megatron. Importing this file imports torch.

python -m mb_config.mcore_defaults --out FOLDER     writes FOLDER/fields.json
python -m mb_config.mcore_defaults --check          exits with 1 if the data in this package differs
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import megatron.core

from mb_config.megatron_defaults import (
    CLASSES,
    FILE,
    MegatronField,
    megatron_fields,
    parse,
    plain_value,
)
from mb_schema.value_types import options

_WORDS = {int: "int", float: "float", bool: "bool", str: "str", type(None): "null", dict: "dict"}
_SETTINGS = "megatron.training.config."


def installed_version() -> str:
    """Return the version of the installed Megatron Core, without its build tag."""
    return str(megatron.core.__version__).partition("+")[0]


def describe_installed() -> str:
    """Return the data file of the installed Megatron as JSON text with a line per field."""
    blocks = []
    for name, module in CLASSES.items():
        cls = getattr(_module(module), name)
        types_of = typing.get_type_hints(cls)
        rows = [
            f"   {json.dumps(item.name)}: {json.dumps([_default(item), _kinds(types_of[item.name])])}"
            for item in fields(cls)
            if item.init
        ]
        blocks.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(rows) + "\n  }")
    version = json.dumps(installed_version())
    return f'{{\n "megatron_core": {version},\n "classes": {{\n' + ",\n".join(blocks) + "\n }\n}\n"


def drift(known: Mapping[str, MegatronField], installed: Mapping[str, MegatronField]) -> list[str]:
    """Return the differences between two sets of fields, one line each."""
    lines = [f"{name}: was removed" for name in known if name not in installed]
    lines += [
        f"{name}: was added, default {installed[name].default!r}" for name in installed if name not in known
    ]
    for name in (name for name in known if name in installed):
        old, new = known[name], installed[name]
        if old.default != new.default or type(old.default) is not type(new.default):
            lines.append(f"{name}: default {new.default!r}, was {old.default!r}")
        if old.kinds != new.kinds:
            lines.append(f"{name}: holds {'|'.join(sorted(new.kinds))}, was {'|'.join(sorted(old.kinds))}")
    return lines


def drift_from_data() -> dict[str, list[str]]:
    """Return the differences between the installed Megatron and the data in this package by class."""
    found = parse(json.loads(describe_installed()))
    lines = {name: drift(megatron_fields(name), found[name]) for name in CLASSES}
    return {name: changed for name, changed in lines.items() if changed}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or compare the data of the installed version, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m mb_config.mcore_defaults", description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--out", type=Path, metavar="FOLDER", help=f"write {FILE} there")
    action.add_argument("--check", action="store_true", help="compare with the data in this package")
    options_ = parser.parse_args(arguments)
    if options_.check:
        changed = drift_from_data()
        for name, lines in changed.items():
            print("\n".join([name, *(f"  {line}" for line in lines)]))
        return 1 if changed else 0
    file = options_.out / FILE
    file.write_text(describe_installed(), encoding="utf-8")
    print(file)
    return 0


def _module(name: str) -> types.ModuleType:
    """Import a module. Settings of Megatron's trainer are loaded from the file, as its package takes 10 s to import."""
    if not name.startswith(_SETTINGS):
        return import_module(name)
    spec = importlib.util.find_spec("megatron")
    roots = [] if spec is None else [Path(root) for root in spec.submodule_search_locations or ()]
    relative = Path(*name.split(".")[1:]).with_suffix(".py")
    file = next(root / relative for root in roots if (root / relative).is_file())
    own = f"_mb_config_{name.replace('.', '_')}"
    if own not in sys.modules:
        module_spec = importlib.util.spec_from_file_location(own, file)
        if module_spec is None or module_spec.loader is None:
            raise ImportError(f"{file}: cannot be imported", path=str(file))
        sys.modules[own] = importlib.util.module_from_spec(module_spec)
        module_spec.loader.exec_module(sys.modules[own])
    return sys.modules[own]


def _default(item: Field[Any]) -> Any:
    if item.default_factory is not MISSING:
        return plain_value(item.default_factory())
    return None if item.default is MISSING else plain_value(item.default)


def _kinds(annotation: Any) -> str:
    """Return the kinds of values of a field; a type that they cannot express is `any`."""
    kinds: set[str] = set()
    for choice in options(annotation):
        origin = typing.get_origin(choice)
        if origin is Literal:
            kinds |= {_WORDS.get(type(member), "any") for member in typing.get_args(choice)}
        elif origin in (list, tuple, set) or choice in (list, tuple, set):
            kinds.add("list")
        elif origin is dict:
            kinds.add("dict")
        elif isinstance(choice, type) and (issubclass(choice, Enum) or choice.__name__ == "dtype"):
            kinds.add("str")
        else:
            kinds.add(_WORDS.get(choice, "any"))
    return "any" if "any" in kinds else "|".join(sorted(kinds))


if __name__ == "__main__":
    sys.exit(main())
