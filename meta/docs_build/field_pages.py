"""Pages of the configuration: every field of every section with type, default, meaning and the rules that read it."""

import ast
import dataclasses
import inspect
import json
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from types import UnionType
from typing import get_args, get_type_hints

from api_pages import cell, docstring_of, paragraph, rule_link, with_following
from docstring_markup import without_tags

import mb_config
from mb_data import PackedSequenceSpecs
from mb_trainer.config import ConfigContainer
from mb_trainer.run.rules import RULES_BY_PACKAGE

NESTED = {"dataset.packed_sequence_specs": PackedSequenceSpecs}
"""Dataclasses that are values of fields."""


def field_pages() -> dict[str, str]:
    """Return a page for each section, and one that lists the sections."""
    pages = {
        f"reference/fields/{name}.md": section_page(name, classes) for name, classes in sections().items()
    }
    return {**pages, "reference/fields/index.md": index_page()}


def index_page() -> str:
    """Return the list of the sections."""
    lines = [
        "# Sections and fields",
        "",
        "A configuration has these sections. A value is set by its dotted path: `mb pretrain train.train_iters=50`, or",
        "in a YAML file. `mb config show RECIPE --origin` prints all values of a run with their origins, and",
        "`mb rules --field train.micro_batch_size` the rules that read a field.",
        "",
        "| section | fields | purpose |",
        "|---|---|---|",
    ]
    documentation = container_docs()
    for name, classes in sections().items():
        count = len({field.name for item in classes for field in dataclasses.fields(item)})
        lines.append(f"| [`{name}`]({name}.md) | {count} | {cell(documentation.get(name, ''))} |")
    others = [
        (field.name, field.type)
        for field in dataclasses.fields(ConfigContainer)
        if field.name not in sections()
    ]
    lines += ["", "Values of the configuration itself:", "", "| field | type | purpose |", "|---|---|---|"]
    lines += [
        f"| `{name}` | `{cell(str(kind))}` | {cell(documentation.get(name, ''))} |" for name, kind in others
    ]
    return "\n".join([*lines, ""])


@cache
def sections() -> dict[str, list[type]]:
    """Return each section with the classes that it may have."""
    hints = get_type_hints(ConfigContainer)
    found = {}
    for field in dataclasses.fields(ConfigContainer):
        kind = hints[field.name]
        members = get_args(kind) if isinstance(kind, UnionType) or get_args(kind) else (kind,)
        classes = [item for item in members if dataclasses.is_dataclass(item) and dataclasses.fields(item)]
        if classes:
            found[field.name] = classes
    return found


@cache
def container_docs() -> dict[str, str]:
    """Return the documentation of the sections."""
    return {**docs_of(mb_config.ConfigContainer), **docs_of(ConfigContainer)}


def section_page(section: str, classes: list[type]) -> str:
    """Return the page of a section: the fields by the class that declares them."""
    lines = [f"# `{section}`", "", container_docs().get(section, ""), ""]
    if len(classes) > 1:
        lines += ["The section is one of these classes, which a file names in `_target_`:", ""]
        lines += [f"* [`{item.__name__}`](#{item.__name__.lower()}): {summary(item)}" for item in classes]
        lines.append("")
    seen: set[str] = set()
    for owner in declaring_classes(classes):
        lines += class_lines(section, owner, classes, seen)
    for path, nested in NESTED.items():
        if path.startswith(f"{section}."):
            lines += class_lines(path, nested, [nested], seen)
    return "\n".join(lines)


def declaring_classes(classes: list[type]) -> list[type]:
    """Return the classes that declare fields, most general last: what a class adds comes before what it inherits."""
    order = dict.fromkeys(base for item in classes for base in [item])
    order |= dict.fromkeys(base for item in classes for base in item.__mro__)
    return [
        item for item in order if dataclasses.is_dataclass(item) and (item in classes or annotations(item))
    ]


def class_lines(section: str, owner: type, classes: list[type], seen: set[str]) -> list[str]:
    """Return the lines of the fields that a class declares."""
    users = [item for item in classes if issubclass(item, owner)]
    concrete = owner if owner in classes else users[0]
    fields = {field.name: field for field in dataclasses.fields(concrete)}
    lines = [
        f"## {owner.__name__} {{#{owner.__name__.lower()}}}",
        "",
        paragraph(inspect.getdoc(owner) or ""),
        "",
    ]
    if owner not in classes and len(classes) > 1:
        lines += [f"Fields of {', '.join(f'`{item.__name__}`' for item in users)}.", ""]
    for name, kind in annotations(owner).items():
        if name not in fields:
            continue
        path = f"{section}.{name}"
        anchor = path if path not in seen else f"{path}-{owner.__name__.lower()}"
        seen.add(path)
        lines += [f"### `{name}` {{#{anchor}}}", "", f"`{kind}` · {default_text(fields[name])}", ""]
        lines += [without_tags(docs_of(owner).get(name, "")), ""]
        rules = rules_by_field().get(path, [])
        if rules:
            lines += [f"Rules: {', '.join(rules)}", ""]
    return lines


def default_text(field: dataclasses.Field) -> str:
    """Return the default of a field in the words of a YAML file."""
    if field.default is not dataclasses.MISSING:
        return f"default `{as_yaml(field.default)}`"
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
        if dataclasses.is_dataclass(value):
            return f"default: a `{type(value).__name__}` with its defaults"
        return f"default `{as_yaml(value)}`"
    return "required"


def as_yaml(value: object) -> str:
    """Return a value as a YAML file has it."""
    try:
        return json.dumps(value, default=str)
    except TypeError:
        return str(value)


@cache
def rules_by_field() -> dict[str, list[str]]:
    """Return the links to the rules that read each field."""
    found: dict[str, list[str]] = defaultdict(list)
    for package, rules in RULES_BY_PACKAGE.items():
        for rule in rules:
            for path in dict.fromkeys(rule.fields):
                found[path].append(rule_link(rule.id, package, start="../rules"))
    return found


@cache
def annotations(owner: type) -> dict[str, str]:
    """Return the public fields that a class itself declares, with their types as written."""
    return {name: kind for name, kind, _ in declarations(owner) if not name.startswith("_")}


@cache
def docs_of(owner: type) -> dict[str, str]:
    """Return the documentation of the fields that a class itself declares: the text after each."""
    return {name: text for name, _, text in declarations(owner)}


@cache
def declarations(owner: type) -> list[tuple[str, str, str]]:
    """Return name, type and documentation of each field that a class itself declares."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    return list(_declarations(node)) if isinstance(node, ast.ClassDef) else []


def _declarations(node: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    for statement, following in with_following(node.body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            kind = ast.unparse(statement.annotation)
            if not kind.startswith(("ClassVar", "InitVar")):
                yield statement.target.id, " ".join(kind.split()), inspect.cleandoc(docstring_of(following))


def summary(owner: type) -> str:
    """Return the first paragraph of the documentation of a class."""
    return paragraph(inspect.getdoc(owner) or "")
