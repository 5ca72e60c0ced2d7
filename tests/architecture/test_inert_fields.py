"""No field is ignored silently: some code reads it by name, Megatron Core reads it, or a rule rejects it."""

import ast
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from house import PACKAGES

from mb_trainer.config import ConfigContainer
from mb_trainer.run.rules import RULES

TYPES = get_type_hints(ConfigContainer)
CASES = [
    pytest.param(section.name, cls, id=f"{section.name}-{cls.__name__}")
    for section in fields(ConfigContainer)
    for cls in get_args(TYPES[section.name]) or [TYPES[section.name]]
    if is_dataclass(cls)
]
"""Each section with each of its possible classes."""
PASSED_TO_MEGATRON = ("ddp", "optimizer", "model", "dataset")
"""Sections whose fields are all passed to Megatron Core."""

BY_PREFIX = ("muon_", "adaptive_muon_", "soap_", "lion_")
"""Fields that Megatron Core finds by the name of the algorithm and of its argument."""

NOT_READERS = ("sections", "rules", "megatron_defaults", "plain_config.py", "precision_table.py", "rules.py")
"""Files that name fields without using their values."""

HONOURED = {
    "train.exit_signal_handler": "the trainer always saves and stops on the signal: true is what happens",
    "train.exit_signal_handler_for_dataloader": "data workers always outlive the signal: true is what happens",
    "dataset.data_sharding": "the order is the same for every data-parallel size: false is what happens, as documented",
    "checkpoint.auto_detect_ckpt_format": "the layout of a checkpoint is always found out: true is what happens",
}


def source_files() -> Iterator[Path]:
    """Yield the source files of the repository that may use a field."""
    folders = [package.source for package in PACKAGES]
    folders.append(Path(str(importlib.util.find_spec("mb_trainer").submodule_search_locations[0])))
    for folder in folders:
        for path in folder.rglob("*.py"):
            if not {*path.relative_to(folder).parts} & {*NOT_READERS}:
                yield path


def names_read(path: Path) -> Iterator[str]:
    """Yield the attributes that a file reads, and the last words of the paths that it spells out."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.rpartition(".")[2]


@pytest.fixture(scope="module")
def read_here():
    """Names that our code reads."""
    return {name for path in source_files() for name in names_read(path)}


@pytest.fixture(scope="module")
def read_by_megatron():
    """Names that Megatron Core reads, outside the classes that hold them."""
    (core,) = importlib.util.find_spec("megatron.core").submodule_search_locations
    files = [path for path in Path(core).rglob("*.py") if not path.name.endswith("_parallel_config.py")]
    return {
        name
        for path in files
        if path.name not in ("optimizer_config.py", "transformer_config.py")
        for name in re.findall(r"\.([A-Za-z_]\w*)|'(\w+)'|\"(\w+)\"", path.read_text())
        for name in name
        if name
    }


def refused() -> set[str]:
    """Return the fields for which a rule rejects some value."""
    return {path for rule in RULES for path in rule.fails}


def spread(name: str) -> bool:
    """Return whether resolution copies a field of a precision recipe to another section or to the model."""
    model = {"first_last_layers_bf16", "num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"}
    targets = {item.name for section in ("ddp", "optimizer") for item in fields(TYPES[section])}
    return name in targets | model or name.startswith(("fp8", "fp4", "pipeline_dtype", "autocast_dtype"))


def inert(section: str, cls: type, read_here: set[str], read_by_megatron: set[str]) -> Iterator[str]:
    """Yield the paths of fields that no code reads and no rule rejects."""
    for item in fields(cls):
        path = f"{section}.{item.name}"
        passed = section in PASSED_TO_MEGATRON and (
            item.name in read_by_megatron or item.name.startswith(BY_PREFIX)
        )
        known = item.name in read_here or passed or path in refused() or path in HONOURED
        if item.init and not known and not (section == "mixed_precision" and spread(item.name)):
            yield path


@pytest.mark.parametrize(("section", "cls"), CASES)
def test_no_field_is_accepted_and_ignored(section, cls, read_here, read_by_megatron):
    assert list(inert(section, cls, read_here, read_by_megatron)) == []


def test_a_field_that_no_code_reads_is_found():
    assert list(inert("train", TYPES["train"], set(), set())) != []
