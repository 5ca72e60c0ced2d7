"""Explanation of a rule, with its examples as YAML."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import indent
from typing import Any

from mb_config.problems import RuleLike, plain
from mb_config.yaml_file import dump_yaml

_FACTS = "facts:"
_NOT_IN_A_FILE = "facts:  # not in a file: set by options, the launcher or the machine"


def explain(rule: RuleLike) -> str:
    """Return the fields, reason and fix of a rule, an example that fails with its message, and one that passes."""
    message = rule.test(*(rule.fails.get(path) for path in rule.fields))
    return "\n".join(
        [
            f"{rule.id} ({rule.severity})",
            f"reads:  {', '.join(rule.fields)}",
            f"why:    {rule.why}",
            f"fix:    {rule.fix}",
            "fails:",
            _yaml(rule.fails),
            f"message: {rule.fields[0].removeprefix('facts.')}: {message}",
            "passes:",
            _yaml(rule.passes),
        ]
    )


def _yaml(values: Mapping[str, object]) -> str:
    tree: dict[str, Any] = {}
    for path, value in values.items():
        section, _, name = path.partition(".")
        if name:
            tree.setdefault(section, {})[name] = plain(value)
        else:
            tree[section] = plain(value)
    text = dump_yaml(tree) if tree else "# none of these fields is set\n"
    return indent(text.replace(_FACTS, _NOT_IN_A_FILE, 1).rstrip("\n"), "  ")
